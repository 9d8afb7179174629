package durable

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"berth"
)

const (
	// answerWithin is how long the process that owns a record may take to settle
	// a message. Its reducer takes microseconds; a recovery there may take more.
	answerWithin = 30 * time.Second
	// lookEvery is how often a sender looks whether the receiver still lives, and
	// a runner whether what it performs for is still its own.
	lookEvery = time.Second
	// feedTries bounds how often an event follows a record from owner to owner.
	feedTries = 5
)

// Feed gives a record an event from outside, and answers the record after it.
// expected is the revision at which it is meant, else CodeRevisionMismatch with
// the current one; AnyRevision = any. An error of the reducer refuses it.
//
// A record that another live process owns gets the event through its inbox. When
// that process is dead the record is taken over and recovered first, which
// raises its revision. An ended record takes what its reducer allows, and may
// become live again.
func (r *Runner[S, E]) Feed(ctx context.Context, id string, expected int64, e E) (Snapshot[S], error) {
	if err := r.enter(); err != nil {
		return Snapshot[S]{}, err
	}
	defer r.leave()
	l := r.lane(id)
	defer r.release(l)
	var err error
	for range feedTries {
		var s Snapshot[S]
		var rec Record
		if rec, err = r.cfg.Store.Get(ctx, r.cfg.Machine.Kind, id); err != nil {
			return s, err
		}
		dead := rec.Owner != r.self && r.cfg.Liveness(rec.Owner) == OwnerDead
		switch {
		case rec.Owner != r.self && !dead:
			s, err = r.send(ctx, rec, expected, e)
		default:
			s, err = r.feedHere(ctx, l, rec, proposal[E]{event: e, expected: expected, reopen: dead})
		}
		if !errors.Is(err, errElsewhere) {
			return s, err
		}
	}
	return Snapshot[S]{}, err
}

// feedHere decides an event for a record that is this runner's, or a dead one's.
func (r *Runner[S, E]) feedHere(ctx context.Context, l *lane[S], rec Record, p proposal[E]) (Snapshot[S], error) {
	wait, err := r.claim(ctx, rec)
	if err != nil {
		return Snapshot[S]{}, err
	}
	if wait != nil {
		if err := r.await(ctx, wait); err != nil {
			return Snapshot[S]{}, err
		}
	}
	return r.propose(ctx, l, p)
}

// send posts an event to the owner of a record and waits for the outcome.
// errElsewhere = nobody acted on it, and the owner has changed.
func (r *Runner[S, E]) send(ctx context.Context, rec Record, expected int64, e E) (Snapshot[S], error) {
	text, err := json.Marshal(e)
	if err != nil {
		return Snapshot[S]{}, berth.Errorf(berth.CodeInvalidArgument, "the event for %s: %w", rec.ID, err)
	}
	seq, err := r.cfg.Store.Post(ctx, Post{Kind: rec.Kind, ID: rec.ID, Event: text, Expected: expected})
	if err != nil {
		return Snapshot[S]{}, err
	}
	Failpoint("after_post")
	outcome, err := r.awaitOutcome(ctx, seq, rec)
	if err != nil {
		return Snapshot[S]{}, err
	}
	current, getErr := r.Get(context.WithoutCancel(ctx), rec.ID)
	refusal := outcome.Err()
	if refusal == nil {
		return current, getErr
	}
	var coded *berth.Error
	if errors.As(refusal, &coded) && coded.Code == berth.CodeRevisionMismatch && getErr == nil {
		coded.Err = &StaleError{Current: current.Record}
	}
	return Snapshot[S]{}, refusal
}

// awaitOutcome waits until a message is settled. Where the sender gives up it
// settles the message itself; when it comes too late for that, the outcome counts.
func (r *Runner[S, E]) awaitOutcome(ctx context.Context, seq int64, rec Record) (Outcome, error) {
	limit, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	wake := r.cfg.Store.Watch(limit)
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		m, err := r.cfg.Store.Message(r.base, seq)
		if err != nil {
			return Outcome{}, err
		}
		if m.Outcome != nil {
			return *m.Outcome, nil
		}
		var over error // why nobody waits any longer
		select {
		case _, ok := <-wake:
			if !ok {
				wake = nil
			}
			continue
		case <-look.C:
			if !r.movedOn(rec) {
				continue
			}
			over = errElsewhere
		case <-r.effects.Done():
			over = stopping()
		case <-limit.Done():
			over = berth.AsError(limit.Err()).WithFact("pid", itoa(rec.Owner.PID))
			if ctx.Err() == nil {
				over = berth.Errorf(berth.CodeTimeout, "process %d, which owns %s %s, did not answer within %s", rec.Owner.PID, rec.Kind, rec.ID, answerWithin)
			}
		}
		err = r.cfg.Store.Settle(r.base, seq, OutcomeOf(&berth.Error{Code: berth.CodeInterrupted, Detail: "the sender stopped waiting"}))
		if errors.Is(err, berth.CodeConflict) {
			continue // it has its outcome
		}
		return Outcome{}, errors.Join(over, err)
	}
}

// movedOn reports whether a message to the owner of rec will not be answered.
func (r *Runner[S, E]) movedOn(rec Record) bool {
	now, err := r.cfg.Store.Get(r.base, rec.Kind, rec.ID)
	return err == nil && (now.Owner == r.self || r.cfg.Liveness(now.Owner) == OwnerDead)
}
