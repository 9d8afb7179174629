package berth

import "time"

// Daemon is who serves this state directory. daemon.json holds one.
type Daemon struct {
	PID       int       `json:"pid"`
	BootID    string    `json:"boot_id"`
	StartTime uint64    `json:"start_time"` // field 22 of /proc/PID/stat, in clock ticks; with BootID and PID it names the process
	Version   string    `json:"version"`
	StartedAt time.Time `json:"started_at"`
	Socket    string    `json:"socket"`
}

// GuestStatus is what the daemon knows of one host's guest.
type GuestStatus struct {
	Host      string   `json:"host"`
	Reachable bool     `json:"reachable"`
	PID       int      `json:"pid,omitempty"`
	Version   string   `json:"version,omitempty"`
	Protocol  int      `json:"protocol,omitempty"`
	Features  []string `json:"features,omitempty"`
	Error     string   `json:"error,omitempty"` // why it is not reachable
}

// SessionCounts counts sessions by state.
type SessionCounts struct {
	Running int `json:"running"` // starting ones too
	Exited  int `json:"exited"`
	Lost    int `json:"lost"`
	Unknown int `json:"unknown"`
}

// Listeners are the addresses that answer; "" = off, or not built yet.
type Listeners struct {
	API       string `json:"api"`
	Gateway   string `json:"gateway"`
	Dashboard string `json:"dashboard"`
}

// Problem is a standing condition with an identity, not a log line.
type Problem struct {
	Code   Code   `json:"code"`
	Detail string `json:"detail"`
	Hint   string `json:"hint"`
}

// Status is the answer of `berth status`.
type Status struct {
	Daemon    Daemon        `json:"daemon"`
	Guest     GuestStatus   `json:"guest"` // of the local host
	Sessions  SessionCounts `json:"sessions"`
	Problems  []Problem     `json:"problems"` // never nil
	Listeners Listeners     `json:"listeners"`
}

// Finding is one line of `berth doctor`.
type Finding struct {
	Check  string `json:"check"`  // stable name: "runtime-dir", "linger", …
	Status string `json:"status"` // ok, warn, fail or unknown
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"` // the one next step
}

// VersionInfo is the answer of `berth version`.
type VersionInfo struct {
	Version  string `json:"version"`
	Build    string `json:"build"`    // commit, or "unknown"
	Protocol int    `json:"protocol"` // of the guest protocol
	Go       string `json:"go"`
}
