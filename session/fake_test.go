package session

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth"
	"berth/durable"
	"berth/durable/durabletest"
	"berth/guestapi"
)

// fakeGuest is a guest in memory that can be made to show what a real one
// cannot be made to show on demand: a death between two messages, an answer
// that is lost, files that are gone.
type fakeGuest struct {
	mu       sync.Mutex
	up       bool
	down     chan struct{} // closed when it dies
	sessions map[string]guestapi.Session
	subs     map[chan guestapi.Event]bool
	bad      []guestapi.Unreadable
	version  string
	screens  map[string]berth.Screen

	creates  int // that came this far
	starts   int // that started something
	removes  int
	looks    int
	last     guestapi.CreateSession
	onCreate func(guestapi.CreateSession) (start bool, err error) // nil = start
}

func newFakeGuest() *fakeGuest {
	return &fakeGuest{
		up: true, down: make(chan struct{}), version: berth.Version(),
		sessions: map[string]guestapi.Session{}, subs: map[chan guestapi.Event]bool{}, screens: map[string]berth.Screen{},
	}
}

var errGone = berth.Errorf(berth.CodeHostUnreachable, "the guest is dead: %w", syscall.ECONNREFUSED)

func (g *fakeGuest) kill() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.up = false
	close(g.down)
	clear(g.subs)
}

func (g *fakeGuest) start() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.up, g.down = true, make(chan struct{})
}

func (g *fakeGuest) ensure(context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.up {
		return errGone
	}
	return nil
}

// send tells everybody who follows. g.mu is held.
func (g *fakeGuest) send(ev guestapi.Event) {
	for c := range g.subs {
		c <- ev
	}
}

// change changes a session as if its program had done it.
func (g *fakeGuest) change(id string, f func(*guestapi.Session)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s, ok := g.sessions[id]
	if !ok {
		return
	}
	f(&s)
	g.sessions[id] = s
	g.send(guestapi.Event{Session: &s})
}

func (g *fakeGuest) exit(id string, code int) {
	g.change(id, func(s *guestapi.Session) {
		s.State = berth.SessionExited
		s.Exit = &berth.Exit{Code: code, Reason: berth.ExitExited, Offset: s.Offsets.End, At: time.Now().UTC()}
	})
}

// forget loses the files of a session, without a word.
func (g *fakeGuest) forget(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.sessions, id)
}

// add makes a session that nobody asked for through this registry.
func (g *fakeGuest) add(id, name string, state berth.SessionState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sessions[id] = guestapi.Session{Session: berth.Session{
		ID: id, Name: name, Argv: []string{"sh"}, Cwd: "/", State: state, Generation: 1, EnvNames: []string{}, Withheld: []string{},
		Size: berth.DefaultSize, SizePolicy: berth.SizeLatest, CreatedAt: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}}
}

func (g *fakeGuest) Events(ctx context.Context, f func(guestapi.Event) error) error {
	g.mu.Lock()
	if !g.up {
		g.mu.Unlock()
		return errGone
	}
	c := make(chan guestapi.Event, 4096)
	g.subs[c] = true
	down := g.down
	list := []guestapi.Event{{Hello: &guestapi.Info{Version: g.version, Protocol: berth.GuestProtocol, Unreadable: g.bad, Identity: berth.Identity{PID: 4711}}}}
	for _, s := range g.sessions {
		list = append(list, guestapi.Event{Session: &s})
	}
	g.mu.Unlock()
	for _, ev := range append(list, guestapi.Event{Synced: true}) {
		if err := f(ev); err != nil {
			return err
		}
	}
	for {
		select {
		case ev := <-c:
			if err := f(ev); err != nil {
				return err
			}
		case <-down:
			return errGone
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (g *fakeGuest) Create(_ context.Context, r guestapi.CreateSession) (guestapi.Session, error) {
	g.mu.Lock()
	on := g.onCreate
	g.creates++
	g.last = r
	if !g.up {
		g.mu.Unlock()
		return guestapi.Session{}, errGone
	}
	g.mu.Unlock()
	start, err := true, error(nil)
	if on != nil {
		start, err = on(r)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s, there := g.sessions[r.ID]
	if start && !there {
		g.starts++
		s = guestapi.Session{Session: berth.Session{
			ID: r.ID, Name: r.Name, Argv: r.Argv, Cwd: r.Cwd, EnvNames: r.EnvNames, Withheld: r.Withheld, Size: r.Size,
			SizePolicy: r.SizePolicy, State: berth.SessionRunning, Generation: 1, BootID: "boot", PID: 4712,
			Log: berth.LogInfo{Cap: r.LogBytes}, CreatedAt: r.CreatedAt, Parent: r.Parent,
		}}
		g.sessions[r.ID] = s
		g.send(guestapi.Event{Session: &s})
	}
	return s, err
}

func (g *fakeGuest) get(id string) (guestapi.Session, error) {
	if !g.up {
		return guestapi.Session{}, errGone
	}
	s, ok := g.sessions[id]
	if !ok {
		return s, berth.Errorf(berth.CodeNotFound, "there is no session %s", id)
	}
	return s, nil
}

func (g *fakeGuest) Session(_ context.Context, id string) (guestapi.Session, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.get(id)
}

func (g *fakeGuest) Remove(_ context.Context, id string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.removes++
	s, err := g.get(id)
	if err != nil {
		return err
	}
	if s.State.Live() {
		return berth.Errorf(berth.CodeSessionLive, "session %s is live", id)
	}
	delete(g.sessions, id)
	g.send(guestapi.Event{Session: &s}) // a line that was on its way
	g.send(guestapi.Event{Removed: id})
	return nil
}

func (g *fakeGuest) Resize(_ context.Context, id string, size berth.Size) error {
	g.change(id, func(s *guestapi.Session) { s.Size = size })
	return nil
}

func (g *fakeGuest) Signal(context.Context, string, string) error { return nil }

func (g *fakeGuest) Kill(_ context.Context, id string) (berth.KillResult, error) {
	g.mu.Lock()
	s, err := g.get(id)
	g.mu.Unlock()
	if err != nil {
		return berth.KillResult{}, err
	}
	if !s.State.Live() {
		return berth.KillResult{Exit: s.Exit, Survivors: []int{}}, nil
	}
	g.exit(id, 129)
	s, err = g.Session(context.Background(), id)
	return berth.KillResult{Exit: s.Exit, Survivors: []int{}}, err
}

func (g *fakeGuest) Times(context.Context, string) (guestapi.Times, error) {
	return guestapi.Times{}, nil
}

func (g *fakeGuest) Input(context.Context, string, berth.InputRequest) error { return nil }

func (g *fakeGuest) Screen(_ context.Context, id string, _ bool) (berth.Screen, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.looks++
	s, err := g.get(id)
	if err != nil {
		return berth.Screen{}, err
	}
	screen := g.screens[id]
	screen.Generation, screen.Offset = s.Generation, s.Offsets.End
	return screen, nil
}

func (g *fakeGuest) Log(_ context.Context, id string, _ berth.LogRequest) (berth.LogChunk, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, err := g.get(id)
	return berth.LogChunk{Data: []byte("output")}, err
}

func (g *fakeGuest) Attach(context.Context, string, berth.AttachRequest) (*guestapi.AttachStream, error) {
	return nil, errors.New("no attach here")
}

func (g *fakeGuest) count(of *int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return *of
}

// rig is a registry with its parts; restart makes the next daemon over the same
// store and guest.
type rig struct {
	t     *testing.T
	store durable.Store
	guest *fakeGuest
	cfg   Config
	r     *Registry
	log   *bytes.Buffer
	logMu *sync.Mutex
	stop  func() error // ends Run and gives its error; may be called twice
}

type lockedWriter struct {
	mu *sync.Mutex
	b  *bytes.Buffer
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func newRig(t *testing.T) *rig { return newRigOn(t, durabletest.NewFault(durabletest.FaultConfig{})) }

func newRigOn(t *testing.T, store durable.Store) *rig {
	t.Helper()
	g := &rig{t: t, store: store, guest: newFakeGuest(), log: &bytes.Buffer{}, logMu: &sync.Mutex{}}
	g.cfg = Config{
		Store:    store,
		Hosts:    []HostLink{{Name: berth.LocalHost, Ensure: g.guest.ensure, Guest: g.guest}},
		Defaults: Defaults{LogBytes: 1 << 20, RingBytes: 256 << 10, SizePolicy: berth.SizeLatest},
		BaseEnv:  []string{"PATH=/bin", "HOME=/home/u", "TOKEN=base-secret"},
		Home:     "/home/u",
		Now:      time.Now,
		Random:   rand.Reader,
		Log:      slog.New(slog.NewTextHandler(lockedWriter{g.logMu, g.log}, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	return g
}

// run starts the registry and waits until it is synced.
func (g *rig) run() *rig {
	g.t.Helper()
	r, err := New(g.cfg)
	if err != nil {
		g.t.Fatal(err)
	}
	g.r = r
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var once sync.Once
	var runErr error
	g.stop = func() error {
		once.Do(func() {
			cancel()
			runErr = <-done
		})
		return runErr
	}
	g.t.Cleanup(func() { _ = g.stop() })
	select {
	case <-r.Synced():
	case <-time.After(10 * time.Second):
		g.t.Fatal("the registry did not sync")
	}
	return g
}

func (g *rig) restart() *rig {
	g.t.Helper()
	if err := g.stop(); err != nil {
		g.t.Fatal(err)
	}
	return g.run()
}

func (g *rig) create(spec berth.SessionSpec) berth.Session {
	g.t.Helper()
	if spec.Argv == nil {
		spec.Argv = []string{"sh"}
	}
	s, created, err := g.r.Create(g.t.Context(), spec, "")
	if err != nil || !created {
		g.t.Fatalf("create: %v, created %v", err, created)
	}
	return s
}

func (g *rig) get(ref string) berth.Session {
	g.t.Helper()
	s, err := g.r.Get(g.t.Context(), ref)
	if err != nil {
		g.t.Fatal(err)
	}
	return s
}

// until waits for a condition that the registry's own work brings about.
func (g *rig) until(what string, cond func() bool) {
	g.t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			g.t.Fatalf("in vain waited until %s", what)
		case <-tick.C:
		}
	}
}

func (g *rig) untilState(id string, want berth.SessionState) berth.Session {
	g.t.Helper()
	g.until("session is "+string(want), func() bool { return g.get(id).State == want })
	return g.get(id)
}

func (g *rig) kinds(id string) []berth.EventKind {
	g.t.Helper()
	page, err := g.store.Events(context.Background(), 0, 10000)
	if err != nil {
		g.t.Fatal(err)
	}
	var out []berth.EventKind
	for _, ev := range page.Events {
		if ev.Subject == id {
			out = append(out, ev.Kind)
		}
	}
	return out
}

func (g *rig) logged() string {
	g.logMu.Lock()
	defer g.logMu.Unlock()
	return g.log.String()
}

func wantCode(t *testing.T, err error, code berth.Code) {
	t.Helper()
	if !errors.Is(err, code) {
		t.Fatalf("error %v, want %s", err, code)
	}
}

func testID(t *testing.T) string {
	t.Helper()
	id, err := berth.NewID(berth.SessionID, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return id
}
