package durable

import (
	"encoding/json"
	"time"

	"berth"
)

// What a write may do and what comes of it is decided here, purely, and is the
// same in every store. A store reads the row, asks, and writes the answer in
// one transaction, with the guard in the statement too.

// Validate checks what can be checked without the store.
func (b Begin) Validate() error {
	if err := validNames(named{"kind", b.Kind}, named{"id", b.ID}); err != nil {
		return err
	}
	if err := validKeys(named{"idempotency key", b.IdempotencyKey}, named{"busy key", b.BusyKey}, named{"fingerprint", b.Fingerprint}); err != nil {
		return err
	}
	if b.IdempotencyKey != "" && b.Fingerprint == "" {
		return berth.Errorf(berth.CodeInvalidArgument, "an idempotency key needs the fingerprint of its request")
	}
	if err := validState(b.Schema, b.State); err != nil {
		return err
	}
	if err := validPlan(b.Effects, b.Terminal); err != nil {
		return err
	}
	return validDrafts(b.Events, true)
}

// Record is the record that b begins.
func (b Begin) Record(owner berth.Identity, now time.Time) Record {
	return Record{
		Kind: b.Kind, ID: b.ID,
		Schema: b.Schema, State: b.State,
		Owner: owner, Epoch: 1,
		IdempotencyKey: b.IdempotencyKey, Fingerprint: b.Fingerprint,
		BusyKey: b.BusyKey, Terminal: b.Terminal,
		Created: now, Updated: now,
	}
}

// Repeats answers a Begin whose idempotency key belongs to cur: nil when it is
// the same request again.
func (b Begin) Repeats(cur Record) error {
	if b.Fingerprint == cur.Fingerprint {
		return nil
	}
	return berth.Errorf(berth.CodeConflict, "the idempotency key %q was used for another request", b.IdempotencyKey).
		WithFact("holder", cur.ID).WithHint("use a new key for a new request")
}

// Validate checks what can be checked without the store.
func (c Change) Validate() error {
	if err := validNames(named{"kind", c.Kind}, named{"id", c.ID}); err != nil {
		return err
	}
	if err := validKeys(named{"busy key", c.BusyKey}); err != nil {
		return err
	}
	if err := validState(c.Schema, c.State); err != nil {
		return err
	}
	if err := c.Ledger.validate(c.Terminal); err != nil {
		return err
	}
	return validDrafts(c.Events, true)
}

// Apply gives the record that c makes of cur, or the refusal.
func (c Change) Apply(cur Record, owner berth.Identity, now time.Time) (Record, error) {
	if err := guard(cur, c.Revision, c.Epoch); err != nil {
		return Record{}, err
	}
	if cur.Terminal && !c.Reopen {
		return Record{}, berth.Errorf(berth.CodeConflict, "%s %s has ended and changes no more", cur.Kind, cur.ID).WithFact("holder", cur.ID)
	}
	next := cur
	next.Revision++
	if cur.Terminal && cur.Owner != owner {
		next.Epoch++ // what the other process still has running is fenced off
	}
	next.Schema, next.State = c.Schema, c.State
	next.Owner = owner
	next.BusyKey, next.Terminal = c.BusyKey, c.Terminal
	next.Updated = now
	return next, nil
}

// TakenOver gives the record after a takeover by owner, or the refusal.
func (r Record) TakenOver(revision, epoch int64, owner berth.Identity, now time.Time) (Record, error) {
	if err := guard(r, revision, epoch); err != nil {
		return Record{}, err
	}
	if r.Terminal {
		return Record{}, berth.Errorf(berth.CodeConflict, "%s %s has ended: there is nothing to take over", r.Kind, r.ID).WithFact("holder", r.ID)
	}
	r.Epoch++
	r.Owner = owner
	r.Updated = now
	return r, nil
}

// Removable is nil when r may be forgotten under that guard.
func (r Record) Removable(revision, epoch int64) error {
	if err := guard(r, revision, epoch); err != nil {
		return err
	}
	if !r.Terminal {
		return berth.Errorf(berth.CodeConflict, "%s %s has not ended", r.Kind, r.ID).WithFact("holder", r.ID)
	}
	return nil
}

// HoldsBusy reports whether r keeps others from its busy key.
func (r Record) HoldsBusy() bool { return r.BusyKey != "" && !r.Terminal }

// guard looks at the epoch first: who was taken over must learn that, and not
// merely that it should read again.
func guard(cur Record, revision, epoch int64) error {
	switch {
	case cur.Epoch != epoch:
		return stale(berth.CodeFenced, cur, "%s %s was taken over: its epoch is %d, not %d", cur.Kind, cur.ID, cur.Epoch, epoch)
	case cur.Revision != revision:
		return stale(berth.CodeRevisionMismatch, cur, "%s %s is at revision %d, not %d", cur.Kind, cur.ID, cur.Revision, revision)
	}
	return nil
}

func stale(code berth.Code, cur Record, format string, args ...any) error {
	e := berth.Errorf(code, format, args...)
	e.Err = &StaleError{Current: cur}
	return e
}

// NotFound is the refusal of a record that is not there.
func NotFound(kind, id string) error {
	return berth.Errorf(berth.CodeNotFound, "there is no %s %s", kind, id)
}

// Exists is the refusal of an id that is taken.
func Exists(kind, id string) error {
	return berth.Errorf(berth.CodeConflict, "a %s %s exists", kind, id).WithFact("holder", id)
}

// Busy is the refusal of a busy key that a live record holds.
func Busy(key, kind, id string) error {
	return berth.Errorf(berth.CodeConflict, "%s %s is at work on %s", kind, id, key).
		WithFact("holder", id).WithFact("kind", kind).WithFact("busy_key", key)
}

// ValidateEvents checks the events of a Publish.
func ValidateEvents(events []EventDraft) error { return validDrafts(events, false) }

// ValidateRemoval checks the arguments of a Remove.
func ValidateRemoval(kind, id string, events []EventDraft) error {
	if err := validNames(named{"kind", kind}, named{"id", id}); err != nil {
		return err
	}
	return validDrafts(events, true)
}

// EventsOf fills in the events of a write to r.
func EventsOf(r Record, drafts []EventDraft) []EventDraft {
	events := make([]EventDraft, len(drafts))
	for i, d := range drafts {
		if d.Subject == "" {
			d.Subject = r.ID
		}
		if d.Subject == r.ID {
			d.Revision = r.Revision
		}
		events[i] = d
	}
	return events
}

// Gap is what a reader of the events after the cursor gets first, when the
// oldest of them that is kept is at sequence number first; nil = none missing.
func Gap(after, first int64, now time.Time) *berth.Event {
	if after == 0 || first <= after+1 {
		return nil
	}
	return &berth.Event{Seq: first - 1, Kind: berth.EventGap, At: now, From: after + 1, To: first}
}

// BeyondNewest is the refusal of a cursor that no event has reached.
func BeyondNewest(after, last int64) error {
	return berth.Errorf(berth.CodeInvalidArgument, "the cursor %d is past the newest event, %d", after, last).
		WithHint("start again from 0 and list everything")
}

// PageSize is the limit that a request for limit entries gets.
func PageSize(limit int) int {
	if limit <= 0 || limit > MaxPage {
		return MaxPage
	}
	return limit
}

type named struct{ what, value string }

// validNames wants a value in each, validKeys allows none.
func validNames(names ...named) error {
	for _, n := range names {
		if n.value == "" {
			return berth.Errorf(berth.CodeInvalidArgument, "the %s is empty", n.what)
		}
	}
	return validKeys(names...)
}

func validKeys(keys ...named) error {
	for _, k := range keys {
		if len(k.value) > MaxKey {
			return berth.Errorf(berth.CodeInvalidArgument, "the %s has %d bytes; at most %d are allowed", k.what, len(k.value), MaxKey)
		}
	}
	return nil
}

func validState(schema int, state []byte) error {
	if schema < 0 {
		return berth.Errorf(berth.CodeInvalidArgument, "the schema number %d is negative", schema)
	}
	if len(state) > MaxState {
		return berth.Errorf(berth.CodeTooLarge, "the state has %d bytes; at most %d are allowed", len(state), MaxState)
	}
	if !json.Valid(state) {
		return berth.Errorf(berth.CodeInvalidArgument, "the state is not JSON")
	}
	return nil
}

func validDrafts(events []EventDraft, ofRecord bool) error {
	for _, e := range events {
		if e.Kind == "" || e.Kind == berth.EventGap {
			return berth.Errorf(berth.CodeInvalidArgument, "an event of kind %q cannot be published", e.Kind)
		}
		if e.Subject == "" && !ofRecord {
			return berth.Errorf(berth.CodeInvalidArgument, "the event %s has no subject", e.Kind)
		}
		if err := validKeys(named{"subject of an event", e.Subject}); err != nil {
			return err
		}
	}
	return nil
}
