// Package holder is the process that keeps one session: the PTY master, the
// ring and the log of its output, the exit record, one unix socket. The guest
// uses its client half.
//
// A holder depends on nobody: daemon and guest may die, be killed or be
// replaced; the next one finds it by its directory.
package holder

import (
	"context"
	"time"

	"berth"
)

// Spec is what a holder is to keep. It goes to the holder over a pipe and is
// never written to disk, since Env has values.
type Spec struct {
	ID         string     `json:"id"`
	Generation int        `json:"generation"`
	Argv       []string   `json:"argv"`
	Env        []string   `json:"env"`
	Cwd        string     `json:"cwd"`
	Size       berth.Size `json:"size"`
	LogBytes   int64      `json:"log_bytes"` // 0 = no log on disk: the holder stays after the end, until Quit
	RingBytes  int64      `json:"ring_bytes"`
	// KillGrace is the time between two steps of a kill; 0 = DefaultKillGrace.
	KillGrace time.Duration `json:"kill_grace,omitempty"`
	// DrainQuiet is how long the output must be silent after the program's end
	// while others have its terminal open; 0 = DefaultDrainQuiet.
	DrainQuiet time.Duration `json:"drain_quiet,omitempty"`
}

// The defaults of a Spec. Two seconds is what a shell or an editor needs to
// write its history or its swap file. DrainQuiet only counts when a background
// process keeps the terminal open; otherwise the kernel reports the end.
const (
	DefaultKillGrace  = 2 * time.Second
	DefaultDrainQuiet = 500 * time.Millisecond
)

// Running is the record that a holder writes before it reads the first byte.
type Running struct {
	Holder     berth.Identity `json:"holder"`
	Program    berth.Identity `json:"program"`
	Generation int            `json:"generation"`
	StartedAt  time.Time      `json:"started_at"`
	Cgroup     string         `json:"cgroup,omitempty"` // directory of its own cgroup; "" = none could be made
	LogBytes   int64          `json:"log_bytes"`
}

// Snapshot is a screen as it was at an offset. The holder does not look into it.
type Snapshot struct {
	Generation int
	Offset     uint64
	Screen     []byte
}

// StartConfig says how to start a holder.
type StartConfig struct {
	Binary string // path of berth-holder
	Dir    string // the session's directory; exists
	Socket string // path of its socket
	Spec   Spec
	// Scope is called with the holder's PID before the program starts, to move
	// it out of the caller's service; nil = leave it. Its failure is not fatal.
	Scope func(ctx context.Context, pid int) error
}

// Info is what a holder says of itself.
type Info struct {
	Running
	Size    berth.Size
	Start   uint64 // first byte that can still be read, from ring or disk
	End     uint64
	LogFrom uint64 // first byte on disk
	LogSize int64
	LogGap  string // why the recording stopped, or ""
	Exit    *berth.Exit
}

// Client talks to one holder. Each call is a connection of its own.
type Client struct{ socket string }

// NewClient makes a client; it connects at the first call.
func NewClient(socket string) *Client { return &Client{socket} }

// KillResult says what a kill came to.
type KillResult struct {
	Exit      *berth.Exit // nil = it is still there
	Contained bool
	Survivors []int
}

// Kind says what a stream's item is.
type Kind byte

// The kinds.
const (
	KindOutput Kind = iota + 1
	KindGap         // From..To is lost to this reader: it was too slow
	KindExit        // the program ended; the last item
)

// Item is what came next.
type Item struct {
	Kind     Kind
	Offset   uint64 // of Data's first byte
	End      uint64 // end of the output when this was sent: how far the reader lags
	Data     []byte // valid until the next call
	From, To uint64
	Exit     berth.Exit
}
