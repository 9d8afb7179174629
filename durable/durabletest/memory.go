package durabletest

import (
	"bytes"
	"context"
	"slices"
	"sort"
	"strconv"
	"time"

	"berth"
	"berth/durable"
)

// copied gives a record that the caller may keep.
func copied(r durable.Record) durable.Record {
	r.State = bytes.Clone(r.State)
	return r
}

// find gives a record and its place; nil when there is none.
func (c *content) find(match func(*durable.Record) bool) (int, *durable.Record) {
	for i, r := range c.records {
		if r != nil && match(r) {
			return i, r
		}
	}
	return 0, nil
}

func (c *content) record(kind, id string) (int, *durable.Record, error) {
	i, r := c.find(func(r *durable.Record) bool { return r.Kind == kind && r.ID == id })
	if r == nil {
		return 0, nil, durable.NotFound(kind, id)
	}
	return i, r, nil
}

func (c *content) busy(r durable.Record) error {
	if !r.HoldsBusy() {
		return nil
	}
	_, other := c.find(func(o *durable.Record) bool {
		return o.HoldsBusy() && o.BusyKey == r.BusyKey && (o.Kind != r.Kind || o.ID != r.ID)
	})
	if other != nil {
		return durable.Busy(r.BusyKey, other.Kind, other.ID)
	}
	return nil
}

// Begin makes a record, see durable.Store.
func (f *Fault) Begin(ctx context.Context, b durable.Begin) (rec durable.Record, created bool, err error) {
	if err := b.Validate(); err != nil {
		return durable.Record{}, false, err
	}
	err = f.update(ctx, func(now durable.Moment) (func(), []durable.EventDraft, error) {
		if b.IdempotencyKey != "" {
			_, old := f.c.find(func(r *durable.Record) bool { return r.Kind == b.Kind && r.IdempotencyKey == b.IdempotencyKey })
			if old != nil {
				rec = copied(*old)
				return nil, nil, b.Repeats(*old)
			}
		}
		if _, _, err := f.c.record(b.Kind, b.ID); err == nil {
			return nil, nil, durable.Exists(b.Kind, b.ID)
		}
		rec = copied(b.Record(f.cfg.Owner, now.Wall))
		if err := f.c.busy(rec); err != nil {
			return nil, nil, err
		}
		created = true
		kept := copied(rec)
		planned := cloneEffects(durable.Planned(b.Effects, 0))
		return func() {
			f.c.records = append(f.c.records, &kept)
			if len(planned) > 0 {
				f.c.ledger[keyOf(kept)] = planned
			}
		}, durable.EventsOf(rec, b.Events), nil
	})
	if err != nil {
		return durable.Record{}, false, err
	}
	return rec, created, nil
}

// Change replaces the state of a record, see durable.Store.
func (f *Fault) Change(ctx context.Context, c durable.Change) (rec durable.Record, err error) {
	if err := c.Validate(); err != nil {
		return durable.Record{}, err
	}
	return f.changeIf(ctx, c, func(durable.Moment) error { return nil })
}

// Guarded is Change under a lease, see durable.Store.
func (f *Fault) Guarded(ctx context.Context, lease string, epoch int64, c durable.Change) (durable.Record, error) {
	if err := c.Validate(); err != nil {
		return durable.Record{}, err
	}
	return f.changeIf(ctx, c, func(now durable.Moment) error {
		if h := f.c.hold(lease); !h.HeldWith(epoch, now) {
			return durable.Fenced(lease, epoch, h)
		}
		return nil
	})
}

func (f *Fault) changeIf(ctx context.Context, c durable.Change, allowed func(durable.Moment) error) (rec durable.Record, err error) {
	err = f.update(ctx, func(now durable.Moment) (func(), []durable.EventDraft, error) {
		if err := allowed(now); err != nil {
			return nil, nil, err
		}
		i, cur, err := f.c.record(c.Kind, c.ID)
		if err != nil {
			return nil, nil, err
		}
		next, err := c.Apply(copied(*cur), f.cfg.Owner, now.Wall)
		if err != nil {
			return nil, nil, err
		}
		if err := f.c.busy(next); err != nil {
			return nil, nil, err
		}
		ledger, err := f.c.applied(c.Ledger, next)
		if err != nil {
			return nil, nil, err
		}
		settle := func() {}
		if c.Message != 0 {
			if settle, err = f.settling(c.Message, &next, durable.Outcome{Revision: next.Revision}, now); err != nil {
				return nil, nil, err
			}
		}
		rec = copied(next)
		kept := copied(next)
		return func() {
			f.c.records[i] = &kept
			ledger()
			settle()
		}, durable.EventsOf(next, c.Events), nil
	})
	if err != nil {
		return durable.Record{}, err
	}
	return rec, nil
}

// Remove forgets a terminal record, see durable.Store.
func (f *Fault) Remove(ctx context.Context, kind, id string, revision, epoch int64, events ...durable.EventDraft) error {
	if err := durable.ValidateRemoval(kind, id, events); err != nil {
		return err
	}
	return f.update(ctx, func(durable.Moment) (func(), []durable.EventDraft, error) {
		i, cur, err := f.c.record(kind, id)
		if err != nil {
			return nil, nil, err
		}
		if err := copied(*cur).Removable(revision, epoch); err != nil {
			return nil, nil, err
		}
		return func() { f.c.forget(i) }, durable.EventsOf(*cur, events), nil
	})
}

// TakeOver makes this opening the owner, see durable.Store.
func (f *Fault) TakeOver(ctx context.Context, kind, id string, revision, epoch int64) (rec durable.Record, err error) {
	if err := durable.ValidateRemoval(kind, id, nil); err != nil {
		return durable.Record{}, err
	}
	err = f.update(ctx, func(now durable.Moment) (func(), []durable.EventDraft, error) {
		i, cur, err := f.c.record(kind, id)
		if err != nil {
			return nil, nil, err
		}
		next, err := copied(*cur).TakenOver(revision, epoch, f.cfg.Owner, now.Wall)
		if err != nil {
			return nil, nil, err
		}
		rec = copied(next)
		return func() { f.c.records[i] = &next }, nil, nil
	})
	if err != nil {
		return durable.Record{}, err
	}
	return rec, nil
}

// Get reads a record, see durable.Store.
func (f *Fault) Get(ctx context.Context, kind, id string) (rec durable.Record, err error) {
	err = f.view(ctx, func(durable.Moment) error {
		_, r, err := f.c.record(kind, id)
		if err == nil {
			rec = copied(*r)
		}
		return err
	})
	return rec, err
}

// List reads a page of records, see durable.Store.
func (f *Fault) List(ctx context.Context, q durable.Query) (page durable.Page, err error) {
	err = f.view(ctx, func(durable.Moment) error {
		before := len(f.c.records)
		if q.After != "" {
			n, err := strconv.Atoi(q.After)
			if err != nil || n < 0 {
				return berth.Errorf(berth.CodeInvalidArgument, "the cursor %q is not one of a list", q.After)
			}
			before = min(n, before)
		}
		limit := durable.PageSize(q.Limit)
		place := 0
		for i := before - 1; i >= 0; i-- {
			r := f.c.records[i]
			if r == nil || q.Kind != "" && r.Kind != q.Kind || q.Live && r.Terminal || q.BusyKey != "" && r.BusyKey != q.BusyKey {
				continue
			}
			if len(page.Records) == limit {
				page.Next = strconv.Itoa(place)
				return nil
			}
			page.Records = append(page.Records, copied(*r))
			place = i
		}
		return nil
	})
	return page, err
}

// Publish appends events, see durable.Store.
func (f *Fault) Publish(ctx context.Context, events ...durable.EventDraft) (last int64, err error) {
	if err := durable.ValidateEvents(events); err != nil {
		return 0, err
	}
	err = f.update(ctx, func(durable.Moment) (func(), []durable.EventDraft, error) {
		last = f.c.last + int64(len(events))
		if len(events) == 0 {
			return nil, nil, nil
		}
		return func() {}, events, nil
	})
	if err != nil {
		return 0, err
	}
	return last, nil
}

// Events reads the sequence, see durable.Store.
func (f *Fault) Events(ctx context.Context, after int64, limit int) (page durable.EventPage, err error) {
	if after < 0 {
		return page, berth.Errorf(berth.CodeInvalidArgument, "the cursor %d is negative", after)
	}
	err = f.view(ctx, func(now durable.Moment) error {
		if after > f.c.last {
			return durable.BeyondNewest(after, f.c.last)
		}
		page.Last = f.c.last
		rest := f.c.events[sort.Search(len(f.c.events), func(i int) bool { return f.c.events[i].Seq > after }):]
		first := f.c.last + 1
		if len(rest) > 0 {
			first = rest[0].Seq
		}
		page.Gap = durable.Gap(after, first, now.Wall)
		page.Events = append(page.Events, rest[:min(len(rest), durable.PageSize(limit))]...)
		return nil
	})
	return page, err
}

// Watch gives wake-ups, see durable.Store.
func (f *Fault) Watch(ctx context.Context) <-chan struct{} {
	c := make(chan struct{}, 1)
	f.c.mu.Lock()
	defer f.c.mu.Unlock()
	if f.closed || ctx.Err() != nil {
		close(c)
		return c
	}
	stop := context.AfterFunc(ctx, func() {
		f.c.mu.Lock()
		defer f.c.mu.Unlock()
		i := slices.IndexFunc(f.watchers, func(w watcher) bool { return w.c == c })
		if i >= 0 {
			f.watchers = slices.Delete(f.watchers, i, i+1)
			close(c)
		}
	})
	f.watchers = append(f.watchers, watcher{c, stop})
	return c
}

// Prune drops the oldest events, see durable.Store.
func (f *Fault) Prune(ctx context.Context) (dropped int64, err error) {
	err = f.update(ctx, func(now durable.Moment) (func(), []durable.EventDraft, error) {
		oldest := now.Wall.Add(-f.cfg.EventsKeptFor)
		young := 0 // the first that is young enough; only a run from the start goes
		for young < len(f.c.events) && f.c.events[young].At.Before(oldest) {
			young++
		}
		n := max(young, len(f.c.events)-int(f.cfg.EventsKept))
		dropped = int64(n)
		return func() {
			f.c.events = append([]berth.Event(nil), f.c.events[n:]...)
			f.c.pruneMessages(now)
			for name, h := range f.c.holds {
				if !h.Taken() && h.Ended.Before(oldest) {
					f.c.floor = max(f.c.floor, h.Epoch)
					delete(f.c.holds, name)
				}
			}
		}, nil, nil
	})
	if err != nil {
		return 0, err
	}
	return dropped, nil
}

func (c *content) hold(name string) durable.Hold {
	if h, ok := c.holds[name]; ok {
		return h
	}
	return durable.Hold{Name: name, Epoch: c.floor}
}

// put is the write of a hold.
func (c *content) put(h durable.Hold) func() { return func() { c.holds[h.Name] = h } }

func expiry(h durable.Hold) durable.EventDraft {
	return durable.EventDraft{Kind: berth.EventLeaseExpired, Subject: h.Name}
}

// Acquire takes or renews a lease, see durable.Store.
func (f *Fault) Acquire(ctx context.Context, r durable.LeaseRequest) (lease berth.Lease, err error) {
	if err := r.Validate(); err != nil {
		return berth.Lease{}, err
	}
	err = f.update(ctx, func(now durable.Moment) (func(), []durable.EventDraft, error) {
		old := f.c.hold(r.Name)
		next, err := old.Acquire(r, now)
		if err != nil {
			return nil, nil, err
		}
		var events []durable.EventDraft
		if old.Taken() && next.Epoch != old.Epoch {
			events = append(events, expiry(old))
		}
		lease = next.Lease(now)
		return f.c.put(next), events, nil
	})
	if err != nil {
		return berth.Lease{}, err
	}
	return lease, nil
}

// Renew extends a lease, see durable.Store.
func (f *Fault) Renew(ctx context.Context, name, principal string, epoch int64, ttl time.Duration) (lease berth.Lease, err error) {
	if err := (durable.LeaseRequest{Name: name, Principal: principal, TTL: ttl}).Validate(); err != nil {
		return berth.Lease{}, err
	}
	err = f.update(ctx, func(now durable.Moment) (func(), []durable.EventDraft, error) {
		next, err := f.c.hold(name).Renew(name, principal, epoch, ttl, now)
		lease = next.Lease(now)
		return f.c.put(next), nil, err
	})
	if err != nil {
		return berth.Lease{}, err
	}
	return lease, nil
}

// Release ends a lease, see durable.Store.
func (f *Fault) Release(ctx context.Context, name, principal string, epoch int64) error {
	return f.update(ctx, func(now durable.Moment) (func(), []durable.EventDraft, error) {
		h := f.c.hold(name)
		_, err := h.Renew(name, principal, epoch, 0, now)
		return f.c.put(h.End(now)), nil, err
	})
}

// Lease shows a lease, see durable.Store.
func (f *Fault) Lease(ctx context.Context, name string) (lease berth.Lease, err error) {
	err = f.view(ctx, func(now durable.Moment) error {
		h := f.c.hold(name)
		if !h.Live(now) {
			return durable.NotFound("lease", name)
		}
		lease = h.Lease(now)
		return nil
	})
	return lease, err
}

// Leases shows the leases that are held, see durable.Store.
func (f *Fault) Leases(ctx context.Context) (leases []berth.Lease, err error) {
	err = f.view(ctx, func(now durable.Moment) error {
		for _, h := range f.c.holds {
			if h.Live(now) {
				leases = append(leases, h.Lease(now))
			}
		}
		sort.Slice(leases, func(i, j int) bool { return leases[i].Name < leases[j].Name })
		return nil
	})
	return leases, err
}

// Expire ends leases that are over, see durable.Store.
func (f *Fault) Expire(ctx context.Context) (over []berth.Lease, err error) {
	err = f.update(ctx, func(now durable.Moment) (func(), []durable.EventDraft, error) {
		var ended []durable.Hold
		for _, h := range f.c.holds {
			if h.Taken() && !h.Live(now) {
				ended = append(ended, h)
			}
		}
		if len(ended) == 0 {
			return nil, nil, nil
		}
		sort.Slice(ended, func(i, j int) bool { return ended[i].Name < ended[j].Name })
		var events []durable.EventDraft
		for _, h := range ended {
			over = append(over, h.Lease(now))
			events = append(events, expiry(h))
		}
		return func() {
			for _, h := range ended {
				f.c.put(h.End(now))()
			}
		}, events, nil
	})
	if err != nil {
		return nil, err
	}
	return over, nil
}
