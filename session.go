package berth

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// SessionState is where a session stands.
//
//	starting ──► running ──► exited
//	    │           │
//	    └───────────┴──────► lost
//
// starting: its holder has been asked for, its program does not run yet.
// running: the program runs. exited: it ended, and the exit record says how.
// lost: its holder went without an exit record (cold boot, kill -9 of the
// holder, host destroyed). unknown is never stored: it is what a reader is told
// while the host cannot be reached.
type SessionState string

// The session states.
const (
	SessionStarting SessionState = "starting"
	SessionRunning  SessionState = "running"
	SessionExited   SessionState = "exited"
	SessionLost     SessionState = "lost"
	SessionUnknown  SessionState = "unknown"
)

// Valid reports whether the state is one of the above.
func (s SessionState) Valid() bool {
	switch s {
	case SessionStarting, SessionRunning, SessionExited, SessionLost, SessionUnknown:
		return true
	}
	return false
}

// Live reports whether the session has, or may have, a running program.
func (s SessionState) Live() bool {
	return s == SessionStarting || s == SessionRunning || s == SessionUnknown
}

// Size is a terminal size in character cells.
type Size struct {
	Cols int `json:"cols"`
	Rows int `json:"rows"`
}

// Bounds of a terminal size. The upper one keeps a screen model under 16 MiB.
const (
	MaxCols = 1000
	MaxRows = 500
)

// DefaultSize is what a session gets when nobody said a size.
var DefaultSize = Size{Cols: 80, Rows: 24}

// Valid reports whether both sides are within bounds.
func (s Size) Valid() bool {
	return s.Cols >= 1 && s.Cols <= MaxCols && s.Rows >= 1 && s.Rows <= MaxRows
}

func (s Size) String() string { return strconv.Itoa(s.Cols) + "x" + strconv.Itoa(s.Rows) }

// ParseSize reads "120x40".
func ParseSize(text string) (Size, error) {
	c, r, ok := strings.Cut(text, "x")
	cols, err1 := strconv.Atoi(c)
	rows, err2 := strconv.Atoi(r)
	size := Size{Cols: cols, Rows: rows}
	if !ok || err1 != nil || err2 != nil || !size.Valid() {
		return Size{}, Errorf(CodeInvalidArgument, "size %q is not COLSxROWS within 1x1 and %dx%d", text, MaxCols, MaxRows).
			WithHint("write it like 120x40")
	}
	return size, nil
}

// SizePolicy says whose terminal decides the size of a session.
type SizePolicy string

// The size policies.
const (
	SizeLatest   SizePolicy = "latest"   // the interactive viewer that typed or attached last
	SizeSmallest SizePolicy = "smallest" // the smallest of all interactive viewers
	SizeFixed    SizePolicy = "fixed"    // nobody; only `resize` changes it
)

// Valid reports whether the policy is one of the above.
func (p SizePolicy) Valid() bool {
	return p == SizeLatest || p == SizeSmallest || p == SizeFixed
}

// ExitReason says why a session has no program any more.
type ExitReason string

// The exit reasons.
const (
	ExitExited    ExitReason = "exited"    // the program ended; Code or Signal says how
	ExitSuspended ExitReason = "suspended" // asleep inside its host, comes back
	ExitEnded     ExitReason = "ended"     // the host lost it: cold boot, holder killed
)

// Exit is how a program ended.
type Exit struct {
	Code   int        `json:"code"`             // exit status; 128+n after signal n
	Signal string     `json:"signal,omitempty"` // "SIGKILL"; empty when it exited by itself
	Reason ExitReason `json:"reason"`
	Detail string     `json:"detail,omitempty"` // for ended: what was seen ("the machine restarted")
	Offset uint64     `json:"offset"`           // end of its output, in bytes
	At     time.Time  `json:"at"`
	// Survivors counts processes that were still there when the program had
	// ended and its output was drained; 0 when none, or when it cannot be known.
	Survivors int `json:"survivors,omitempty"`
}

// Offsets is the range of output that is still kept, in bytes from the start of
// the generation. Start is the first byte kept, End the next one to come.
type Offsets struct {
	Start uint64 `json:"start"`
	End   uint64 `json:"end"`
}

// LogInfo describes the log of a session on disk.
type LogInfo struct {
	KeptFrom uint64 `json:"kept_from"`     // offset of the first byte on disk
	Bytes    int64  `json:"bytes"`         // size on disk now
	Cap      int64  `json:"cap"`           // bound of it; 0 = no log on disk
	Gap      string `json:"gap,omitempty"` // why recording stopped ("no space left on device"), or ""
}

// AgentState is what an agent inside a session says, or seems, to be doing.
type AgentState string

// The agent states.
const (
	AgentWorking AgentState = "working"
	AgentBlocked AgentState = "blocked"
	AgentIdle    AgentState = "idle"
	AgentDone    AgentState = "done"
	AgentUnknown AgentState = "unknown"
)

// Valid reports whether the state is one of the above.
func (s AgentState) Valid() bool {
	switch s {
	case AgentWorking, AgentBlocked, AgentIdle, AgentDone, AgentUnknown:
		return true
	}
	return false
}

// BlockedKind says what a blocked agent waits for.
type BlockedKind string

// What an agent can wait for.
const (
	BlockedPermission BlockedKind = "permission"
	BlockedQuestion   BlockedKind = "question"
	BlockedAuth       BlockedKind = "auth"
)

// Valid reports whether the kind is one of the above or empty.
func (k BlockedKind) Valid() bool {
	return k == "" || k == BlockedPermission || k == BlockedQuestion || k == BlockedAuth
}

// AgentSource ranks where an agent's state was learnt, best first:
// OSC 7501 reports, hook reports, screen rules.
type AgentSource string

// The sources.
const (
	AgentFromOSC    AgentSource = "osc7501"
	AgentFromHook   AgentSource = "hook"
	AgentFromScreen AgentSource = "screen"
)

// Agent is the state of an agent in a session. Everything in it came from an
// untrusted program: it is bounded, free of control characters and only shown.
type Agent struct {
	State    AgentState  `json:"state"`
	Kind     BlockedKind `json:"kind,omitempty"`
	Message  string      `json:"message,omitempty"`  // at most MaxAgentMessage bytes
	Progress *int        `json:"progress,omitempty"` // percent, 0 to 100; nil = not said
	Source   AgentSource `json:"source,omitempty"`
	Since    time.Time   `json:"since,omitzero"`
}

// MaxAgentMessage bounds Agent.Message, MaxTitle a reported title or directory; in bytes.
const (
	MaxAgentMessage = 512
	MaxTitle        = 256
)

// Session is one program in a pseudo-terminal on a host.
type Session struct {
	ID         string       `json:"id"`
	Name       string       `json:"name"`
	Host       string       `json:"host"`
	Argv       []string     `json:"argv"`
	Cwd        string       `json:"cwd"`
	EnvNames   []string     `json:"env_names"` // names that were asked for with --env; never values
	Withheld   []string     `json:"withheld"`  // names kept from the program
	Size       Size         `json:"size"`
	SizePolicy SizePolicy   `json:"size_policy"`
	State      SessionState `json:"state"`
	Generation int          `json:"generation"` // 1 for the first process, +1 for each start
	BootID     string       `json:"boot_id"`    // of the host when the program started
	PID        int          `json:"pid,omitempty"`
	Offsets    Offsets      `json:"offsets"`
	Log        LogInfo      `json:"log"`
	Exit       *Exit        `json:"exit,omitempty"` // nil while it lives
	Title      string       `json:"title"`
	// CwdReported is the directory that the program reported (OSC 7), or "".
	CwdReported string `json:"cwd_reported"`
	Agent       *Agent `json:"agent,omitempty"` // nil when nothing said it is an agent
	Viewers     int    `json:"viewers"`
	// Contained reports whether the program lives in a cgroup of its own, so
	// that `kill` reaches processes that left its process groups.
	Contained  bool      `json:"contained"`
	CreatedAt  time.Time `json:"created_at"`
	AttachedAt time.Time `json:"attached_at,omitzero"` // last attach; zero = never
	Parent     string    `json:"parent,omitempty"`     // id of the session that it was started from
	Revision   int64     `json:"revision"`
}

// SessionSpec is what a caller asks for.
type SessionSpec struct {
	Name       string            `json:"name,omitempty"` // "" = a generated one
	Host       string            `json:"host,omitempty"` // "" = LocalHost
	Argv       []string          `json:"argv"`
	Cwd        string            `json:"cwd,omitempty"` // "" = the daemon's home
	Env        map[string]string `json:"env,omitempty"`
	Withhold   []string          `json:"withhold,omitempty"`
	Size       Size              `json:"size,omitzero"`         // zero = DefaultSize
	SizePolicy SizePolicy        `json:"size_policy,omitempty"` // "" = the daemon's setting
	LogBytes   *int64            `json:"log_bytes,omitempty"`   // nil = the daemon's setting; 0 = no log on disk
	Parent     string            `json:"parent,omitempty"`
}

// Bounds of a request, so that a record stays small enough to list.
const (
	maxArgs      = 4096
	maxArgBytes  = 128 << 10 // Linux refuses a longer single argument
	maxArgvBytes = 1 << 20
	maxEnvNames  = 1024
	maxLogBytes  = 16 << 30
)

// Validate checks everything about the spec that needs no look at the machine.
func (s SessionSpec) Validate() error {
	total := 0
	for _, a := range s.Argv {
		if len(a) > maxArgBytes || strings.ContainsRune(a, 0) {
			return Errorf(CodeInvalidArgument, "an argument is longer than %d bytes or contains a zero byte", maxArgBytes)
		}
		total += len(a)
	}
	switch {
	case len(s.Argv) == 0 || s.Argv[0] == "":
		return Errorf(CodeInvalidArgument, "no command was given").WithHint("berth run -- CMD…")
	case len(s.Argv) > maxArgs || total > maxArgvBytes:
		return Errorf(CodeInvalidArgument, "the command has more than %d arguments or %d bytes", maxArgs, maxArgvBytes)
	case s.Name != "" && !ValidName(s.Name):
		return errName(s.Name)
	case s.Size != (Size{}) && !s.Size.Valid():
		return Errorf(CodeInvalidArgument, "size %s is outside 1x1 to %dx%d", s.Size, MaxCols, MaxRows)
	case s.SizePolicy != "" && !s.SizePolicy.Valid():
		return Errorf(CodeInvalidArgument, "size policy %q is not latest, smallest or fixed", s.SizePolicy)
	case s.LogBytes != nil && (*s.LogBytes < 0 || *s.LogBytes > maxLogBytes):
		return Errorf(CodeInvalidArgument, "log_bytes %d is outside 0 to %d", *s.LogBytes, maxLogBytes)
	case len(s.Env) > maxEnvNames || len(s.Withhold) > maxEnvNames:
		return Errorf(CodeInvalidArgument, "more than %d variables", maxEnvNames)
	case s.Parent != "" && !ValidID(SessionID, s.Parent):
		return Errorf(CodeInvalidArgument, "parent %q is not a session id", s.Parent)
	}
	for name, value := range s.Env {
		if !ValidEnvName(name) || strings.ContainsRune(value, 0) || len(value) > maxArgBytes {
			return Errorf(CodeInvalidArgument, "variable %q has a bad name or value", name).WithHint("write it like --env NAME=VALUE")
		}
	}
	for _, name := range s.Withhold {
		if !ValidEnvName(name) {
			return Errorf(CodeInvalidArgument, "%q is not the name of a variable", name).WithHint("write it like --withhold NAME")
		}
	}
	return nil
}

// ValidEnvName reports whether name can name an environment variable.
func ValidEnvName(name string) bool {
	return name != "" && len(name) <= 1024 && !strings.ContainsAny(name, "=\x00")
}

// SessionFilter narrows a list of sessions. The zero value takes all.
type SessionFilter struct {
	Host   string         // "" = any
	States []SessionState // empty = any
	Name   string         // "" = any
	Parent string         // "" = any
}

// Match reports whether the session passes.
func (f SessionFilter) Match(s Session) bool {
	return (f.Host == "" || f.Host == s.Host) &&
		(f.Name == "" || f.Name == s.Name) &&
		(f.Parent == "" || f.Parent == s.Parent) &&
		(len(f.States) == 0 || slices.Contains(f.States, s.State))
}
