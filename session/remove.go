package session

import (
	"context"
	"errors"

	"berth"
	"berth/durable"
)

// Remove forgets a session that has ended, with every file of it. force kills
// it first. The guest removes the files before the store forgets the record: a
// crash in between leaves a record without files, which can be removed again;
// the other order would leave files that nobody knows, and they would come back
// as a session.
//
// What has no host any more, or no files, is removed from the store alone: a
// session must never be there that cannot be removed.
func (r *Registry) Remove(ctx context.Context, ref string, force bool, ifMatch int64) error {
	if err := r.ready(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	e, err := r.find(ref)
	if err == nil {
		err = checkRevision(e, ifMatch)
	}
	if err != nil {
		r.mu.Unlock()
		if errors.Is(err, berth.CodeNotFound) {
			return r.removeUnreadable(ctx, ref, err)
		}
		return err
	}
	s := r.view(e)
	h := r.host(e.host)
	switch {
	case e.removing || e.creating:
		err = berth.Errorf(berth.CodeConflict, "session %s is being created or removed right now", e.name)
	case s.State.Live() && !force:
		err = berth.Errorf(berth.CodeSessionLive, "the program of session %s still runs", e.name)
		if s.State == berth.SessionUnknown {
			err = berth.Errorf(berth.CodeSessionLive, "the program of session %s may still run: its host does not answer or its files cannot be read", e.name)
		}
	}
	if err != nil {
		r.mu.Unlock()
		return err
	}
	e.removing = true
	r.mu.Unlock()
	err = r.removeAt(ctx, h, e, s.State.Live())
	if err == nil {
		err = r.forget(ctx, e)
	}
	if err != nil {
		r.mu.Lock()
		e.removing = false
		r.plan(e)
		r.mu.Unlock()
	}
	return err
}

// removeAt removes what the host has of a session. h nil = there is no such
// host any more, and nothing to ask.
func (r *Registry) removeAt(ctx context.Context, h *hostState, e *entry, kill bool) error {
	if h == nil {
		return nil
	}
	if err := r.reach(ctx, h, e.host); err != nil {
		return err
	}
	if kill {
		var res berth.KillResult
		err := r.call(ctx, h, unsent, func() (err error) {
			res, err = h.link.Guest.Kill(ctx, e.id)
			return err
		})
		switch {
		case errors.Is(err, berth.CodeSessionEnded), errors.Is(err, berth.CodeSessionLost),
			errors.Is(err, berth.CodeNotFound), errors.Is(err, berth.CodeRecordUnreadable):
			// There is nothing to kill, or nothing that the guest could find.
		case err != nil:
			return err
		case res.Exit == nil:
			return berth.Errorf(berth.CodeKillIncomplete, "the program of session %s is still there after SIGKILL", e.id)
		}
	}
	err := r.call(ctx, h, broken, func() error { return h.link.Guest.Remove(ctx, e.id) })
	if errors.Is(err, berth.CodeNotFound) {
		return nil // it was removed before, or its files went with the machine
	}
	return err
}

// forget removes the record and the entry. e.removing is set, so nobody else
// writes it.
func (r *Registry) forget(ctx context.Context, e *entry) error {
	e.w.Lock()
	defer e.w.Unlock()
	r.mu.Lock()
	stored, terminal, revision, epoch := e.stored, e.terminal, e.revision, e.epoch
	target := e.target(r.cfg.Now())
	r.mu.Unlock()
	if stored != nil {
		if target.State.Live() { // killed a moment ago; how it ended is of no interest any more
			target.State = berth.SessionLost
		}
		if !terminal { // only a terminal record can be removed
			rec, err := r.cfg.Store.Change(ctx, durable.Change{
				Kind: recordKind, ID: e.id, Revision: revision, Epoch: epoch,
				Schema: recordSchema, State: encodeSession(target), Terminal: true,
			})
			if err != nil && !errors.Is(err, berth.CodeNotFound) {
				return r.storeError(err)
			}
			if err == nil {
				r.mu.Lock()
				e.stored, e.revision, e.epoch, e.terminal = &target, rec.Revision, rec.Epoch, true
				r.mu.Unlock()
				revision, epoch = rec.Revision, rec.Epoch
			}
		}
		err := r.cfg.Store.Remove(ctx, recordKind, e.id, revision, epoch,
			durable.EventDraft{Kind: berth.EventSessionRemoved, Subject: e.id})
		if err != nil && !errors.Is(err, berth.CodeNotFound) {
			return r.storeError(err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e.removed, e.removing, e.stored = true, false, nil
	if h := r.host(e.host); h == nil || e.seen == nil {
		delete(r.sessions, e.id) // no guest will tell of it
	}
	r.broadcast()
	return nil
}

// removeUnreadable removes a session that nobody knows but a guest that cannot
// read its files.
func (r *Registry) removeUnreadable(ctx context.Context, ref string, notFound error) error {
	if !berth.ValidID(berth.SessionID, ref) {
		return notFound
	}
	for _, h := range r.hosts {
		r.mu.Lock()
		_, bad := h.bad[ref]
		r.mu.Unlock()
		if !bad {
			continue
		}
		if err := r.reach(ctx, h, h.link.Name); err != nil {
			return err
		}
		if err := h.link.Guest.Remove(ctx, ref); err != nil && !errors.Is(err, berth.CodeNotFound) {
			return err
		}
		r.mu.Lock()
		delete(h.bad, ref)
		r.mu.Unlock()
		return nil
	}
	return notFound
}
