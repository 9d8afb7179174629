package guestapi

import "time"

// Features with which a guest shows the machine that it is on.
const (
	FeatureExec  = "exec"  // POST /v1/exec: run a program to its end, without a terminal
	FeatureFiles = "files" // /v1/files: read, stat, list, write, remove; statfs
	FeatureDial  = "dial"  // POST /v1/dial: a byte stream to a unix or TCP socket of the host
)

// Bounds of these calls.
const (
	MaxExecOutput  = 8 << 20 // bytes of stdout and of stderr that one exec keeps
	MaxExecStdin   = 1 << 20
	MaxExecTimeout = 2 * time.Hour
	MaxFileRead    = 8 << 20
	MaxFileWrite   = 8 << 20
	MaxDirEntries  = 10_000
	MaxPath        = 4096 // bytes of a path
	// ExecTimeout is that of an exec that names none.
	ExecTimeout = 30 * time.Second
)

// Network is a kind of socket that a guest dials.
type Network string

// The networks.
const (
	NetworkUnix Network = "unix" // the address is an absolute path
	NetworkTCP  Network = "tcp"  // the address is HOST:PORT
)

// Valid reports whether the network is one of the above.
func (n Network) Valid() bool { return n == NetworkUnix || n == NetworkTCP }

// DialContentType is the type of a dialled stream. What the client sends are the
// bytes as they are, and its end is half a close. What the guest sends are
// pieces: a four-byte big-endian length, at most MaxDialPiece, and that many
// bytes. A length of 0 says that the far end has sent its last byte; the other
// direction goes on. A stream that ends without it was cut.
const DialContentType = "application/vnd.berth.dial"

// MaxDialPiece bounds one piece, in bytes.
const MaxDialPiece = 64 << 10

// Exec is the body of POST /v1/exec. The program is started directly, never
// through a shell, in its own process group, which is ended with it.
type Exec struct {
	Argv []string `json:"argv"` // Argv[0]: absolute, or a name looked up in the PATH of Env
	// Env is the whole environment, NAME=VALUE. None = PATH of the system
	// directories, LANG=C.UTF-8 and HOME; nothing of the guest's own reaches it.
	Env       []string `json:"env,omitempty"`
	Cwd       string   `json:"cwd,omitempty"` // "" = /
	Stdin     []byte   `json:"stdin,omitempty"`
	TimeoutMS int64    `json:"timeout_ms"`           // then TERM, and KILL two seconds later; 0 = 30 s
	MaxOutput int      `json:"max_output,omitempty"` // of each stream; 0 = MaxExecOutput; what is more is dropped from the middle
}

// ExecResult answers it. A program that is not there or cannot be executed is
// CodeCommandNotFound, one in a directory that may not be searched CodeForbidden.
// How it ended is no error, and neither is its timeout.
type ExecResult struct {
	Code      int    `json:"code"`             // -1 when a signal ended it
	Signal    string `json:"signal,omitempty"` // "SIGKILL"
	TimedOut  bool   `json:"timed_out,omitempty"`
	Stdout    []byte `json:"stdout"`
	Stderr    []byte `json:"stderr"`
	Truncated bool   `json:"truncated,omitempty"` // the middle of a stream was dropped
	Path      string `json:"path"`                // of the program that ran
	ElapsedMS int64  `json:"elapsed_ms"`
}

// FileType is what a path names.
type FileType string

// The file types.
const (
	FileRegular FileType = "file"
	FileDir     FileType = "dir"
	FileSymlink FileType = "symlink"
	FileSocket  FileType = "socket"
	FileOther   FileType = "other"
)

// FileInfo describes a path. A path that is not there is CodeNotFound, one that
// may not be looked at CodeForbidden: the two are never one.
type FileInfo struct {
	Path    string    `json:"path"` // as it was asked for; bytes that are not UTF-8 show as U+FFFD
	Type    FileType  `json:"type"`
	Size    int64     `json:"size"`
	Mode    uint32    `json:"mode"` // permission bits, and 0o7000
	UID     int       `json:"uid"`
	GID     int       `json:"gid"`
	ModTime time.Time `json:"mod_time"`
	Target  string    `json:"target,omitempty"` // of a symbolic link, as it is written
	// ACL says that an access control list gives rights besides the mode's.
	ACL bool `json:"acl,omitempty"`
}

// Space answers GET /v1/files/space.
type Space struct {
	Path       string `json:"path"`       // nearest ancestor that exists
	FreeBytes  int64  `json:"free_bytes"` // for any user: what is reserved for root is not counted
	TotalBytes int64  `json:"total_bytes"`
}

// FileContent answers GET /v1/files. Info.Size is the length of Data: what /proc
// and /sys say of their files before they are read is no length.
type FileContent struct {
	Info FileInfo `json:"info"`
	Data []byte   `json:"data"`
}

// DirList answers GET /v1/files/list: sorted by name, links not followed.
type DirList struct {
	Entries []FileInfo `json:"entries"` // never nil
}
