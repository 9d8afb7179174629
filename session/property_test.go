package session

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth"
	"berth/durable"
	"berth/durable/durabletest"
	"berth/durable/sqlite"
)

// Whatever happens in whatever order, no two live sessions have one name, the
// store agrees with what the guest shows once all is quiet, and nothing that
// was removed comes back.
func TestPropertyNamesAndRecords(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		g := newRigOn(t, durabletest.NewFault(durabletest.FaultConfig{})).run()
		defer func() { _ = g.stop() }()
		removed := map[string]bool{}
		pick := func() (berth.Session, bool) {
			list, err := g.r.List(context.Background(), berth.SessionFilter{})
			if err != nil {
				rt.Fatal(err)
			}
			if len(list) == 0 {
				return berth.Session{}, false
			}
			return list[rapid.IntRange(0, len(list)-1).Draw(rt, "which")], true
		}
		for range rapid.IntRange(5, 40).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"create", "create", "exit", "remove", "restart", "flap", "lose", "stray"}).Draw(rt, "step") {
			case "create":
				name := rapid.SampledFrom([]string{"a", "b", "c", ""}).Draw(rt, "name")
				if _, _, err := g.r.Create(context.Background(), berth.SessionSpec{Name: name, Argv: []string{"sh"}}, ""); err != nil && berth.AsError(err).Code != berth.CodeNameTaken {
					rt.Fatal(err)
				}
			case "exit":
				if s, ok := pick(); ok && s.State == berth.SessionRunning {
					g.guest.exit(s.ID, 0)
				}
			case "remove":
				if s, ok := pick(); ok {
					if err := g.r.Remove(context.Background(), s.ID, true, 0); err != nil {
						rt.Fatalf("a session cannot be removed: %v", err)
					}
					removed[s.ID] = true
				}
			case "restart":
				g.restart()
			case "flap":
				g.guest.kill()
				g.guest.start()
			case "lose":
				if s, ok := pick(); ok {
					g.guest.kill()
					g.guest.forget(s.ID)
					g.guest.start()
				}
			case "stray":
				g.guest.add(testID(t), rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "name"), berth.SessionRunning)
			}
			checkNames(rt, g, removed)
		}
		g.guest.kill() // so that the strays are listed
		g.guest.start()
		var last error
		defer func() {
			if t.Failed() {
				t.Log(last)
			}
		}()
		// A commit may be under way while nothing is due any more, so the
		// agreement is waited for too.
		g.until("all is quiet and agrees", func() bool {
			if !quiet(g) {
				return false
			}
			last = agreement(g)
			return last == nil
		})
		checkNames(rt, g, removed)
	})
}

func checkNames(rt *rapid.T, g *rig, removed map[string]bool) {
	list, err := g.r.List(context.Background(), berth.SessionFilter{})
	if err != nil {
		rt.Fatal(err)
	}
	names := map[string]string{}
	for _, s := range list {
		if removed[s.ID] {
			rt.Fatalf("%s was removed and came back", s.ID)
		}
		if !s.State.Live() {
			continue
		}
		if other, ok := names[s.Name]; ok {
			rt.Fatalf("%s and %s are both called %s", other, s.ID, s.Name)
		}
		names[s.Name] = s.ID
	}
}

// quiet reports whether the guest is followed and nothing is left to write.
func quiet(g *rig) bool {
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	if h := g.r.hosts[0]; !h.connected || !h.synced {
		return false
	}
	g.guest.mu.Lock()
	defer g.guest.mu.Unlock()
	if len(g.guest.subs) != 1 { // the end of the last connection was not noticed yet
		return false
	}
	for id := range g.guest.sessions {
		if g.r.sessions[id] == nil {
			return false
		}
	}
	for _, e := range g.r.sessions {
		if !e.due.IsZero() || e.stored == nil && !e.removed {
			return false
		}
		if s, ok := g.guest.sessions[e.id]; ok && (e.seen == nil || e.seen.State != s.State) {
			return false
		}
		if _, ok := g.guest.sessions[e.id]; !ok && e.seen != nil && !e.removed {
			return false
		}
	}
	return true
}

func agreement(g *rig) error {
	page, err := g.store.List(context.Background(), durable.Query{Kind: recordKind})
	if err != nil {
		return err
	}
	list, err := g.r.List(context.Background(), berth.SessionFilter{})
	if err != nil {
		return err
	}
	if len(list) != len(page.Records) {
		return fmt.Errorf("%d sessions, %d records", len(list), len(page.Records))
	}
	for _, rec := range page.Records {
		s, err := decodeSession(rec)
		if err != nil {
			return err
		}
		shown, err := g.r.Get(context.Background(), s.ID)
		if err != nil {
			return err
		}
		if shown.State != s.State || shown.Name != s.Name || shown.Revision != rec.Revision || rec.Terminal == s.State.Live() {
			return fmt.Errorf("shown %+v, record %+v terminal %v", shown, s, rec.Terminal)
		}
	}
	return nil
}

func openSQLite(t *testing.T, path string) *sqlite.Store {
	t.Helper()
	st, err := sqlite.Open(t.Context(), sqlite.Config{Path: path, Owner: berth.Identity{BootID: "b", PID: os.Getpid(), StartTime: 1}})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// The promise is one second for all of 200 sessions; the store is the real one.
func TestAdoptionOnSQLite(t *testing.T) {
	path := filepath.Join(t.TempDir(), berth.FileStore)
	st := openSQLite(t, path)
	g := newRigOn(t, st).run()
	for range 200 {
		g.create(berth.SessionSpec{})
	}
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	began, spent := time.Now(), cpuTime(t)
	st = openSQLite(t, path)
	g.store, g.cfg.Store = st, st
	g.run()
	spent = cpuTime(t) - spent
	if c := g.r.Counts(); c.Running != 200 {
		t.Errorf("counts %+v", c)
	}
	// The time on the clock is the machine's as much as ours, so the time on the
	// processor is what is held.
	t.Logf("store opened and 200 sessions adopted in %s, %s of them on the processor", time.Since(began), spent)
	if spent > time.Second {
		t.Errorf("adoption took %s on the processor", spent)
	}
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}

// cpuTime is what this process has spent on processors so far.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
