package durable

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"berth"
)

var (
	// errRefused is behind the error of an event that the reducer refused.
	errRefused = errors.New("the event was refused")
	// errNotPending is behind the error of an answer that nothing waits for.
	errNotPending = errors.New("no effect waits for the answer")
	// errElsewhere is behind the error of an event for a record that this
	// runner does not own now.
	errElsewhere = errors.New("another process owns the record")
)

// proposal is an event on its way to the reducer.
type proposal[E any] struct {
	event E
	// effect is the one that it answers; nil = it comes from outside, or from a
	// recovery. status, cause and progress settle it.
	effect   *Effect
	status   EffectStatus
	cause    string
	progress *berth.Progress
	made     bool // by Machine.Failed: it answers any effect
	// settles is an effect that a recovery found completed; "" = none. It is
	// done with this commit, and the event does not count as its answer.
	settles  string
	expected int64 // revision; AnyRevision = any
	message  int64 // that brought it; 0 = none
	// reopen permits a record that has ended, whoever wrote it last.
	reopen bool
}

// propose decides an event and commits what came of it, or nothing. Whoever loses
// the record to another writer dispatches nothing.
func (r *Runner[S, E]) propose(ctx context.Context, l *lane[S], p proposal[E]) (Snapshot[S], error) {
	if err := l.take(ctx); err != nil {
		return Snapshot[S]{}, err
	}
	defer l.give()
	for try := 1; ; try++ {
		c, left, err := r.decide(ctx, l, p)
		if err != nil {
			return Snapshot[S]{}, err
		}
		Failpoint("before_commit")
		rec, err := r.cfg.Store.Change(ctx, c)
		if errors.Is(err, berth.CodeRevisionMismatch) && p.expected == AnyRevision && try < changeTries {
			continue
		}
		if err != nil {
			return Snapshot[S]{}, err
		}
		Failpoint("after_commit")
		s, err := r.snapshot(rec, append(left, Planned(c.Ledger.Plan, rec.Revision)...))
		if err != nil {
			return s, err
		}
		r.committed(l, s)
		return s, nil
	}
}

// decide reads the record and asks the reducer. left are the effects that stay
// pending.
func (r *Runner[S, E]) decide(ctx context.Context, l *lane[S], p proposal[E]) (c Change, left []Effect, err error) {
	rec, pending, err := r.load(ctx, l.id)
	if err != nil {
		return c, nil, err
	}
	if resumed := rec.Terminal && p.reopen; rec.Owner != r.self && !resumed {
		e := stale(berth.CodeFenced, rec, "%s %s is owned by process %d now", rec.Kind, rec.ID, rec.Owner.PID)
		return c, nil, errors.Join(e, errElsewhere)
	}
	if p.expected != AnyRevision && p.expected != rec.Revision {
		return c, nil, guard(rec, p.expected, rec.Epoch)
	}
	in := Input[E]{Event: p.event, At: r.cfg.Now().UTC(), Revision: rec.Revision}
	ledger := &LedgerChange{}
	if p.effect != nil {
		i := slices.IndexFunc(pending, func(e Effect) bool { return e.ID == p.effect.ID })
		if i < 0 || !p.made && !r.cfg.Machine.Answers(pending[i].Kind, p.event) {
			return c, nil, errors.Join(NotPending(rec.Kind, rec.ID, p.effect.ID), errNotPending)
		}
		answered := pending[i]
		in.Effect = &answered
		ledger.Answered = &EffectMark{ID: answered.ID, Status: p.status, Error: p.cause, Progress: p.progress}
		if p.status == EffectDone {
			ledger.Answered.Result = result(p.event)
		}
	} else if p.settles != "" && slices.ContainsFunc(pending, func(e Effect) bool { return e.ID == p.settles }) {
		ledger.Answered = &EffectMark{ID: p.settles, Status: EffectDone}
	}
	state, err := r.decode(rec)
	if err != nil {
		return c, nil, err
	}
	step, err := r.cfg.Machine.Reduce(state, in)
	if err != nil {
		return c, nil, refused{err}
	}
	if c, err = r.change(rec, step, ledger, p); err != nil {
		return c, nil, err
	}
	ledger.Progress = r.progressOf(l)
	if step.Keep && !step.Terminal {
		left = slices.DeleteFunc(pending, func(e Effect) bool { return ledger.Answered != nil && e.ID == ledger.Answered.ID })
	}
	return c, left, nil
}

// change is the commit of a step.
func (r *Runner[S, E]) change(rec Record, step Step[S], ledger *LedgerChange, p proposal[E]) (Change, error) {
	text, err := json.Marshal(step.State)
	if err != nil {
		return Change{}, refused{berth.Errorf(berth.CodeInternal, "the new state of %s %s: %w", rec.Kind, rec.ID, err)}
	}
	ledger.Plan, ledger.Keep = step.Plan, step.Keep
	c := Change{
		Kind: rec.Kind, ID: rec.ID, Revision: rec.Revision, Epoch: rec.Epoch,
		Schema: r.cfg.Machine.Schema, State: text, BusyKey: step.BusyKey, Terminal: step.Terminal,
		Reopen: rec.Terminal, Ledger: ledger, Message: p.message, Events: step.Events,
	}
	if err := c.Validate(); err != nil {
		return Change{}, refused{err}
	}
	return c, nil
}

// progressOf is the live progress of the effect that runs, for the ledger in
// case that the commit ends it.
func (r *Runner[S, E]) progressOf(l *lane[S]) map[string]berth.Progress {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.running == nil {
		return nil
	}
	last := l.running.progress()
	if last == nil {
		return nil
	}
	return map[string]berth.Progress{l.running.effect.ID: *last}
}

// refused is the reducer's refusal, or that of what it decided.
type refused struct{ err error }

func (r refused) Error() string   { return r.err.Error() }
func (r refused) Unwrap() []error { return []error{r.err, errRefused} }
