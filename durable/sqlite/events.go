package sqlite

import (
	"context"
	"database/sql"
	"sync"

	"berth"
	"berth/durable"
)

const (
	selectLastSeq = `SELECT value FROM counters WHERE name = 'event_seq'`

	// pruneBatch is how many events one transaction drops: a writer waits for
	// one batch at most, some milliseconds.
	pruneBatch = 2000
)

// publish gives events their places, inside a transaction. The counter is read
// and raised in it, and there is one writer: no number is skipped or given
// twice, and none becomes visible before a smaller one.
func (t *txn) publish(events []durable.EventDraft) (last int64, err error) {
	if len(events) == 0 {
		return 0, nil
	}
	if err := t.do.nextSeq.QueryRowContext(t.ctx, len(events)).Scan(&last); err != nil {
		return 0, err
	}
	seq := last - int64(len(events))
	for _, e := range events {
		seq++
		if err := t.one(t.do.addEvent, seq, string(e.Kind), e.Subject, e.Revision, t.now.Wall.UnixNano()); err != nil {
			return 0, err
		}
	}
	t.wakes = true
	return last, nil
}

// Publish appends events, see durable.Store.
func (s *Store) Publish(ctx context.Context, events ...durable.EventDraft) (last int64, err error) {
	if err := durable.ValidateEvents(events); err != nil {
		return 0, err
	}
	if len(events) == 0 {
		err = s.view(ctx, "read events", func(ctx context.Context) error {
			return s.ask.lastSeq.QueryRowContext(ctx).Scan(&last)
		})
		return last, err
	}
	err = s.update(ctx, "publish events", func(t *txn) error {
		last, err = t.publish(events)
		return err
	})
	if err != nil {
		return 0, err
	}
	return last, nil
}

// Events reads the sequence, see durable.Store.
func (s *Store) Events(ctx context.Context, after int64, limit int) (page durable.EventPage, err error) {
	if after < 0 {
		return page, berth.Errorf(berth.CodeInvalidArgument, "the cursor %d is negative", after)
	}
	err = s.view(ctx, "read events", func(ctx context.Context) error {
		// The newest number first: events that come between the two reads are
		// then only more than it says. Were it read last, an empty answer could
		// stand beside events that nobody reported missing.
		if err := s.ask.lastSeq.QueryRowContext(ctx).Scan(&page.Last); err != nil {
			return err
		}
		if after > page.Last {
			return durable.BeyondNewest(after, page.Last)
		}
		rows, err := s.ask.events.QueryContext(ctx, after, durable.PageSize(limit))
		if err != nil {
			return err
		}
		defer rows.Close() //nolint:errcheck // rows.Err has it
		for rows.Next() {
			var e berth.Event
			var at int64
			if err := rows.Scan(&e.Seq, &e.Kind, &e.Subject, &e.Revision, &at); err != nil {
				return err
			}
			e.At = instant(at)
			page.Events = append(page.Events, e)
		}
		return rows.Err()
	})
	if err != nil {
		return durable.EventPage{}, err
	}
	first := page.Last + 1 // where nothing is kept
	if n := len(page.Events); n > 0 {
		first = page.Events[0].Seq
		page.Last = max(page.Last, page.Events[n-1].Seq)
	}
	page.Gap = durable.Gap(after, first, s.cfg.Now().UTC())
	return page, nil
}

// Prune drops the oldest events, see durable.Store.
func (s *Store) Prune(ctx context.Context) (dropped int64, err error) {
	for {
		var n int64
		err := s.update(ctx, "prune events", func(t *txn) error {
			n, err = t.prune(s.cfg)
			return err
		})
		dropped += n
		if err != nil || n < pruneBatch {
			return dropped, err
		}
	}
}

func (t *txn) prune(cfg Config) (dropped int64, err error) {
	oldest := t.now.Wall.Add(-cfg.EventsKeptFor).UnixNano()
	var bound, last int64
	// Only a run from the start is dropped, also where a wall clock that was put
	// back left an old time among younger ones: a hole would not be seen.
	if err := t.do.pruneBound.QueryRowContext(t.ctx, oldest).Scan(&bound); err != nil {
		return 0, err
	}
	if err := t.do.lastSeq.QueryRowContext(t.ctx).Scan(&last); err != nil {
		return 0, err
	}
	bound = max(bound, last-cfg.EventsKept+1)
	if dropped, err = rowsOf(t.do.pruneEvents.ExecContext(t.ctx, bound, pruneBatch)); err != nil {
		return 0, err
	}
	if _, err := t.do.raiseFloor.ExecContext(t.ctx, oldest); err != nil {
		return 0, err
	}
	if _, err := t.do.pruneInbox.ExecContext(t.ctx, t.now.Wall.Add(-durable.MessagesKeptFor).UnixNano()); err != nil {
		return 0, err
	}
	_, err = t.do.forgetNames.ExecContext(t.ctx, oldest)
	return dropped, err
}

func rowsOf(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// Watch gives wake-ups, see durable.Store.
func (s *Store) Watch(ctx context.Context) <-chan struct{} { return s.watch.add(ctx) }

// watchers are the channels of Watch.
type watchers struct {
	mu     sync.Mutex
	all    map[chan struct{}]func() bool // to what ends the wait for the context
	closed bool
}

func (w *watchers) add(ctx context.Context) <-chan struct{} {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || ctx.Err() != nil {
		close(c)
		return c
	}
	if w.all == nil {
		w.all = map[chan struct{}]func() bool{}
	}
	w.all[c] = context.AfterFunc(ctx, func() { w.remove(c) })
	return c
}

func (w *watchers) remove(c chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.all[c]; ok {
		delete(w.all, c)
		close(c)
	}
}

// wake never waits: a channel that is full has its wake-up already.
func (w *watchers) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.all {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

func (w *watchers) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for c, stop := range w.all {
		stop()
		close(c)
	}
	w.all = nil
}
