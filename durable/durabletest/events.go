package durabletest

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/durable"
)

// publish appends n events about "x".
func publish(t *testing.T, s durable.Store, n int) {
	t.Helper()
	drafts := make([]durable.EventDraft, n)
	for i := range drafts {
		drafts[i] = durable.EventDraft{Kind: "thing.seen", Subject: "x", Revision: int64(i)}
	}
	if _, err := s.Publish(t.Context(), drafts...); err != nil {
		t.Fatal(err)
	}
}

func testEventsOfWrites(t *testing.T, s durable.Store) {
	wantEvents(t, s, 0)
	r := begin(t, s, durable.Begin{ID: "a", Events: []durable.EventDraft{
		{Kind: "thing.begun"}, {Kind: "thing.about", Subject: "b", Revision: 7},
	}})
	c := next(r, `1`)
	c.Events = []durable.EventDraft{{Kind: "thing.changed", Subject: "a", Revision: 99}}
	r = change(t, s, c)
	last, err := s.Publish(t.Context(), durable.EventDraft{Kind: "thing.seen", Subject: "a", Revision: 5}, durable.EventDraft{Kind: "thing.seen", Subject: "c"})
	if err != nil || last != 5 {
		t.Fatalf("published up to %d, %v, want 5", last, err)
	}
	if last, err = s.Publish(t.Context()); err != nil || last != 5 {
		t.Fatalf("no event published up to %d, %v, want 5", last, err)
	}
	r = end(t, s, r) // without an event
	if err := s.Remove(t.Context(), kind, "a", r.Revision, r.Epoch, durable.EventDraft{Kind: "thing.removed"}); err != nil {
		t.Fatal(err)
	}
	wantEvents(t, s, 0, "thing.begun a 0", "thing.about b 7", "thing.changed a 1", "thing.seen a 5", "thing.seen c 0", "thing.removed a 2")
	page, err := s.Events(t.Context(), 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	if at := page.Events[0].At; !at.Equal(r.Created) || at.Location() != time.UTC {
		t.Fatalf("the first event is of %v, its record of %v", at, r.Created)
	}
}

func testEventsPaging(t *testing.T, s durable.Store) {
	publish(t, s, durable.MaxPage+5)
	for _, limit := range []int{0, -1, durable.MaxPage + 100} {
		page, err := s.Events(t.Context(), 0, limit)
		if err != nil || len(page.Events) != durable.MaxPage || page.Last != durable.MaxPage+5 {
			t.Fatalf("limit %d: %d events, last %d, %v", limit, len(page.Events), page.Last, err)
		}
	}
	var after int64
	for seen := 0; seen < durable.MaxPage+5; {
		page, err := s.Events(t.Context(), after, 100)
		if err != nil || len(page.Events) == 0 || len(page.Events) > 100 {
			t.Fatalf("after %d: %d events, %v", after, len(page.Events), err)
		}
		for _, e := range page.Events {
			seen++
			if e.Seq != int64(seen) || e.Revision != int64(seen-1) {
				t.Fatalf("event %d is %+v", seen, e)
			}
			after = e.Seq
		}
	}
	wantEvents(t, s, after)
}

func testEventCursors(t *testing.T, s durable.Store) {
	_, err := s.Events(t.Context(), 1, 0)
	wantCode(t, err, berth.CodeInvalidArgument)
	publish(t, s, 3)
	wantEvents(t, s, 3)
	wantEvents(t, s, 2, "thing.seen x 2")
	for _, after := range []int64{4, -1, 1 << 62} {
		_, err = s.Events(t.Context(), after, 0)
		wantCode(t, err, berth.CodeInvalidArgument)
	}
}

func testRefusedWritesPublishNothing(t *testing.T, s durable.Store) {
	drafts := []durable.EventDraft{{Kind: "thing.never"}}
	r := begin(t, s, durable.Begin{ID: "a", BusyKey: "x"})
	c := next(r, `{}`)
	c.Revision, c.Events = 9, drafts
	_, err := s.Change(t.Context(), c)
	wantCode(t, err, berth.CodeRevisionMismatch)
	_, _, err = s.Begin(t.Context(), durable.Begin{Kind: kind, ID: "b", State: []byte(`{}`), BusyKey: "x", Events: drafts})
	wantCode(t, err, berth.CodeConflict)
	wantCode(t, s.Remove(t.Context(), kind, "a", 0, 1, drafts...), berth.CodeConflict)
	c = next(r, `{}`)
	c.Events = drafts
	_, err = s.Guarded(t.Context(), "lease", 1, c)
	wantCode(t, err, berth.CodeFenced)
	wantEvents(t, s, 0)
	publish(t, s, 1) // and none of them left a hole
	wantEvents(t, s, 0, "thing.seen x 0")
	wantRecord(t, s, r)
}

// A reader that follows while eight write sees every number once, in order.
func testSequenceHasNoGap(t *testing.T, s durable.Store) {
	const writers, each = 8, 30
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	wake := s.Watch(ctx)
	read := make(chan error, 1)
	go func() {
		var after int64
		for after < writers*each*2 {
			page, err := s.Events(ctx, after, 7)
			if err != nil || page.Gap != nil {
				read <- fmt.Errorf("gap %v, %w", page.Gap, err)
				return
			}
			for _, e := range page.Events {
				if e.Seq != after+1 {
					read <- fmt.Errorf("%d follows %d", e.Seq, after)
					return
				}
				after = e.Seq
			}
			if len(page.Events) > 0 {
				continue
			}
			select {
			case <-wake:
			case <-ctx.Done():
				read <- fmt.Errorf("no wake-up after event %d", after)
				return
			}
		}
		read <- nil
	}()
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				b := durable.Begin{Kind: kind, ID: fmt.Sprintf("%d-%d", w, i), State: []byte(`{}`), Events: []durable.EventDraft{{Kind: "thing.begun"}}}
				if _, _, err := s.Begin(ctx, b); err != nil {
					t.Error(err)
				}
				if _, _, err := s.Begin(ctx, b); err == nil { // refused: must leave no hole
					t.Error("an id was taken twice")
				}
				if _, err := s.Publish(ctx, durable.EventDraft{Kind: "thing.seen", Subject: b.ID}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	wantEvents(t, s, writers*each*2)
}

// woken reads one wake-up.
func woken(t *testing.T, wake <-chan struct{}) {
	t.Helper()
	select {
	case _, open := <-wake:
		if !open {
			t.Fatal("the channel is closed")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("no wake-up within 20 s")
	}
}

func ended(t *testing.T, wake <-chan struct{}) {
	t.Helper()
	eventually(t, "the channel is closed", func() bool {
		select {
		case _, open := <-wake:
			return !open
		default:
			return false
		}
	})
}

func testWatch(t *testing.T, s durable.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a, b := s.Watch(ctx), s.Watch(t.Context())
	publish(t, s, 1)
	woken(t, a)
	woken(t, b)
	r := begin(t, s, durable.Begin{ID: "a"}) // without an event
	select {
	case <-a:
		t.Fatal("a wake-up without an event")
	default:
	}
	c := next(r, `1`)
	c.Events = []durable.EventDraft{{Kind: "thing.changed"}}
	change(t, s, c)
	woken(t, a)
	cancel()
	ended(t, a)
	publish(t, s, 1)
	woken(t, b)

	ended(t, s.Watch(ctx)) // a context that is over already
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	ended(t, b)
	ended(t, s.Watch(t.Context()))
}

func testWatchNeverBlocks(t *testing.T, s durable.Store) {
	wake := s.Watch(t.Context())
	for range 100 { // nobody reads
		publish(t, s, 1)
	}
	woken(t, wake)
	select {
	case <-wake:
		t.Fatal("it kept more than one wake-up")
	default:
	}
}

func testPruneKeepsTheYoung(t *testing.T, s durable.Store) {
	publish(t, s, 100)
	dropped, err := s.Prune(t.Context())
	if err != nil || dropped != 0 {
		t.Fatalf("dropped %d, %v", dropped, err)
	}
	page, err := s.Events(t.Context(), 0, 0)
	if err != nil || len(page.Events) != 100 {
		t.Fatalf("%d events are left, %v", len(page.Events), err)
	}
}

// RunPrune tests the bounds of the events. open makes an empty store that keeps
// `kept` events for `keptFor`; pass puts both its clocks forward.
func RunPrune(t *testing.T, kept int64, keptFor time.Duration, open func(t *testing.T) (s durable.Store, pass func(time.Duration))) {
	prune := func(t *testing.T, s durable.Store, want int64) {
		t.Helper()
		if dropped, err := s.Prune(t.Context()); err != nil || dropped != want {
			t.Fatalf("dropped %d, %v, want %d", dropped, err, want)
		}
	}
	t.Run("ByNumber", func(t *testing.T) {
		s, _ := open(t)
		publish(t, s, int(kept)+10)
		prune(t, s, 10)
		wantAfterPrune(t, s, 10, kept+10)
		prune(t, s, 0)
	})
	t.Run("ByAge", func(t *testing.T) {
		s, pass := open(t)
		publish(t, s, 4)
		pass(keptFor / 2)
		publish(t, s, 2)
		pass(keptFor/2 + 1)
		prune(t, s, 4)
		wantAfterPrune(t, s, 4, 6)
		pass(keptFor)
		prune(t, s, 2)
		wantAfterPrune(t, s, 6, 6)
		publish(t, s, 1) // the sequence goes on where it was
		wantAfterPrune(t, s, 6, 7)
	})
	t.Run("ClockPutBack", func(t *testing.T) {
		s, pass := open(t)
		publish(t, s, 1)
		pass(-keptFor * 3)
		publish(t, s, 1)
		pass(keptFor * 3)
		prune(t, s, 0) // the old one waits for the younger before it: no hole
		wantAfterPrune(t, s, 0, 2)
		pass(keptFor + 1)
		prune(t, s, 2)
	})
	t.Run("LeaseNames", func(t *testing.T) {
		s, pass := open(t)
		first := acquire(t, s, "a", "me")
		release(t, s, first)
		second := acquire(t, s, "a", "me")
		release(t, s, second)
		pass(keptFor + 1)
		prune(t, s, 0)
		for _, name := range []string{"a", "b"} { // the names are forgotten, their epochs are not
			if l := acquire(t, s, name, "me"); l.Epoch <= second.Epoch {
				t.Fatalf("the epoch %d of %s came before", l.Epoch, name)
			}
		}
	})
}

// wantAfterPrune wants the events up to gone to be missing.
func wantAfterPrune(t *testing.T, s durable.Store, gone, last int64) {
	t.Helper()
	for after := int64(0); after <= last; after++ {
		page, err := s.Events(t.Context(), after, 0)
		if err != nil {
			t.Fatal(err)
		}
		first := max(after, gone) + 1
		if n := int64(len(page.Events)); page.Last != last || n != min(last-first+1, durable.MaxPage) || n > 0 && page.Events[0].Seq != first {
			t.Fatalf("after %d: %d events, last %d, want those from %d to %d", after, n, page.Last, first, last)
		}
		var want *berth.Event
		if after > 0 && after < gone {
			want = &berth.Event{Seq: gone, Kind: berth.EventGap, From: after + 1, To: gone + 1}
		}
		if page.Gap != nil {
			page.Gap.At = time.Time{}
		}
		if !reflect.DeepEqual(page.Gap, want) {
			t.Fatalf("after %d: gap %+v, want %+v", after, page.Gap, want)
		}
	}
}
