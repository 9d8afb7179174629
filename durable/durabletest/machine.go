package durabletest

import (
	"bytes"
	"context"
	"maps"
	"slices"

	"berth"
	"berth/durable"
)

// key names a record.
type key struct{ kind, id string }

func keyOf(r durable.Record) key { return key{r.Kind, r.ID} }

// archived is one archive.
type archived struct {
	kind, stamp string
	records     []durable.ArchivedRecord
}

func cloneEffects(effects []durable.Effect) []durable.Effect {
	out := slices.Clone(effects)
	for i := range out {
		out[i] = cloneEffect(out[i])
	}
	return out
}

func cloneEffect(e durable.Effect) durable.Effect {
	e.Data, e.Result = bytes.Clone(e.Data), bytes.Clone(e.Result)
	if e.Progress != nil {
		p := *e.Progress
		e.Progress = &p
	}
	return e
}

// forget drops the i-th record and all that hangs on it.
func (c *content) forget(i int) {
	k := keyOf(*c.records[i])
	c.records[i] = nil
	delete(c.ledger, k)
	delete(c.owned, k)
	for n, m := range c.messages {
		if m != nil && m.Kind == k.kind && m.ID == k.id {
			c.messages[n] = nil
		}
	}
}

// applied gives what writes a change of the ledger of a record.
func (c *content) applied(l *durable.LedgerChange, next durable.Record) (func(), error) {
	if l == nil {
		return func() {}, nil
	}
	k := keyOf(next)
	all := cloneEffects(c.ledger[k])
	var pending []durable.Effect
	for _, e := range all {
		if e.Status.Pending() {
			pending = append(pending, e)
		}
	}
	changed, planned, err := l.Apply(pending, next)
	if err != nil {
		return nil, err
	}
	for _, e := range changed {
		all[slices.IndexFunc(all, func(o durable.Effect) bool { return o.ID == e.ID })] = e
	}
	if len(planned) > 0 {
		all = slices.DeleteFunc(all, func(e durable.Effect) bool {
			return !e.Status.Pending() && e.Revision < next.Revision-durable.EffectsKept
		})
	}
	all = cloneEffects(append(all, planned...))
	return func() { c.ledger[k] = all }, nil
}

// Effects reads a ledger, see durable.Store.
func (f *Fault) Effects(ctx context.Context, kind, id string) (effects []durable.Effect, err error) {
	err = f.view(ctx, func(durable.Moment) error {
		_, _, err := f.c.record(kind, id)
		effects = cloneEffects(f.c.ledger[key{kind, id}])
		return err
	})
	return effects, err
}

// MarkEffect moves an effect, see durable.Store.
func (f *Fault) MarkEffect(ctx context.Context, kind, id string, epoch int64, m durable.EffectMark) (e durable.Effect, err error) {
	if err := m.Validate(); err != nil {
		return durable.Effect{}, err
	}
	err = f.update(ctx, func(durable.Moment) (func(), []durable.EventDraft, error) {
		if err := f.performs(kind, id, epoch); err != nil {
			return nil, nil, err
		}
		ledger := f.c.ledger[key{kind, id}]
		i := slices.IndexFunc(ledger, func(e durable.Effect) bool { return e.ID == m.ID })
		if i < 0 {
			return nil, nil, durable.NotPending(kind, id, m.ID)
		}
		next, err := ledger[i].Marked(m, f.cfg.Owner)
		e = cloneEffect(next)
		return func() { ledger[i] = cloneEffect(next) }, nil, err
	})
	if err != nil {
		return durable.Effect{}, err
	}
	return e, nil
}

func (f *Fault) performs(kind, id string, epoch int64) error {
	_, r, err := f.c.record(kind, id)
	if err != nil {
		return err
	}
	return copied(*r).Performs(epoch, f.cfg.Owner)
}

// Own adds resource ids, see durable.Store.
func (f *Fault) Own(ctx context.Context, kind, id string, epoch int64, resources ...string) error {
	if err := durable.ValidateOwn(kind, id, resources); err != nil {
		return err
	}
	return f.update(ctx, func(durable.Moment) (func(), []durable.EventDraft, error) {
		if err := f.performs(kind, id, epoch); err != nil {
			return nil, nil, err
		}
		owned := slices.Clone(f.c.owned[key{kind, id}])
		for _, r := range resources {
			if !slices.Contains(owned, r) {
				owned = append(owned, r)
			}
		}
		if len(owned) > durable.MaxOwned {
			return nil, nil, durable.OwnsTooMuch(kind, id)
		}
		return func() { f.c.owned[key{kind, id}] = owned }, nil, nil
	})
}

// Owned lists resource ids, see durable.Store.
func (f *Fault) Owned(ctx context.Context, kind, id string) (owned []string, err error) {
	err = f.view(ctx, func(durable.Moment) error {
		_, _, err := f.c.record(kind, id)
		owned = slices.Clone(f.c.owned[key{kind, id}])
		return err
	})
	return owned, err
}

func cloneMessage(m durable.Message) durable.Message {
	m.Event = bytes.Clone(m.Event)
	if m.Outcome != nil {
		o := *m.Outcome
		o.Facts = maps.Clone(o.Facts)
		m.Outcome = &o
	}
	return m
}

// Post puts an event into an inbox, see durable.Store.
func (f *Fault) Post(ctx context.Context, p durable.Post) (seq int64, err error) {
	if err := p.Validate(); err != nil {
		return 0, err
	}
	err = f.update(ctx, func(now durable.Moment) (func(), []durable.EventDraft, error) {
		if _, _, err := f.c.record(p.Kind, p.ID); err != nil {
			return nil, nil, err
		}
		waiting := 0
		for _, m := range f.c.messages {
			if m != nil && m.Kind == p.Kind && m.ID == p.ID && m.Outcome == nil {
				waiting++
			}
		}
		if waiting >= durable.MaxWaiting {
			return nil, nil, durable.InboxFull(p.Kind, p.ID)
		}
		seq = int64(len(f.c.messages)) + 1
		m := cloneMessage(durable.Message{Post: p, Seq: seq, Sender: f.cfg.Owner, Posted: now.Wall})
		f.nudge = true
		return func() { f.c.messages = append(f.c.messages, &m) }, nil, nil
	})
	if err != nil {
		return 0, err
	}
	return seq, nil
}

// Inbox lists what waits for this opening's owner, see durable.Store.
func (f *Fault) Inbox(ctx context.Context, kind string) (messages []durable.Message, err error) {
	err = f.view(ctx, func(durable.Moment) error {
		for _, m := range f.c.messages {
			if m == nil || m.Kind != kind || m.Outcome != nil || len(messages) == durable.MaxPage {
				continue
			}
			if _, r, err := f.c.record(m.Kind, m.ID); err == nil && r.Owner == f.cfg.Owner {
				messages = append(messages, cloneMessage(*m))
			}
		}
		return nil
	})
	return messages, err
}

func (c *content) message(seq int64) (*durable.Message, error) {
	if seq < 1 || seq > int64(len(c.messages)) || c.messages[seq-1] == nil {
		return nil, durable.NoMessage(seq)
	}
	return c.messages[seq-1], nil
}

// Message shows one message, see durable.Store.
func (f *Fault) Message(ctx context.Context, seq int64) (m durable.Message, err error) {
	err = f.view(ctx, func(durable.Moment) error {
		found, err := f.c.message(seq)
		if err == nil {
			m = cloneMessage(*found)
		}
		return err
	})
	return m, err
}

// Settle gives a message its outcome, see durable.Store.
func (f *Fault) Settle(ctx context.Context, seq int64, o durable.Outcome) error {
	return f.update(ctx, func(now durable.Moment) (func(), []durable.EventDraft, error) {
		act, err := f.settling(seq, nil, o, now)
		return act, nil, err
	})
}

func (f *Fault) settling(seq int64, r *durable.Record, o durable.Outcome, now durable.Moment) (func(), error) {
	m, err := f.c.message(seq)
	if err != nil {
		return nil, err
	}
	if r != nil && (m.Kind != r.Kind || m.ID != r.ID) {
		return nil, durable.NoMessage(seq)
	}
	if m.Outcome != nil {
		return nil, durable.SettledBefore(seq)
	}
	o.Settled = now.Wall
	o.Facts = maps.Clone(o.Facts)
	f.nudge = true
	return func() { m.Outcome = &o }, nil
}

// pruneMessages forgets old messages.
func (c *content) pruneMessages(now durable.Moment) {
	for i, m := range c.messages {
		if m != nil && m.Stale(now.Wall) {
			c.messages[i] = nil
		}
	}
}

// Archive puts terminal records away, see durable.Store.
func (f *Fault) Archive(ctx context.Context, a durable.ArchiveRequest) (made durable.Archive, err error) {
	if err := a.Validate(); err != nil {
		return durable.Archive{}, err
	}
	err = f.update(ctx, func(now durable.Moment) (func(), []durable.EventDraft, error) {
		var places []int
		for i, r := range f.c.records {
			if r == nil || !a.Selects(*r) {
				continue
			}
			if !r.Terminal {
				return nil, nil, r.Archivable()
			}
			places = append(places, i)
		}
		if len(places) == 0 {
			return nil, nil, nil
		}
		var last string
		for _, old := range f.c.archives {
			if old.kind == a.Kind {
				last = max(last, old.stamp)
			}
		}
		made = durable.Archive{Stamp: durable.Stamp(now.Wall, last), Records: len(places)}
		return func() {
			kept := archived{kind: a.Kind, stamp: made.Stamp}
			for _, i := range places {
				r := *f.c.records[i]
				kept.records = append(kept.records, durable.ArchivedRecord{Record: r, Effects: f.c.ledger[keyOf(r)], Owned: f.c.owned[keyOf(r)]})
				f.c.forget(i)
			}
			f.c.archives = append(f.c.archives, kept)
		}, a.Events, nil
	})
	if err != nil {
		return durable.Archive{}, err
	}
	return made, nil
}

// Archives lists archives, see durable.Store.
func (f *Fault) Archives(ctx context.Context, kind string) (all []durable.Archive, err error) {
	err = f.view(ctx, func(durable.Moment) error {
		for _, a := range f.c.archives {
			if a.kind == kind {
				all = append(all, durable.Archive{Stamp: a.stamp, Records: len(a.records)})
			}
		}
		return nil
	})
	return all, err
}

// Archived reads one archive, see durable.Store.
func (f *Fault) Archived(ctx context.Context, kind, stamp string) (all []durable.ArchivedRecord, err error) {
	err = f.view(ctx, func(durable.Moment) error {
		for _, a := range f.c.archives {
			if a.kind != kind || a.stamp != stamp {
				continue
			}
			for _, r := range a.records {
				all = append(all, durable.ArchivedRecord{Record: copied(r.Record), Effects: cloneEffects(r.Effects), Owned: slices.Clone(r.Owned)})
			}
			return nil
		}
		return durable.NotFound("archive of "+kind, stamp)
	})
	return all, err
}

// Crash closes the opening as a kill does: whatever still runs on it can write
// no more.
func (f *Fault) Crash(cause error) {
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if f.cause == nil && !f.closed {
		f.cause = berth.Errorf(berth.CodeStoreFailed, "the process was killed: %w", cause)
		close(f.failed)
	}
}
