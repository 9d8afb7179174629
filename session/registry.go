// Package session is the daemon's side of sessions: the registry, adoption
// after a restart, the state of agents, hooks.
//
// What runs is what guests say; what was wished (names, parents, what is kept
// from a program) is what the store says. The registry follows every guest,
// brings the store up to date, and answers reads from memory. The words of a
// session's end are never guessed: a host that cannot be reached makes its
// sessions unknown, and only a guest that listed all it has can make one lost.
//
// Exactly one daemon has the state directory (it holds daemon.lock), so every
// record that this process did not begin itself was written by a daemon that is
// dead: nothing is taken over, and a record in state starting that the guest
// does not have was never started.
package session

import (
	"context"
	"errors"
	"sync"
	"time"

	"berth"
	"berth/durable"
	"berth/guestapi"
)

// Registry knows every session of every host by asking its guest.
type Registry struct {
	cfg   Config
	hosts []*hostState

	loaded chan struct{} // closed when the store has been read
	synced chan struct{} // closed when every host is settled
	ended  chan struct{} // closed when Run returned
	failed chan struct{} // closed when the store failed

	kick chan struct{} // wakes the writer; room for one

	mu       sync.Mutex
	sessions map[string]*entry
	reserved map[string]int // names for which a Create is asking the store right now, and how many
	changed  chan struct{}  // closed and replaced at each change
	failure  error
}

// New checks the configuration and makes a registry. It does nothing until Run.
func New(cfg Config) (*Registry, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r := &Registry{
		cfg:      cfg,
		loaded:   make(chan struct{}),
		synced:   make(chan struct{}),
		ended:    make(chan struct{}),
		failed:   make(chan struct{}),
		kick:     make(chan struct{}, 1),
		sessions: map[string]*entry{},
		reserved: map[string]int{},
		changed:  make(chan struct{}),
	}
	for _, link := range cfg.Hosts {
		r.hosts = append(r.hosts, &hostState{link: link, look: make(chan struct{}, 1)})
	}
	return r, nil
}

// finalFlush bounds what Run still writes after its context ended.
const finalFlush = 2 * time.Second

// Run reads the store, follows all guests until ctx ends, and brings the store
// up to date. It is called once. The error is nil when ctx ended, and the
// store's when the store failed: the daemon must stop then.
func (r *Registry) Run(ctx context.Context) error {
	defer close(r.ended)
	if err := r.load(ctx); err != nil {
		r.fail(err)
		return err
	}
	close(r.loaded)
	if len(r.hosts) == 0 {
		close(r.synced)
	}
	runCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	for _, h := range r.hosts {
		wg.Go(func() { r.follow(runCtx, h) })
		wg.Go(func() { r.watchScreens(runCtx, h) })
	}
	wg.Go(func() { r.write(runCtx) })
	select {
	case <-ctx.Done():
	case <-r.failed:
	case <-r.cfg.Store.Failed():
		r.fail(berth.Errorf(berth.CodeStoreFailed, "the store failed"))
	}
	cancel()
	wg.Wait()
	if err := r.failedWith(); err != nil {
		return err
	}
	last, done := context.WithTimeout(context.WithoutCancel(ctx), finalFlush)
	defer done()
	r.flushDue(last, true)
	return r.failedWith()
}

// load reads every record once.
func (r *Registry) load(ctx context.Context) error {
	q := durable.Query{Kind: recordKind}
	for {
		page, err := r.cfg.Store.List(ctx, q)
		if err != nil {
			return err
		}
		r.mu.Lock()
		for _, rec := range page.Records {
			e := loadEntry(rec)
			if e.bad != "" {
				r.cfg.Log.Warn("a session's record cannot be read", "session", e.id, "err", e.bad)
			}
			r.sessions[e.id] = e
		}
		r.mu.Unlock()
		if page.Next == "" {
			return nil
		}
		q.After = page.Next
	}
}

func (r *Registry) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure == nil {
		r.failure = err
		close(r.failed)
	}
}

func (r *Registry) failedWith() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failure
}

// Synced is closed when every host has been listed once or found unreachable.
func (r *Registry) Synced() <-chan struct{} { return r.synced }

// ready waits until the store has been read.
func (r *Registry) ready(ctx context.Context) error {
	select {
	case <-r.failed:
		return r.failedWith()
	default:
	}
	select {
	case <-r.loaded:
		return nil
	case <-r.failed:
		return r.failedWith()
	case <-r.ended:
		return errStopping()
	case <-ctx.Done():
		return interrupted(ctx)
	}
}

func errStopping() error {
	return berth.Errorf(berth.CodeDaemonStopping, "the daemon is stopping")
}

func interrupted(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return berth.Errorf(berth.CodeTimeout, "it took longer than was allowed: %w", ctx.Err())
	}
	return berth.Errorf(berth.CodeInterrupted, "the caller stopped waiting: %w", ctx.Err())
}

// broadcast wakes everybody who waits for a change. r.mu is held.
func (r *Registry) broadcast() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// view is the session as a reader is told. r.mu is held.
func (r *Registry) view(e *entry) berth.Session {
	s := e.record()
	if s.State.Live() && !e.creating && !r.shown(e) {
		s.State = berth.SessionUnknown
	}
	if !s.State.Live() {
		s.Agent = restingAgent(s.Agent)
	}
	if s.State == berth.SessionLost && s.Exit == nil {
		s.Exit = e.target(r.cfg.Now()).Exit
	}
	return s
}

// shown reports whether the guest shows the session on the connection that is
// open now. r.mu is held.
func (r *Registry) shown(e *entry) bool {
	h := r.host(e.host)
	return h != nil && h.connected && e.seen != nil && e.round == h.round
}

// Get finds a session by id, else by name: the live one of that name, else the
// newest. CodeNotFound otherwise.
func (r *Registry) Get(ctx context.Context, ref string) (berth.Session, error) {
	if err := r.ready(ctx); err != nil {
		return berth.Session{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e, err := r.find(ref)
	if err != nil {
		return berth.Session{}, err
	}
	return r.view(e), nil
}

// find is Get. r.mu is held.
func (r *Registry) find(ref string) (*entry, error) {
	if e, ok := r.sessions[ref]; ok && !e.removed {
		return e, nil
	}
	var best *entry
	better := func(e *entry) bool {
		a, b := e.record(), best.record()
		if a.State.Live() != b.State.Live() {
			return a.State.Live()
		}
		if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
			return c > 0
		}
		return e.id > best.id
	}
	for _, e := range r.sessions {
		if e.name == ref && !e.removed && (best == nil || better(e)) {
			best = e
		}
	}
	if best == nil {
		return nil, berth.Errorf(berth.CodeNotFound, "there is no session %q", CleanText(ref, 64))
	}
	return best, nil
}

// List lists sessions, newest first.
func (r *Registry) List(ctx context.Context, f berth.SessionFilter) ([]berth.Session, error) {
	if err := r.ready(ctx); err != nil {
		return nil, err
	}
	r.mu.Lock()
	list := make([]berth.Session, 0, len(r.sessions))
	for _, e := range r.sessions {
		if e.removed {
			continue
		}
		if s := r.view(e); f.Match(s) {
			list = append(list, s)
		}
	}
	r.mu.Unlock()
	newestFirst(list)
	return list, nil
}

// Wait returns the session once its program is not live any more and the store
// knows it. While the host cannot be reached, it goes on waiting. A session
// that is removed meanwhile is answered as it was last, or CodeNotFound.
func (r *Registry) Wait(ctx context.Context, ref string) (berth.Session, error) {
	if err := r.ready(ctx); err != nil {
		return berth.Session{}, err
	}
	r.mu.Lock()
	e, err := r.find(ref)
	r.mu.Unlock()
	if err != nil {
		return berth.Session{}, err
	}
	for {
		r.mu.Lock()
		s, removed, changed := r.view(e), e.removed, r.changed
		settled := e.terminal || e.stored == nil
		r.mu.Unlock()
		switch {
		case !s.State.Live() && (settled || removed):
			return s, nil
		case removed:
			return berth.Session{}, berth.Errorf(berth.CodeNotFound, "session %s was removed", s.Name)
		}
		select {
		case <-changed:
		case <-r.failed:
			return berth.Session{}, r.failedWith()
		case <-r.ended:
			return berth.Session{}, errStopping()
		case <-ctx.Done():
			return berth.Session{}, interrupted(ctx)
		}
	}
}

// Counts counts sessions by state.
func (r *Registry) Counts() berth.SessionCounts {
	r.mu.Lock()
	defer r.mu.Unlock()
	var c berth.SessionCounts
	for _, e := range r.sessions {
		if e.removed {
			continue
		}
		switch r.view(e).State {
		case berth.SessionStarting, berth.SessionRunning:
			c.Running++
		case berth.SessionExited:
			c.Exited++
		case berth.SessionLost:
			c.Lost++
		case berth.SessionUnknown:
			c.Unknown++
		}
	}
	return c
}

// use finds a session and its host for a call to the guest. live asks that its
// program may still run. ifMatch is checked when it is not 0.
func (r *Registry) use(ctx context.Context, ref string, live bool, ifMatch int64) (*entry, *hostState, error) {
	if err := r.ready(ctx); err != nil {
		return nil, nil, err
	}
	r.mu.Lock()
	e, err := r.find(ref)
	if err == nil {
		err = checkRevision(e, ifMatch)
	}
	if err == nil {
		err = r.usable(e, live)
	}
	r.mu.Unlock()
	if err != nil {
		return nil, nil, err
	}
	h := r.host(e.host)
	if err := r.reach(ctx, h, e.host); err != nil {
		return nil, nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return e, h, r.usable(e, live) // again: what the guest showed meanwhile
}

// usable refuses what cannot work. r.mu is held.
func (r *Registry) usable(e *entry, live bool) error {
	s := r.view(e)
	detail := "its files are gone"
	if s.Exit != nil && s.Exit.Detail != "" {
		detail = s.Exit.Detail
	}
	switch {
	case live && s.State == berth.SessionExited:
		return berth.Errorf(berth.CodeSessionEnded, "the program of session %s has ended", e.name)
	case live && s.State == berth.SessionLost:
		return berth.Errorf(berth.CodeSessionLost, "session %s is lost: %s", e.name, detail)
	case !s.State.Live() && e.seen == nil && r.settled(e.host):
		return berth.Errorf(berth.CodeSessionLost, "nothing is left of session %s: %s", e.name, detail)
	}
	return nil
}

func checkRevision(e *entry, ifMatch int64) error {
	if ifMatch != 0 && ifMatch != e.revision {
		return berth.Errorf(berth.CodeRevisionMismatch, "session %s is at revision %d, not %d", e.name, e.revision, ifMatch)
	}
	return nil
}

// Resize changes the size. ifMatch is a revision, 0 = any; so below.
func (r *Registry) Resize(ctx context.Context, ref string, size berth.Size, ifMatch int64) (berth.Session, error) {
	if !size.Valid() {
		return berth.Session{}, berth.Errorf(berth.CodeInvalidArgument, "size %s is outside 1x1 to %dx%d", size, berth.MaxCols, berth.MaxRows)
	}
	e, h, err := r.use(ctx, ref, true, ifMatch)
	if err != nil {
		return berth.Session{}, err
	}
	if err := r.call(ctx, h, broken, func() error { return h.link.Guest.Resize(ctx, e.id, size) }); err != nil {
		return berth.Session{}, err
	}
	return r.refresh(ctx, h, e)
}

// refresh asks the guest for a session that was just acted on, so that the
// caller reads what it wrote, and commits what came of it.
func (r *Registry) refresh(ctx context.Context, h *hostState, e *entry) (berth.Session, error) {
	var s guestapi.Session
	err := r.call(ctx, h, broken, func() (err error) {
		s, err = h.link.Guest.Session(ctx, e.id)
		return err
	})
	if err != nil {
		return berth.Session{}, err
	}
	r.mu.Lock()
	r.see(h, s)
	r.mu.Unlock()
	if err := r.flush(ctx, e); err != nil {
		return berth.Session{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view(e), nil
}

// Signal signals the foreground process group.
func (r *Registry) Signal(ctx context.Context, ref, signal string) error {
	e, h, err := r.use(ctx, ref, true, 0)
	if err != nil {
		return err
	}
	return r.call(ctx, h, unsent, func() error { return h.link.Guest.Signal(ctx, e.id, signal) })
}

// Kill ends the program and returns when it is gone. Where it has ended before,
// what it left in its cgroup is ended, and the exit is the one that was.
func (r *Registry) Kill(ctx context.Context, ref string, ifMatch int64) (berth.KillResult, error) {
	e, h, err := r.use(ctx, ref, false, ifMatch)
	if err != nil {
		return berth.KillResult{}, err
	}
	return r.kill(ctx, h, e)
}

func (r *Registry) kill(ctx context.Context, h *hostState, e *entry) (berth.KillResult, error) {
	var res berth.KillResult
	err := r.call(ctx, h, unsent, func() (err error) {
		res, err = h.link.Guest.Kill(ctx, e.id)
		return err
	})
	if err != nil {
		return res, err
	}
	if res.Exit != nil {
		// The result stands whether or not the record could be read at once; the
		// guest's event brings it otherwise.
		if _, err := r.refresh(ctx, h, e); err != nil {
			r.cfg.Log.Debug("read a session after kill", "session", e.id, "err", err)
		}
	}
	return res, nil
}

// Input writes to the program.
func (r *Registry) Input(ctx context.Context, ref string, in berth.InputRequest) error {
	e, h, err := r.use(ctx, ref, true, 0)
	if err != nil {
		return err
	}
	return r.call(ctx, h, unsent, func() error { return h.link.Guest.Input(ctx, e.id, in) })
}

// Screen gives the screen.
func (r *Registry) Screen(ctx context.Context, ref string, ansi bool) (out berth.Screen, err error) {
	e, h, err := r.use(ctx, ref, false, 0)
	if err != nil {
		return out, err
	}
	err = r.call(ctx, h, broken, func() (err error) {
		out, err = h.link.Guest.Screen(ctx, e.id, ansi)
		return err
	})
	return out, err
}

// Log reads output.
func (r *Registry) Log(ctx context.Context, ref string, q berth.LogRequest) (out berth.LogChunk, err error) {
	e, h, err := r.use(ctx, ref, false, 0)
	if err != nil {
		return out, err
	}
	err = r.call(ctx, h, broken, func() (err error) {
		out, err = h.link.Guest.Log(ctx, e.id, q)
		return err
	})
	return out, err
}

// Attach opens a viewer's stream.
func (r *Registry) Attach(ctx context.Context, ref string, q berth.AttachRequest) (out *guestapi.AttachStream, err error) {
	e, h, err := r.use(ctx, ref, false, 0)
	if err != nil {
		return nil, err
	}
	err = r.call(ctx, h, broken, func() (err error) {
		out, err = h.link.Guest.Attach(ctx, e.id, q)
		return err
	})
	return out, err
}
