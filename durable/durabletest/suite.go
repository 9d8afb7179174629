package durabletest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"berth"
	"berth/durable"
)

type suiteTest struct {
	name string
	run  func(*testing.T, durable.Store)
}

// Run tests that a store keeps the contract of durable.Store. open makes an
// empty store for one test; the suite closes it. The suite knows a store by its
// contract alone and takes time as it is: what needs a clock put forward, a
// restart or a failing disk is for each store's own tests.
func Run(t *testing.T, open func(t *testing.T) durable.Store) {
	for _, test := range append([]suiteTest{
		{"BeginAndGet", testBeginAndGet},
		{"BeginIsIdempotent", testBeginIsIdempotent},
		{"BeginConflicts", testBeginConflicts},
		{"BusyKey", testBusyKey},
		{"Change", testChange},
		{"ChangeIsCompareAndSwap", testChangeIsCompareAndSwap},
		{"TerminalIsFinal", testTerminalIsFinal},
		{"TakeOver", testTakeOver},
		{"Remove", testRemove},
		{"List", testList},
		{"ListWhileItChanges", testListWhileItChanges},
		{"ResultsAreTheCallers", testResultsAreTheCallers},
		{"Refusals", testRefusals},
		{"OneWinner", testOneWinner},

		{"EventsOfWrites", testEventsOfWrites},
		{"EventsPaging", testEventsPaging},
		{"EventCursors", testEventCursors},
		{"RefusedWritesPublishNothing", testRefusedWritesPublishNothing},
		{"SequenceHasNoGap", testSequenceHasNoGap},
		{"Watch", testWatch},
		{"WatchNeverBlocks", testWatchNeverBlocks},
		{"PruneKeepsTheYoung", testPruneKeepsTheYoung},

		{"LeaseLife", testLeaseLife},
		{"LeaseHeld", testLeaseHeld},
		{"LeaseNeverShortens", testLeaseNeverShortens},
		{"LeaseExpires", testLeaseExpires},
		{"LeaseTakenAfterExpiry", testLeaseTakenAfterExpiry},
		{"LeaseEpochsNeverComeAgain", testLeaseEpochsNeverComeAgain},
		{"LeaseRefusals", testLeaseRefusals},
		{"LeaseOneWinner", testLeaseOneWinner},
		{"Guarded", testGuarded},

		{"CancelledContext", testCancelledContext},
		{"Closed", testClosed},
	}, machineTests...) {
		t.Run(test.name, func(t *testing.T) {
			s := open(t)
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			test.run(t, s)
		})
	}
}

const kind = "thing"

// begin makes a record that must be new.
func begin(t *testing.T, s durable.Store, b durable.Begin) durable.Record {
	t.Helper()
	if b.Kind == "" {
		b.Kind = kind
	}
	if b.State == nil {
		b.State = []byte(`{}`)
	}
	r, created, err := s.Begin(t.Context(), b)
	if err != nil || !created {
		t.Fatalf("begin %s: created %v, %v", b.ID, created, err)
	}
	return r
}

// next is a change of r to the given state.
func next(r durable.Record, state string) durable.Change {
	return durable.Change{
		Kind: r.Kind, ID: r.ID, Revision: r.Revision, Epoch: r.Epoch,
		Schema: r.Schema, State: []byte(state), BusyKey: r.BusyKey, Terminal: r.Terminal,
	}
}

func change(t *testing.T, s durable.Store, c durable.Change) durable.Record {
	t.Helper()
	r, err := s.Change(t.Context(), c)
	if err != nil {
		t.Fatalf("change %s: %v", c.ID, err)
	}
	return r
}

// end makes r terminal.
func end(t *testing.T, s durable.Store, r durable.Record) durable.Record {
	t.Helper()
	c := next(r, `{"ended":true}`)
	c.Terminal = true
	return change(t, s, c)
}

func wantRecord(t *testing.T, s durable.Store, want durable.Record) {
	t.Helper()
	got, err := s.Get(t.Context(), want.Kind, want.ID)
	if err != nil {
		t.Fatalf("get %s: %v", want.ID, err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("the store has\n%+v, want\n%+v", got, want)
	}
}

func wantCode(t *testing.T, err error, code berth.Code) {
	t.Helper()
	var e *berth.Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("got the error %v, want the code %s", err, code)
	}
}

// factOf gives a fact of a refusal; "" = it has none.
func factOf(err error, fact string) string {
	var e *berth.Error
	if errors.As(err, &e) {
		return e.Facts[fact]
	}
	return ""
}

func wantFact(t *testing.T, err error, code berth.Code, fact, value string) {
	t.Helper()
	wantCode(t, err, code)
	if got := factOf(err, fact); got != value {
		t.Fatalf("%v: fact %s is %q, want %q", err, fact, got, value)
	}
}

// wantStale wants a refusal that brings the current record.
func wantStale(t *testing.T, err error, code berth.Code, current durable.Record) {
	t.Helper()
	wantCode(t, err, code)
	var stale *durable.StaleError
	if !errors.As(err, &stale) {
		t.Fatalf("%v has no StaleError", err)
	}
	if !reflect.DeepEqual(stale.Current, current) {
		t.Fatalf("the refusal brings\n%+v, want\n%+v", stale.Current, current)
	}
}

// wantEvents wants what came after the cursor, as "kind subject revision".
func wantEvents(t *testing.T, s durable.Store, after int64, want ...string) {
	t.Helper()
	page, err := s.Events(t.Context(), after, 0)
	if err != nil {
		t.Fatalf("events: %v", err)
	}
	var got []string
	for i, e := range page.Events {
		if e.Seq != after+int64(i)+1 {
			t.Fatalf("event %d after %d has the number %d", i, after, e.Seq)
		}
		got = append(got, fmt.Sprintf("%s %s %d", e.Kind, e.Subject, e.Revision))
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("events after %d are %q, want %q", after, got, want)
	}
	if page.Last != after+int64(len(want)) || page.Gap != nil {
		t.Fatalf("events after %d: last %d, gap %v", after, page.Last, page.Gap)
	}
}

// eventually asks until done answers true.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}
