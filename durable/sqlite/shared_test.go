package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pressly/goose/v3"

	"berth"
	"berth/durable"
	"berth/durable/durabletest"
)

const (
	roleWriter = "shared-writer"
	writers    = 3
	writes     = 60
)

// writeShared is a process that changes the one record of a shared store
// `writes` times, whatever the others do to it meanwhile.
func writeShared(path string) {
	ctx := context.Background()
	s, err := Open(ctx, Config{Path: path, Shared: true, Owner: berth.Identity{BootID: "boot", PID: os.Getpid()}})
	if err != nil {
		panic(err)
	}
	if _, _, err := s.Begin(ctx, durable.Begin{Kind: "register", ID: "r", State: []byte(`0`), IdempotencyKey: "r", Fingerprint: "f"}); err != nil {
		panic(err)
	}
	for done := 0; done < writes; {
		r, err := s.Get(ctx, "register", "r")
		if err != nil {
			panic(err)
		}
		var n int
		if _, err := fmt.Sscan(string(r.State), &n); err != nil {
			panic(err)
		}
		_, err = s.Change(ctx, durable.Change{
			Kind: "register", ID: "r", Revision: r.Revision, Epoch: r.Epoch, State: fmt.Append(nil, n+1),
			Events: []durable.EventDraft{{Kind: "register.changed"}},
		})
		switch {
		case err == nil:
			done++
		case !errors.Is(err, berth.CodeRevisionMismatch):
			panic(err)
		}
	}
	if err := s.Close(); err != nil {
		panic(err)
	}
	fmt.Println("done")
}

// Several processes open a file that is not there yet at once, and write one
// record: no schema is made twice, no change is lost, no event's number is given
// twice or skipped.
func TestSharedByProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), berth.FileMachineStore)
	var all []*program
	for range writers {
		all = append(all, startProgram(t, roleWriter, pathVar+"="+path))
	}
	for _, p := range all {
		if got := p.line(t); got != "done" {
			t.Fatalf("a writer says %q", got)
		}
	}
	s := openStore(t, Config{Path: path, Shared: true})
	r, err := s.Get(t.Context(), "register", "r")
	if want := fmt.Sprint(writers * writes); err != nil || string(r.State) != want || fmt.Sprint(r.Revision) != want {
		t.Fatalf("the record is %s at %d, %v, want %s", r.State, r.Revision, err, want)
	}
	page, err := s.Events(t.Context(), 0, 0)
	if err != nil || len(page.Events) != writers*writes {
		t.Fatalf("%d events, %v", len(page.Events), err)
	}
	for i, e := range page.Events {
		if e.Seq != int64(i)+1 || e.Revision != e.Seq {
			t.Fatalf("the event %d is %+v", i+1, e)
		}
	}
	if names := files(t, filepath.Dir(path)); len(names) != 3 {
		t.Fatalf("files %v", names)
	}
}

// A writer that is killed at any point leaves nothing that stops the others.
func TestSharedWriterIsKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), berth.FileMachineStore)
	s := openStore(t, Config{Path: path, Shared: true})
	for range 5 {
		p := startProgram(t, roleWriter, pathVar+"="+path)
		deadline := time.After(30 * time.Second)
		for page, err := s.Events(t.Context(), 0, 0); ; page, err = s.Events(t.Context(), page.Last, 0) {
			if err != nil {
				t.Fatal(err)
			}
			if len(page.Events) > 0 {
				break
			}
			select {
			case <-deadline:
				t.Fatal("nothing was written within 30 s")
			case <-time.After(time.Millisecond):
			}
		}
		p.kill()
		if _, err := s.Publish(t.Context(), durable.EventDraft{Kind: "thing.seen", Subject: "x"}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSharedConforms(t *testing.T) {
	durabletest.Run(t, func(t *testing.T) durable.Store { return openStore(t, Config{Shared: true, Path: quiet(t)}) })
}

// quiet is a path whose poll the suite's "a wake-up without an event" cannot
// meet: a wake-up for nothing is allowed when the file is shared.
func quiet(t *testing.T) string {
	t.Helper()
	if strings.HasSuffix(t.Name(), "/Watch") || strings.HasSuffix(t.Name(), "/WatchNeverBlocks") {
		t.Skip("a shared store may wake for nothing")
	}
	return filepath.Join(t.TempDir(), berth.FileMachineStore)
}

// A commit of another process wakes within about 200 ms, a commit of nobody not
// at all.
func TestSharedWatch(t *testing.T) {
	path := filepath.Join(t.TempDir(), berth.FileMachineStore)
	s := openStore(t, Config{Path: path, Shared: true})
	wake := s.Watch(t.Context())
	for settled := false; !settled; { // the first look, and the schema's commits
		select {
		case <-wake:
		case <-time.After(3 * pollEvery):
			settled = true
		}
	}
	began := time.Now()
	p := startProgram(t, roleWriter, pathVar+"="+path)
	select {
	case <-wake:
	case <-time.After(20 * time.Second):
		t.Fatal("no wake-up for another process")
	}
	t.Logf("woken %v after its start", time.Since(began))
	p.line(t)
}

func TestSharedLeavesNothingRunning(t *testing.T) {
	s := openStore(t, Config{Path: filepath.Join(t.TempDir(), berth.FileMachineStore), Shared: true})
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.following.Wait()
	}()
	closeStore(t, s)
	<-done
}

// A daemon of a newer berth brings the schema further while this one runs: it
// writes no more.
func TestSharedNewerSchema(t *testing.T) {
	s := openStore(t, Config{Path: filepath.Join(t.TempDir(), berth.FileMachineStore), Shared: true})
	r, _, err := s.Begin(t.Context(), durable.Begin{Kind: "thing", ID: "a", State: []byte(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.conn.ExecContext(t.Context(), "PRAGMA user_version = 99"); err != nil {
		t.Fatal(err)
	}
	_, err = s.Change(t.Context(), durable.Change{Kind: "thing", ID: "a", Epoch: 1, State: []byte(`1`)})
	if !errors.Is(err, berth.CodeStoreNewer) {
		t.Fatalf("a write to a newer schema: %v", err)
	}
	if got, err := s.Get(t.Context(), "thing", "a"); err != nil || got.Revision != r.Revision {
		t.Fatalf("it was written: %+v, %v", got, err)
	}
}

// Two owners of one file: what one marks or owns is not the other's.
func TestSharedOwners(t *testing.T) {
	path := filepath.Join(t.TempDir(), berth.FileMachineStore)
	a := openStore(t, Config{Path: path, Shared: true})
	second := testOwner
	second.PID++
	b := openStore(t, Config{Path: path, Shared: true, Owner: second})
	r, _, err := a.Begin(t.Context(), durable.Begin{Kind: "thing", ID: "a", State: []byte(`{}`), Effects: []durable.EffectPlan{{Kind: "e"}}})
	if err != nil {
		t.Fatal(err)
	}
	started := durable.EffectMark{ID: "0.1", Status: durable.EffectStarted}
	if _, err := b.MarkEffect(t.Context(), "thing", "a", r.Epoch, started); !errors.Is(err, berth.CodeFenced) {
		t.Fatalf("another process marked: %v", err)
	}
	if err := b.Own(t.Context(), "thing", "a", r.Epoch, "x"); !errors.Is(err, berth.CodeFenced) {
		t.Fatalf("another process owned: %v", err)
	}
	seq, err := b.Post(t.Context(), durable.Post{Kind: "thing", ID: "a", Event: []byte(`1`), Expected: 0})
	if err != nil {
		t.Fatal(err)
	}
	for s, want := range map[*Store]int{a: 1, b: 0} {
		if got, err := s.Inbox(t.Context(), "thing"); err != nil || len(got) != want {
			t.Fatalf("the inbox of %d has %+v, %v", s.cfg.Owner.PID, got, err)
		}
	}
	c := durable.Change{Kind: "thing", ID: "a", Epoch: 1, State: []byte(`{}`), Message: seq, Terminal: true}
	if _, err = a.Change(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	c = durable.Change{Kind: "thing", ID: "a", Revision: 1, Epoch: 1, State: []byte(`{}`), Reopen: true}
	if r, err = b.Change(t.Context(), c); err != nil || r.Epoch != 2 || r.Owner != second { // resumed elsewhere
		t.Fatalf("%+v, %v", r, err)
	}
	if m, err := b.Message(t.Context(), seq); err != nil || m.Outcome == nil || m.Outcome.Revision != 1 || m.Sender != second {
		t.Fatalf("%+v, %v", m, err)
	}
}

// Starts on one directory come one after the other, and one that waits can be
// called off.
func TestSharedStarts(t *testing.T) {
	dir := t.TempDir()
	unlock, err := lockDir(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = Open(ctx, Config{Path: filepath.Join(dir, berth.FileMachineStore), Owner: testOwner, Shared: true})
	if !errors.Is(err, berth.CodeTimeout) {
		t.Fatalf("a start that waits: %v", err)
	}
	unlock()
	closeStore(t, openStore(t, Config{Path: filepath.Join(dir, berth.FileMachineStore), Shared: true}))
}

// A store of the first schema, with a live record, is brought up to date.
func TestFirstSchemaIsBroughtUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), berth.FileStore)
	sch, err := newSchema()
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", dsn(path))
	if err != nil {
		t.Fatal(err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, sch.files, goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpTo(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `INSERT INTO records (`+recordColumns+`) VALUES ('thing', 'a', 3, 1, 0, X'7B7D', '{}', '', '', '', 0, 1, 1)`); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, Config{Path: path})
	c := durable.Change{Kind: "thing", ID: "a", Revision: 3, Epoch: 1, State: []byte(`1`), Ledger: &durable.LedgerChange{Plan: []durable.EffectPlan{{Kind: "e"}}}}
	if _, err := s.Change(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if effects, err := s.Effects(t.Context(), "thing", "a"); err != nil || len(effects) != 1 || effects[0].ID != "4.1" {
		t.Fatalf("%+v, %v", effects, err)
	}
}

// Many goroutines of two openings: the sequence has no gap.
func TestSharedSequence(t *testing.T) {
	path := filepath.Join(t.TempDir(), berth.FileMachineStore)
	second := testOwner
	second.PID++
	stores := []*Store{openStore(t, Config{Path: path, Shared: true}), openStore(t, Config{Path: path, Shared: true, Owner: second})}
	var all sync.WaitGroup
	for _, s := range stores {
		for range 3 {
			all.Go(func() {
				for range 20 {
					if _, err := s.Publish(t.Context(), durable.EventDraft{Kind: "thing.seen", Subject: "x"}); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	page, err := stores[0].Events(t.Context(), 0, 0)
	if err != nil || len(page.Events) != 120 || page.Last != 120 {
		t.Fatalf("%d events up to %d, %v", len(page.Events), page.Last, err)
	}
}
