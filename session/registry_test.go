package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"berth"
	"berth/durable"
	"berth/durable/durabletest"
	"berth/guestapi"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if builtPrograms != "" {
			_ = os.RemoveAll(builtPrograms)
		}
		os.Exit(code) //nolint:forbidigo // a test's main
	}))
}

func TestCreateCommitsBeforeTheGuestIsAsked(t *testing.T) {
	g := newRig(t).run()
	g.guest.onCreate = func(r guestapi.CreateSession) (bool, error) {
		rec, err := g.store.Get(context.Background(), recordKind, r.ID)
		if err != nil {
			t.Errorf("the guest is asked for a session that the store does not have: %v", err)
		}
		if s, err := decodeSession(rec); err != nil || s.State != berth.SessionStarting {
			t.Errorf("record is %+v, %v", s, err)
		}
		return true, nil
	}
	s := g.create(berth.SessionSpec{Name: "work", Env: map[string]string{"A": "1"}, Withhold: []string{"TOKEN"}})
	if s.State != berth.SessionRunning || s.Revision != 1 || s.Host != berth.LocalHost || s.Cwd != "/home/u" || s.Size != berth.DefaultSize {
		t.Errorf("session %+v", s)
	}
	if !slices.Equal(s.EnvNames, []string{"A"}) || !slices.Equal(s.Withheld, []string{"TOKEN"}) {
		t.Errorf("names %v, withheld %v", s.EnvNames, s.Withheld)
	}
	want := []string{"A=1", "HOME=/home/u", "PATH=/bin", "PWD=/home/u", "TERM=xterm-256color"}
	if !slices.Equal(g.guest.last.Env, want) {
		t.Errorf("environment %v, want %v", g.guest.last.Env, want)
	}
	if got := g.kinds(s.ID); !slices.Equal(got, []berth.EventKind{berth.EventSessionCreated, berth.EventSessionChanged}) {
		t.Errorf("events %v", got)
	}
}

func TestCreateIsIdempotent(t *testing.T) {
	g := newRig(t).run()
	spec := berth.SessionSpec{Argv: []string{"sh"}, Env: map[string]string{"K": "v"}}
	first, created, err := g.r.Create(t.Context(), spec, "key")
	if err != nil || !created {
		t.Fatal(err, created)
	}
	again := func() {
		t.Helper()
		s, created, err := g.r.Create(t.Context(), spec, "key")
		if err != nil || created || s.ID != first.ID {
			t.Fatalf("asked again: %v, created %v, %s instead of %s", err, created, s.ID, first.ID)
		}
	}
	again()
	other := spec
	other.Env = map[string]string{"K": "another value"}
	_, _, err = g.r.Create(t.Context(), other, "key")
	wantCode(t, err, berth.CodeConflict)
	g.restart()
	again()
	g.guest.exit(first.ID, 0)
	g.untilState(first.ID, berth.SessionExited)
	again()
	g.guest.kill()
	again() // an answer that is known needs no host
	if n := g.guest.count(&g.guest.starts); n != 1 {
		t.Errorf("%d programs were started", n)
	}
}

func TestTwinCreatesStartOneProgram(t *testing.T) {
	g := newRig(t).run()
	for round := range 20 {
		var wg sync.WaitGroup
		ids := make([]string, 8)
		for i := range ids {
			wg.Go(func() {
				s, _, err := g.r.Create(t.Context(), berth.SessionSpec{Argv: []string{"sh"}}, fmt.Sprint("key", round))
				if err != nil || s.State != berth.SessionRunning {
					t.Errorf("%v, %s", err, s.State)
				}
				ids[i] = s.ID
			})
		}
		wg.Wait()
		if slices.Sort(ids); ids[0] != ids[len(ids)-1] {
			t.Fatalf("twins got %v", ids)
		}
	}
	if n := g.guest.count(&g.guest.starts); n != 20 {
		t.Errorf("%d programs were started for 20 requests", n)
	}
}

func TestNamesAreUniqueAmongLiveSessions(t *testing.T) {
	g := newRig(t).run()
	a := g.create(berth.SessionSpec{Name: "work"})
	_, _, err := g.r.Create(t.Context(), berth.SessionSpec{Name: "work", Argv: []string{"sh"}}, "")
	wantCode(t, err, berth.CodeNameTaken)
	if e := berth.AsError(err); e.Facts["holder"] != a.ID {
		t.Errorf("facts %v", e.Facts)
	}
	g.guest.exit(a.ID, 3)
	g.untilState(a.ID, berth.SessionExited)
	g.until("the name is free", func() bool {
		rec, err := g.store.Get(t.Context(), recordKind, a.ID)
		return err == nil && rec.Terminal
	})
	b := g.create(berth.SessionSpec{Name: "work"})
	if got := g.get("work"); got.ID != b.ID {
		t.Error("the name leads to the one that ended, not to the live one")
	}
	g.guest.exit(b.ID, 0)
	g.untilState(b.ID, berth.SessionExited)
	if got := g.get("work"); got.ID != b.ID {
		t.Error("the name does not lead to the newest")
	}
	if got := g.get(a.ID); got.Exit.Code != 3 {
		t.Errorf("exit %+v", got.Exit)
	}
}

// repeat gives the same bytes again and again, but every nth time others.
type repeat struct{ n, every int }

func (r *repeat) Read(p []byte) (int, error) {
	r.n++
	for i := range p {
		p[i] = 7
		if r.n%r.every == 0 {
			p[i] = byte(r.n / r.every)
		}
	}
	return len(p), nil
}

func TestAGeneratedNameIsDrawnAgain(t *testing.T) {
	g := newRig(t)
	g.cfg.Random = &repeat{every: 5}
	began := time.Now()
	var ticks atomic.Int64
	g.cfg.Now = func() time.Time { // so that ids differ although their random part does not
		return began.Add(time.Duration(ticks.Add(1)) * time.Millisecond)
	}
	g.run()
	seen := map[string]bool{}
	for range 5 {
		s := g.create(berth.SessionSpec{})
		if seen[s.Name] {
			t.Fatalf("%s was given twice", s.Name)
		}
		seen[s.Name] = true
	}
}

func TestAGuestThatIsLostMakesSessionsUnknownNotDead(t *testing.T) {
	g := newRig(t).run()
	s := g.create(berth.SessionSpec{})
	ended := g.create(berth.SessionSpec{})
	g.guest.exit(ended.ID, 0)
	g.untilState(ended.ID, berth.SessionExited)
	waited := make(chan berth.Session, 1)
	go func() {
		s, err := g.r.Wait(context.Background(), s.ID)
		if err != nil {
			t.Error(err)
		}
		waited <- s
	}()
	for range 3 {
		g.guest.kill()
		g.untilState(s.ID, berth.SessionUnknown)
		if got := g.get(ended.ID); got.State != berth.SessionExited {
			t.Errorf("how it ended is known, yet it is %s", got.State)
		}
		if c := g.r.Counts(); c.Unknown != 1 || c.Exited != 1 || c.Running != 0 {
			t.Errorf("counts %+v", c)
		}
		if st := g.r.Guest(berth.LocalHost); st.Reachable || st.Error == "" {
			t.Errorf("guest %+v", st)
		}
		if p := g.r.Problems(); len(p) != 1 || p[0].Code != berth.CodeHostUnreachable || p[0].Hint == "" {
			t.Errorf("problems %+v", p)
		}
		g.guest.start()
		g.untilState(s.ID, berth.SessionRunning)
	}
	select {
	case <-waited:
		t.Fatal("Wait took a lost guest for an ended program")
	default:
	}
	if p := g.r.Problems(); len(p) != 0 {
		t.Errorf("problems %+v", p)
	}
	g.guest.exit(s.ID, 5)
	if got := <-waited; got.Exit == nil || got.Exit.Code != 5 || got.Revision != g.get(s.ID).Revision {
		t.Errorf("waited for %+v", got)
	}
	rec, err := g.store.Get(t.Context(), recordKind, s.ID)
	if err != nil || strings.Contains(string(rec.State), string(berth.SessionUnknown)) {
		t.Errorf("record %s, %v", rec.State, err)
	}
	if got := g.kinds(berth.LocalHost); !slices.Equal(got[:2], []berth.EventKind{berth.EventGuestLost, berth.EventGuestReached}) {
		t.Errorf("events %v", got)
	}
}

func TestAnEndWhileNobodyLooked(t *testing.T) {
	g := newRig(t).run()
	s := g.create(berth.SessionSpec{})
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	g.guest.exit(s.ID, 7)
	g.run()
	if got := g.untilState(s.ID, berth.SessionExited); got.Exit.Code != 7 {
		t.Errorf("exit %+v", got.Exit)
	}
	if got, err := g.r.Wait(t.Context(), s.ID); err != nil || got.Exit.Code != 7 {
		t.Errorf("wait: %+v, %v", got, err)
	}
	g.restart()
	if got := g.kinds(s.ID); !slices.Equal(got, []berth.EventKind{berth.EventSessionCreated, berth.EventSessionChanged, berth.EventSessionExited}) {
		t.Errorf("events %v", got)
	}
}

func TestFilesThatAreGoneMakeASessionLost(t *testing.T) {
	g := newRig(t).run()
	s := g.create(berth.SessionSpec{Name: "work"})
	ended := g.create(berth.SessionSpec{})
	g.guest.exit(ended.ID, 4)
	g.untilState(ended.ID, berth.SessionExited)
	g.guest.kill()
	g.guest.forget(s.ID)
	g.guest.forget(ended.ID)
	g.guest.start()
	got, err := g.r.Wait(t.Context(), s.ID)
	if err != nil || got.State != berth.SessionLost || got.Exit.Reason != berth.ExitEnded || !strings.Contains(got.Exit.Detail, "files are gone") || got.Exit.Code == 0 {
		t.Fatalf("%+v %+v, %v", got, got.Exit, err)
	}
	if got := g.get(ended.ID); got.State != berth.SessionExited || got.Exit.Code != 4 {
		t.Errorf("how it ended is on record, yet it is %+v", got)
	}
	for _, id := range []string{s.ID, ended.ID} {
		_, err = g.r.Log(t.Context(), id, berth.LogRequest{})
		wantCode(t, err, berth.CodeSessionLost)
	}
	wantCode(t, g.r.Input(t.Context(), s.ID, berth.InputRequest{}), berth.CodeSessionLost)
	wantCode(t, g.r.Input(t.Context(), ended.ID, berth.InputRequest{}), berth.CodeSessionEnded)
	if got := g.kinds(s.ID); got[len(got)-1] != berth.EventSessionLost {
		t.Errorf("events %v", got)
	}
	g.create(berth.SessionSpec{Name: "work"}) // its name is free
	for _, id := range []string{s.ID, ended.ID} {
		if err := g.r.Remove(t.Context(), id, false, 0); err != nil {
			t.Errorf("what has no files cannot be removed: %v", err)
		}
	}
}

// The directory of the sessions was not mounted when the guest looked, and is
// there again: what was called lost runs.
func TestALostSessionThatIsThereAfterAll(t *testing.T) {
	g := newRig(t).run()
	s := g.create(berth.SessionSpec{Name: "work"})
	g.guest.mu.Lock()
	kept := g.guest.sessions[s.ID]
	g.guest.mu.Unlock()
	g.guest.kill()
	g.guest.forget(s.ID)
	g.guest.start()
	g.untilState(s.ID, berth.SessionLost)
	g.until("the loss is on record", func() bool {
		rec, err := g.store.Get(t.Context(), recordKind, s.ID)
		return err == nil && rec.Terminal
	})
	other := g.create(berth.SessionSpec{Name: "work"})
	g.guest.kill()
	g.guest.mu.Lock()
	g.guest.sessions[s.ID] = kept
	g.guest.mu.Unlock()
	g.guest.start()
	g.untilState(s.ID, berth.SessionRunning)
	g.until("the record is live again", func() bool {
		rec, err := g.store.Get(t.Context(), recordKind, s.ID)
		return err == nil && !rec.Terminal
	})
	if got := g.get(s.ID); got.Name == "work" || g.get("work").ID != other.ID {
		t.Errorf("two live sessions are called %s", got.Name)
	}
}

func TestACrashBeforeTheGuestWasAsked(t *testing.T) {
	g := newRig(t).run()
	s := g.create(berth.SessionSpec{Name: "work"})
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	// Put the record back to what the crash leaves: committed, never asked for.
	rec, err := g.store.Get(t.Context(), recordKind, s.ID)
	if err != nil {
		t.Fatal(err)
	}
	st, err := decodeSession(rec)
	if err != nil {
		t.Fatal(err)
	}
	st.State = berth.SessionStarting
	if _, err := g.store.Change(t.Context(), durable.Change{Kind: recordKind, ID: s.ID, Revision: rec.Revision, Epoch: rec.Epoch,
		Schema: recordSchema, State: encodeSession(st), BusyKey: rec.BusyKey}); err != nil {
		t.Fatal(err)
	}
	g.guest.forget(s.ID)
	g.run()
	got, err := g.r.Wait(t.Context(), s.ID)
	if err != nil || got.State != berth.SessionLost || !strings.Contains(got.Exit.Detail, "never started") {
		t.Errorf("%+v %+v, %v", got, got.Exit, err)
	}
	if n := g.guest.count(&g.guest.creates); n != 1 {
		t.Errorf("the guest was asked %d times", n)
	}
}

func TestARefusedCreateLeavesNothing(t *testing.T) {
	g := newRig(t).run()
	g.guest.onCreate = func(guestapi.CreateSession) (bool, error) {
		return false, berth.Errorf(berth.CodeCommandNotFound, "no such program")
	}
	_, _, err := g.r.Create(t.Context(), berth.SessionSpec{Name: "work", Argv: []string{"nosuch"}}, "key")
	wantCode(t, err, berth.CodeCommandNotFound)
	if list, _ := g.r.List(t.Context(), berth.SessionFilter{}); len(list) != 0 {
		t.Errorf("left %+v", list)
	}
	if page, _ := g.store.List(t.Context(), durable.Query{Kind: recordKind}); len(page.Records) != 0 {
		t.Errorf("left %+v", page.Records)
	}
	g.guest.onCreate = nil
	if _, created, err := g.r.Create(t.Context(), berth.SessionSpec{Name: "work", Argv: []string{"nosuch"}}, "key"); err != nil || !created {
		t.Errorf("the same request cannot be made again: %v", err)
	}
}

// The answer of the guest was lost: to ask again with the same id starts nothing twice.
func TestAnAnswerThatWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t).run()
		lost := 3
		g.guest.onCreate = func(guestapi.CreateSession) (bool, error) {
			if lost--; lost >= 0 {
				return lost == 1, errGone
			}
			return true, nil
		}
		s := g.create(berth.SessionSpec{})
		if s.State != berth.SessionRunning || g.guest.starts != 1 || g.guest.creates != 4 {
			t.Errorf("%s after %d asks, %d starts", s.State, g.guest.creates, g.guest.starts)
		}
		_ = g.stop()
	})
}

func TestAGuestThatNeverAnswersTheCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t).run()
		g.guest.onCreate = func(guestapi.CreateSession) (bool, error) { return false, errGone }
		_, _, err := g.r.Create(t.Context(), berth.SessionSpec{Name: "work", Argv: []string{"sh"}}, "")
		wantCode(t, err, berth.CodeHostUnreachable)
		id := berth.AsError(err).Facts["session"]
		if s := g.get(id); s.State != berth.SessionUnknown {
			t.Errorf("nobody knows whether it runs, yet it is %s", s.State)
		}
		g.guest.kill()
		g.guest.start()
		if s, err := g.r.Wait(t.Context(), id); err != nil || s.State != berth.SessionLost {
			t.Errorf("%+v, %v", s, err)
		}
		_ = g.stop()
	})
}

func TestCreateRefuses(t *testing.T) {
	g := newRig(t).run()
	for name, c := range map[string]struct {
		spec berth.SessionSpec
		code berth.Code
	}{
		"no command":         {berth.SessionSpec{}, berth.CodeInvalidArgument},
		"bad name":           {berth.SessionSpec{Argv: []string{"a"}, Name: "A B"}, berth.CodeInvalidArgument},
		"relative directory": {berth.SessionSpec{Argv: []string{"a"}, Cwd: "x"}, berth.CodeInvalidArgument},
		"no such host":       {berth.SessionSpec{Argv: []string{"a"}, Host: "moon"}, berth.CodeNotFound},
		"asked and withheld": {berth.SessionSpec{Argv: []string{"a"}, Env: map[string]string{"K": "hush"}, Withhold: []string{"K"}}, berth.CodeUsage},
		"set by berth":       {berth.SessionSpec{Argv: []string{"a"}, Env: map[string]string{"BERTH_SESSION": "x"}}, berth.CodeUsage},
	} {
		_, _, err := g.r.Create(t.Context(), c.spec, "")
		if !errors.Is(err, c.code) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
	}
	if page, _ := g.store.List(t.Context(), durable.Query{Kind: recordKind}); len(page.Records) != 0 {
		t.Error("a refused request left a record")
	}
}

func TestRemove(t *testing.T) {
	g := newRig(t).run()
	s := g.create(berth.SessionSpec{Name: "work"})
	wantCode(t, g.r.Remove(t.Context(), "work", false, 0), berth.CodeSessionLive)
	wantCode(t, g.r.Remove(t.Context(), "work", true, s.Revision+1), berth.CodeRevisionMismatch)
	if err := g.r.Remove(t.Context(), "work", true, s.Revision); err != nil {
		t.Fatal(err)
	}
	wantCode(t, g.r.Remove(t.Context(), "work", true, 0), berth.CodeNotFound)
	_, err := g.r.Get(t.Context(), s.ID)
	wantCode(t, err, berth.CodeNotFound)
	if got := g.kinds(s.ID); got[len(got)-1] != berth.EventSessionRemoved {
		t.Errorf("events %v", got)
	}
	g.until("the entry is forgotten", func() bool {
		g.r.mu.Lock()
		defer g.r.mu.Unlock()
		return len(g.r.sessions) == 0
	})
	g.restart()
	if list, _ := g.r.List(t.Context(), berth.SessionFilter{}); len(list) != 0 {
		t.Errorf("a removed session came back: %+v", list)
	}
}

// A guest lists a session, the session is removed, and only then does the
// registry read the list: it must not take it for a session that it never knew.
func TestAListFromBeforeTheRemoval(t *testing.T) {
	g := newRig(t).run()
	s := g.create(berth.SessionSpec{})
	shown, err := g.guest.Session(t.Context(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	h := g.r.hosts[0]
	if err := g.r.Remove(t.Context(), s.ID, true, 0); err != nil {
		t.Fatal(err)
	}
	g.until("the entry is forgotten", func() bool {
		g.r.mu.Lock()
		defer g.r.mu.Unlock()
		return g.r.sessions[s.ID] == nil
	})
	// The same with the news of the removal still to come.
	again := g.create(berth.SessionSpec{})
	shown.ID, shown.Name = again.ID, again.Name
	g.r.mu.Lock()
	g.r.sessions[again.ID].removed = true
	g.r.mu.Unlock()
	g.r.hello(h, guestapi.Info{})
	for _, ev := range []guestapi.Event{{Session: &shown}, {Synced: true}, {Session: &shown}} {
		g.r.event(t.Context(), h, ev)
	}
	_, err = g.r.Get(t.Context(), again.ID)
	wantCode(t, err, berth.CodeNotFound)
	g.r.event(t.Context(), h, guestapi.Event{Removed: again.ID})
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	if g.r.sessions[again.ID] != nil {
		t.Error("the entry stays for ever")
	}
	g.guest.mu.Lock()
	delete(g.guest.sessions, again.ID)
	g.guest.mu.Unlock()
}

func TestRemoveWhatItsHostCannotTellOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t).run()
		s := g.create(berth.SessionSpec{})
		g.guest.kill()
		synctest.Wait()
		wantCode(t, g.r.Remove(t.Context(), s.ID, false, 0), berth.CodeSessionLive)
		wantCode(t, g.r.Remove(t.Context(), s.ID, true, 0), berth.CodeHostUnreachable)
		if got := g.get(s.ID); got.State != berth.SessionUnknown {
			t.Errorf("state %s", got.State)
		}
		_ = g.stop()
		g.cfg.Hosts = nil // the host was taken out of the configuration
		g.run()
		if err := g.r.Remove(t.Context(), s.ID, true, 0); err != nil {
			t.Error(err)
		}
		_ = g.stop()
	})
}

// A crash between the two halves of a removal: the files are gone, the record is not.
func TestRemoveIsRepeatable(t *testing.T) {
	g := newRig(t).run()
	s := g.create(berth.SessionSpec{})
	g.guest.exit(s.ID, 0)
	g.untilState(s.ID, berth.SessionExited)
	g.guest.forget(s.ID)
	if err := g.r.Remove(t.Context(), s.ID, false, 0); err != nil {
		t.Fatal(err)
	}
	if page, _ := g.store.List(t.Context(), durable.Query{Kind: recordKind}); len(page.Records) != 0 {
		t.Error("the record is left")
	}
}

func TestUnreadableFiles(t *testing.T) {
	g := newRig(t).run()
	s := g.create(berth.SessionSpec{})
	stray := testID(t)
	g.guest.kill()
	g.guest.forget(s.ID)
	g.guest.bad = []guestapi.Unreadable{{ID: s.ID, Detail: "running.json is damaged"}, {ID: stray, Detail: "session.json is damaged"}}
	g.guest.start()
	g.until("the guest is back", func() bool { return g.r.Guest(berth.LocalHost).Reachable && len(g.r.Problems()) == 2 })
	if got := g.get(s.ID); got.State != berth.SessionUnknown {
		t.Errorf("files that cannot be read make a session %s", got.State)
	}
	for _, p := range g.r.Problems() {
		if p.Code != berth.CodeRecordUnreadable || p.Hint == "" {
			t.Errorf("problem %+v", p)
		}
	}
	wantCode(t, g.r.Remove(t.Context(), s.ID, false, 0), berth.CodeSessionLive)
	for _, id := range []string{s.ID, stray} {
		if err := g.r.Remove(t.Context(), id, true, 0); err != nil {
			t.Error(err)
		}
	}
}

func TestResizeAndKillReadTheirWrites(t *testing.T) {
	g := newRig(t).run()
	s := g.create(berth.SessionSpec{})
	_, err := g.r.Resize(t.Context(), s.ID, berth.Size{Cols: 100, Rows: 30}, s.Revision+5)
	wantCode(t, err, berth.CodeRevisionMismatch)
	_, err = g.r.Resize(t.Context(), s.ID, berth.Size{}, 0)
	wantCode(t, err, berth.CodeInvalidArgument)
	got, err := g.r.Resize(t.Context(), s.ID, berth.Size{Cols: 100, Rows: 30}, s.Revision)
	if err != nil || got.Size.Cols != 100 || got.Revision <= s.Revision {
		t.Fatalf("%+v, %v", got, err)
	}
	res, err := g.r.Kill(t.Context(), s.ID, 0)
	if err != nil || res.Exit == nil {
		t.Fatal(res, err)
	}
	if got := g.get(s.ID); got.State != berth.SessionExited {
		t.Errorf("killed, yet %s", got.State)
	}
	// A program that has ended may have left others: a second kill is for them,
	// and tells the exit that was.
	again, err := g.r.Kill(t.Context(), s.ID, 0)
	if err != nil || again.Exit == nil || again.Exit.Code != res.Exit.Code {
		t.Errorf("a second kill: %+v, %v", again, err)
	}
}

func TestAdoptionWithoutAStore(t *testing.T) {
	g := newRig(t)
	first, second := testID(t), testID(t)
	g.guest.add(first, "work", berth.SessionRunning)
	g.guest.add(second, "work", berth.SessionRunning)
	g.guest.add(testID(t), "work", berth.SessionExited)
	g.guest.add("../../etc", "evil", berth.SessionRunning)
	g.guest.add(testID(t), "odd", "half-dead")
	g.run()
	list, err := g.r.List(t.Context(), berth.SessionFilter{})
	if err != nil || len(list) != 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	g.until("all are on record", func() bool {
		page, err := g.store.List(t.Context(), durable.Query{Kind: recordKind})
		return err == nil && len(page.Records) == 3
	})
	if a, b := g.get(first), g.get(second); a.Name == b.Name || a.State != berth.SessionRunning {
		t.Errorf("%+v and %+v", a, b)
	}
}

func TestAdoptionAfterARestartWritesNothing(t *testing.T) {
	fault := durabletest.NewFault(durabletest.FaultConfig{})
	g := newRigOn(t, fault).run()
	for range 200 {
		g.create(berth.SessionSpec{})
	}
	before := fault.Writes()
	g.restart()
	if c := g.r.Counts(); c.Running != 200 {
		t.Errorf("counts %+v", c)
	}
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	if n := fault.Writes() - before; n != 0 {
		t.Errorf("%d writes for sessions that did not change", n)
	}
}

func TestSoftChangesAreMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fault := durabletest.NewFault(durabletest.FaultConfig{})
		g := newRigOn(t, fault).run()
		s := g.create(berth.SessionSpec{})
		time.Sleep(2 * time.Second) //nolint:forbidigo // the bubble's clock
		before := fault.Writes()
		for i := range 500 { // five seconds of a program that changes its title in a loop
			g.guest.change(s.ID, func(s *guestapi.Session) {
				s.Title = fmt.Sprint("title ", i)
				s.Offsets.End += 100
			})
			time.Sleep(10 * time.Millisecond) //nolint:forbidigo // the bubble's clock
		}
		synctest.Wait()
		if got := g.get(s.ID); got.Title != "title 499" || got.Offsets.End != 50000 {
			t.Errorf("a read is behind: %+v", got)
		}
		if n := fault.Writes() - before; n < 2 || n > 7 {
			t.Errorf("%d commits in five seconds", n)
		}
		time.Sleep(2 * time.Second) //nolint:forbidigo // the bubble's clock
		before = fault.Writes()
		for range 100 {
			g.guest.change(s.ID, func(s *guestapi.Session) {
				s.Offsets.End++
				s.Log.Bytes++
			})
			time.Sleep(50 * time.Millisecond) //nolint:forbidigo // the bubble's clock
		}
		synctest.Wait()
		if n := fault.Writes() - before; n != 0 {
			t.Errorf("%d commits for output alone", n)
		}
		_ = g.stop()
	})
}

func TestAgentChangesAreWrittenAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fault := durabletest.NewFault(durabletest.FaultConfig{})
		g := newRigOn(t, fault).run()
		s := g.create(berth.SessionSpec{})
		set := func(a *berth.Agent) {
			g.guest.change(s.ID, func(s *guestapi.Session) { s.Agent = a })
			synctest.Wait()
		}
		set(&berth.Agent{State: berth.AgentBlocked, Kind: berth.BlockedPermission, Message: "rm \x1b[31m-rf"})
		if got := g.get(s.ID); got.Agent == nil || got.Agent.State != berth.AgentBlocked || got.Agent.Source != berth.AgentFromOSC || strings.ContainsRune(got.Agent.Message, 0x1b) {
			t.Errorf("agent %+v", got.Agent)
		}
		if got := g.kinds(s.ID); got[len(got)-1] != berth.EventSessionAgent {
			t.Errorf("events %v", got)
		}
		since := g.get(s.ID).Agent.Since
		before := fault.Writes()
		for i := range 1000 { // a program that reports in a loop
			state := berth.AgentWorking
			if i%2 == 1 {
				state = berth.AgentBlocked
			}
			set(&berth.Agent{State: state})
			time.Sleep(time.Millisecond) //nolint:forbidigo // the bubble's clock
		}
		if n := fault.Writes() - before; n > 12 {
			t.Errorf("%d commits in a second", n)
		}
		if !g.get(s.ID).Agent.Since.After(since) {
			t.Error("since did not move with the state")
		}
		g.guest.exit(s.ID, 0)
		synctest.Wait()
		if got := g.get(s.ID); got.Agent != nil {
			t.Errorf("a session without a program has the agent %+v", got.Agent)
		}
		_ = g.stop()
	})
}

func TestHooksRankBelowReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t).run()
		s := g.create(berth.SessionSpec{Argv: []string{"claude"}})
		hook := func(event string) {
			g.guest.change(s.ID, func(s *guestapi.Session) {
				s.Hook = &guestapi.HookLine{Session: s.ID, Event: event, At: time.Now()}
			})
			synctest.Wait()
		}
		hook("UserPromptSubmit")
		if a := g.get(s.ID).Agent; a == nil || a.State != berth.AgentWorking || a.Source != berth.AgentFromHook {
			t.Fatalf("agent %+v", a)
		}
		hook("SubagentStop") // says nothing
		g.restart()
		if a := g.get(s.ID).Agent; a == nil || a.State != berth.AgentWorking {
			t.Errorf("after a restart the agent is %+v", a)
		}
		g.guest.change(s.ID, func(s *guestapi.Session) { s.Agent = &berth.Agent{State: berth.AgentIdle} })
		hook("PermissionRequest")
		if a := g.get(s.ID).Agent; a.State != berth.AgentIdle || a.Source != berth.AgentFromOSC {
			t.Errorf("agent %+v", a)
		}
		g.guest.change(s.ID, func(s *guestapi.Session) { s.Agent = nil })
		synctest.Wait()
		if a := g.get(s.ID).Agent; a != nil && a.Source == berth.AgentFromHook {
			t.Errorf("the report was taken back, and a hook from before it is shown: %+v", a)
		}
		_ = g.stop()
	})
}

func TestScreenRulesLookOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t).run()
		s := g.create(berth.SessionSpec{Argv: []string{"/usr/bin/claude"}})
		shell := g.create(berth.SessionSpec{})
		show := func(lines ...string) {
			g.guest.mu.Lock()
			g.guest.screens[s.ID] = berth.Screen{Lines: lines}
			g.guest.mu.Unlock()
			g.guest.change(s.ID, func(s *guestapi.Session) { s.Offsets.End += 10 })
		}
		after := func(d time.Duration) *berth.Agent {
			time.Sleep(d) //nolint:forbidigo // the bubble's clock
			synctest.Wait()
			return g.get(s.ID).Agent
		}
		show("✻ Thinking… (3s · esc to interrupt)")
		if a := after(1100 * time.Millisecond); a == nil || a.State != berth.AgentWorking || a.Source != berth.AgentFromScreen {
			t.Fatalf("agent %+v", a)
		}
		show("❯ ", "? for shortcuts")
		if a := after(2 * time.Second); a.State != berth.AgentWorking {
			t.Errorf("idle without the hold: %+v", a)
		}
		if a := after(3 * time.Second); a.State != berth.AgentIdle {
			t.Errorf("still %+v", a)
		}
		show("Do you want to proceed?", "❯ 1. Yes", "  2. No")
		if a := after(1100 * time.Millisecond); a.State != berth.AgentBlocked || a.Kind != berth.BlockedPermission {
			t.Errorf("agent %+v", a)
		}
		before := g.guest.count(&g.guest.looks)
		for range 100 {
			show("✻ Thinking… (3s · esc to interrupt)")
			after(50 * time.Millisecond)
		}
		if n := g.guest.count(&g.guest.looks) - before; n < 4 || n > 7 {
			t.Errorf("%d looks in five seconds", n)
		}
		if a := g.get(shell.ID).Agent; a != nil {
			t.Errorf("a shell is the agent %+v", a)
		}
		_ = g.stop()
	})
}

// A guest that is stopped takes the connection and says nothing: it cannot be
// reached, and what waits for the first look must not wait for ever.
func TestAGuestThatSaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		g.cfg.Hosts[0].Guest = silentGuest{g.guest}
		began := time.Now()
		g.run()
		if d := time.Since(began); d != helloTimeout {
			t.Errorf("settled after %s", d)
		}
		if st := g.r.Guest(berth.LocalHost); st.Reachable || !strings.Contains(st.Error, "said nothing") {
			t.Errorf("guest %+v", st)
		}
		_ = g.stop()
	})
}

type silentGuest struct{ *fakeGuest }

func (silentGuest) Events(ctx context.Context, _ func(guestapi.Event) error) error {
	<-ctx.Done()
	return ctx.Err()
}

// A guest that ends as soon as it has started is not started dozens of times a second.
func TestAGuestThatEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t)
		births := 0
		g.cfg.Hosts[0].Ensure = func(context.Context) error { births++; return nil }
		g.cfg.Hosts[0].Guest = dyingGuest{g.guest}
		g.run()
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		_ = g.stop()
		if births > 50 {
			t.Errorf("it was started %d times in a minute", births)
		}
		if n := len(g.kinds(berth.LocalHost)); n > 2*births {
			t.Errorf("%d events for %d losses", n, births)
		}
	})
}

type dyingGuest struct{ *fakeGuest }

func (dyingGuest) Events(_ context.Context, f func(guestapi.Event) error) error {
	return errors.Join(f(guestapi.Event{Hello: &guestapi.Info{}}), f(guestapi.Event{Synced: true}), errGone)
}

// A value that was withheld, and one that was given, must be nowhere but in
// what the guest gets.
func TestSecretsStayOut(t *testing.T) {
	g := newRig(t).run()
	spec := berth.SessionSpec{Argv: []string{"sh"}, Env: map[string]string{"API_KEY": "given-secret"}, Withhold: []string{"TOKEN"}}
	var errs []string
	s, _, err := g.r.Create(t.Context(), spec, "key")
	if err != nil {
		t.Fatal(err)
	}
	spec.Env["API_KEY"] = "given-secret-2"
	_, _, err = g.r.Create(t.Context(), spec, "key")
	errs = append(errs, err.Error())
	g.guest.onCreate = func(guestapi.CreateSession) (bool, error) {
		return false, berth.Errorf(berth.CodeStartFailed, "it did not start")
	}
	_, _, err = g.r.Create(t.Context(), spec, "")
	errs = append(errs, err.Error())
	if env := strings.Join(g.guest.last.Env, "\n"); strings.Contains(env, "base-secret") || !strings.Contains(env, "API_KEY=given-secret-2") {
		t.Errorf("environment %s", env)
	}
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	page, err := g.store.List(t.Context(), durable.Query{Kind: recordKind})
	if err != nil {
		t.Fatal(err)
	}
	events, err := g.store.Events(t.Context(), 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	shown, err := json.Marshal(map[string]any{"session": s, "records": page, "events": events, "errors": errs})
	if err != nil {
		t.Fatal(err)
	}
	states := ""
	for _, rec := range page.Records {
		states += string(rec.State)
	}
	for _, text := range []string{string(shown), states, g.logged()} {
		if strings.Contains(text, "secret") {
			t.Errorf("a secret is in %s", text)
		}
	}
	if !strings.Contains(states, `"withheld":["TOKEN"]`) || !strings.Contains(states, `"env_names":["API_KEY"]`) {
		t.Errorf("the names are not in %s", states)
	}
}

func TestTheStoreFails(t *testing.T) {
	for _, effect := range []durabletest.Effect{durabletest.NotWritten, durabletest.Written} {
		fault := durabletest.NewFault(durabletest.FaultConfig{})
		g := newRigOn(t, fault).run()
		s := g.create(berth.SessionSpec{})
		waited := make(chan error, 1)
		go func() {
			_, err := g.r.Wait(context.Background(), s.ID)
			waited <- err
		}()
		fault.FailWrite(1, effect)
		g.guest.exit(s.ID, 0)
		wantCode(t, <-waited, berth.CodeStoreFailed)
		wantCode(t, g.stop(), berth.CodeStoreFailed)
		_, _, err := g.r.Create(t.Context(), berth.SessionSpec{Argv: []string{"sh"}}, "")
		wantCode(t, err, berth.CodeStoreFailed)
		// The next daemon finds what the guest has.
		g.store = fault.Reopen(berth.Identity{BootID: "b", PID: 2, StartTime: 1})
		g.cfg.Store = g.store
		g.run()
		if got := g.untilState(s.ID, berth.SessionExited); got.Name != s.Name {
			t.Errorf("%+v", got)
		}
		if err := g.stop(); err != nil {
			t.Error(err)
		}
	}
}

func TestARecordThatCannotBeRead(t *testing.T) {
	g := newRig(t)
	there, gone := testID(t), testID(t)
	for _, id := range []string{there, gone} {
		if _, _, err := g.store.Begin(t.Context(), durable.Begin{Kind: recordKind, ID: id, Schema: recordSchema,
			State: []byte(`{"id":"` + id + `","name":"work","state":"dreaming"}`), BusyKey: namePrefix + "n" + id[2:]}); err != nil {
			t.Fatal(err)
		}
	}
	g.guest.add(there, "work", berth.SessionRunning)
	g.run()
	if got := g.get(there); got.State != berth.SessionRunning {
		t.Errorf("%+v", got)
	}
	g.until("the record is written anew", func() bool {
		rec, err := g.store.Get(t.Context(), recordKind, there)
		return err == nil && rec.Revision == 1
	})
	if got := g.get(gone); got.State != berth.SessionLost || !strings.Contains(got.Exit.Detail, "dreaming") {
		t.Errorf("%+v", got)
	}
	if err := g.r.Remove(t.Context(), gone, false, 0); err != nil {
		t.Error(err)
	}
}

func TestProblems(t *testing.T) {
	g := newRig(t)
	g.guest.version = "0.0.1"
	g.run()
	s := g.create(berth.SessionSpec{Name: "work"})
	g.guest.change(s.ID, func(s *guestapi.Session) { s.Log.Gap = "no space left on device" })
	g.until("both show", func() bool { return len(g.r.Problems()) == 2 })
	p := g.r.Problems()
	if p[0].Code != berth.CodeGuestOutdated || p[0].Hint == "" || p[1].Code != berth.CodeLogGap || !strings.Contains(p[1].Detail, "no space left") {
		t.Errorf("%+v", p)
	}
}

func TestNewRefuses(t *testing.T) {
	g := newRig(t)
	for name, spoil := range map[string]func(*Config){
		"no store":  func(c *Config) { c.Store = nil },
		"no home":   func(c *Config) { c.Home = "" },
		"tiny ring": func(c *Config) { c.Defaults.RingBytes = 1 },
		"twice":     func(c *Config) { c.Hosts = append(c.Hosts, c.Hosts[0]) },
	} {
		cfg := g.cfg
		spoil(&cfg)
		if _, err := New(cfg); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// TestALateAnswer: the answer of a call and the event stream come on two
// connections, so an older view can come after a newer one.
func TestALateAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newRig(t).run()
		s := g.create(berth.SessionSpec{})
		h := g.r.host(berth.LocalHost)
		g.r.mu.Lock()
		old := *g.r.sessions[s.ID].seen
		g.r.mu.Unlock()
		old.Seq = 7
		g.guest.change(s.ID, func(v *guestapi.Session) { v.Seq, v.Title = 8, "new" })
		synctest.Wait()
		g.r.mu.Lock()
		g.r.see(h, old)
		g.r.mu.Unlock()
		if got := g.get(s.ID).Title; got != "new" {
			t.Errorf("title = %q", got)
		}
		_ = g.stop()
	})
}
