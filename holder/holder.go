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
}

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

// Start starts a holder and returns when its program runs and the record is on
// disk. Errors: CodeCommandNotFound, CodeCwdUnusable, CodeStartFailed,
// CodeSocketPathTooLong, CodeForeignSocket, CodeDiskFull.
func Start(ctx context.Context, cfg StartConfig) (Running, error) { panic("todo") }

// ReadRunning reads the record in a session's directory, ReadExit the exit
// record, ReadSnapshot the deposited screen. A missing file satisfies
// errors.Is(err, fs.ErrNotExist); a damaged one is CodeRecordUnreadable.
func ReadRunning(dir string) (Running, error) { panic("todo") }

// ReadExit reads the exit record.
func ReadExit(dir string) (berth.Exit, error) { panic("todo") }

// ReadSnapshot reads the deposited screen.
func ReadSnapshot(dir string) (Snapshot, error) { panic("todo") }

// Alive looks whether a holder keeps that directory now: it holds the lock.
func Alive(dir string) (bool, error) { panic("todo") }

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

// Info asks how it stands.
func (c *Client) Info(ctx context.Context) (Info, error) { panic("todo") }

// Resize sets the terminal's size; an unchanged one does nothing.
func (c *Client) Resize(ctx context.Context, size berth.Size) error { panic("todo") }

// Signal signals the foreground process group.
func (c *Client) Signal(ctx context.Context, signal int) error { panic("todo") }

// KillResult says what a kill came to.
type KillResult struct {
	Exit      *berth.Exit // nil = it is still there
	Contained bool
	Survivors []int
}

// Kill ends the program and returns when it is gone. A second call joins the first.
func (c *Client) Kill(ctx context.Context) (KillResult, error) { panic("todo") }

// Deposit leaves a snapshot; an older one than the holder has is ignored.
func (c *Client) Deposit(ctx context.Context, s Snapshot) error { panic("todo") }

// Snapshot gives the newest one; CodeNotFound where there is none.
func (c *Client) Snapshot(ctx context.Context) (Snapshot, error) { panic("todo") }

// ReadLog reads output from an offset, as much as is there, at most len(p).
// CodeOffsetGone with the fact "kept_from", CodeInvalidOffset past the end.
func (c *Client) ReadLog(ctx context.Context, from uint64, p []byte) (int, error) { panic("todo") }

// Quit ends a holder whose program has ended.
func (c *Client) Quit(ctx context.Context) error { panic("todo") }

// Stream follows the output from an offset and takes input.
func (c *Client) Stream(ctx context.Context, from uint64) (*Stream, error) { panic("todo") }

// Stream is one connection. Next is for one goroutine, Input for one other.
type Stream struct{}

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

// Next gives the next item; io.EOF when the holder is gone.
func (s *Stream) Next() (Item, error) { panic("todo") }

// Input writes to the program; it blocks while the program does not read.
func (s *Stream) Input(p []byte) error { panic("todo") }

// Close ends the stream and lets a blocked call return.
func (s *Stream) Close() error { panic("todo") }
