package durable

import (
	"context"
	"errors"
	"fmt"

	"berth"
)

// Recover looks after what dead processes left: each live record of this kind
// whose owner is dead is taken over, what had started is looked at, and the
// machine is told by one Reconciled event. It returns when all are told, or
// when ctx ends; the rest goes on until Shutdown. A record that cannot be read
// keeps no other from it.
func (r *Runner[S, E]) Recover(ctx context.Context) error {
	if err := r.enter(); err != nil {
		return err
	}
	defer r.leave()
	var waits []<-chan struct{}
	q := Query{Kind: r.cfg.Machine.Kind, Live: true}
	for {
		page, err := r.cfg.Store.List(ctx, q)
		if err != nil {
			return err
		}
		for _, rec := range page.Records {
			wait, err := r.claim(ctx, rec)
			if err != nil {
				return err
			}
			if wait != nil {
				waits = append(waits, wait)
			}
		}
		if q.After = page.Next; page.Next == "" {
			break
		}
	}
	for _, wait := range waits {
		if err := r.await(ctx, wait); err != nil {
			return err
		}
	}
	return nil
}

// await waits for the end of a recovery.
func (r *Runner[S, E]) await(ctx context.Context, end <-chan struct{}) error {
	select {
	case <-end:
		return nil
	case <-r.effects.Done():
		return stopping()
	case <-ctx.Done():
		return berth.AsError(ctx.Err())
	}
}

// reclaim recovers a record whose owner is dead and waits for the end of that;
// false = it is not such a record.
func (r *Runner[S, E]) reclaim(ctx context.Context, id string) (bool, error) {
	rec, err := r.cfg.Store.Get(ctx, r.cfg.Machine.Kind, id)
	if errors.Is(err, berth.CodeNotFound) {
		return true, nil // it ended and was put away since
	}
	if err != nil {
		return false, err
	}
	if rec.Terminal {
		return true, nil
	}
	wait, err := r.claim(ctx, rec)
	if err != nil || wait == nil {
		return false, err
	}
	return true, r.await(ctx, wait)
}

// claim takes a record over when its owner is dead, and begins its recovery. The
// channel is closed at its end; nil = there is nothing to recover. A record of
// this very process which no runner of it has adopted is recovered too.
func (r *Runner[S, E]) claim(ctx context.Context, rec Record) (<-chan struct{}, error) {
	l := r.lane(rec.ID)
	defer r.release(l)
	r.mu.Lock()
	wait, adopted := l.recovering, l.adopted
	r.mu.Unlock()
	switch {
	case rec.Terminal:
		return nil, nil
	case rec.Owner == r.self && (wait != nil || adopted):
		return wait, nil
	case rec.Owner != r.self && r.cfg.Liveness(rec.Owner) != OwnerDead:
		return nil, nil
	}
	if err := l.take(ctx); err != nil {
		return nil, err
	}
	defer l.give()
	took := rec.Owner != r.self
	if took {
		Failpoint("before_takeover")
		_, err := r.cfg.Store.TakeOver(ctx, rec.Kind, rec.ID, rec.Revision, rec.Epoch)
		var stale *StaleError
		switch {
		case errors.As(err, &stale), errors.Is(err, berth.CodeNotFound), errors.Is(err, berth.CodeConflict):
			// Another was quicker: another process, or this one, which may be at it.
			r.mu.Lock()
			defer r.mu.Unlock()
			return l.recovering, nil
		case err != nil:
			return nil, err
		}
		Failpoint("after_takeover")
		r.cfg.Log.Info("a dead process's record was taken over", "kind", rec.Kind, "id", rec.ID, "pid", rec.Owner.PID, "epoch", rec.Epoch+1)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if took { // it may have been this process's before: what was known then is old
		l.adopted, l.redo = false, ""
	}
	if l.recovering == nil && !l.adopted {
		l.recovering = make(chan struct{})
		l.live = true
		r.kick(l)
	}
	return l.recovering, nil
}

// recover is the lane's part of it; false = it could not be done now.
func (r *Runner[S, E]) recover(l *lane[S]) bool {
	rec, pending, err := r.load(r.base, l.id)
	if errors.Is(err, berth.CodeNotFound) || err == nil && (rec.Terminal || rec.Owner != r.self) {
		r.recovered(l, false)
		return true
	}
	var s Snapshot[S]
	if err == nil {
		s, err = r.snapshot(rec, pending)
	}
	if err == nil {
		l.seen(s)
		err = r.reconcile(l, s)
	}
	switch {
	case r.effects.Err() != nil:
		return false // the next runner does it
	case errors.Is(err, berth.CodeFenced):
		r.lost(l, err)
		r.recovered(l, false)
		return true
	case err != nil:
		// It stays as it is, and is nobody's burden: a feed or a begin that meets
		// it tries again.
		r.cfg.Log.Error("a record could not be recovered", "kind", r.cfg.Machine.Kind, "id", l.id, "error", err)
		r.recovered(l, false)
		return false
	}
	r.recovered(l, true)
	return true
}

func (r *Runner[S, E]) recovered(l *lane[S], adopted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.adopted = adopted
	close(l.recovering)
	l.recovering = nil
	l.kicked = true
}

// reconcile inspects the effect that had started and tells the reducer.
func (r *Runner[S, E]) reconcile(l *lane[S], s Snapshot[S]) error {
	var e Effect
	if len(s.Pending) > 0 {
		e = s.Pending[0]
	}
	if e.Kind == EffectReconcile { // a look changes nothing: it is simply done again
		r.redo(l, e)
		return nil
	}
	act, err := r.act(r.base, s, e, func(berth.Progress) {})
	if err != nil {
		return err
	}
	var finding *Finding
	if e.Status == EffectStarted || e.Status == EffectUnknown {
		if finding, err = r.inspect(l, act); err != nil || finding == nil {
			return err
		}
	}
	event, err := r.cfg.Performer.Reconcile(r.effects, act, finding)
	if r.effects.Err() != nil {
		return r.effects.Err()
	}
	Failpoint("after_reconcile")
	if err != nil {
		return r.tell(l, r.failure(e, err, nil))
	}
	p := proposal[E]{event: event, expected: AnyRevision}
	if finding != nil && finding.Verdict == VerdictCompleted {
		p.settles = e.ID
	}
	if finding != nil && finding.Verdict == VerdictAbsent {
		r.redo(l, e)
	}
	err = r.tell(l, p)
	if errors.Is(err, errRefused) {
		return r.tell(l, r.failure(e, err, nil))
	}
	return err
}

// redo permits a started effect to be performed again, if the machine keeps it.
func (r *Runner[S, E]) redo(l *lane[S], e Effect) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.redo = e.ID
}

func (r *Runner[S, E]) tell(l *lane[S], p proposal[E]) error {
	return r.persist(func() error {
		_, err := r.propose(r.base, l, p)
		return err
	})
}

// inspect looks what became of a started effect. nil = the machine was told that
// it is another's, and nothing is adopted.
func (r *Runner[S, E]) inspect(l *lane[S], act Act[S]) (*Finding, error) {
	e := act.Effect
	finding, err := r.cfg.Performer.Inspect(r.effects, act)
	if r.effects.Err() != nil {
		return nil, r.effects.Err()
	}
	Failpoint("after_inspect")
	if err != nil {
		finding = Finding{Verdict: VerdictUnknown, Detail: err.Error()}
	}
	switch finding.Verdict {
	case VerdictForeign:
		foreign := berth.Errorf(berth.CodeIdentityMismatch, "what %s was to make is there and is not ours: %s", e.Kind, finding.Detail)
		return nil, r.tell(l, r.failure(e, foreign, nil))
	case VerdictCompleted:
		if len(finding.Adopt) > 0 {
			if err := r.persist(func() error { return act.Own(r.base, finding.Adopt...) }); err != nil {
				return nil, err
			}
		}
	case VerdictAbsent:
	case VerdictUnknown:
		r.unknown(l, e, fmt.Errorf("what became of it cannot be told: %s", finding.Detail))
	default:
		return nil, berth.Errorf(berth.CodeInternal, "the look at %s says %q", e.Kind, finding.Verdict)
	}
	return &finding, nil
}
