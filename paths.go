package berth

import "path/filepath"

// Every file that berth may create has its name here and a line in
// docs/disk.md; a test compares the two.

// Names in the state directory ($XDG_STATE_HOME/berth).
const (
	FileStore      = "berth.db" // SQLite: names, wishes, events, leases
	FileStoreWAL   = "berth.db-wal"
	FileStoreSHM   = "berth.db-shm"
	FileDaemonLock = "daemon.lock" // flock of the daemon; never unlinked
	FileDaemonJSON = "daemon.json" // who serves; written when the socket answers
	FileAPIToken   = "api.token"   // SHA-256 of the TCP listener's token
	DirSessions    = "sessions"    // one directory a session, named by its id
	DirLogs        = "logs"
	FileDaemonLog  = "daemon.log" // in logs/
	FileGuestLog   = "guest.log"  // in logs/
	DirRuntimeIn   = "run"        // runtime directory where XDG_RUNTIME_DIR is not set
)

// Names in the machine directory ($XDG_STATE_HOME/berth/machine): what belongs
// to this user on this machine, however many daemons with state directories of
// their own there are.
const (
	DirMachine       = "machine"
	FileMachineStore = "machine.db" // SQLite, shared by several daemons: operations, installations
	FileMachineID    = "machine-id" // of the machine whose it is, as /etc/machine-id has it
	DirReleases      = "releases"   // releases that were added, one file an id
	DirHostSteps     = "hoststeps"  // requests and results of the privileged helper
	DirCaches        = "caches"     // engines' caches, one directory a release
)

// Names in the runtime directory ($XDG_RUNTIME_DIR/berth). They are sockets and
// locks, and are kept short: a socket path has 107 bytes.
const (
	SocketDaemon  = "berth.sock"
	SocketGuest   = "guest.sock"
	FileGuestLock = "guest.lock" // flock of the guest; never unlinked
	DirHolders    = "h"          // h/ID.sock: a holder's socket
	DirRelays     = "r"          // r/ID.sock: BERTH_SOCKET of a session
	DirAgents     = "a"          // a/ID.sock: SSH_AUTH_SOCK of a session
)

// Names in a session's directory.
const (
	FileSpec      = "session.json" // what was asked for; no values of variables
	FileIdentity  = "running.json" // who runs: holder and program; written before the program's first byte is read
	FileExit      = "exit.json"    // how it ended
	FileHolderLck = "lock"         // locked by the holder while it lives
	FileSnapshot  = "screen"       // newest deposited screen and its offset
	FileHolderErr = "holder.log"   // what the holder had to complain about; empty as a rule
	DirOutput     = "out"          // segments of the output log, named by their first offset
)

// SocketPathMax is the longest path of a unix socket on Linux, less the final zero byte.
const SocketPathMax = 107

// Paths are the directories of one berth.
type Paths struct {
	State   string // absolute
	Runtime string // absolute
	Config  string // absolute path of config.toml
	Machine string // absolute; shared by all daemons of this user on this machine
}

// ResolvePaths finds the directories: an explicit value (a flag, else
// BERTH_STATE_DIR, BERTH_RUNTIME_DIR, BERTH_CONFIG) beats the XDG variable,
// which beats the home directory. A state directory that was given and a
// runtime directory that was not keep together, so that two berths side by
// side never meet in one runtime directory.
func ResolvePaths(flags Paths, getenv func(string) string, home string) (Paths, error) {
	first := func(values ...string) string {
		for _, v := range values {
			if v != "" {
				return v
			}
		}
		return ""
	}
	if home == "" {
		home = getenv("HOME")
	}
	givenState := first(flags.State, getenv("BERTH_STATE_DIR"))
	p := Paths{
		State:   first(givenState, xdg(getenv("XDG_STATE_HOME"), "berth"), under(home, ".local/state/berth")),
		Runtime: first(flags.Runtime, getenv("BERTH_RUNTIME_DIR")),
		Config:  first(flags.Config, getenv("BERTH_CONFIG"), xdg(getenv("XDG_CONFIG_HOME"), "berth/config.toml"), under(home, ".config/berth/config.toml")),
	}
	// A state directory of its own does not make a machine of its own: two
	// daemons must see each other's operations.
	p.Machine = first(flags.Machine, getenv("BERTH_MACHINE_DIR"), xdg(getenv("XDG_STATE_HOME"), "berth/machine"), under(home, ".local/state/berth/machine"))
	if p.State == "" {
		return Paths{}, Errorf(CodeStateDir, "neither --state-dir nor XDG_STATE_HOME nor HOME is set").
			WithHint("give --state-dir")
	}
	if p.Runtime == "" && givenState == "" {
		p.Runtime = xdg(getenv("XDG_RUNTIME_DIR"), "berth")
	}
	if p.Runtime == "" {
		p.Runtime = filepath.Join(p.State, DirRuntimeIn)
	}
	if p.Machine == "" {
		p.Machine = filepath.Join(p.State, DirMachine)
	}
	for _, dir := range []*string{&p.State, &p.Runtime, &p.Config, &p.Machine} {
		if *dir == "" {
			continue
		}
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return Paths{}, Errorf(CodeStateDir, "resolve %s: %w", *dir, err)
		}
		*dir = abs
	}
	return p, nil
}

// xdg ignores a relative value, as the XDG base directory specification asks.
func xdg(base, rest string) string {
	if !filepath.IsAbs(base) {
		return ""
	}
	return filepath.Join(base, rest)
}

func under(home, rest string) string {
	if home == "" {
		return ""
	}
	return filepath.Join(home, rest)
}

// Store is the path of the database.
func (p Paths) Store() string { return filepath.Join(p.State, FileStore) }

// DaemonLock is the file that the daemon locks.
func (p Paths) DaemonLock() string { return filepath.Join(p.State, FileDaemonLock) }

// DaemonJSON is the file that says who serves.
func (p Paths) DaemonJSON() string { return filepath.Join(p.State, FileDaemonJSON) }

// APIToken is the file that holds the hash of the TCP listener's token.
func (p Paths) APIToken() string { return filepath.Join(p.State, FileAPIToken) }

// Sessions is the directory of the local host's sessions.
func (p Paths) Sessions() string { return filepath.Join(p.State, DirSessions) }

// DaemonLog is the daemon's log.
func (p Paths) DaemonLog() string { return filepath.Join(p.State, DirLogs, FileDaemonLog) }

// GuestLog is the local guest's log.
func (p Paths) GuestLog() string { return filepath.Join(p.State, DirLogs, FileGuestLog) }

// DaemonSocket is where the daemon answers.
func (p Paths) DaemonSocket() string { return filepath.Join(p.Runtime, SocketDaemon) }

// GuestSocket is where the local guest answers.
func (p Paths) GuestSocket() string { return filepath.Join(p.Runtime, SocketGuest) }

// MachineStore is the database that all daemons of this user share.
func (p Paths) MachineStore() string { return filepath.Join(p.Machine, FileMachineStore) }
