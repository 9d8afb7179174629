package durable

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"berth"
)

// act is what a performer gets for an effect of s.
func (r *Runner[S, E]) act(ctx context.Context, s Snapshot[S], e Effect, report func(berth.Progress)) (Act[S], error) {
	rec := s.Record
	owned, err := r.cfg.Store.Owned(ctx, rec.Kind, rec.ID)
	if err != nil {
		return Act[S]{}, err
	}
	return Act[S]{
		RecordID: rec.ID, Effect: e, State: s.State, Owned: owned, Report: report,
		Own: func(ctx context.Context, ids ...string) error {
			Failpoint("before_own")
			if err := r.cfg.Store.Own(ctx, rec.Kind, rec.ID, rec.Epoch, ids...); err != nil {
				return err
			}
			Failpoint("after_own")
			return nil
		},
	}, nil
}

// perform does one effect and commits its answer; true = there may be a next one.
func (r *Runner[S, E]) perform(l *lane[S], s Snapshot[S], e Effect) bool {
	p := newPerformance(r.effects, e)
	r.mu.Lock()
	l.running = p // before the mark: whoever supersedes the effect finds it here
	r.mu.Unlock()
	event, started, err := r.start(l, s, p)
	cancelled := p.ctx.Err() != nil
	p.end()
	r.mu.Lock()
	l.running = nil
	r.mu.Unlock()
	switch {
	case !started:
		return r.notStarted(l, e, err)
	case r.effects.Err() != nil:
		return false // what it left is on the disk, and the next runner looks at it
	case cancelled:
		if err == nil {
			r.drop(l.id, e, "it was superseded while it ran")
		}
		return true
	case err != nil:
		return r.answer(l, e, r.failure(e, err, p.progress()))
	}
	return r.answer(l, e, proposal[E]{event: event, effect: &e, status: EffectDone, expected: AnyRevision, progress: p.progress()})
}

// start marks the effect as started and performs it. An answer comes only from
// one that started.
func (r *Runner[S, E]) start(l *lane[S], s Snapshot[S], p *performance) (event E, started bool, err error) {
	rec := s.Record
	act, err := r.act(r.base, s, p.effect, p.report)
	if err != nil {
		return event, false, err
	}
	Failpoint("before_start")
	err = r.persist(func() (err error) {
		act.Effect, err = r.cfg.Store.MarkEffect(r.base, rec.Kind, rec.ID, rec.Epoch, EffectMark{ID: p.effect.ID, Status: EffectStarted})
		return err
	})
	if err != nil {
		return event, false, err
	}
	r.mu.Lock()
	l.redo = ""
	r.mu.Unlock()
	Failpoint("after_start")
	p.publish(func() { r.showProgress(l) })
	if p.effect.Kind == EffectReconcile {
		event, err = r.cfg.Performer.Reconcile(p.ctx, act, nil)
	} else {
		event, err = r.cfg.Performer.Perform(p.ctx, act)
	}
	Failpoint("after_perform")
	return event, true, err
}

// notStarted is what follows when an effect could not be marked: superseded just
// now, which the next look shows, or an end of this runner's part.
func (r *Runner[S, E]) notStarted(l *lane[S], e Effect, err error) bool {
	switch {
	case errors.Is(err, berth.CodeConflict):
		return true
	case errors.Is(err, berth.CodeFenced):
		r.lost(l, err)
	case r.effects.Err() == nil:
		r.cfg.Log.Error("an effect was not started", "kind", r.cfg.Machine.Kind, "id", l.id, "effect", e.Kind, "error", err)
	}
	return false
}

// showProgress gives the listener the live progress.
func (r *Runner[S, E]) showProgress(l *lane[S]) {
	l.show.Lock()
	defer l.show.Unlock()
	s := l.last
	s.Pending = slices.Clone(s.Pending)
	r.mu.Lock()
	running := l.running
	r.mu.Unlock()
	if running == nil || !running.among(s.Pending) {
		return
	}
	running.merge(s.Pending)
	r.cfg.OnChange(s)
}

// drop counts an answer that changes nothing.
func (r *Runner[S, E]) drop(id string, e Effect, why string) {
	if r.cfg.Dropped != nil {
		r.cfg.Dropped.Inc()
	}
	r.cfg.Log.Info("an answer was dropped", "kind", r.cfg.Machine.Kind, "id", id, "effect", e.Kind, "effect_id", e.ID, "why", why)
}

// lost forgets what a lane knew of a record that another process took over.
func (r *Runner[S, E]) lost(l *lane[S], err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.adopted, l.live, l.redo = false, false, ""
	if l.running != nil {
		l.running.cancel()
	}
	r.cfg.Log.Warn("another process owns a record now", "kind", r.cfg.Machine.Kind, "id", l.id, "error", err)
}

// failure is the proposal for an effect that failed.
func (r *Runner[S, E]) failure(e Effect, err error, progress *berth.Progress) proposal[E] {
	p := proposal[E]{
		event: r.cfg.Machine.Failed(e.Kind, berth.AsError(err)), made: true,
		status: EffectFailed, cause: err.Error(), expected: AnyRevision, progress: progress,
	}
	if e.ID != "" {
		p.effect = &e
	}
	return p
}

// answer commits the answer of an effect; true = there may be a next effect. An
// answer that the reducer refuses is a failure of its effect; when it refuses
// that too the effect is unknown, and waits for an event from outside.
func (r *Runner[S, E]) answer(l *lane[S], e Effect, p proposal[E]) bool {
	err := r.persist(func() error {
		_, err := r.propose(r.base, l, p)
		return err
	})
	if errors.Is(err, errRefused) && !p.made {
		r.cfg.Log.Error("the answer of an effect was refused", "kind", r.cfg.Machine.Kind, "id", l.id, "effect", e.Kind, "error", err)
		return r.answer(l, e, r.failure(e, err, p.progress))
	}
	switch {
	case err == nil:
		return true
	case errors.Is(err, errNotPending):
		r.drop(l.id, e, err.Error())
		return true
	case errors.Is(err, errRefused):
		r.cfg.Log.Error("the failure of an effect was refused", "kind", r.cfg.Machine.Kind, "id", l.id, "effect", e.Kind, "error", err)
		r.unknown(l, e, err)
	case errors.Is(err, berth.CodeFenced):
		r.drop(l.id, e, err.Error())
		r.lost(l, err)
	default:
		r.cfg.Log.Error("an answer could not be kept", "kind", r.cfg.Machine.Kind, "id", l.id, "effect", e.Kind, "error", err)
	}
	return false
}

// unknown marks an effect of which nobody can tell.
func (r *Runner[S, E]) unknown(l *lane[S], e Effect, why error) {
	if e.ID == "" {
		return
	}
	err := r.persist(func() error {
		rec, err := r.cfg.Store.Get(r.base, r.cfg.Machine.Kind, l.id)
		if err == nil {
			_, err = r.cfg.Store.MarkEffect(r.base, rec.Kind, rec.ID, rec.Epoch, EffectMark{ID: e.ID, Status: EffectUnknown, Error: why.Error()})
		}
		return err
	})
	if err != nil && !errors.Is(err, berth.CodeConflict) {
		r.cfg.Log.Error("an effect could not be marked", "kind", r.cfg.Machine.Kind, "id", l.id, "effect", e.Kind, "error", err)
	}
}

// result is an answer as the ledger keeps it; one that is too large for it is in
// the state anyway, as far as the reducer wanted it.
func result(event any) json.RawMessage {
	text, err := json.Marshal(event)
	if err != nil || len(text) > MaxState {
		return nil
	}
	return text
}
