package container

import (
	"context"
	"errors"
	"strings"
	"testing"

	"berth"
	"berth/durable"
	"berth/durable/durabletest"
)

// newStore is a store in memory whose writes can be made to fail.
func newStore(t *testing.T, owner berth.Identity) *durabletest.Fault {
	t.Helper()
	s := durabletest.NewFault(durabletest.FaultConfig{Owner: owner})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func journalOf(t *testing.T, s Records, host string) *StoreJournal {
	t.Helper()
	j, err := NewStoreJournal(s, host)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func newJournal(t *testing.T) *StoreJournal { return journalOf(t, newStore(t, self(t)), "local") }

func withJournal(t *testing.T, j Journal) func(*Config) {
	return func(cfg *Config) { cfg.Journal, cfg.Self = j, self(t) }
}

func entry(n string) Entry {
	return Entry{Token: "token-" + n, Name: "c" + n, Purpose: PurposeEngine, Engine: "lab", Instance: "i" + n, Image: anImage, GPU: "GPU-1111"}
}

func TestJournal(t *testing.T) {
	s := newStore(t, self(t))
	j, other := journalOf(t, s, "local"), journalOf(t, s, "elsewhere")
	ctx := t.Context()
	for _, n := range []string{"a", "b"} {
		if err := j.Write(ctx, entry(n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := other.Write(ctx, entry("c")); err != nil {
		t.Fatal(err)
	}
	es, err := j.Entries(ctx)
	if err != nil || len(es) != 2 {
		t.Fatalf("%v, %v", es, err)
	}
	want := entry("a")
	want.Host, want.Owner, want.Created = "local", self(t), es[0].Created
	if es[0].Token == entry("b").Token { // made in the same instant
		es[0], es[1] = es[1], es[0]
	}
	if want.Created = es[0].Created; es[0] != want {
		t.Errorf("%+v, want %+v", es[0], want)
	}
	if err := j.Made(ctx, "token-a", strings.Repeat("a", 64)); err != nil {
		t.Fatal(err)
	}
	if es, err := j.Entries(ctx); err != nil || es[0].ID+es[1].ID != strings.Repeat("a", 64) {
		t.Errorf("%v, %v", es, err)
	}
	for range 2 { // a second time does nothing
		if err := j.Drop(ctx, entry("a").Token); err != nil {
			t.Fatal(err)
		}
	}
	if es, err := j.Entries(ctx); err != nil || len(es) != 1 || es[0].Token != entry("b").Token {
		t.Errorf("%v, %v", es, err)
	}
	if es, err := other.Entries(ctx); err != nil || len(es) != 1 || es[0].Host != "elsewhere" {
		t.Errorf("%v, %v", es, err)
	}
}

// Two daemons find the same leftover: one gets it.
func TestJournalClaimHasOneWinner(t *testing.T) {
	dead := berth.Identity{BootID: "another-boot", PID: 7, StartTime: 7}
	s := newStore(t, dead)
	if err := journalOf(t, s, "local").Write(t.Context(), entry("a")); err != nil {
		t.Fatal(err)
	}
	es, err := journalOf(t, s, "local").Entries(t.Context())
	if err != nil || len(es) != 1 || es[0].Owner != dead {
		t.Fatalf("%v, %v", es, err)
	}
	first := journalOf(t, s.Reopen(berth.Identity{BootID: "b", PID: 1, StartTime: 1}), "local")
	second := journalOf(t, s.Reopen(berth.Identity{BootID: "b", PID: 2, StartTime: 2}), "local")
	if err := first.Claim(t.Context(), es[0]); err != nil {
		t.Fatal(err)
	}
	wantCode(t, second.Claim(t.Context(), es[0]), berth.CodeConflict)
	es, err = second.Entries(t.Context())
	if err != nil || len(es) != 1 || es[0].Owner.PID != 1 {
		t.Errorf("%v, %v", es, err)
	}
}

func TestJournalPassesNothingOver(t *testing.T) {
	s := newStore(t, self(t))
	for id, c := range map[string]struct {
		schema int
		state  string
	}{
		"newer": {3, `{}`}, "token": {2, `{"token":"x","id":"token","host":"local","purpose":"engine"}`}, "other": {1, `{"id":"x","host":"local","purpose":"engine"}`}, "purpose": {1, `{"id":"purpose","host":"local","purpose":"?"}`},
	} {
		if _, _, err := s.Begin(t.Context(), durable.Begin{Kind: RecordKind, ID: id, Schema: c.schema, State: []byte(c.state)}); err != nil {
			t.Fatal(err)
		}
		_, err := journalOf(t, s, "local").Entries(t.Context())
		wantCode(t, err, berth.CodeRecordUnreadable)
		r, err := s.Get(t.Context(), RecordKind, id)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Change(t.Context(), durable.Change{Kind: RecordKind, ID: id, Schema: 1, State: []byte(`{}`), Revision: r.Revision, Epoch: r.Epoch, Terminal: true}); err != nil {
			t.Fatal(err)
		}
	}
	if es, err := journalOf(t, s, "local").Entries(t.Context()); err != nil || len(es) != 0 {
		t.Errorf("%v, %v", es, err)
	}
}

// What an older berth wrote, once the container was there, is understood.
func TestJournalByID(t *testing.T) {
	s := newStore(t, self(t))
	id := strings.Repeat("d", 64)
	if _, _, err := s.Begin(t.Context(), durable.Begin{Kind: RecordKind, ID: id, Schema: 1, State: []byte(`{"id":"` + id + `","host":"local","purpose":"check"}`)}); err != nil {
		t.Fatal(err)
	}
	j := journalOf(t, s, "local")
	es, err := j.Entries(t.Context())
	if err != nil || len(es) != 1 || es[0].ID != id || es[0].Token != id {
		t.Fatalf("%+v, %v", es, err)
	}
	if err := j.Drop(t.Context(), es[0].Token); err != nil {
		t.Fatal(err)
	}
	if es, err := j.Entries(t.Context()); err != nil || len(es) != 0 {
		t.Errorf("%+v, %v", es, err)
	}
}

// forgetfulJournal dies with the daemon between the making of a container and
// the line that knows its id.
type forgetfulJournal struct{ Journal }

func (forgetfulJournal) Made(context.Context, string, string) error { return nil }

// brokenJournal fails to write, as a full disk does.
type brokenJournal struct {
	Journal
	writes int
}

var errBroken = errors.New("no space for the journal")

func (b *brokenJournal) Write(context.Context, Entry) error { b.writes++; return errBroken }
