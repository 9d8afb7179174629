package durable

import (
	"errors"
	"time"

	"berth"
)

const (
	// MaxWaiting is how many messages wait for one record at most. People and
	// programs send them one at a time; a queue means that the owner hangs.
	MaxWaiting = 32
	// MessagesKeptFor is how long a message stays, settled or not. Its sender
	// stopped waiting long before.
	MessagesKeptFor = time.Hour
	// AnyRevision as an expected revision expects none.
	AnyRevision = -1
)

// Post is an event from outside for a record that another process owns.
type Post struct {
	Kind, ID string
	Event    []byte // JSON
	Expected int64  // revision at which it is meant; AnyRevision = any
}

// Message is a Post in the inbox of its record.
type Message struct {
	Post
	Seq    int64          // from 1, grows
	Sender berth.Identity // stamped by the store
	Posted time.Time
	// Outcome is what came of it; nil = it waits.
	Outcome *Outcome
}

// Outcome is what the owner made of a message: a revision, or a refusal.
type Outcome struct {
	Revision int64             `json:"revision"`
	Code     berth.Code        `json:"code,omitempty"` // "" = accepted
	Detail   string            `json:"detail,omitempty"`
	Hint     string            `json:"hint,omitempty"`
	Facts    map[string]string `json:"facts,omitempty"`
	Settled  time.Time         `json:"settled"` // set by the store
}

// OutcomeOf is that of a refusal.
func OutcomeOf(err error) Outcome {
	e := berth.AsError(err)
	o := Outcome{Code: e.Code, Detail: e.Detail, Hint: e.Hint, Facts: e.Facts}
	var stale *StaleError
	if errors.As(err, &stale) {
		o.Revision = stale.Current.Revision
	}
	return o
}

// Err is the refusal; nil when the message was accepted.
func (o Outcome) Err() error {
	if o.Code == "" {
		return nil
	}
	return &berth.Error{Code: o.Code, Detail: o.Detail, Hint: o.Hint, Facts: o.Facts}
}

// Validate checks what can be checked without the store.
func (p Post) Validate() error {
	if err := validNames(named{"kind", p.Kind}, named{"id", p.ID}); err != nil {
		return err
	}
	return validState(0, p.Event)
}

// Stale reports whether a message may be forgotten.
func (m Message) Stale(now time.Time) bool { return now.Sub(m.Posted) > MessagesKeptFor }

// InboxFull is the refusal of one message more.
func InboxFull(kind, id string) error {
	return berth.Errorf(berth.CodeConflict, "%d messages already wait for %s %s", MaxWaiting, kind, id).
		WithFact("holder", id).WithHint("its daemon does not answer; look at it with: berth doctor")
}

// NoMessage is the refusal of a message that is not there any more.
func NoMessage(seq int64) error {
	return berth.Errorf(berth.CodeNotFound, "there is no message %d", seq)
}

// SettledBefore is the refusal of a second outcome.
func SettledBefore(seq int64) error {
	return berth.Errorf(berth.CodeConflict, "the message %d has its outcome already", seq)
}
