package durable_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/durable"
	"berth/durable/durabletest"
)

type toyRunner = durable.Runner[toyState, toyEvent]

type counter struct{ n atomic.Int64 }

func (c *counter) Inc() { c.n.Add(1) }

// bench is one process of a test.
type bench struct {
	t       *testing.T
	store   *durabletest.Fault
	hands   *hands
	r       *toyRunner
	dropped counter
	// verdicts of other processes by PID; none = alive
	mu       sync.Mutex
	verdicts map[int]durable.Liveness
	seen     []durable.Snapshot[toyState]
}

func person(pid int) berth.Identity { return berth.Identity{BootID: "boot", PID: pid} }

func newBench(t *testing.T, store *durabletest.Fault, w *world) *bench {
	t.Helper()
	b := &bench{t: t, store: store, hands: &hands{w: w}, verdicts: map[int]durable.Liveness{}}
	var err error
	b.r, err = durable.New(durable.Config[toyState, toyEvent]{
		Store: store, Machine: toyMachine(), Performer: b.hands, Dropped: &b.dropped,
		Liveness: func(p berth.Identity) durable.Liveness {
			b.mu.Lock()
			defer b.mu.Unlock()
			if v, ok := b.verdicts[p.PID]; ok {
				return v
			}
			return durable.OwnerAlive
		},
		OnChange: func(s durable.Snapshot[toyState]) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.seen = append(b.seen, s)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.shutdown)
	return b
}

func firstBench(t *testing.T) *bench {
	return newBench(t, durabletest.NewFault(durabletest.FaultConfig{Owner: person(1)}), newWorld())
}

func (b *bench) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := b.r.Shutdown(ctx); err != nil {
		b.t.Errorf("shutdown: %v", err)
	}
}

// killed is what is on the disk after a kill of b, for a process pid that finds
// b dead.
func (b *bench) killed(pid int) *bench {
	b.t.Helper()
	b.store.Crash(errKilled)
	b.shutdown()
	next := newBench(b.t, b.store.Join(person(pid)), b.hands.w)
	clear(b.hands.w.busy)
	next.verdicts[b.store.Owner().PID] = durable.OwnerDead
	return next
}

func (b *bench) begin(id string, steps int) durable.Snapshot[toyState] {
	b.t.Helper()
	s, created, err := b.r.Begin(b.t.Context(), request(id, steps))
	if err != nil || !created {
		b.t.Fatalf("begin %s: created %v, %v", id, created, err)
	}
	return s
}

func request(id string, steps int) durable.BeginRequest[toyState] {
	return durable.BeginRequest[toyState]{
		ID: id, State: toyState{Phase: "working", Steps: steps}, Plan: effect("make", 1), BusyKey: "bench",
		IdempotencyKey: id, Fingerprint: fmt.Sprint(steps), Events: []durable.EventDraft{{Kind: "toy.begun"}},
	}
}

func (b *bench) feed(id string, e toyEvent) durable.Snapshot[toyState] {
	b.t.Helper()
	s, err := b.r.Feed(b.t.Context(), id, durable.AnyRevision, e)
	if err != nil {
		b.t.Fatalf("%s to %s: %v", e.Kind, id, err)
	}
	return s
}

func (b *bench) get(id string) durable.Snapshot[toyState] {
	b.t.Helper()
	s, err := b.r.Get(b.t.Context(), id)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// ends waits for a phase; for use in a bubble, where time costs nothing.
func (b *bench) ends(id, phase string) durable.Snapshot[toyState] {
	b.t.Helper()
	for range 1000 {
		if s := b.get(id); s.State.Phase == phase {
			return s
		}
		rest(10 * time.Millisecond)
	}
	b.t.Fatalf("%s is %+v, not %s", id, b.get(id), phase)
	panic("not reached")
}

func (b *bench) statuses(id string) (out []string) {
	b.t.Helper()
	effects, err := b.store.Effects(b.t.Context(), toyKind, id)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range effects {
		out = append(out, fmt.Sprintf("%s %s %s", e.ID, e.Kind, e.Status))
	}
	return out
}

func (b *bench) wantStatuses(id string, want ...string) {
	b.t.Helper()
	if got := b.statuses(id); !slices.Equal(got, want) {
		b.t.Fatalf("the ledger of %s is %q, want %q", id, got, want)
	}
}

func (b *bench) wantThings(want ...string) {
	b.t.Helper()
	if got := b.hands.w.things(); !slices.Equal(got, want) {
		b.t.Fatalf("the world has %q, want %q", got, want)
	}
	if len(b.hands.w.faults) > 0 {
		b.t.Fatal(b.hands.w.faults)
	}
}

func wantFacts(t *testing.T, err error, code berth.Code) map[string]string {
	t.Helper()
	var e *berth.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("got the error %v, want the code %s", err, code)
	}
	return e.Facts
}

func wantCode(t *testing.T, err error, code berth.Code) {
	t.Helper()
	_ = wantFacts(t, err, code)
}

// block makes the effects stop at a boundary until they are let go or cancelled.
// entered receives for each that came there.
func (h *hands) block(where string) (entered chan struct{}, letGo func()) {
	entered, gate := make(chan struct{}, 100), make(chan struct{})
	h.pause = func(ctx context.Context, at string, _ durable.Act[toyState]) error {
		if at != where {
			return nil
		}
		entered <- struct{}{}
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return entered, sync.OnceFunc(func() { close(gate) })
}

func TestRunsToItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := firstBench(t)
		b.begin("a", 3)
		s := b.ends("a", "done")
		if s.Record.Revision != 3 || !s.Record.Terminal || s.Record.Owner != person(1) || len(s.Pending) != 0 {
			t.Fatalf("ended as %+v", s)
		}
		b.wantStatuses("a", "0.1 make done", "1.1 make done", "2.1 make done")
		b.wantThings("a/1", "a/2", "a/3")
		synctest.Wait()
		var revisions []int64
		for _, s := range b.seen {
			if n := len(revisions); n == 0 || revisions[n-1] != s.Record.Revision {
				revisions = append(revisions, s.Record.Revision)
			}
		}
		if !slices.Equal(revisions, []int64{0, 1, 2, 3}) {
			t.Errorf("the listener saw the revisions %v", revisions)
		}
		effects, err := b.store.Effects(t.Context(), toyKind, "a")
		if err != nil || effects[1].Performer != person(1) || string(effects[1].Result) != `{"Kind":"made","N":2}` ||
			effects[1].Progress == nil || effects[1].Progress.Done != 2 {
			t.Errorf("the ledger has %+v, %v", effects[1], err)
		}
	})
}

func TestBeginAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := firstBench(t)
		entered, letGo := b.hands.block("begin")
		b.begin("a", 2)
		<-entered
		again := request("b", 2)
		again.IdempotencyKey = "a"
		s, created, err := b.r.Begin(t.Context(), again)
		if err != nil || created || s.Record.ID != "a" {
			t.Fatalf("again: %+v, created %v, %v", s, created, err)
		}
		again.Fingerprint = "other"
		_, _, err = b.r.Begin(t.Context(), again)
		wantCode(t, err, berth.CodeConflict)
		_, _, err = b.r.Begin(t.Context(), request("c", 1))
		if facts := wantFacts(t, err, berth.CodeConflict); facts["holder"] != "a" {
			t.Errorf("the conflict names %v", facts)
		}
		letGo()
		b.ends("a", "done")
		b.begin("c", 1)
		b.ends("c", "done")
	})
}

// A note keeps the work and its answer; a cancel does not.
func TestKeptAndSuperseded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := firstBench(t)
		entered, letGo := b.hands.block("owned")
		b.begin("a", 2)
		<-entered
		s := b.feed("a", toyEvent{Kind: "note"})
		if s.Record.Revision != 1 || len(s.Pending) != 1 || s.Pending[0].ID != "0.1" || s.Pending[0].Progress == nil {
			t.Fatalf("after the note: %+v", s)
		}
		letGo()
		<-entered
		b.ends("a", "done")
		if got := b.dropped.n.Load(); got != 0 {
			t.Fatalf("%d answers were dropped", got)
		}

		entered, letGo = b.hands.block("owned")
		defer letGo()
		b.begin("b", 2)
		<-entered
		b.feed("b", toyEvent{Kind: "cancel"})
		b.ends("b", "cancelled")
		b.wantStatuses("b", "0.1 make superseded", "1.1 clean done")
		b.wantThings("a/1", "a/2")
		effects, err := b.store.Effects(t.Context(), toyKind, "b")
		if err != nil || effects[0].Progress == nil {
			t.Errorf("a superseded effect forgot its progress: %+v, %v", effects[0], err)
		}
	})
}

// What is superseded is waited for, and what it answers is dropped and counted.
func TestSupersededIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := firstBench(t)
		entered, gate := make(chan struct{}, 1), make(chan struct{})
		b.hands.pause = func(_ context.Context, at string, act durable.Act[toyState]) error {
			if at == "owned" {
				entered <- struct{}{}
				<-gate
			}
			return nil
		}
		b.begin("a", 2)
		<-entered
		b.feed("a", toyEvent{Kind: "cancel"})
		rest(time.Hour)
		b.wantStatuses("a", "0.1 make superseded", "1.1 clean planned")
		close(gate)
		b.ends("a", "cancelled")
		b.wantThings() // the thing made late was owned, so it was cleaned away
		if got := b.dropped.n.Load(); got != 1 {
			t.Fatalf("%d answers were dropped, not 1", got)
		}
	})
}

func TestFailureAndResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := firstBench(t)
		fail := true
		b.hands.pause = func(_ context.Context, at string, act durable.Act[toyState]) error {
			if at == "owned" && fail && numberOf(act.Effect) == 2 {
				return berth.Errorf(berth.CodeDiskFull, "no space")
			}
			return nil
		}
		b.begin("a", 3)
		s := b.ends("a", "failed")
		if s.State.Why != berth.CodeDiskFull || !s.Record.Terminal {
			t.Fatalf("failed as %+v", s)
		}
		b.wantStatuses("a", "0.1 make done", "1.1 make failed")

		entered, letGo := make(chan struct{}), make(chan struct{})
		old := b.hands.pause
		b.hands.pause = func(context.Context, string, durable.Act[toyState]) error {
			entered <- struct{}{}
			<-letGo
			return nil
		}
		b.begin("b", 1)
		<-entered
		_, err := b.r.Feed(t.Context(), "a", durable.AnyRevision, toyEvent{Kind: "resume"})
		if facts := wantFacts(t, err, berth.CodeConflict); facts["holder"] != "b" {
			t.Fatalf("the busy key is held by %v", facts)
		}
		b.hands.pause, fail = old, false
		close(letGo)
		b.ends("b", "done")

		_, err = b.r.Feed(t.Context(), "a", s.Record.Revision-1, toyEvent{Kind: "resume"})
		wantCode(t, err, berth.CodeRevisionMismatch)
		_, err = b.r.Feed(t.Context(), "b", durable.AnyRevision, toyEvent{Kind: "resume"}) // it is done
		wantCode(t, err, berth.CodeConflict)
		b.feed("a", toyEvent{Kind: "resume"})
		if s := b.ends("a", "done"); s.Record.Epoch != 1 {
			t.Fatalf("resumed by its owner: %+v", s.Record)
		}
		b.wantThings("a/1", "a/2", "a/3", "b/1")
	})
}

// An answer of another kind than that of the effect is dropped; the effect waits.
func TestAnswerOfAnotherKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := durabletest.NewFault(durabletest.FaultConfig{Owner: person(1)})
		b := newBench(t, store, newWorld())
		var dropped counter
		r, err := durable.New(durable.Config[toyState, toyEvent]{
			Store: store, Machine: toyMachine(), Dropped: &dropped,
			Performer: liar{b.hands}, Liveness: func(berth.Identity) durable.Liveness { return durable.OwnerUnknown },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Shutdown(t.Context()) //nolint:errcheck // nothing runs
		if _, _, err := r.Begin(t.Context(), request("a", 1)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s := b.get("a"); s.Record.Revision != 0 || dropped.n.Load() == 0 {
			t.Fatalf("%+v, %d dropped", s, dropped.n.Load())
		}
	})
}

type liar struct{ *hands }

func (liar) Perform(context.Context, durable.Act[toyState]) (toyEvent, error) {
	return toyEvent{Kind: "cleaned"}, nil
}

func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := firstBench(t)
		reports := make(chan berth.Progress)
		b.hands.pause = func(_ context.Context, at string, act durable.Act[toyState]) error {
			if at == "begin" {
				for p := range reports {
					act.Report(p)
				}
			}
			return nil
		}
		b.begin("a", 1)
		published := func() (out []int64) {
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, s := range b.seen {
				if len(s.Pending) > 0 && s.Pending[0].Progress != nil {
					out = append(out, s.Pending[0].Progress.Done)
				}
			}
			return out
		}
		want := func(want ...int64) {
			t.Helper()
			synctest.Wait()
			if got := published(); !slices.Equal(got, want) {
				t.Fatalf("published %v, want %v", got, want)
			}
		}
		reports <- berth.Progress{Stage: "x", Done: 1}
		want(1) // at once
		for i := int64(2); i < 50; i++ {
			reports <- berth.Progress{Stage: "x", Done: i}
		}
		want(1)
		if s := b.get("a"); s.Pending[0].Progress.Done != 49 {
			t.Fatalf("a reader sees %+v", s.Pending[0].Progress)
		}
		reports <- berth.Progress{Stage: "x", Done: 3} // it never goes back
		rest(durable.ProgressEvery - 1)
		want(1)
		rest(1)
		want(1, 49)
		reports <- berth.Progress{Stage: "y", Done: 5}
		rest(time.Hour)
		reports <- berth.Progress{Stage: "x", Done: 70} // that stage is over
		reports <- berth.Progress{Stage: "y", Done: 4}
		rest(time.Hour)
		want(1, 49, 5, 5)
		close(reports)
		b.ends("a", "done")
		effects, err := b.store.Effects(t.Context(), toyKind, "a")
		if err != nil || effects[0].Progress == nil || effects[0].Progress.Stage != "make" {
			t.Fatalf("the ledger has %+v, %v", effects[0].Progress, err)
		}
	})
}

func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := firstBench(t)
		gate, entered := make(chan struct{}), make(chan struct{}, 1)
		b.hands.pause = func(context.Context, string, durable.Act[toyState]) error {
			entered <- struct{}{}
			<-gate // it ignores its context
			return nil
		}
		b.begin("a", 1)
		<-entered
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if facts := wantFacts(t, b.r.Shutdown(ctx), berth.CodeTimeout); facts["record"] != "a" || time.Since(began) != time.Second {
			t.Fatalf("%v after %v", facts, time.Since(began))
		}
		_, _, err := b.r.Begin(t.Context(), request("b", 1))
		wantCode(t, err, berth.CodeDaemonStopping)
		_, err = b.r.Feed(t.Context(), "a", durable.AnyRevision, toyEvent{Kind: "note"})
		wantCode(t, err, berth.CodeDaemonStopping)
		b.hands.pause = nil
		close(gate)
		b.shutdown()
		b.wantStatuses("a", "0.1 make started") // the next runner looks at it
		if s := b.get("a"); s.Record.Revision != 0 {
			t.Fatalf("changed after the shutdown: %+v", s)
		}
	})
}

func TestArchive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := firstBench(t)
		b.begin("a", 1)
		b.ends("a", "done")
		entered, letGo := b.hands.block("begin")
		b.begin("b", 1)
		<-entered
		_, err := b.r.Archive(t.Context(), durable.ArchiveRequest{})
		if facts := wantFacts(t, err, berth.CodeOperationLive); facts["holder"] != "b" {
			t.Fatalf("facts %v", facts)
		}
		letGo()
		b.ends("b", "done")
		made, err := b.r.Archive(t.Context(), durable.ArchiveRequest{})
		if err != nil || made.Records != 2 {
			t.Fatalf("%+v, %v", made, err)
		}
		if list, _, err := b.r.List(t.Context(), durable.Query{}); err != nil || len(list) != 0 {
			t.Fatalf("%+v, %v", list, err)
		}
		kept, err := b.store.Archived(t.Context(), toyKind, made.Stamp)
		if err != nil || len(kept) != 2 || kept[1].Owned[0] != "b/1" {
			t.Fatalf("%+v, %v", kept, err)
		}
		b.begin("a", 1) // the id and the key are free
		b.ends("a", "done")
	})
}

func TestUnreadable(t *testing.T) {
	b := firstBench(t)
	for id, text := range map[string]string{"a": `"text"`, "b": `{"Phase":"done"}`} {
		if _, _, err := b.store.Begin(t.Context(), durable.Begin{Kind: toyKind, ID: id, Schema: 1, State: []byte(text), Terminal: true}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := b.r.Get(t.Context(), "a")
	wantCode(t, err, berth.CodeRecordUnreadable)
	if list, _, err := b.r.List(t.Context(), durable.Query{}); err != nil || len(list) != 1 || list[0].Record.ID != "b" {
		t.Fatalf("%+v, %v", list, err)
	}
	if _, err := durable.New(durable.Config[toyState, toyEvent]{Store: b.store}); !errors.Is(err, berth.CodeInvalidArgument) {
		t.Fatalf("an empty config: %v", err)
	}
}

// tearing commits something between the reads of a record and of its effects.
type tearing struct {
	durable.Store
	once sync.Once
	then func()
}

func (s *tearing) Effects(ctx context.Context, kind, id string) ([]durable.Effect, error) {
	s.once.Do(s.then)
	return s.Store.Effects(ctx, kind, id)
}

// A reader between two commits gets a state and the effects of one revision; a
// performer too.
func TestReadsAreOfOneRevision(t *testing.T) {
	store := durabletest.NewFault(durabletest.FaultConfig{Owner: person(1)})
	if _, _, err := store.Begin(t.Context(), durable.Begin{Kind: toyKind, ID: "a", Schema: 1, State: []byte(`{"Phase":"waiting"}`)}); err != nil {
		t.Fatal(err)
	}
	torn := &tearing{Store: store, then: func() {
		_, err := store.Change(t.Context(), durable.Change{
			Kind: toyKind, ID: "a", Epoch: 1, Schema: 1, State: []byte(`{"Phase":"working"}`),
			Ledger: &durable.LedgerChange{Plan: effect("make", 1)},
		})
		if err != nil {
			t.Error(err)
		}
	}}
	r, err := durable.New(durable.Config[toyState, toyEvent]{
		Store: torn, Machine: toyMachine(), Performer: &hands{w: newWorld()},
		Liveness: func(berth.Identity) durable.Liveness { return durable.OwnerUnknown },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Shutdown(t.Context()) //nolint:errcheck // nothing runs
	s, err := r.Get(t.Context(), "a")
	if err != nil || s.State.Phase != "working" || s.Record.Revision != 1 || len(s.Pending) != 1 {
		t.Fatalf("torn: %+v at %d with %d pending, %v", s.State, s.Record.Revision, len(s.Pending), err)
	}
}
