package sqlite

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth"
	"berth/durable"
	"berth/durable/durabletest"
)

// twins are the file and the store in memory, given the same calls at the same
// times. Whatever the order, both must answer the same.
type twins struct {
	clock *durabletest.Clock
	cfg   Config
	file  *Store
	mem   *durabletest.Fault
	boots int
}

func newTwins(t *rapid.T, dir string) *twins {
	w := &twins{clock: durabletest.NewClock()}
	w.cfg = Config{
		Path: filepath.Join(dir, berth.FileStore), Owner: testOwner, Now: w.clock.Now, Boottime: w.clock.Boottime,
		EventsKept: 12, EventsKeptFor: time.Hour,
	}
	w.mem = durabletest.NewFault(durabletest.FaultConfig{
		Owner: testOwner, Now: w.clock.Now, Boottime: w.clock.Boottime, EventsKept: 12, EventsKeptFor: time.Hour,
	})
	w.open(t)
	return w
}

func (w *twins) open(t *rapid.T) {
	var err error
	if w.file, err = Open(t.Context(), w.cfg); err != nil {
		t.Fatal(err)
	}
}

// both makes the same call on each and compares the answers.
func (w *twins) both(t *rapid.T, what string, call func(durable.Store) (any, error)) any {
	got, gotErr := call(w.file)
	want, wantErr := call(w.mem)
	if !reflect.DeepEqual(plain(gotErr), plain(wantErr)) {
		t.Fatalf("%s: the file says %v, the memory %v", what, gotErr, wantErr)
	}
	if gotErr == nil && !reflect.DeepEqual(got, want) {
		t.Fatalf("%s: the file answers\n%+v\nthe memory\n%+v", what, got, want)
	}
	return got
}

// plain is an error without what may differ: the words.
func plain(err error) any {
	if err == nil {
		return nil
	}
	var e *berth.Error
	var stale *durable.StaleError
	if !errors.As(err, &e) {
		return err.Error()
	}
	errors.As(err, &stale)
	return fmt.Sprint(e.Code, e.Facts, stale)
}

type beginning struct {
	Record  durable.Record
	Created bool
}

// Draws are from few values, so that calls meet.
func thing(t *rapid.T) string { return rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "id") }
func small(t *rapid.T, what string) int64 {
	return rapid.Int64Range(0, 3).Draw(t, what)
}
func key(t *rapid.T, what string) string {
	return rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, what)
}
func drafts(t *rapid.T) []durable.EventDraft {
	return rapid.SampledFrom([][]durable.EventDraft{
		nil, {{Kind: "k.own"}}, {{Kind: "k.own", Subject: "a"}, {Kind: "k.other", Subject: "z", Revision: 4}},
	}).Draw(t, "events")
}

// aim gives the guard of a write: most often the right one.
func (w *twins) aim(t *rapid.T, id string) (revision, epoch int64) {
	r, err := w.mem.Get(t.Context(), "thing", id)
	if err != nil || rapid.IntRange(0, 4).Draw(t, "miss") == 0 {
		return small(t, "revision"), small(t, "epoch")
	}
	return r.Revision, r.Epoch
}

func (w *twins) change(t *rapid.T) durable.Change {
	c := durable.Change{
		Kind: "thing", ID: thing(t), Schema: int(small(t, "schema")), State: fmt.Appendf(nil, `{"n":%d}`, small(t, "n")),
		BusyKey: key(t, "busy"), Terminal: rapid.IntRange(0, 3).Draw(t, "end") == 0, Events: drafts(t),
	}
	c.Revision, c.Epoch = w.aim(t, c.ID)
	c.Reopen = rapid.Bool().Draw(t, "reopen")
	if rapid.IntRange(0, 3).Draw(t, "message") == 0 {
		c.Message = 1 + small(t, "seq")
	}
	if rapid.Bool().Draw(t, "ledger") {
		c.Ledger = &durable.LedgerChange{
			Keep: rapid.Bool().Draw(t, "keep"), Progress: map[string]berth.Progress{"0.1": {Done: small(t, "done")}},
		}
		if !c.Terminal {
			c.Ledger.Plan = plans(t)
		}
		if rapid.Bool().Draw(t, "answered") {
			c.Ledger.Answered = &durable.EffectMark{ID: w.effect(t, c.ID), Status: rapid.SampledFrom([]durable.EffectStatus{durable.EffectDone, durable.EffectFailed}).Draw(t, "status")}
		}
	}
	return c
}

func plans(t *rapid.T) []durable.EffectPlan {
	return rapid.SampledFrom([][]durable.EffectPlan{nil, {{Kind: "e"}}, {{Kind: "e", Data: []byte(`1`)}, {Kind: "f"}}}).Draw(t, "plan")
}

// effect is the id of one, most often one that is there.
func (w *twins) effect(t *rapid.T, id string) string {
	effects, err := w.mem.Effects(t.Context(), "thing", id)
	if err != nil || len(effects) == 0 || rapid.IntRange(0, 4).Draw(t, "miss") == 0 {
		return durable.EffectID(small(t, "revision"), int(1+small(t, "n")))
	}
	return rapid.SampledFrom(effects).Draw(t, "effect").ID
}

// machineActions are what a durable.Runner asks.
func (w *twins) machineActions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"mark": func(t *rapid.T) {
			id := thing(t)
			_, epoch := w.aim(t, id)
			m := durable.EffectMark{
				ID: w.effect(t, id), Error: key(t, "error"),
				Status: rapid.SampledFrom([]durable.EffectStatus{durable.EffectStarted, durable.EffectUnknown, durable.EffectDone, durable.EffectFailed}).Draw(t, "status"),
			}
			if rapid.Bool().Draw(t, "progress") {
				m.Progress = &berth.Progress{Stage: "s", Done: small(t, "done")}
			}
			w.both(t, "mark", func(s durable.Store) (any, error) { return s.MarkEffect(t.Context(), "thing", id, epoch, m) })
		},
		"own": func(t *rapid.T) {
			id, things := thing(t), []string{key(t, "own") + "1", key(t, "own") + "2"}
			_, epoch := w.aim(t, id)
			w.both(t, "own", func(s durable.Store) (any, error) { return nil, s.Own(t.Context(), "thing", id, epoch, things...) })
		},
		"post": func(t *rapid.T) {
			p := durable.Post{Kind: "thing", ID: thing(t), Event: []byte(`{}`), Expected: small(t, "expected")}
			w.both(t, "post", func(s durable.Store) (any, error) { return s.Post(t.Context(), p) })
		},
		"settle": func(t *rapid.T) {
			seq, o := 1+small(t, "seq"), durable.Outcome{Revision: small(t, "revision")}
			w.both(t, "settle", func(s durable.Store) (any, error) { return nil, s.Settle(t.Context(), seq, o) })
		},
		"archive": func(t *rapid.T) {
			a := durable.ArchiveRequest{Kind: "thing", BusyKey: key(t, "busy"), Events: []durable.EventDraft{{Kind: "k.away", Subject: "z"}}}
			if rapid.Bool().Draw(t, "ids") {
				a.IDs = []string{thing(t)}
			}
			w.both(t, "archive", func(s durable.Store) (any, error) { return s.Archive(t.Context(), a) })
		},
	}
}

// compareMachine reads what belongs to records.
func (w *twins) compareMachine(t *rapid.T) {
	for _, id := range []string{"a", "b", "c"} {
		w.both(t, "effects", func(s durable.Store) (any, error) { return s.Effects(t.Context(), "thing", id) })
		w.both(t, "owned", func(s durable.Store) (any, error) { return s.Owned(t.Context(), "thing", id) })
	}
	w.both(t, "inbox", func(s durable.Store) (any, error) { return s.Inbox(t.Context(), "thing") })
	for seq := range int64(6) {
		w.both(t, "message", func(s durable.Store) (any, error) { return s.Message(t.Context(), seq) })
	}
	archives := w.both(t, "archives", func(s durable.Store) (any, error) { return s.Archives(t.Context(), "thing") }).([]durable.Archive)
	for _, a := range archives {
		w.both(t, "archived", func(s durable.Store) (any, error) { return s.Archived(t.Context(), "thing", a.Stamp) })
	}
}

func (w *twins) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"begin": func(t *rapid.T) {
			b := durable.Begin{
				Kind: rapid.SampledFrom([]string{"thing", "other"}).Draw(t, "kind"), ID: thing(t), State: []byte(`{}`),
				IdempotencyKey: key(t, "key"), Fingerprint: rapid.SampledFrom([]string{"f", "g"}).Draw(t, "print"),
				BusyKey: key(t, "busy"), Terminal: rapid.IntRange(0, 5).Draw(t, "end") == 0, Events: drafts(t),
			}
			if !b.Terminal {
				b.Effects = plans(t)
			}
			w.both(t, "begin", func(s durable.Store) (any, error) {
				r, created, err := s.Begin(t.Context(), b)
				return beginning{r, created}, err
			})
		},
		"change": func(t *rapid.T) {
			c := w.change(t)
			w.both(t, "change", func(s durable.Store) (any, error) { return s.Change(t.Context(), c) })
		},
		"guarded": func(t *rapid.T) {
			c, lease, epoch := w.change(t), thing(t), small(t, "lease epoch")
			w.both(t, "guarded", func(s durable.Store) (any, error) { return s.Guarded(t.Context(), lease, epoch, c) })
		},
		"take over": func(t *rapid.T) {
			id := thing(t)
			revision, epoch := w.aim(t, id)
			w.both(t, "take over", func(s durable.Store) (any, error) {
				return s.TakeOver(t.Context(), "thing", id, revision, epoch)
			})
		},
		"remove": func(t *rapid.T) {
			id, events := thing(t), drafts(t)
			revision, epoch := w.aim(t, id)
			w.both(t, "remove", func(s durable.Store) (any, error) {
				return nil, s.Remove(t.Context(), "thing", id, revision, epoch, events...)
			})
		},
		"publish": func(t *rapid.T) {
			events := []durable.EventDraft{{Kind: "k.seen", Subject: "z"}}
			w.both(t, "publish", func(s durable.Store) (any, error) { return s.Publish(t.Context(), events...) })
		},
		"acquire": func(t *rapid.T) {
			r := durable.LeaseRequest{
				Name: thing(t), Principal: rapid.SampledFrom([]string{"p", "q"}).Draw(t, "principal"),
				Label: key(t, "label"), TTL: time.Duration(1+small(t, "ttl")) * time.Minute,
			}
			w.both(t, "acquire", func(s durable.Store) (any, error) { return s.Acquire(t.Context(), r) })
		},
		"renew": func(t *rapid.T) {
			name, epoch, ttl := thing(t), small(t, "lease epoch"), time.Duration(1+small(t, "ttl"))*time.Minute
			w.both(t, "renew", func(s durable.Store) (any, error) { return s.Renew(t.Context(), name, "p", epoch, ttl) })
		},
		"release": func(t *rapid.T) {
			name, epoch := thing(t), small(t, "lease epoch")
			w.both(t, "release", func(s durable.Store) (any, error) { return nil, s.Release(t.Context(), name, "p", epoch) })
		},
		"expire": func(t *rapid.T) {
			w.both(t, "expire", func(s durable.Store) (any, error) { return s.Expire(t.Context()) })
		},
		"prune": func(t *rapid.T) {
			w.both(t, "prune", func(s durable.Store) (any, error) { return s.Prune(t.Context()) })
		},
		"pass": func(t *rapid.T) {
			w.clock.Pass(time.Duration(rapid.Int64Range(-30, 120).Draw(t, "minutes")) * time.Minute)
		},
		"restart": func(t *rapid.T) {
			if err := w.file.Close(); err != nil {
				t.Fatal(err)
			}
			if rapid.IntRange(0, 2).Draw(t, "boot") == 0 {
				w.boots++
				w.cfg.Owner.BootID = fmt.Sprint("boot ", w.boots)
			}
			w.cfg.Owner.PID++
			w.mem = w.mem.Reopen(w.cfg.Owner)
			w.open(t)
		},
		"read": w.compare,
	}
}

// compare reads everything.
func (w *twins) compare(t *rapid.T) {
	for _, q := range []durable.Query{{}, {Kind: "thing", Live: true, Limit: 1}, {Kind: "thing", BusyKey: "x"}} {
		// Cursors are each store's own; whether there is one is not.
		for more := true; more; {
			var after [2]string
			i := 0
			more = w.both(t, "list", func(s durable.Store) (any, error) {
				page, err := s.List(t.Context(), q)
				after[i], i = page.Next, i+1
				return listing{page.Records, page.Next != ""}, err
			}).(listing).More
			if more && after[0] != after[1] {
				break // the first page is compared; the suite has the others
			}
			q.After = after[0]
		}
	}
	last := w.both(t, "events", func(s durable.Store) (any, error) { return s.Events(t.Context(), 0, 0) }).(durable.EventPage).Last
	for _, after := range []int64{1, last / 2, last, last + 1} {
		w.both(t, "events", func(s durable.Store) (any, error) { return s.Events(t.Context(), after, 5) })
	}
	w.compareMachine(t)
	w.both(t, "leases", func(s durable.Store) (any, error) { return s.Leases(t.Context()) })
	for _, name := range []string{"a", "b", "c"} {
		w.both(t, "lease", func(s durable.Store) (any, error) { return s.Lease(t.Context(), name) })
	}
}

type listing struct {
	Records []durable.Record
	More    bool
}

func TestFileAndMemoryAgree(t *testing.T) {
	// Each run makes a database; 40 take some seconds with -race. Give
	// -rapid.checks for more.
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if !given {
		if err := flag.Set("rapid.checks", "40"); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(r *rapid.T) {
		w := newTwins(r, t.TempDir())
		defer func() { _ = w.file.Close() }()
		actions := w.actions()
		maps.Copy(actions, w.machineActions())
		r.Repeat(actions)
		w.compare(r)
	})
}
