package guest

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/guestapi"
	"berth/process"
)

// Config says what a guest works with.
type Config struct {
	Sessions string // directory of the sessions; made where it is missing
	Runtime  string // directory of sockets and the lock; made where it is missing
	Holder   string // path of the berth-holder binary
	Log      *slog.Logger
	// Scope moves a new holder out of the caller's service; nil = leave it.
	Scope func(ctx context.Context, pid int) error

	// For tests: nil = the real ones.
	now     func() time.Time
	holders holders
}

func (c Config) validate() error {
	for name, path := range map[string]string{"sessions": c.Sessions, "runtime": c.Runtime, "holder": c.Holder} {
		if !filepath.IsAbs(path) {
			return berth.Errorf(berth.CodeInvalidArgument, "--%s %q is not an absolute path", name, path)
		}
	}
	if c.Log == nil {
		return berth.Errorf(berth.CodeInvalidArgument, "a guest needs a logger")
	}
	return nil
}

// maxSessions bounds the sessions of one guest, ended ones included.
const maxSessions = 4096

// Guest serves the sessions of one user on one host.
type Guest struct {
	cfg     Config
	log     *slog.Logger
	holders holders
	now     func() time.Time
	bootID  string
	started time.Time
	hub     *hub
	relays  *relays

	// stopping is closed when viewers and readers are to be let go; work ends
	// when every goroutine of the guest is to end.
	stopping chan struct{}
	work     context.Context
	endWork  context.CancelFunc

	mu         sync.Mutex
	sessions   map[string]*session
	unreadable map[string]string // id to detail
	closed     bool              // nothing is spawned any more
	wg         sync.WaitGroup    // every goroutine but the handlers'
}

func newGuest(cfg Config) (*Guest, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	boot, err := process.BootID()
	if err != nil {
		return nil, err
	}
	g := &Guest{
		cfg: cfg, log: cfg.Log, holders: cfg.holders, now: cfg.now, bootID: boot,
		stopping: make(chan struct{}), sessions: map[string]*session{}, unreadable: map[string]string{},
	}
	if g.holders == nil {
		g.holders = realHolders{}
	}
	if g.now == nil {
		g.now = time.Now
	}
	g.started = g.now()
	g.work, g.endWork = context.WithCancel(context.Background())
	g.hub = newHub(g)
	return g, nil
}

// Run serves until ctx ends or a client retires it. Then the screens are
// deposited and it returns; every session goes on.
func Run(ctx context.Context, cfg Config) error {
	g, err := newGuest(cfg)
	if err != nil {
		return err
	}
	lock, err := lockRuntime(cfg.Runtime)
	if err != nil {
		return err
	}
	defer lock.Close() //nolint:errcheck // the lock goes with the file; nothing was written
	if err := os.MkdirAll(cfg.Sessions, 0o700); err != nil {
		return berth.Errorf(berth.CodeStateDir, "the directory of the sessions: %w", err)
	}
	listener, err := listen(filepath.Join(cfg.Runtime, berth.SocketGuest), g.log)
	if err != nil {
		return err
	}
	defer listener.Close() //nolint:errcheck // the server closed it
	if g.relays, err = newRelays(g); err != nil {
		return err
	}
	if err := g.adopt(); err != nil {
		g.shutdown()
		return err
	}
	return g.serve(ctx, listener)
}

// serve answers until ctx ends or the guest is retired, then shuts down.
func (g *Guest) serve(ctx context.Context, l *listener) error {
	retired, retire := context.WithCancel(ctx)
	defer retire()
	server, handlers := newServer(g, retire)
	served := make(chan struct{})
	var serveErr error // valid once served is closed
	go func() {
		defer close(served)
		serveErr = server.Serve(l)
	}()
	g.mu.Lock()
	count := len(g.sessions)
	g.mu.Unlock()
	g.log.Info("the guest serves", "sessions", count, "after", g.now().Sub(g.started))

	var err error
	select {
	case <-retired.Done():
	case <-served:
		err = berth.Errorf(berth.CodeGuestFailed, "serve: %w", serveErr)
	}
	g.log.Info("the guest stops; its sessions go on", "error", err)
	// Screens first: from here on a kill -9 costs nothing any more.
	g.depositAll()
	close(g.stopping)
	letGo(server, handlers)
	<-served
	g.shutdown()
	return err
}

// letGo ends the server once its handlers are done. Shutdown alone would wait a
// second for each HTTP/2 connection, for a client that has nothing to say; what
// handlers wrote last is on the wire long before lastWords are over.
func letGo(server *http.Server, handlers *handlerCount) {
	grace, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Shutdown(grace) }) // it tells the clients; Close below ends it
	select {
	case <-handlers.idle():
		last := time.NewTimer(lastWords)
		defer last.Stop()
		select {
		case <-last.C:
		case <-grace.Done():
		}
	case <-grace.Done(): // a viewer that reads nothing holds its handler up
	}
	_ = server.Close() // the listener is closed already, and that is what it would report
	cancel()
	wg.Wait()
}

// handlerCount counts the requests that are being answered. It is no WaitGroup,
// since requests may still come while it is waited for.
type handlerCount struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n is 0; nil = nobody waits
}

func (c *handlerCount) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n += n
	if c.n == 0 && c.none != nil {
		close(c.none)
		c.none = nil
	}
}

// idle gives a channel that is closed once no request is being answered.
func (c *handlerCount) idle() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := make(chan struct{})
	if c.n == 0 {
		close(ch)
	} else {
		c.none = ch
	}
	return ch
}

const (
	lastWords = 50 * time.Millisecond
	// stopGrace is what viewers get to take what is being written to them.
	stopGrace = 2 * time.Second
	// depositGrace is what all holders together get to take the screens.
	depositGrace = 5 * time.Second
	// atOnce bounds how many sessions are adopted or deposited at a time.
	atOnce = 16
)

// shutdown ends and awaits every goroutine.
func (g *Guest) shutdown() {
	g.mu.Lock()
	g.closed = true
	all := g.list()
	g.mu.Unlock()
	g.endWork()
	for _, s := range all {
		s.mu.Lock()
		s.stopTimers()
		s.mu.Unlock()
		s.input.end()
	}
	g.relays.stop()
	g.wg.Wait()
}

// spawn runs f in a goroutine that shutdown waits for. false = the guest stops
// and f does not run.
func (g *Guest) spawn(f func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.wg.Go(f)
	return true
}

// pause waits; false = the guest stops.
func (g *Guest) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-g.work.Done():
		return false
	}
}

func (g *Guest) isStopping() bool {
	select {
	case <-g.stopping:
		return true
	default:
		return false
	}
}

// depositAll deposits the screen of every live session.
func (g *Guest) depositAll() {
	ctx, cancel := context.WithTimeout(context.Background(), depositGrace)
	defer cancel()
	g.mu.Lock()
	all := g.list()
	g.mu.Unlock()
	eachAtOnce(all, func(s *session) {
		if !s.isLive() {
			return
		}
		if err := s.deposit(ctx); err != nil {
			s.log.Warn("the screen could not be deposited", "error", err)
		}
	})
}

// eachAtOnce calls f for each, atOnce at a time, and returns when all are done.
func eachAtOnce[T any](list []T, f func(T)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for _, item := range list {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(item)
		})
	}
	wg.Wait()
}

// list is every session, newest first. mu is held.
func (g *Guest) list() []*session {
	all := make([]*session, 0, len(g.sessions))
	for _, s := range g.sessions {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *session) int { return cmp.Compare(b.id, a.id) })
	return all
}

// find gives a session by id.
func (g *Guest) find(id string) (*session, error) {
	if !berth.ValidID(berth.SessionID, id) {
		return nil, berth.Errorf(berth.CodeInvalidArgument, "%q is not a session id", id)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if s := g.sessions[id]; s != nil {
		return s, nil
	}
	if detail, ok := g.unreadable[id]; ok {
		return nil, berth.Errorf(berth.CodeRecordUnreadable, "session %s cannot be read: %s", id, detail)
	}
	return nil, berth.Errorf(berth.CodeNotFound, "no session has the id %s", id)
}

func (g *Guest) sessionDir(id string) string { return filepath.Join(g.cfg.Sessions, id) }

func (g *Guest) holderSocket(id string) string {
	return filepath.Join(g.cfg.Runtime, berth.DirHolders, id+".sock")
}

// info is GET /v1/info.
func (g *Guest) info() guestapi.Info {
	self, err := process.Self()
	if err != nil {
		g.log.Error("the guest cannot see itself in /proc", "error", err)
	}
	info := guestapi.Info{
		Version: berth.Version(), Build: berth.Build(), Protocol: berth.GuestProtocol,
		Features: []string{
			guestapi.FeatureSessions, guestapi.FeatureEvents, guestapi.FeatureHooks,
			guestapi.FeatureSSHAgent, guestapi.FeatureRetire, guestapi.FeatureTimes, guestapi.FeatureDirect,
			guestapi.FeatureExec, guestapi.FeatureFiles, guestapi.FeatureDial,
		},
		Identity: self, BootID: g.bootID,
		UptimeMS: uptime().Milliseconds(), Now: g.now().UTC(), Unreadable: []guestapi.Unreadable{},
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, detail := range g.unreadable {
		info.Unreadable = append(info.Unreadable, guestapi.Unreadable{ID: id, Detail: detail})
	}
	slices.SortFunc(info.Unreadable, func(a, b guestapi.Unreadable) int { return strings.Compare(a.ID, b.ID) })
	return info
}

// adopt finds the sessions of earlier guests by their directories. Each is
// looked at alone: a damaged one is shown and harms no other. Nothing is removed.
func (g *Guest) adopt() error {
	entries, err := os.ReadDir(g.cfg.Sessions)
	if err != nil {
		return berth.Errorf(berth.CodeStateDir, "the directory of the sessions: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && berth.ValidID(berth.SessionID, e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	slices.Sort(ids)
	slices.Reverse(ids) // ids sort by time: the newest first
	eachAtOnce(ids, g.adoptOne)
	g.spawn(g.recall)
	return nil
}

// recall takes from the deposits of ended sessions what their programs said of
// themselves. Nobody waits for it: a list is right without a title.
func (g *Guest) recall() {
	g.mu.Lock()
	all := g.list()
	g.mu.Unlock()
	for _, s := range all {
		if g.work.Err() != nil {
			return
		}
		if s.isLive() {
			continue
		}
		snap, err := g.holders.ReadSnapshot(s.dir)
		if err != nil {
			continue // the program never said anything, or the file is torn
		}
		meta, _, err := splitDeposit(snap.Screen)
		if err != nil {
			continue
		}
		s.mu.Lock()
		s.title, s.cwd, s.hook, s.hookDrops = meta.Title, meta.Cwd, meta.Hook, meta.HooksDropped
		s.mu.Unlock()
		s.changed(false)
	}
}

// adoptOne looks what became of one session and follows it where it lives.
func (g *Guest) adoptOne(id string) {
	dir := g.sessionDir(id)
	s, follow, err := g.look(id, dir)
	if err != nil {
		g.log.Error("a session cannot be read", "session", id, "error", err)
		g.mu.Lock()
		g.unreadable[id] = err.Error()
		g.mu.Unlock()
		return
	}
	g.mu.Lock()
	g.sessions[id] = s
	g.mu.Unlock()
	if !follow {
		return
	}
	if err := g.relays.open(s); err != nil {
		s.log.Error("the sockets of a session could not be made again", "error", err)
	}
	g.spawn(func() { s.run(g.work) })
}

// look reads a session's directory. follow = a holder keeps it.
func (g *Guest) look(id, dir string) (s *session, follow bool, err error) {
	rec, err := readRecord(dir, id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, berth.Errorf(berth.CodeRecordUnreadable, "%s is missing", filepath.Join(dir, berth.FileSpec))
	}
	if err != nil {
		return nil, false, err
	}
	s = g.newSession(rec, dir)
	running, err := g.holders.ReadRunning(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	s.running = running
	alive, err := g.holders.Alive(dir)
	if err != nil {
		return nil, false, fmt.Errorf("look at the holder of %s: %w", dir, err)
	}
	exit, err := g.holders.ReadExit(dir)
	switch {
	case err == nil:
		s.state, s.exit, s.end = berth.SessionExited, &exit, exit.Offset
	case !errors.Is(err, fs.ErrNotExist):
		return nil, false, err
	case alive:
		if running.Program.PID != 0 {
			s.state = berth.SessionRunning
		}
		return s, true, nil
	default:
		lost := s.lostExit()
		s.state, s.exit, s.end = berth.SessionLost, &lost, lost.Offset
	}
	s.lookAtLog(g.work)
	s.exit.Offset = max(s.exit.Offset, s.end)
	close(s.settled)
	close(s.ready)
	return s, false, nil
}

// newViewerID names a viewer for its Hello and the log.
func (g *Guest) newViewerID() (string, error) {
	return berth.NewID(berth.ViewerID, g.now(), rand.Reader)
}
