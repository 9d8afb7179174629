package durable

import (
	"context"
	"encoding/json"
	"time"

	"berth"
)

// Machine describes one kind of durable state machine: S is its state, E its
// event. All of it is pure; the Runner does the rest.
//
// What happens to a record:
//
//	Begin ─► commit(state, planned effects) ─► perform one effect ─► its answer is an event ─► Reduce ─► commit ─► …
//
// A crash between any two arrows loses nothing: the next Runner inspects the
// effect that had started, and goes on with a Reconciled event.
type Machine[S, E any] struct {
	// Kind is the kind of its records, Schema the version of S's JSON.
	Kind   string
	Schema int
	// Reduce decides. It never reads a clock, a random source, a disk or a
	// network. An error refuses the event: nothing is committed.
	Reduce func(s S, in Input[E]) (Step[S], error)
	// Answers reports whether e is of the kind that answers an effect of that
	// kind. What answers no pending effect is dropped. An event that Failed made
	// answers every kind and is not asked about.
	Answers func(effect string, e E) bool
	// Failed makes the event for an effect that failed, or, with the kind "" or
	// that of the effect that was pending, for a record that could not be
	// reconciled. A reducer that refuses it leaves its record where it is.
	Failed func(effect string, err *berth.Error) E
}

// Input is an event as the reducer gets it.
type Input[E any] struct {
	Event E
	At    time.Time // of the runner's clock, UTC
	// Effect is the one that the event answers; nil = it comes from outside, or
	// from a recovery: a Reconciled event answers an effect only when a reducer
	// planned that effect, of kind EffectReconcile.
	Effect *Effect
	// Revision of the record before this event.
	Revision int64
}

// Step is what a reducer decides.
type Step[S any] struct {
	State S
	// Plan are the effects to perform, in order, after those that are kept.
	Plan []EffectPlan
	// Keep leaves the pending effects pending: the event noted something while
	// work runs, and the answer of that work still counts at the new revision.
	// Without it pending effects are superseded: their contexts are cancelled,
	// and their answers change nothing. (The effect that the event answers is
	// done either way.) Of what a recovery finds and the reducer keeps: a
	// completed effect is done all the same, an absent one is performed again, an
	// unknown one waits for an event from outside.
	Keep bool
	// Terminal and BusyKey of the record after this step; BusyKey "" frees it. A
	// terminal step plans nothing. A record that has ended gets events from
	// outside all the same: refusing them, noting something or becoming live
	// again is the reducer's decision.
	Terminal bool
	BusyKey  string
	// Events to append to the sequence with the commit.
	Events []EventDraft
}

// EffectPlan is an effect that a reducer asks for.
type EffectPlan struct {
	Kind string
	Data json.RawMessage // what the performer needs; nil = nothing
}

// EffectReconcile is the kind of effect that a reducer plans to have a record
// looked at again, as when a failed one is resumed. The Runner hands it to
// Performer.Reconcile with no finding; the event of it answers the effect, so
// Machine.Answers must know the two as a pair. After a crash it is done again
// without an Inspect: a look changes nothing.
const EffectReconcile = "reconcile"

// EffectStatus is where an effect stands in the ledger.
//
//	planned ─► started ─► done | failed
//	   │          └─────► unknown ─► done | failed (after a look, or by a person)
//	   └─► superseded (also from started and unknown)
type EffectStatus string

// The effect states.
const (
	EffectPlanned    EffectStatus = "planned"
	EffectStarted    EffectStatus = "started"
	EffectDone       EffectStatus = "done"
	EffectFailed     EffectStatus = "failed"
	EffectUnknown    EffectStatus = "unknown"
	EffectSuperseded EffectStatus = "superseded"
)

// Pending reports whether an answer is still awaited.
func (s EffectStatus) Pending() bool {
	return s == EffectPlanned || s == EffectStarted || s == EffectUnknown
}

// Effect is one row of the ledger.
type Effect struct {
	ID       string          `json:"id"` // "REVISION.N": of the commit that planned it, and its place in it, from 1
	Kind     string          `json:"kind"`
	Data     json.RawMessage `json:"data,omitempty"`
	Status   EffectStatus    `json:"status"`
	Revision int64           `json:"revision"` // that issued it
	// Performer is who started it; zero while planned.
	Performer berth.Identity  `json:"performer,omitzero"`
	Progress  *berth.Progress `json:"progress,omitempty"` // the last one; nil = none
	Error     string          `json:"error,omitempty"`    // of a failed or unknown one
	Result    json.RawMessage `json:"result,omitempty"`   // of a done one: its answer, as JSON; nil = none
}

// Act is an effect being performed.
type Act[S any] struct {
	RecordID string
	Effect   Effect
	State    S        // as committed when the effect began
	Owned    []string // resource ids owned by the record so far
	// Own records resources as owned before they are created. Owned ids only
	// grow; cleanup and removal act on them alone. It fails when the record was
	// taken over or changed owner: then nothing may be created.
	Own func(ctx context.Context, ids ...string) error
	// Report shows progress; it is kept monotone and published at most every
	// ProgressEvery. It never blocks.
	Report func(berth.Progress)
}

// ProgressEvery is the least time between two published progress reports of one
// record. The first is published at once.
const ProgressEvery = 250 * time.Millisecond

// Verdict is what a look at the machine says of an effect that had started.
type Verdict string

// The verdicts.
const (
	VerdictCompleted Verdict = "completed" // it is done: its answer is in the Finding
	VerdictAbsent    Verdict = "absent"    // nothing of it is there, or what is there is safe to do again
	VerdictForeign   Verdict = "foreign"   // something of that name is there that is not ours: stop
	VerdictUnknown   Verdict = "unknown"   // it cannot be told now
)

// Finding is the result of inspecting an effect.
type Finding struct {
	Verdict Verdict
	Detail  string
	Adopt   []string // resource ids to own, of a completed effect
}

// Performer does what a Machine decides. A Runner performs the effects of one
// record one at a time, in order.
type Performer[S, E any] interface {
	// Perform does an effect and answers the event of it. An error becomes the
	// machine's Failed event. When ctx ends (superseded, or the runner shuts
	// down) it returns soon; what it returns then is dropped.
	Perform(ctx context.Context, act Act[S]) (E, error)
	// Inspect looks what became of an effect that a dead performer had started.
	Inspect(ctx context.Context, act Act[S]) (Finding, error)
	// Reconcile looks at the machine for a record that is resumed or taken over,
	// and answers the event that tells the reducer. An error fails the record
	// with its reason, so that it blocks nobody for ever.
	Reconcile(ctx context.Context, act Act[S], finding *Finding) (E, error)
}
