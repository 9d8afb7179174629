package session

import (
	"context"
	"errors"
	"time"

	"berth"
	"berth/durable"
)

// The writer brings the store up to date. It is driven by levels, not edges:
// for each entry it compares what the store has with what it should have, so
// changes that come faster than commits merge, and what did not change costs
// nothing, which is what makes the adoption of hundreds of sessions cheap.

// plan says when the store is to be brought up to date. r.mu is held.
func (r *Registry) plan(e *entry) {
	if e.creating || e.removing || e.removed || e.writing {
		return // the one who does that writes, or plans again
	}
	now := time.Now()
	due := now
	target := e.target(r.cfg.Now())
	if e.stored != nil {
		switch w := differ(*e.stored, target); {
		case e.terminal && !target.State.Live(), w == same:
			e.due = time.Time{}
			return
		case w == soft:
			due = e.wrote.Add(softPace)
		case w == agent:
			due = e.wroteAgent.Add(agentPace)
		}
	}
	if due.Before(now) {
		due = now
	}
	if e.due.IsZero() || due.Before(e.due) {
		e.due = due
	}
	wake(r.kick)
}

// write commits what is due until ctx ends.
func (r *Registry) write(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.kick:
		case <-timer.C:
		}
		if next := r.flushDue(ctx, false); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// flushDue commits every entry that is due (all that have something to write),
// and tells when the next one is; zero = none is.
func (r *Registry) flushDue(ctx context.Context, all bool) (next time.Time) {
	now := time.Now()
	var batch []*entry
	r.mu.Lock()
	for _, e := range r.sessions {
		if !e.due.IsZero() && (all || !e.due.After(now)) {
			batch = append(batch, e)
		}
	}
	r.mu.Unlock()
	for _, e := range batch {
		if ctx.Err() != nil {
			break
		}
		if err := r.flush(ctx, e); err != nil && ctx.Err() == nil {
			r.cfg.Log.Error("write a session's record", "session", e.id, "err", err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.sessions {
		if !e.due.IsZero() && (next.IsZero() || e.due.Before(next)) {
			next = e.due
		}
	}
	return next
}

// flush brings one record up to date. It returns nil when there is nothing to do.
func (r *Registry) flush(ctx context.Context, e *entry) error {
	e.w.Lock()
	defer e.w.Unlock()
	return r.flushLocked(ctx, e)
}

// flushLocked is flush with e.w held.
func (r *Registry) flushLocked(ctx context.Context, e *entry) error {
	r.mu.Lock()
	if e.removing || e.removed || e.creating {
		e.due = time.Time{}
		r.mu.Unlock()
		return nil
	}
	e.due = time.Time{}
	e.writing = true // what changes during the commit is planned after it, from its time on
	target := e.target(r.cfg.Now())
	stored, terminal, revision, epoch, bad := e.stored, e.terminal, e.revision, e.epoch, e.bad != ""
	r.mu.Unlock()

	rec, wrote, err := r.commit(ctx, e, target, stored, terminal, revision, epoch, bad)
	r.mu.Lock()
	e.writing = false
	switch {
	case err != nil:
		e.due = time.Now().Add(softPace) // not at once: what failed now fails again now
		wake(r.kick)
	case wrote:
		r.committed(e, rec, target)
	default:
		r.plan(e)
	}
	r.mu.Unlock()
	return r.storeError(err)
}

// commit makes the record in the store target; wrote = there was something to write.
func (r *Registry) commit(ctx context.Context, e *entry, target berth.Session, stored *berth.Session,
	terminal bool, revision, epoch int64, bad bool) (rec durable.Record, wrote bool, err error) {
	switch {
	case stored == nil:
		rec, err = r.begin(ctx, e, target)
	case terminal && !target.State.Live():
		return rec, false, nil // how it ended is on record, and records of the dead do not change
	case terminal:
		// The store believed that it ended, and the guest shows that it runs: the
		// directory was away for a while. A terminal record never becomes live
		// again, so the session gets a new one.
		if err = r.cfg.Store.Remove(ctx, recordKind, e.id, revision, epoch); err == nil || errors.Is(err, berth.CodeNotFound) {
			r.mu.Lock()
			e.stored, e.terminal = nil, false
			e.name = r.freeName(e)
			target.Name = e.name
			r.mu.Unlock()
			rec, err = r.begin(ctx, e, target)
		}
	case differ(*stored, target) == same && !bad:
		return rec, false, nil
	default:
		rec, err = r.change(ctx, e, *stored, target, revision, epoch)
	}
	return rec, err == nil, err
}

// change writes target over stored. When the record is not at the revision that
// we know, it was written by nobody that we know of: take what is there and
// write over it once, unless another daemon has taken the record over.
func (r *Registry) change(ctx context.Context, e *entry, stored, target berth.Session, revision, epoch int64) (durable.Record, error) {
	c := durable.Change{
		Kind: recordKind, ID: e.id, Revision: revision, Epoch: epoch,
		Schema: recordSchema, State: encodeSession(target),
		BusyKey: busyKey(target), Terminal: !target.State.Live(),
		Events: changeEvents(stored, target),
	}
	rec, err := r.cfg.Store.Change(ctx, c)
	var stale *durable.StaleError
	if errors.As(err, &stale) && stale.Current.Epoch == epoch && !stale.Current.Terminal {
		r.cfg.Log.Warn("a session's record was at another revision", "session", e.id, "known", revision, "found", stale.Current.Revision)
		c.Revision = stale.Current.Revision
		rec, err = r.cfg.Store.Change(ctx, c)
	}
	return rec, err
}

// begin makes the record of an adopted session, with another name where its own
// is taken by now.
func (r *Registry) begin(ctx context.Context, e *entry, target berth.Session) (durable.Record, error) {
	b := durable.Begin{Kind: recordKind, ID: e.id, Schema: recordSchema, Terminal: !target.State.Live(),
		Events: []durable.EventDraft{{Kind: berth.EventSessionCreated, Subject: e.id}}}
	for _, name := range []string{target.Name, variant(target.Name, e.id), fallbackName(e.id)} {
		target.Name = name
		b.State, b.BusyKey = encodeSession(target), busyKey(target)
		rec, _, err := r.cfg.Store.Begin(ctx, b)
		if holder(err) != "" {
			continue
		}
		if err == nil {
			r.mu.Lock()
			e.name = name
			r.mu.Unlock()
		}
		return rec, err
	}
	return durable.Record{}, berth.Errorf(berth.CodeNameTaken, "no free name was found for session %s", e.id)
}

func busyKey(s berth.Session) string {
	if !s.State.Live() {
		return ""
	}
	return namePrefix + s.Name
}

// holder gives who holds the busy key that a Begin asked for; "" = the error is
// another one, or none.
func holder(err error) string {
	var e *berth.Error
	if errors.As(err, &e) && e.Code == berth.CodeConflict && e.Facts["busy_key"] != "" {
		return e.Facts["holder"]
	}
	return ""
}

// committed takes the answer of the store and looks whether the session has
// moved on meanwhile. r.mu is held.
func (r *Registry) committed(e *entry, rec durable.Record, target berth.Session) {
	now := time.Now()
	if e.stored == nil || !sameAgent(e.stored.Agent, target.Agent) {
		e.wroteAgent = now
	}
	e.wrote = now
	target.Name = e.name
	e.stored, e.revision, e.epoch, e.terminal, e.bad = &target, rec.Revision, rec.Epoch, rec.Terminal, ""
	r.plan(e)
	r.broadcast()
}

// storeError ends everything when the store cannot write: to go on would show
// what a restart does not know.
func (r *Registry) storeError(err error) error {
	if errors.Is(err, berth.CodeStoreFailed) || errors.Is(err, berth.CodeFenced) {
		r.fail(err)
	}
	return err
}
