// Package durable keeps what must survive the daemon: records with revisions,
// the event sequence, leases. It knows no noun: what a state means is the
// business of the room that wrote it.
//
// Its store half is here; the machine half (reducers, effects, ledger,
// recovery) comes with its first user.
package durable

import (
	"context"
	"time"

	"berth"
)

// Record is one durable state.
type Record struct {
	Kind     string
	ID       string
	Revision int64          // 0 when begun, +1 for each accepted change
	Schema   int            // version of State's shape
	State    []byte         // JSON
	Owner    berth.Identity // stamped by the store on every write
	Epoch    int64          // +1 for each takeover
	// IdempotencyKey and Fingerprint are those of Begin; "" = none.
	IdempotencyKey string
	Fingerprint    string
	BusyKey        string // held while the record is not terminal; "" = none
	Terminal       bool
	Created        time.Time
	Updated        time.Time
}

// Begin is a record to be.
type Begin struct {
	Kind, ID       string
	Schema         int
	State          []byte
	IdempotencyKey string // unique in its kind; "" = none
	Fingerprint    string // of the request, see Fingerprint
	BusyKey        string // unique over all live records; "" = none
	Terminal       bool
	Events         []EventDraft
}

// Change replaces the state of a record whose revision and epoch are those given.
type Change struct {
	Kind, ID        string
	Revision, Epoch int64 // as read
	Schema          int
	State           []byte
	BusyKey         string // "" releases it; keep it by giving it again
	Terminal        bool   // a terminal record never becomes live again
	Events          []EventDraft
}

// EventDraft is an event before the store gave it a place in the sequence. The
// store fills in Revision where it is part of a Begin, Change or Remove.
type EventDraft struct {
	Kind     berth.EventKind
	Subject  string
	Revision int64
}

// Query selects records, newest first.
type Query struct {
	Kind    string
	Live    bool   // only those that are not terminal
	BusyKey string // "" = any
	After   string // cursor from the last page; "" = from the start
	Limit   int    // 0 = 1000
}

// Page is one part of a list.
type Page struct {
	Records []Record
	Next    string // cursor; "" = this was the last page
}

// EventPage is one part of the sequence.
type EventPage struct {
	Events []berth.Event
	// Gap is set when the events after the cursor are no longer all kept. It
	// comes before Events, which then begin with the oldest one kept.
	Gap  *berth.Event
	Last int64 // newest sequence number so far; 0 = none yet
}

// LeaseRequest asks for a lease or its renewal.
type LeaseRequest struct {
	Name      string
	Principal string
	Label     string
	TTL       time.Duration // 0 < TTL ≤ berth.MaxLeaseTTL
}

// Store is the contract that every store passes durabletest with. All methods
// are safe for concurrent use. Errors are berth.Errors:
//
//   - CodeNotFound: no such record or lease.
//   - CodeRevisionMismatch, CodeFenced: the revision or the epoch is another
//     one; *StaleError has the current record. The loser must not act: the
//     winner already did.
//   - CodeConflict: same idempotency key with another fingerprint, a busy key
//     that a live record holds (fact "holder"), an ID that exists, a change of
//     a terminal record.
//   - CodeHeld: the lease belongs to another principal (facts "principal",
//     "expires_at").
//   - CodeStoreFailed: an I/O or fsync error. The caller stops; see Failed.
type Store interface {
	// Begin makes a record at revision 0. With an idempotency key that exists
	// and the same fingerprint it answers that record and created = false.
	Begin(ctx context.Context, b Begin) (rec Record, created bool, err error)
	// Change is a compare-and-swap on revision and epoch.
	Change(ctx context.Context, c Change) (Record, error)
	// Remove forgets a terminal record, with the same guard.
	Remove(ctx context.Context, kind, id string, revision, epoch int64, events ...EventDraft) error
	// TakeOver stamps the caller as the owner and raises the epoch. Whether the
	// old owner is dead is the caller's finding; the guard makes one winner.
	TakeOver(ctx context.Context, kind, id string, revision, epoch int64) (Record, error)
	Get(ctx context.Context, kind, id string) (Record, error)
	List(ctx context.Context, q Query) (Page, error)

	// Publish appends events that belong to no record change.
	Publish(ctx context.Context, events ...EventDraft) (last int64, err error)
	// Events reads what came after the cursor (0 = from the oldest kept), at
	// most limit. A cursor beyond the newest event is CodeInvalidArgument.
	Events(ctx context.Context, after int64, limit int) (EventPage, error)
	// Watch gives a channel that receives after every commit with events. It
	// has room for one wake-up; several commits may be one. It is closed when
	// ctx ends. A wake-up is a hint: reading Events is the truth.
	Watch(ctx context.Context) <-chan struct{}
	// Prune drops events beyond berth.EventsKept and berth.EventsKeptFor.
	Prune(ctx context.Context) (dropped int64, err error)

	// Acquire takes a free or expired lease (epoch +1), or renews the
	// principal's own (same epoch). It never shortens it.
	Acquire(ctx context.Context, r LeaseRequest) (berth.Lease, error)
	// Renew extends a lease that is held with that epoch, else CodeFenced.
	Renew(ctx context.Context, name, principal string, epoch int64, ttl time.Duration) (berth.Lease, error)
	// Release ends it, with the same guard as Renew.
	Release(ctx context.Context, name, principal string, epoch int64) error
	Lease(ctx context.Context, name string) (berth.Lease, error)
	Leases(ctx context.Context) ([]berth.Lease, error)
	// Expire removes leases that are over and publishes an event for each.
	Expire(ctx context.Context) (expired []berth.Lease, err error)
	// Guarded runs Change only while the lease is held with that epoch, checked
	// in the same transaction; else CodeFenced.
	Guarded(ctx context.Context, lease string, epoch int64, c Change) (Record, error)

	// Failed is closed after an I/O error of the store; every later call fails.
	Failed() <-chan struct{}
	Close() error
}

// StaleError is behind CodeRevisionMismatch and CodeFenced.
type StaleError struct {
	Current Record
}

func (e *StaleError) Error() string { return "the record changed since it was read" }
