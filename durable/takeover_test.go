package durable_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/durable"
	"berth/durable/durabletest"
)

func TestRecover(t *testing.T) {
	for _, test := range []struct {
		at      string // where the process is killed
		verdict durable.Verdict
		fails   error // of Reconcile
		phase   string
		ledger  []string
		things  []string
	}{
		{at: "begin", phase: "done", ledger: []string{"0.1 make superseded", "1.1 make done", "2.1 make done"}, things: []string{"a/1", "a/2"}},
		{at: "made", phase: "done", ledger: []string{"0.1 make done", "1.1 make done"}, things: []string{"a/1", "a/2"}},
		{at: "made", verdict: durable.VerdictForeign, phase: "failed", ledger: []string{"0.1 make failed"}, things: []string{"a/1"}},
		{at: "made", verdict: durable.VerdictUnknown, phase: "done", ledger: []string{"0.1 make superseded", "1.1 make done"}, things: []string{"a/1", "a/2"}},
		{at: "begin", fails: berth.Errorf(berth.CodeUnsupported, "nothing here can look"), phase: "failed", ledger: []string{"0.1 make failed"}},
	} {
		t.Run(fmt.Sprint(test.at, test.verdict, test.fails), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := firstBench(t)
				entered, letGo := b.hands.block(test.at)
				defer letGo()
				b.begin("a", 2)
				<-entered
				next := b.killed(2)
				if test.verdict != "" {
					next.hands.find = func(durable.Act[toyState]) (durable.Finding, error) {
						return durable.Finding{Verdict: test.verdict}, nil
					}
				}
				next.hands.reconcileErr = test.fails
				if err := next.r.Recover(t.Context()); err != nil {
					t.Fatal(err)
				}
				s := next.ends("a", test.phase)
				if s.Record.Epoch != 2 || s.Record.Owner != person(2) {
					t.Errorf("taken over as %+v", s.Record)
				}
				if test.verdict == durable.VerdictForeign && s.State.Why != berth.CodeIdentityMismatch {
					t.Errorf("foreign: %+v", s.State)
				}
				next.wantStatuses("a", test.ledger...)
				next.wantThings(test.things...)
				if err := next.r.Recover(t.Context()); err != nil { // nothing is left to do
					t.Fatal(err)
				}
				if again := next.get("a"); !reflect.DeepEqual(again, s) {
					t.Errorf("a second recovery made %+v of %+v", again, s)
				}
			})
		})
	}
}

// A begin that a dead process's record blocks ends or recovers that one first.
func TestBeginReclaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := firstBench(t)
		entered, letGo := b.hands.block("begin")
		defer letGo()
		b.begin("a", 2)
		<-entered
		next := b.killed(2)
		next.hands.reconcileErr = errors.New("nothing to look with")
		for _, v := range []durable.Liveness{durable.OwnerUnknown, durable.OwnerAlive} {
			next.verdicts[1] = v
			_, _, err := next.r.Begin(t.Context(), request("b", 1))
			wantCode(t, err, berth.CodeConflict)
		}
		next.verdicts[1] = durable.OwnerDead
		next.begin("b", 1)
		next.ends("b", "done")
		if s := next.get("a"); s.State.Phase != "failed" || s.State.Why != berth.CodeInternal {
			t.Fatalf("the dead one is %+v", s)
		}
		next.hands.reconcileErr = nil
		next.feed("a", toyEvent{Kind: "resume"})
		next.ends("a", "done")
	})
}

func TestInbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := firstBench(t)
		entered, letGo := b.hands.block("begin")
		b.begin("a", 1)
		<-entered
		other := newBench(t, b.store.Join(person(2)), b.hands.w)
		s := other.feed("a", toyEvent{Kind: "note"})
		if s.Record.Revision != 1 || s.State.Notes != 1 || s.Record.Owner != person(1) {
			t.Fatalf("noted through the inbox: %+v", s)
		}
		_, err := other.r.Feed(t.Context(), "a", 0, toyEvent{Kind: "note"})
		wantCode(t, err, berth.CodeRevisionMismatch)
		var stale *durable.StaleError
		if !errors.As(err, &stale) || stale.Current.Revision != 1 {
			t.Fatalf("%v does not bring the record", err)
		}
		_, err = other.r.Feed(t.Context(), "a", durable.AnyRevision, toyEvent{Kind: "go"})
		wantCode(t, err, berth.CodeConflict)

		// An owner that hangs: the sender gives up, and nobody acts on it later.
		b.shutdownOf(letGo)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = other.r.Feed(ctx, "a", durable.AnyRevision, toyEvent{Kind: "cancel"})
		wantCode(t, err, berth.CodeTimeout)
		if messages, err := b.store.Inbox(t.Context(), toyKind); err != nil || len(messages) != 0 {
			t.Fatalf("a message stayed: %+v, %v", messages, err)
		}
		// An owner that dies while the sender waits: the sender takes over.
		time.AfterFunc(3*time.Second, func() {
			other.mu.Lock()
			defer other.mu.Unlock()
			other.verdicts[1] = durable.OwnerDead
		})
		clear(b.hands.w.busy)
		if s := other.feed("a", toyEvent{Kind: "note"}); s.State.Notes != 2 || s.Record.Owner != person(2) || s.Record.Epoch != 2 {
			t.Fatalf("after the takeover: %+v", s)
		}
		other.ends("a", "done")
	})
}

// shutdownOf ends a runner whose effects are blocked.
func (b *bench) shutdownOf(letGo func()) {
	b.t.Helper()
	b.shutdown()
	letGo()
}

// A process that was thought dead learns it before it makes anything, and what it
// answers counts for nothing.
func TestFencedPerformer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := firstBench(t)
		gate, entered := make(chan struct{}), make(chan struct{}, 1)
		b.hands.pause = func(_ context.Context, at string, _ durable.Act[toyState]) error {
			if at == "begin" {
				entered <- struct{}{}
				<-gate
			}
			return nil
		}
		b.begin("a", 1)
		<-entered
		other := newBench(t, b.store.Join(person(2)), newWorld())
		other.verdicts[1] = durable.OwnerDead
		if err := other.r.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		s := other.ends("a", "done")
		close(gate)
		synctest.Wait()
		b.wantThings()
		if got := other.get("a"); !reflect.DeepEqual(got, s) {
			t.Fatalf("a fenced process changed it: %+v", got)
		}
	})
}

// A terminal record resumed by another process than its last is fenced off.
func TestResumedElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := firstBench(t)
		b.begin("a", 1)
		b.feed("a", toyEvent{Kind: "cancel"})
		b.ends("a", "cancelled")
		other := b.killed(2)
		other.feed("a", toyEvent{Kind: "resume"})
		if s := other.ends("a", "done"); s.Record.Epoch != 2 || s.Record.Owner != person(2) {
			t.Fatalf("resumed as %+v", s.Record)
		}
		other.wantThings("a/1")
	})
}

// A shutdown in the midst of a look leaves what is looked at as it is.
func TestShutdownWhileInspecting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := firstBench(t)
		entered, letGo := b.hands.block("begin")
		defer letGo()
		b.begin("a", 1)
		<-entered
		next := b.killed(2)
		entered, letGo = next.hands.block("inspect")
		defer letGo()
		recovered := make(chan error, 1)
		go func() { recovered <- next.r.Recover(context.Background()) }()
		<-entered
		next.shutdown()
		wantCode(t, <-recovered, berth.CodeDaemonStopping)
		next.wantStatuses("a", "0.1 make started")
		if s := next.get("a"); s.Record.Revision != 0 || s.Record.Epoch != 2 {
			t.Fatalf("changed to %+v", s)
		}
	})
}

// What could not be recovered is not gone on with, and an event from outside is
// still heard.
func TestRecoveryIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := durabletest.NewFault(durabletest.FaultConfig{Owner: person(1)})
		state := []byte(`{"Phase":"working","Steps":1}`)
		if _, _, err := store.Begin(t.Context(), durable.Begin{Kind: toyKind, ID: "a", Schema: 1, State: state, Effects: effect("make", 1)}); err != nil {
			t.Fatal(err)
		}
		machine := toyMachine()
		machine.Reduce = func(s toyState, in durable.Input[toyEvent]) (durable.Step[toyState], error) {
			if in.Event.Kind == "reconciled" || in.Event.Kind == "failed" {
				return durable.Step[toyState]{}, berth.CodeUnsupported
			}
			return reduceToy(s, in)
		}
		w := newWorld()
		r, err := durable.New(durable.Config[toyState, toyEvent]{
			Store: store.Join(person(2)), Machine: machine, Performer: &hands{w: w},
			Liveness: func(berth.Identity) durable.Liveness { return durable.OwnerDead },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Shutdown(t.Context()) //nolint:errcheck // nothing runs
		if err := r.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if things := w.things(); len(things) > 0 {
			t.Fatalf("it went on blindly and made %q", things)
		}
		s, err := r.Feed(t.Context(), "a", durable.AnyRevision, toyEvent{Kind: "cancel"})
		if err != nil || s.State.Phase != "cleaning" {
			t.Fatalf("a cancel: %+v, %v", s.State, err)
		}
	})
}
