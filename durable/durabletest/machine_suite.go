package durabletest

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/durable"
)

// machineTests are those of what a durable.Runner needs of a store.
var machineTests = []suiteTest{
	{"EffectsArePlanned", testEffectsArePlanned},
	{"EffectsAreMarked", testEffectsAreMarked},
	{"EffectsAreSettled", testEffectsAreSettled},
	{"LedgerRefusals", testLedgerRefusals},
	{"LedgerIsBounded", testLedgerIsBounded},
	{"Owned", testOwned},
	{"Reopen", testReopen},
	{"Inbox", testInbox},
	{"InboxIsBounded", testInboxIsBounded},
	{"InboxWakes", testInboxWakes},
	{"MessageOneOutcome", testMessageOneOutcome},
	{"Archive", testArchive},
	{"ArchiveRefused", testArchiveRefused},
}

func plan(kinds ...string) []durable.EffectPlan {
	var p []durable.EffectPlan
	for _, k := range kinds {
		p = append(p, durable.EffectPlan{Kind: k, Data: []byte(`{"for":"` + k + `"}`)})
	}
	return p
}

// wantEffects wants a ledger, as "id kind status".
func wantEffects(t *testing.T, s durable.Store, id string, want ...string) []durable.Effect {
	t.Helper()
	effects, err := s.Effects(t.Context(), kind, id)
	if err != nil {
		t.Fatalf("effects: %v", err)
	}
	var got []string
	for _, e := range effects {
		got = append(got, fmt.Sprintf("%s %s %s", e.ID, e.Kind, e.Status))
	}
	if !slices.Equal(got, want) {
		t.Fatalf("the ledger is %q, want %q", got, want)
	}
	return effects
}

func mark(t *testing.T, s durable.Store, r durable.Record, m durable.EffectMark) durable.Effect {
	t.Helper()
	e, err := s.MarkEffect(t.Context(), r.Kind, r.ID, r.Epoch, m)
	if err != nil {
		t.Fatalf("mark %+v: %v", m, err)
	}
	return e
}

func testEffectsArePlanned(t *testing.T, s durable.Store) {
	r := begin(t, s, durable.Begin{ID: "a", Effects: plan("x", "y")})
	effects := wantEffects(t, s, "a", "0.1 x planned", "0.2 y planned")
	want := durable.Effect{ID: "0.2", Kind: "y", Data: []byte(`{"for":"y"}`), Status: durable.EffectPlanned}
	if !reflect.DeepEqual(effects[1], want) {
		t.Fatalf("planned %+v, want %+v", effects[1], want)
	}
	c := next(r, `1`)
	c.Ledger = &durable.LedgerChange{Plan: []durable.EffectPlan{{Kind: "z"}}, Keep: true}
	r = change(t, s, c)
	effects = wantEffects(t, s, "a", "0.1 x planned", "0.2 y planned", "1.1 z planned")
	if effects[2].Data != nil || effects[2].Revision != 1 {
		t.Fatalf("planned %+v", effects[2])
	}
	r = change(t, s, next(r, `2`)) // a change that says nothing of the ledger
	wantEffects(t, s, "a", "0.1 x planned", "0.2 y planned", "1.1 z planned")
	c = next(r, `3`)
	c.Ledger = &durable.LedgerChange{Plan: plan("w")}
	change(t, s, c)
	wantEffects(t, s, "a", "0.1 x superseded", "0.2 y superseded", "1.1 z superseded", "3.1 w planned")
	begin(t, s, durable.Begin{ID: "b"})
	wantEffects(t, s, "b")
	_, err := s.Effects(t.Context(), kind, "c")
	wantCode(t, err, berth.CodeNotFound)
}

func testEffectsAreMarked(t *testing.T, s durable.Store) {
	r := begin(t, s, durable.Begin{ID: "a", Effects: plan("x", "y")})
	e := mark(t, s, r, durable.EffectMark{ID: "0.1", Status: durable.EffectStarted})
	want := durable.Effect{ID: "0.1", Kind: "x", Data: []byte(`{"for":"x"}`), Status: durable.EffectStarted, Performer: s.Owner()}
	if !reflect.DeepEqual(e, want) || s.Owner() != r.Owner {
		t.Fatalf("started %+v, want %+v", e, want)
	}
	p := &berth.Progress{Stage: "x", Done: 3}
	mark(t, s, r, durable.EffectMark{ID: "0.1", Status: durable.EffectUnknown, Error: "nobody knows", Progress: p})
	want.Status, want.Error, want.Progress = durable.EffectUnknown, "nobody knows", p
	if got := wantEffects(t, s, "a", "0.1 x unknown", "0.2 y planned"); !reflect.DeepEqual(got[0], want) {
		t.Fatalf("the ledger has %+v, want %+v", got[0], want)
	}
	mark(t, s, r, durable.EffectMark{ID: "0.1", Status: durable.EffectStarted}) // after a look
	e = mark(t, s, r, durable.EffectMark{ID: "0.1", Status: durable.EffectDone, Result: []byte(`{"n":1}`)})
	want.Status, want.Error, want.Result = durable.EffectDone, "", []byte(`{"n":1}`)
	if !reflect.DeepEqual(e, want) {
		t.Fatalf("done %+v, want %+v", e, want)
	}
	mark(t, s, r, durable.EffectMark{ID: "0.2", Status: durable.EffectFailed, Error: "no"})
	wantEffects(t, s, "a", "0.1 x done", "0.2 y failed")
	wantRecord(t, s, r) // no mark is a revision
}

func testEffectsAreSettled(t *testing.T, s durable.Store) {
	r := begin(t, s, durable.Begin{ID: "a", Effects: plan("x", "y", "z")})
	c := next(r, `1`)
	c.Ledger = &durable.LedgerChange{
		Answered: &durable.EffectMark{ID: "0.1", Status: durable.EffectDone, Result: []byte(`7`)}, Keep: true, Plan: plan("w"),
		Progress: map[string]berth.Progress{"0.1": {Done: 9}, "0.2": {Done: 1}},
	}
	r = change(t, s, c)
	effects := wantEffects(t, s, "a", "0.1 x done", "0.2 y planned", "0.3 z planned", "1.1 w planned")
	if string(effects[0].Result) != "7" || effects[0].Progress == nil || effects[0].Progress.Done != 9 || effects[1].Progress != nil {
		t.Fatalf("settled as %+v", effects[:2])
	}
	// The answer comes again, and comes of what is not there: the commit is refused.
	for _, id := range []string{"0.1", "7.1"} {
		c = next(r, `2`)
		c.Ledger = &durable.LedgerChange{Answered: &durable.EffectMark{ID: id, Status: durable.EffectDone}, Keep: true}
		_, err := s.Change(t.Context(), c)
		wantCode(t, err, berth.CodeConflict)
	}
	wantRecord(t, s, r)
	c = next(r, `2`)
	c.Terminal = true
	c.Ledger = &durable.LedgerChange{
		Answered: &durable.EffectMark{ID: "0.2", Status: durable.EffectFailed, Error: "no"}, Keep: true, // an end keeps nothing
		Progress: map[string]berth.Progress{"0.3": {Done: 4}},
	}
	change(t, s, c)
	effects = wantEffects(t, s, "a", "0.1 x done", "0.2 y failed", "0.3 z superseded", "1.1 w superseded")
	if effects[1].Error != "no" || effects[2].Progress == nil || effects[2].Progress.Done != 4 {
		t.Fatalf("ended as %+v", effects)
	}
}

func testLedgerRefusals(t *testing.T, s durable.Store) {
	r := begin(t, s, durable.Begin{ID: "a", Effects: plan("x", "y")})
	started := durable.EffectMark{ID: "0.1", Status: durable.EffectStarted}
	try := func(id string, epoch int64, m durable.EffectMark) error {
		_, err := s.MarkEffect(t.Context(), kind, id, epoch, m)
		return err
	}
	wantCode(t, try("b", 1, started), berth.CodeNotFound)
	wantStale(t, try("a", 2, started), berth.CodeFenced, r)
	wantCode(t, try("a", 1, durable.EffectMark{ID: "0.3", Status: durable.EffectStarted}), berth.CodeConflict)
	for _, m := range []durable.EffectMark{
		{ID: "", Status: durable.EffectStarted}, {ID: "0", Status: durable.EffectStarted}, {ID: "0.01", Status: durable.EffectStarted},
		{ID: "0.1", Status: durable.EffectPlanned}, {ID: "0.1", Status: durable.EffectSuperseded}, {ID: "0.1"},
		{ID: "0.1", Status: durable.EffectDone, Result: []byte(`{`)},
	} {
		wantCode(t, try("a", 1, m), berth.CodeInvalidArgument)
	}
	wantCode(t, try("a", 1, durable.EffectMark{ID: "0.1", Status: durable.EffectUnknown}), berth.CodeConflict) // it has not started
	mark(t, s, r, durable.EffectMark{ID: "0.1", Status: durable.EffectDone})
	wantCode(t, try("a", 1, started), berth.CodeConflict)
	for name, spoil := range map[string]func(*durable.Change){
		"a plan of the dead":   func(c *durable.Change) { c.Terminal, c.Ledger.Plan = true, plan("x") },
		"a plan without kind":  func(c *durable.Change) { c.Ledger.Plan = plan("") },
		"too many effects":     func(c *durable.Change) { c.Ledger.Plan = make([]durable.EffectPlan, durable.MaxPlan+1) },
		"an answer of none":    func(c *durable.Change) { c.Ledger.Answered = &durable.EffectMark{Status: durable.EffectDone} },
		"an answer that hangs": func(c *durable.Change) { c.Ledger.Answered = &started },
	} {
		c := next(r, `1`)
		c.Ledger = &durable.LedgerChange{}
		spoil(&c)
		if _, err := s.Change(t.Context(), c); !errors.Is(err, berth.CodeInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	taken, err := s.TakeOver(t.Context(), kind, "a", 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	wantStale(t, try("a", 1, durable.EffectMark{ID: "0.2", Status: durable.EffectStarted}), berth.CodeFenced, taken)
	wantStale(t, s.Own(t.Context(), kind, "a", 1, "thing"), berth.CodeFenced, taken)
	wantEffects(t, s, "a", "0.1 x done", "0.2 y planned") // a takeover moves nothing
	end(t, s, taken)
	wantCode(t, try("a", 2, durable.EffectMark{ID: "0.2", Status: durable.EffectStarted}), berth.CodeConflict)
	wantCode(t, s.Own(t.Context(), kind, "a", 2, "thing"), berth.CodeConflict)
}

func testLedgerIsBounded(t *testing.T, s durable.Store) {
	r := begin(t, s, durable.Begin{ID: "a", Effects: plan("first", "kept")})
	mark(t, s, r, durable.EffectMark{ID: "0.1", Status: durable.EffectDone})
	for i := range durable.EffectsKept + 1 {
		c := next(r, `1`)
		if i%20 == 0 { // most changes plan nothing
			c.Ledger = &durable.LedgerChange{Plan: plan("x"), Keep: true}
		}
		r = change(t, s, c)
	}
	effects, err := s.Effects(t.Context(), kind, "a")
	if err != nil || effects[0].Kind != "kept" || effects[1].ID != "1.1" {
		t.Fatalf("%d effects, the first ones %+v, %v", len(effects), effects[:2], err)
	}
}

func testOwned(t *testing.T, s durable.Store) {
	r := begin(t, s, durable.Begin{ID: "a"})
	own := func(id string, things ...string) {
		t.Helper()
		if err := s.Own(t.Context(), kind, id, 1, things...); err != nil {
			t.Fatal(err)
		}
	}
	wantOwned := func(id string, want ...string) {
		t.Helper()
		got, err := s.Owned(t.Context(), kind, id)
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%s owns %q, %v, want %q", id, got, err, want)
		}
	}
	wantOwned("a")
	own("a", "z", "y")
	own("a", "y", "x", "z")
	wantOwned("a", "z", "y", "x")
	wantRecord(t, s, r)
	begin(t, s, durable.Begin{ID: "b"})
	own("b", "z")
	wantOwned("b", "z")
	wantOwned("a", "z", "y", "x")
	_, err := s.Owned(t.Context(), kind, "c")
	wantCode(t, err, berth.CodeNotFound)
	wantCode(t, s.Own(t.Context(), kind, "c", 1, "x"), berth.CodeNotFound)
	wantCode(t, s.Own(t.Context(), kind, "a", 1, "ok", ""), berth.CodeInvalidArgument)
	many := make([]string, durable.MaxOwned-2)
	for i := range many {
		many[i] = fmt.Sprint("many-", i)
	}
	wantCode(t, s.Own(t.Context(), kind, "a", 1, many...), berth.CodeTooLarge)
	wantOwned("a", "z", "y", "x") // all or none
	own("a", many[1:]...)
	r = end(t, s, r)
	if err := s.Remove(t.Context(), kind, "a", r.Revision, r.Epoch); err != nil {
		t.Fatal(err)
	}
	begin(t, s, durable.Begin{ID: "a"}) // its namesake inherits nothing
	wantOwned("a")
}

func testReopen(t *testing.T, s durable.Store) {
	r := end(t, s, begin(t, s, durable.Begin{ID: "a", BusyKey: "bench", IdempotencyKey: "key", Fingerprint: "print"}))
	other := begin(t, s, durable.Begin{ID: "b", BusyKey: "bench"})
	c := next(r, `1`)
	c.Terminal, c.Reopen, c.Ledger = false, true, &durable.LedgerChange{Plan: plan("x")}
	_, err := s.Change(t.Context(), c)
	wantFact(t, err, berth.CodeConflict, "holder", "b")
	end(t, s, other)
	got := change(t, s, c)
	if got.Terminal || got.Epoch != r.Epoch || got.Revision != r.Revision+1 || got.IdempotencyKey != "key" {
		t.Fatalf("reopened as %+v", got)
	}
	wantEffects(t, s, "a", "2.1 x planned")
	_, err = s.Change(t.Context(), c)
	wantStale(t, err, berth.CodeRevisionMismatch, got)
	_, _, err = s.Begin(t.Context(), durable.Begin{Kind: kind, ID: "c", State: []byte(`{}`), BusyKey: "bench"})
	wantFact(t, err, berth.CodeConflict, "holder", "a")
	r = end(t, s, got)
	c = next(r, `2`) // it may also stay ended
	c.Reopen = true
	r = change(t, s, c)
	if !r.Terminal {
		t.Fatalf("noted as %+v", r)
	}
}

func post(t *testing.T, s durable.Store, id string) int64 {
	t.Helper()
	seq, err := s.Post(t.Context(), durable.Post{Kind: kind, ID: id, Event: []byte(`{"e":1}`), Expected: durable.AnyRevision})
	if err != nil {
		t.Fatal(err)
	}
	return seq
}

func wantInbox(t *testing.T, s durable.Store, want ...int64) []durable.Message {
	t.Helper()
	messages, err := s.Inbox(t.Context(), kind)
	if err != nil {
		t.Fatal(err)
	}
	var got []int64
	for _, m := range messages {
		got = append(got, m.Seq)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("the inbox has %v, want %v", got, want)
	}
	return messages
}

func testInbox(t *testing.T, s durable.Store) {
	r := begin(t, s, durable.Begin{ID: "a"})
	begin(t, s, durable.Begin{Kind: "other", ID: "a"})
	wantInbox(t, s)
	first, second, third := post(t, s, "a"), post(t, s, "a"), post(t, s, "a")
	if first < 1 || second <= first || third <= second {
		t.Fatalf("numbers %d %d %d", first, second, third)
	}
	if _, err := s.Post(t.Context(), durable.Post{Kind: "other", ID: "a", Event: []byte(`1`), Expected: 3}); err != nil {
		t.Fatal(err)
	}
	messages := wantInbox(t, s, first, second, third)
	want := durable.Message{
		Post: durable.Post{Kind: kind, ID: "a", Event: []byte(`{"e":1}`), Expected: durable.AnyRevision},
		Seq:  first, Sender: s.Owner(), Posted: messages[0].Posted,
	}
	if !reflect.DeepEqual(messages[0], want) || time.Since(want.Posted) > time.Minute {
		t.Fatalf("posted %+v, want %+v", messages[0], want)
	}
	copy(messages[0].Event, bytes.Repeat([]byte("x"), 7)) // it is the caller's
	c := next(r, `1`)
	c.Message = first
	r = change(t, s, c)
	m, err := s.Message(t.Context(), first)
	if err != nil || m.Outcome == nil || m.Outcome.Revision != 1 || m.Outcome.Err() != nil || !bytes.Equal(m.Event, want.Event) {
		t.Fatalf("settled as %+v, %+v, %v", m, m.Outcome, err)
	}
	refusal := berth.Errorf(berth.CodePlanChanged, "another plan").WithHint("look").WithFact("digest", "d")
	if err := s.Settle(t.Context(), second, durable.OutcomeOf(refusal)); err != nil {
		t.Fatal(err)
	}
	m, err = s.Message(t.Context(), second)
	if err != nil || m.Outcome == nil || m.Outcome.Settled.IsZero() {
		t.Fatalf("settled as %+v, %v", m, err)
	}
	wantFact(t, m.Outcome.Err(), berth.CodePlanChanged, "digest", "d")
	wantInbox(t, s, third)

	// A second outcome, by a change or without one, is refused and changes nothing.
	wantCode(t, s.Settle(t.Context(), first, durable.Outcome{}), berth.CodeConflict)
	c = next(r, `2`)
	c.Message = second
	_, err = s.Change(t.Context(), c)
	wantCode(t, err, berth.CodeConflict)
	for _, missing := range []int64{third + 9, -1} {
		wantCode(t, s.Settle(t.Context(), missing, durable.Outcome{}), berth.CodeNotFound)
		_, err = s.Message(t.Context(), missing)
		wantCode(t, err, berth.CodeNotFound)
		c.Message = missing
		_, err = s.Change(t.Context(), c)
		wantCode(t, err, berth.CodeNotFound)
	}
	other := begin(t, s, durable.Begin{ID: "b"}) // the message of another record
	c = next(other, `1`)
	c.Message = third
	_, err = s.Change(t.Context(), c)
	wantCode(t, err, berth.CodeNotFound)
	wantRecord(t, s, r)
	wantRecord(t, s, other)

	r = end(t, s, r)
	wantInbox(t, s, third) // an ended record may be resumed
	if err := s.Remove(t.Context(), kind, "a", r.Revision, r.Epoch); err != nil {
		t.Fatal(err)
	}
	wantInbox(t, s)
	_, err = s.Post(t.Context(), durable.Post{Kind: kind, ID: "a", Event: []byte(`1`)})
	wantCode(t, err, berth.CodeNotFound)
	_, err = s.Post(t.Context(), durable.Post{Kind: kind, ID: "b", Event: []byte(`{`)})
	wantCode(t, err, berth.CodeInvalidArgument)
	if got := post(t, s, "b"); got <= third {
		t.Fatalf("the number %d came again", got)
	}
}

func testInboxIsBounded(t *testing.T, s durable.Store) {
	begin(t, s, durable.Begin{ID: "a"})
	begin(t, s, durable.Begin{ID: "b"})
	first := post(t, s, "a")
	for range durable.MaxWaiting - 1 {
		post(t, s, "a")
	}
	_, err := s.Post(t.Context(), durable.Post{Kind: kind, ID: "a", Event: []byte(`1`)})
	wantFact(t, err, berth.CodeConflict, "holder", "a")
	post(t, s, "b")
	if err := s.Settle(t.Context(), first, durable.Outcome{}); err != nil {
		t.Fatal(err)
	}
	post(t, s, "a")
}

func testInboxWakes(t *testing.T, s durable.Store) {
	r := begin(t, s, durable.Begin{ID: "a"})
	wake := s.Watch(t.Context())
	seq := post(t, s, "a")
	woken(t, wake)
	c := next(r, `1`)
	c.Message = seq
	change(t, s, c)
	woken(t, wake)
	seq = post(t, s, "a")
	woken(t, wake)
	if err := s.Settle(t.Context(), seq, durable.Outcome{}); err != nil {
		t.Fatal(err)
	}
	woken(t, wake)
}

// Of an owner that acts and a sender that gives up one is the first.
func testMessageOneOutcome(t *testing.T, s durable.Store) {
	r := begin(t, s, durable.Begin{ID: "a"})
	for range 30 {
		seq := post(t, s, "a")
		var first atomic.Int64
		var both sync.WaitGroup
		c := next(r, `1`)
		c.Message = seq
		both.Go(func() {
			if got, err := s.Change(t.Context(), c); err == nil {
				first.Add(1)
				r = got
			} else if !errors.Is(err, berth.CodeConflict) {
				t.Error(err)
			}
		})
		both.Go(func() {
			if err := s.Settle(t.Context(), seq, durable.OutcomeOf(berth.CodeInterrupted)); err == nil {
				first.Add(1)
			} else if !errors.Is(err, berth.CodeConflict) {
				t.Error(err)
			}
		})
		both.Wait()
		if first.Load() != 1 {
			t.Fatalf("%d outcomes of a message", first.Load())
		}
		wantRecord(t, s, r)
	}
}
