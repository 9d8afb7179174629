package durabletest

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/durable"
)

func testBeginAndGet(t *testing.T, s durable.Store) {
	before := time.Now()
	r := begin(t, s, durable.Begin{
		ID: "a", Schema: 3, State: []byte(`{"n": 1}`),
		IdempotencyKey: "key", Fingerprint: "print", BusyKey: "busy",
	})
	want := durable.Record{
		Kind: kind, ID: "a", Revision: 0, Schema: 3, State: []byte(`{"n": 1}`), Epoch: 1,
		IdempotencyKey: "key", Fingerprint: "print", BusyKey: "busy",
		Owner: r.Owner, Created: r.Created, Updated: r.Created,
	}
	if !reflect.DeepEqual(r, want) {
		t.Fatalf("begun\n%+v, want\n%+v", r, want)
	}
	if r.Owner.BootID == "" || r.Owner.PID == 0 {
		t.Fatalf("no owner is stamped: %+v", r.Owner)
	}
	if r.Created.Before(before.Add(-time.Minute)) || r.Created.After(before.Add(time.Minute)) || r.Created.Location() != time.UTC {
		t.Fatalf("created at %v, not about now in UTC", r.Created)
	}
	wantRecord(t, s, want)

	_, err := s.Get(t.Context(), kind, "b")
	wantCode(t, err, berth.CodeNotFound)
	_, err = s.Get(t.Context(), "other", "a")
	wantCode(t, err, berth.CodeNotFound)
	begin(t, s, durable.Begin{Kind: "other", ID: "a"}) // ids are of their kind
}

func testBeginIsIdempotent(t *testing.T, s durable.Store) {
	b := durable.Begin{Kind: kind, ID: "a", State: []byte(`1`), IdempotencyKey: "key", Fingerprint: "print",
		Events: []durable.EventDraft{{Kind: "thing.begun"}}}
	first := begin(t, s, b)
	again := func(want durable.Record) {
		t.Helper()
		b.ID, b.State = "b", []byte(`2`) // a client that asks again made a new id
		r, created, err := s.Begin(t.Context(), b)
		if err != nil || created || !reflect.DeepEqual(r, want) {
			t.Fatalf("again: created %v, %v, %+v, want %+v", created, err, r, want)
		}
		wantEvents(t, s, 0, "thing.begun a 0")
	}
	again(first)
	changed := change(t, s, next(first, `3`))
	again(changed)
	again(end(t, s, changed))

	b.Fingerprint = "another"
	_, _, err := s.Begin(t.Context(), b)
	wantFact(t, err, berth.CodeConflict, "holder", "a")
	b.Kind, b.Events = "other", nil
	begin(t, s, b) // keys are of their kind
}

func testBeginConflicts(t *testing.T, s durable.Store) {
	r := begin(t, s, durable.Begin{ID: "a"})
	_, _, err := s.Begin(t.Context(), durable.Begin{Kind: kind, ID: "a", State: []byte(`{}`)})
	wantFact(t, err, berth.CodeConflict, "holder", "a")
	_, _, err = s.Begin(t.Context(), durable.Begin{Kind: kind, ID: "a", State: []byte(`{}`), IdempotencyKey: "key", Fingerprint: "print"})
	wantFact(t, err, berth.CodeConflict, "holder", "a")
	wantRecord(t, s, r)
	begin(t, s, durable.Begin{ID: "b", IdempotencyKey: "key", Fingerprint: "print"}) // the refusal kept no key
}

func testBusyKey(t *testing.T, s durable.Store) {
	r := begin(t, s, durable.Begin{ID: "a", BusyKey: "host"})
	held := func(what string, err error) {
		t.Helper()
		if err == nil {
			t.Fatalf("%s took a busy key that is held", what)
		}
		wantFact(t, err, berth.CodeConflict, "holder", "a")
		wantFact(t, err, berth.CodeConflict, "kind", kind)
	}
	_, _, err := s.Begin(t.Context(), durable.Begin{Kind: "other", ID: "b", State: []byte(`{}`), BusyKey: "host"})
	held("a begin of another kind", err)
	free := begin(t, s, durable.Begin{ID: "c"})
	c := next(free, `{}`)
	c.BusyKey = "host"
	_, err = s.Change(t.Context(), c)
	held("a change", err)
	begin(t, s, durable.Begin{ID: "d", BusyKey: "host", Terminal: true}) // a terminal one holds nothing

	r = change(t, s, next(r, `1`)) // it may keep its own
	c = next(r, `2`)
	c.BusyKey = ""
	change(t, s, c) // and give it back
	e := begin(t, s, durable.Begin{ID: "e", BusyKey: "host"})
	e = end(t, s, e) // or end
	if e.BusyKey != "host" {
		t.Fatalf("the ended record forgot its key: %+v", e)
	}
	begin(t, s, durable.Begin{ID: "f", BusyKey: "host"})
}

func testChange(t *testing.T, s durable.Store) {
	r := begin(t, s, durable.Begin{ID: "a", Schema: 1, IdempotencyKey: "key", Fingerprint: "print", BusyKey: "x"})
	c := durable.Change{Kind: kind, ID: "a", Revision: 0, Epoch: 1, Schema: 2, State: []byte(`{"n":2}`), BusyKey: "y"}
	got := change(t, s, c)
	want := r
	want.Revision, want.Schema, want.State, want.BusyKey, want.Updated = 1, 2, []byte(`{"n":2}`), "y", got.Updated
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("changed to\n%+v, want\n%+v", got, want)
	}
	if got.Updated.Before(r.Updated) {
		t.Fatalf("updated at %v, before %v", got.Updated, r.Updated)
	}
	wantRecord(t, s, want)
	_, err := s.Change(t.Context(), durable.Change{Kind: kind, ID: "b", Epoch: 1, State: []byte(`{}`)})
	wantCode(t, err, berth.CodeNotFound)
}

func testChangeIsCompareAndSwap(t *testing.T, s durable.Store) {
	r0 := begin(t, s, durable.Begin{ID: "a"})
	r1 := change(t, s, next(r0, `1`))
	_, err := s.Change(t.Context(), next(r0, `2`))
	wantStale(t, err, berth.CodeRevisionMismatch, r1)
	ahead := next(r1, `2`)
	ahead.Revision++
	_, err = s.Change(t.Context(), ahead)
	wantStale(t, err, berth.CodeRevisionMismatch, r1)
	for _, epoch := range []int64{0, 2, -1} {
		c := next(r1, `2`)
		c.Epoch = epoch
		_, err = s.Change(t.Context(), c)
		wantStale(t, err, berth.CodeFenced, r1)
	}
	c := next(r0, `2`) // both are wrong: who was taken over must learn it
	c.Epoch = 2
	_, err = s.Change(t.Context(), c)
	wantStale(t, err, berth.CodeFenced, r1)
	wantRecord(t, s, r1)
}

func testTerminalIsFinal(t *testing.T, s durable.Store) {
	live := begin(t, s, durable.Begin{ID: "a"})
	r := end(t, s, live)
	if !r.Terminal || r.Revision != 1 {
		t.Fatalf("ended as %+v", r)
	}
	c := next(r, `{}`)
	_, err := s.Change(t.Context(), c)
	wantFact(t, err, berth.CodeConflict, "holder", "a")
	c.Terminal = false
	_, err = s.Change(t.Context(), c)
	wantCode(t, err, berth.CodeConflict)
	_, err = s.TakeOver(t.Context(), kind, "a", r.Revision, r.Epoch)
	wantCode(t, err, berth.CodeConflict)
	_, err = s.Change(t.Context(), next(live, `{}`)) // the guard speaks first
	wantStale(t, err, berth.CodeRevisionMismatch, r)
	wantRecord(t, s, r)
	if r := begin(t, s, durable.Begin{ID: "b", Terminal: true}); !r.Terminal {
		t.Fatalf("begun as %+v", r)
	}
}

func testTakeOver(t *testing.T, s durable.Store) {
	r := begin(t, s, durable.Begin{ID: "a", BusyKey: "x"})
	got, err := s.TakeOver(t.Context(), kind, "a", 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	want := r
	want.Epoch, want.Updated = 2, got.Updated
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("taken over as\n%+v, want\n%+v", got, want)
	}
	wantRecord(t, s, want)
	_, err = s.TakeOver(t.Context(), kind, "a", 0, 1) // the second one comes too late
	wantStale(t, err, berth.CodeFenced, want)
	_, err = s.Change(t.Context(), next(r, `1`)) // and so does the old owner
	wantStale(t, err, berth.CodeFenced, want)
	changed := change(t, s, next(got, `1`))
	_, err = s.TakeOver(t.Context(), kind, "a", 0, 2)
	wantStale(t, err, berth.CodeRevisionMismatch, changed)
	_, err = s.TakeOver(t.Context(), kind, "b", 0, 1)
	wantCode(t, err, berth.CodeNotFound)
}

func testRemove(t *testing.T, s durable.Store) {
	b := durable.Begin{ID: "a", IdempotencyKey: "key", Fingerprint: "print"}
	live := begin(t, s, b)
	wantFact(t, s.Remove(t.Context(), kind, "a", 0, 1), berth.CodeConflict, "holder", "a")
	r := end(t, s, live)
	wantStale(t, s.Remove(t.Context(), kind, "a", 0, 1), berth.CodeRevisionMismatch, r)
	wantStale(t, s.Remove(t.Context(), kind, "a", 1, 2), berth.CodeFenced, r)
	wantRecord(t, s, r)
	if err := s.Remove(t.Context(), kind, "a", 1, 1, durable.EventDraft{Kind: "thing.removed"}); err != nil {
		t.Fatal(err)
	}
	wantEvents(t, s, 0, "thing.removed a 1")
	_, err := s.Get(t.Context(), kind, "a")
	wantCode(t, err, berth.CodeNotFound)
	wantCode(t, s.Remove(t.Context(), kind, "a", 1, 1), berth.CodeNotFound)
	b.Fingerprint = "another"
	begin(t, s, b) // the id and the key are free again
}

// ids are those of a list, page by page.
func ids(t *testing.T, s durable.Store, q durable.Query) string {
	t.Helper()
	var got []string
	for {
		page, err := s.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if q.Limit > 0 && len(page.Records) > q.Limit {
			t.Fatalf("a page of %d has %d records", q.Limit, len(page.Records))
		}
		for _, r := range page.Records {
			got = append(got, r.ID)
		}
		if page.Next == "" {
			return strings.Join(got, " ")
		}
		q.After = page.Next
	}
}

func testList(t *testing.T, s durable.Store) {
	if got := ids(t, s, durable.Query{}); got != "" {
		t.Fatalf("an empty store lists %q", got)
	}
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		begin(t, s, durable.Begin{ID: id, BusyKey: "on-" + id})
	}
	begin(t, s, durable.Begin{Kind: "other", ID: "x"})
	for _, id := range []string{"b", "d"} {
		r, err := s.Get(t.Context(), kind, id)
		if err != nil {
			t.Fatal(err)
		}
		end(t, s, r)
	}
	for _, test := range []struct {
		q    durable.Query
		want string
	}{
		{durable.Query{}, "x e d c b a"},
		{durable.Query{Kind: kind}, "e d c b a"},
		{durable.Query{Kind: "other"}, "x"},
		{durable.Query{Kind: "none"}, ""},
		{durable.Query{Live: true}, "x e c a"},
		{durable.Query{Kind: kind, Live: true}, "e c a"},
		{durable.Query{BusyKey: "on-b"}, "b"},
		{durable.Query{Kind: kind, BusyKey: "on-b"}, "b"},
		{durable.Query{Kind: kind, Live: true, BusyKey: "on-b"}, ""},
		{durable.Query{Kind: kind, Live: true, BusyKey: "on-c"}, "c"},
	} {
		for _, limit := range []int{0, 1, 2, 3, 100, -1, durable.MaxPage + 1} {
			test.q.Limit = limit
			if got := ids(t, s, test.q); got != test.want {
				t.Errorf("%+v lists %q, want %q", test.q, got, test.want)
			}
		}
	}
	page, err := s.List(t.Context(), durable.Query{Kind: kind, Limit: 5})
	if err != nil || page.Next != "" {
		t.Errorf("a page that holds all has a next one, %q, %v", page.Next, err)
	}
	_, err = s.List(t.Context(), durable.Query{After: "not a cursor"})
	wantCode(t, err, berth.CodeInvalidArgument)
}

// A record that comes or goes between two pages neither hides nor doubles another.
func testListWhileItChanges(t *testing.T, s durable.Store) {
	for _, id := range []string{"a", "b", "c", "d"} {
		begin(t, s, durable.Begin{ID: id, Terminal: true})
	}
	first, err := s.List(t.Context(), durable.Query{Kind: kind, Limit: 2})
	if err != nil {
		t.Fatal(err)
	}
	begin(t, s, durable.Begin{ID: "e"})
	for _, id := range []string{"c", "d"} { // "c" is where the cursor points
		if err := s.Remove(t.Context(), kind, id, 0, 1); err != nil {
			t.Fatal(err)
		}
	}
	if got := ids(t, s, durable.Query{Kind: kind, Limit: 1, After: first.Next}); got != "b a" {
		t.Fatalf("after the first page: %q, want b a", got)
	}
}

func testResultsAreTheCallers(t *testing.T, s durable.Store) {
	state := []byte(`{"n":1}`)
	r := begin(t, s, durable.Begin{ID: "a", State: state})
	want := copied(r)
	spoil := func(p []byte) { copy(p, bytes.Repeat([]byte("x"), len(p))) }
	spoil(state)
	wantRecord(t, s, want)
	spoil(r.State)
	wantRecord(t, s, want)
	got, err := s.Get(t.Context(), kind, "a")
	if err != nil {
		t.Fatal(err)
	}
	spoil(got.State)
	wantRecord(t, s, want)
	page, err := s.List(t.Context(), durable.Query{})
	if err != nil {
		t.Fatal(err)
	}
	spoil(page.Records[0].State)
	wantRecord(t, s, want)
	c := next(want, `{"n":2}`)
	r = change(t, s, c)
	want = copied(r)
	spoil(c.State)
	spoil(r.State)
	wantRecord(t, s, want)
}

func testRefusals(t *testing.T, s durable.Store) {
	ok := durable.Begin{Kind: kind, ID: "a", State: []byte(`{}`)}
	long := strings.Repeat("x", durable.MaxKey+1)
	for name, spoil := range map[string]func(*durable.Begin){
		"no kind":                  func(b *durable.Begin) { b.Kind = "" },
		"no id":                    func(b *durable.Begin) { b.ID = "" },
		"a long id":                func(b *durable.Begin) { b.ID = long },
		"a long key":               func(b *durable.Begin) { b.IdempotencyKey, b.Fingerprint = long, "f" },
		"a long busy key":          func(b *durable.Begin) { b.BusyKey = long },
		"a key, no fingerprint":    func(b *durable.Begin) { b.IdempotencyKey = "key" },
		"no state":                 func(b *durable.Begin) { b.State = nil },
		"a state that is not JSON": func(b *durable.Begin) { b.State = []byte(`{`) },
		"a negative schema":        func(b *durable.Begin) { b.Schema = -1 },
		"an event without a kind":  func(b *durable.Begin) { b.Events = []durable.EventDraft{{}} },
		"a stored gap":             func(b *durable.Begin) { b.Events = []durable.EventDraft{{Kind: berth.EventGap}} },
	} {
		b := ok
		spoil(&b)
		if _, _, err := s.Begin(t.Context(), b); err == nil {
			t.Errorf("%s was accepted", name)
		} else {
			wantCode(t, err, berth.CodeInvalidArgument)
		}
	}
	large := []byte(`"` + strings.Repeat("x", durable.MaxState) + `"`)
	b := ok
	b.State = large
	_, _, err := s.Begin(t.Context(), b)
	wantCode(t, err, berth.CodeTooLarge)
	b.State = large[2:]
	b.State[0] = '"'
	r := begin(t, s, b) // the largest one that is allowed
	wantRecord(t, s, r)
	c := next(r, `{`)
	_, err = s.Change(t.Context(), c)
	wantCode(t, err, berth.CodeInvalidArgument)
	_, err = s.Publish(t.Context(), durable.EventDraft{Kind: "thing.seen"}) // about what?
	wantCode(t, err, berth.CodeInvalidArgument)
	wantEvents(t, s, 0)
}

// Of eight that change the same record at the same revision one wins, and no
// change of a winner is lost.
func testOneWinner(t *testing.T, s durable.Store) {
	const clients, rounds = 8, 25
	r := begin(t, s, durable.Begin{ID: "a"})
	for round := range rounds {
		var wins atomic.Int64
		results := make([]error, clients)
		var winner durable.Record
		var wg sync.WaitGroup
		for c := range clients {
			wg.Go(func() {
				got, err := s.Change(t.Context(), next(r, fmt.Sprintf(`{"client":%d}`, c)))
				results[c] = err
				if err == nil && wins.Add(1) == 1 {
					winner = got
				}
			})
		}
		wg.Wait()
		if wins.Load() != 1 {
			t.Fatalf("round %d has %d winners", round, wins.Load())
		}
		for _, err := range results {
			if err != nil {
				wantStale(t, err, berth.CodeRevisionMismatch, winner)
			}
		}
		wantRecord(t, s, winner)
		r = winner
	}
	if r.Revision != rounds {
		t.Fatalf("after %d rounds the revision is %d", rounds, r.Revision)
	}
}
