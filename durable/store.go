// Package durable keeps what must survive the daemon: records with revisions,
// the event sequence, leases. It knows no noun: what a state means is the
// business of the room that wrote it.
//
// It has two halves. A Store keeps; what it may accept is decided in rules.go,
// ledger.go, inbox.go, archive.go and hold.go, the same for every store. A Runner
// turns a pure Machine and a Performer into work that a crash at any point does
// not lose and does not do twice.
package durable

import (
	"context"
	"time"

	"berth"
)

const (
	// MaxPage is how many records or events one read gives at most.
	MaxPage = 1000
	// MaxState is the size of a state in bytes. A state is read and written as
	// a whole at every change; what is larger belongs into a file.
	MaxState = 1 << 20
	// MaxKey bounds the bytes of a kind, an id, a key, a name, a principal.
	MaxKey = 512
)

// Record is one durable state.
type Record struct {
	Kind     string
	ID       string
	Revision int64          // 0 when begun, +1 for each accepted change
	Schema   int            // version of State's shape
	State    []byte         // JSON
	Owner    berth.Identity // stamped by the store on every write
	Epoch    int64          // 1 when begun, +1 for each takeover
	// IdempotencyKey and Fingerprint are those of Begin; "" = none.
	IdempotencyKey string
	Fingerprint    string
	BusyKey        string // held while the record is not terminal; "" = none
	Terminal       bool
	// Created and Updated are UTC from the store's wall clock. They are for
	// people: order is that of the beginnings, which a clock cannot disturb.
	Created time.Time
	Updated time.Time
}

// Begin is a record to be.
type Begin struct {
	Kind, ID       string
	Schema         int
	State          []byte // JSON, at most MaxState bytes
	IdempotencyKey string // unique in its kind until the record is removed; "" = none
	Fingerprint    string // of the request, see Fingerprint; needed with a key
	BusyKey        string // unique over all live records; "" = none
	Terminal       bool
	Effects        []EffectPlan // planned with the beginning
	Events         []EventDraft
}

// Change replaces the state of a record whose revision and epoch are those given.
type Change struct {
	Kind, ID        string
	Revision, Epoch int64 // as read
	Schema          int
	State           []byte
	BusyKey         string // "" releases it; keep it by giving it again
	Terminal        bool   // a terminal record changes no more, but for Reopen
	// Reopen permits the change of a terminal record, which may make it live
	// again; its busy key is then looked at as at a beginning. When another
	// process wrote it last the epoch rises, as at a takeover.
	Reopen bool
	// Ledger is what becomes of the effects; nil leaves them all.
	Ledger *LedgerChange
	// Message is the one in the inbox of the record that this change settles,
	// with the new revision; 0 = none. When it has its outcome already, or is
	// gone, the change is CodeConflict or CodeNotFound.
	Message int64
	Events  []EventDraft
}

// EventDraft is an event before the store gave it a place in the sequence. In a
// Begin, Change or Remove an empty Subject is the record's id, and where the
// subject is that record the store fills in the revision.
type EventDraft struct {
	Kind     berth.EventKind
	Subject  string
	Revision int64
}

// Query selects records, the one begun last first.
type Query struct {
	Kind    string // "" = any
	Live    bool   // only those that are not terminal
	BusyKey string // "" = any
	After   string // cursor from the last page; "" = from the start
	Limit   int    // 0 or more than MaxPage = MaxPage
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
	// comes before Events, which then begin with the oldest one kept. Its Seq
	// is that of the last event missing, so it serves as a cursor too. A reader
	// from 0 asked for what is kept and gets none.
	Gap  *berth.Event
	Last int64 // newest sequence number so far; 0 = none yet
}

// LeaseRequest asks for a lease or its renewal.
type LeaseRequest struct {
	Name      string
	Principal string
	Label     string        // replaces the last one, also on a renewal
	TTL       time.Duration // 0 < TTL ≤ berth.MaxLeaseTTL
}

// Store is the contract that every store passes durabletest with. All methods
// are safe for concurrent use. Errors are berth.Errors:
//
//   - CodeInvalidArgument, CodeTooLarge: the request itself; nothing was read.
//   - CodeNotFound: no such record, or no lease of that name is held.
//   - CodeRevisionMismatch, CodeFenced: the revision or the epoch of the record
//     is another one; *StaleError has the current record. The loser must not
//     act: the winner already did. The epoch is looked at first.
//   - CodeFenced without a StaleError: the lease is not held with that epoch.
//   - CodeConflict: same idempotency key with another fingerprint, a busy key
//     that a live record holds, an ID that exists (fact "holder": the id of the
//     record in the way), a change or takeover of a terminal record, a removal
//     of a live one, an effect that is not pending, a second outcome of a
//     message, an inbox that is full.
//   - CodeOperationLive: an archive of a record that has not ended (fact
//     "holder").
//   - CodeHeld: the lease belongs to another principal (facts "principal",
//     "expires_at").
//   - CodeStoreFailed: an I/O or fsync error. Whether that write took effect is
//     unknown: the next opening shows it. The caller stops; see Failed. A full
//     disk is this too, and also satisfies errors.Is(err, berth.CodeDiskFull).
//   - CodeInterrupted, CodeTimeout: ctx ended before the write began, and
//     nothing was changed. A write that began is brought to its end whatever ctx
//     does, so a cancelled call never leaves its outcome open.
//   - CodeDaemonStopping: the store was closed.
//
// A refused write changes nothing and publishes nothing. What a method returns
// belongs to the caller.
type Store interface {
	// Owner is the process that the store stamps on its writes.
	Owner() berth.Identity
	// Begin makes a record at revision 0. With an idempotency key that exists
	// and the same fingerprint it answers that record and created = false.
	Begin(ctx context.Context, b Begin) (rec Record, created bool, err error)
	// Change is a compare-and-swap on revision and epoch: revision +1.
	Change(ctx context.Context, c Change) (Record, error)
	// Remove forgets a terminal record, with the same guard.
	Remove(ctx context.Context, kind, id string, revision, epoch int64, events ...EventDraft) error
	// TakeOver stamps the caller as the owner and raises the epoch; revision and
	// state stay. Whether the old owner is dead is the caller's finding; the
	// guard makes one winner.
	TakeOver(ctx context.Context, kind, id string, revision, epoch int64) (Record, error)
	Get(ctx context.Context, kind, id string) (Record, error)
	List(ctx context.Context, q Query) (Page, error)

	// Effects is the ledger of a record in the order of planning.
	Effects(ctx context.Context, kind, id string) ([]Effect, error)
	// MarkEffect moves one pending effect. It is CodeFenced when the record has
	// another epoch or when another process wrote it last. The performer of one
	// that starts is stamped.
	MarkEffect(ctx context.Context, kind, id string, epoch int64, m EffectMark) (Effect, error)
	// Own adds resource ids to those that a live record owns, with the guard of
	// MarkEffect and without a new revision. Ids that it owns already are fine.
	Own(ctx context.Context, kind, id string, epoch int64, resources ...string) error
	// Owned lists them in the order in which they were added.
	Owned(ctx context.Context, kind, id string) ([]string, error)

	// Post puts an event into the inbox of a record. Its owner is woken.
	Post(ctx context.Context, p Post) (seq int64, err error)
	// Inbox lists the messages that wait for records of the kind which this
	// process wrote last, the oldest first, at most MaxPage.
	Inbox(ctx context.Context, kind string) ([]Message, error)
	// Message shows one, with its outcome once there is one.
	Message(ctx context.Context, seq int64) (Message, error)
	// Settle gives a message its outcome. The first one counts; so a sender that
	// stops waiting settles its own, and knows that nobody acts on it later.
	Settle(ctx context.Context, seq int64, o Outcome) error

	// Archive puts terminal records away, with their ledgers and owned ids, all
	// or none. Their ids and idempotency keys are free then.
	Archive(ctx context.Context, a ArchiveRequest) (Archive, error)
	// Archives lists those of a kind, the oldest first; Archived reads one, in
	// the order of the beginnings.
	Archives(ctx context.Context, kind string) ([]Archive, error)
	Archived(ctx context.Context, kind, stamp string) ([]ArchivedRecord, error)

	// Publish appends events that belong to no record change and answers the
	// newest sequence number.
	Publish(ctx context.Context, events ...EventDraft) (last int64, err error)
	// Events reads what came after the cursor (0 = from the oldest kept), at
	// most limit (0 or more than MaxPage = MaxPage). A cursor beyond the newest
	// event is CodeInvalidArgument.
	Events(ctx context.Context, after int64, limit int) (EventPage, error)
	// Watch gives a channel that receives after every commit with events, and
	// after every message and its outcome. It has room for one wake-up; several
	// commits may be one. It is closed when ctx ends or the store is closed. A
	// wake-up is a hint and may come for nothing: reading Events or Inbox is the
	// truth.
	Watch(ctx context.Context) <-chan struct{}
	// Prune drops events beyond berth.EventsKept and berth.EventsKeptFor, always
	// the oldest ones, so what is kept has no hole. It also forgets the names of
	// leases that ended longer ago than that, and messages older than
	// MessagesKeptFor.
	Prune(ctx context.Context) (dropped int64, err error)

	// Acquire takes a free or expired lease with an epoch higher than any that
	// it had (+1 as a rule), or renews the principal's own (same epoch). It
	// never shortens it. A principal whose lease is over gets a new epoch too:
	// in between it held nothing. Taking an expired lease publishes its end.
	//
	// The store's clock decides: one that goes on while the machine sleeps and
	// that no change of the wall clock moves. A lease does not outlive the boot
	// of the machine that keeps the store.
	Acquire(ctx context.Context, r LeaseRequest) (berth.Lease, error)
	// Renew extends a lease that is held with that epoch, else CodeFenced. It
	// never shortens it.
	Renew(ctx context.Context, name, principal string, epoch int64, ttl time.Duration) (berth.Lease, error)
	// Release ends it, with the same guard as Renew. It publishes nothing.
	Release(ctx context.Context, name, principal string, epoch int64) error
	// Lease and Leases (by name) show what is held now.
	Lease(ctx context.Context, name string) (berth.Lease, error)
	Leases(ctx context.Context) ([]berth.Lease, error)
	// Expire ends leases that are over and publishes EventLeaseExpired with the
	// name as subject for each.
	Expire(ctx context.Context) (expired []berth.Lease, err error)
	// Guarded runs Change only while the lease is held with that epoch, checked
	// in the same transaction; else CodeFenced.
	Guarded(ctx context.Context, lease string, epoch int64, c Change) (Record, error)

	// Failed is closed after an I/O error of the store; every later call is
	// CodeStoreFailed.
	Failed() <-chan struct{}
	// Close waits for the write that runs and closes every Watch. A second call
	// does nothing.
	Close() error
}

// StaleError is behind CodeRevisionMismatch and CodeFenced.
type StaleError struct {
	Current Record
}

func (e *StaleError) Error() string { return "the record changed since it was read" }
