package berth

import "time"

// EventKind says what changed.
type EventKind string

// The event kinds. An event is a hint, "this record is now at revision N": the
// reader asks for the record again. None carries output or a secret.
const (
	EventSessionCreated     EventKind = "session.created"
	EventSessionChanged     EventKind = "session.changed"
	EventSessionExited      EventKind = "session.exited"
	EventSessionLost        EventKind = "session.lost"
	EventSessionRemoved     EventKind = "session.removed"
	EventSessionAgent       EventKind = "session.agent"
	EventLeaseExpired       EventKind = "lease.expired"
	EventDaemonStarted      EventKind = "daemon.started"
	EventGuestLost          EventKind = "guest.lost"
	EventGuestReached       EventKind = "guest.reached"
	EventOperationChanged   EventKind = "operation.changed"
	EventEnvironmentChanged EventKind = "environment.changed" // subject: the host
	// EventGap is never stored: it is what a reader gets whose cursor is older
	// than what is kept. It should list everything again.
	EventGap EventKind = "gap"
)

// Event is one row of the daemon's sequence.
type Event struct {
	Seq      int64     `json:"seq"` // gap-free, from 1
	Kind     EventKind `json:"kind"`
	Subject  string    `json:"subject"`            // id of the record
	Revision int64     `json:"revision,omitempty"` // of the record after the change
	At       time.Time `json:"at"`
	// From and To are set on a gap: the events From..To-1 are no longer kept.
	From int64 `json:"from,omitempty"`
	To   int64 `json:"to,omitempty"`
}

// How many events are kept: whichever bound is reached first.
const (
	EventsKept    = 100_000
	EventsKeptFor = 7 * 24 * time.Hour
)
