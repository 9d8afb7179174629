package session

import (
	"context"
	"errors"
	"math/rand/v2"
	"syscall"
	"time"

	"berth"
	"berth/durable"
	"berth/guestapi"
)

// hostState is one host as the registry follows it. All fields but link and
// look are guarded by Registry.mu.
type hostState struct {
	link HostLink
	look chan struct{} // wakes watchScreens; room for one

	connected bool  // an event stream is open and said hello
	synced    bool  // it has listed all it has
	round     int64 // +1 for each stream
	settled   bool  // synced, or found unreachable, once
	info      *guestapi.Info
	err       error     // why it cannot be reached; nil while connected
	lostAt    time.Time // when it was lost; monotonic
	told      bool      // guest.lost was published for this loss
	bad       map[string]string
}

// host finds a host by name; nil = there is none of that name in the configuration.
func (r *Registry) host(name string) *hostState {
	for _, h := range r.hosts {
		if h.link.Name == name {
			return h
		}
	}
	return nil
}

// settled reports whether that host has listed all it has now. r.mu is held.
func (r *Registry) settled(host string) bool {
	h := r.host(host)
	return h != nil && h.connected && h.synced
}

// Times of the connection to a guest.
const (
	ensureTimeout = 15 * time.Second
	backoffFirst  = 50 * time.Millisecond
	backoffMost   = 2 * time.Second
	// helloTimeout is how long a guest may take for its first line. One that is
	// stopped takes the connection (its kernel does) and says nothing; it is not
	// dead, but it cannot be reached.
	helloTimeout = 5 * time.Second
	// steady is how long a connection must have lasted for the next try to come
	// at once. A guest that ends as soon as it has started is started ever more
	// slowly, not dozens of times a second.
	steady = time.Second
	// reachPatience is how long a call waits for a guest that was lost just
	// now: a killed guest is back within a fraction of it. A host that is away
	// for longer fails calls at once.
	reachPatience = 5 * time.Second
)

// follow keeps a stream of events open until ctx ends. There is no last try.
func (r *Registry) follow(ctx context.Context, h *hostState) {
	wait := backoffFirst
	for ctx.Err() == nil {
		began := time.Now()
		err := r.stream(ctx, h)
		if ctx.Err() != nil {
			return
		}
		r.lose(ctx, h, err)
		if time.Since(began) > steady {
			wait = backoffFirst
		}
		// Between half and all of it, so that many daemons do not knock together.
		timer := time.NewTimer(wait/2 + rand.N(wait/2))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		wait = min(2*wait, backoffMost)
	}
}

// stream is one connection: ensure a guest, list, follow. It returns the reason
// of its end, never nil.
func (r *Registry) stream(ctx context.Context, h *hostState) error {
	ensureCtx, cancel := context.WithTimeout(ctx, ensureTimeout)
	err := h.link.Ensure(ensureCtx)
	cancel()
	if err != nil {
		return err
	}
	eventCtx, stop := context.WithCancel(ctx)
	defer stop()
	silent := time.AfterFunc(helloTimeout, stop)
	defer silent.Stop()
	err = h.link.Guest.Events(eventCtx, func(ev guestapi.Event) error {
		if ev.Hello != nil {
			silent.Stop()
		}
		r.event(ctx, h, ev)
		return nil
	})
	switch {
	case eventCtx.Err() != nil && ctx.Err() == nil:
		return berth.Errorf(berth.CodeHostUnreachable, "the guest of %s took the connection and said nothing for %s", h.link.Name, helloTimeout)
	case err == nil:
		return berth.Errorf(berth.CodeHostUnreachable, "the guest of %s closed the connection", h.link.Name)
	}
	return err
}

// lose makes the sessions of a host unknown.
func (r *Registry) lose(ctx context.Context, h *hostState, err error) {
	r.mu.Lock()
	first := h.connected || h.err == nil
	h.connected, h.synced = false, false
	h.err = err
	if first {
		h.lostAt = time.Now()
	}
	tell := !h.told
	h.told = true
	r.settle(h)
	r.broadcast()
	r.mu.Unlock()
	if tell {
		r.cfg.Log.Warn("a guest is lost", "host", h.link.Name, "err", err)
		r.publish(ctx, berth.EventGuestLost, h.link.Name)
	}
}

// settle marks that the host is listed or unreachable, for Synced. r.mu is held.
func (r *Registry) settle(h *hostState) {
	if h.settled {
		return
	}
	h.settled = true
	for _, other := range r.hosts {
		if !other.settled {
			return
		}
	}
	close(r.synced)
}

func (r *Registry) publish(ctx context.Context, kind berth.EventKind, subject string) {
	if _, err := r.cfg.Store.Publish(ctx, durable.EventDraft{Kind: kind, Subject: subject}); err != nil && ctx.Err() == nil {
		r.cfg.Log.Error("publish an event", "kind", kind, "err", r.storeError(err))
	}
}

// event takes one line of the guest's stream.
func (r *Registry) event(ctx context.Context, h *hostState, ev guestapi.Event) {
	switch {
	case ev.Hello != nil:
		r.hello(h, *ev.Hello)
	case ev.Session != nil:
		r.mu.Lock()
		r.see(h, *ev.Session)
		r.broadcast()
		r.mu.Unlock()
	case ev.Removed != "":
		r.gone(h, ev.Removed)
	case ev.Synced:
		r.mu.Lock()
		r.reconcile(h)
		back := h.told
		h.told = false
		r.settle(h)
		r.broadcast()
		r.mu.Unlock()
		if back {
			r.cfg.Log.Info("a guest is reached again", "host", h.link.Name)
			r.publish(ctx, berth.EventGuestReached, h.link.Name)
		}
	}
}

func (r *Registry) hello(h *hostState, info guestapi.Info) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h.round++
	h.connected, h.synced, h.err = true, false, nil
	h.info = &info
	h.bad = map[string]string{}
	for _, u := range info.Unreadable {
		h.bad[u.ID] = u.Detail
	}
	r.broadcast()
}

// see takes what a guest shows of one session. r.mu is held.
func (r *Registry) see(h *hostState, s guestapi.Session) {
	if !berth.ValidID(berth.SessionID, s.ID) || !s.State.Valid() {
		r.cfg.Log.Warn("a guest shows a session that cannot be one", "host", h.link.Name, "id", CleanText(s.ID, 64), "state", s.State)
		return
	}
	e := r.sessions[s.ID]
	switch {
	case e == nil:
		e = r.adopt(h, s)
	case e.removed:
		// A line from before the removal. The news of it comes on this connection
		// too, so the entry must stay until then: without it, a second such line
		// would make the session anew.
		e.round = h.round
		return
	case e.host != h.link.Name:
		r.cfg.Log.Warn("two hosts show one session; the record's host counts", "session", s.ID, "host", h.link.Name, "record", e.host)
		return
	}
	if e.seen != nil && (e.seen.Generation > s.Generation || e.round == h.round && e.seen.Seq > s.Seq) {
		return // late: about an earlier start, or overtaken by a newer line of the same guest
	}
	if e.seen != nil && e.seen.Generation < s.Generation {
		e.hook, e.screen, e.hold = nil, nil, ScreenHold{}
	}
	if e.seen != nil && e.seen.Agent != nil && s.Agent == nil {
		e.hook = nil // the program took its report back: a hook from before it says nothing either
	}
	s.Hook = r.hear(e, s.Hook)
	e.seen, e.round, e.gone = &s, h.round, ""
	r.judge(e)
	if KnownAgent(s.Argv) != "" {
		wake(h.look)
	}
}

// hear takes the last hook line, once: a guest shows it again with every change
// of the session. What is kept of it has no payload, which can be a megabyte.
// r.mu is held.
func (r *Registry) hear(e *entry, line *guestapi.HookLine) *guestapi.HookLine {
	if line == nil {
		return nil
	}
	if e.seen == nil || e.seen.Hook == nil || e.seen.Hook.Event != line.Event || !e.seen.Hook.At.Equal(line.At) {
		if a := HookAgent(*line); a != nil {
			e.hook = a
		}
	}
	return &guestapi.HookLine{Session: line.Session, Event: line.Event, At: line.At}
}

// adopt makes an entry for a session that the store does not know: the store
// was lost, or is an older copy. Its name is the guest's, unless a live session
// has it. r.mu is held.
func (r *Registry) adopt(h *hostState, s guestapi.Session) *entry {
	e := &entry{id: s.ID, host: h.link.Name, name: s.Name}
	if !berth.ValidName(e.name) {
		e.name = fallbackName(s.ID)
	}
	r.sessions[s.ID] = e
	if s.State.Live() {
		e.name = r.freeName(e)
	}
	return e
}

// freeName is the entry's name, or the name with as much of the id as makes it
// unique among live sessions. r.mu is held.
func (r *Registry) freeName(e *entry) string {
	if r.reserved[e.name] == 0 && r.nameHolder(e.name, e) == "" {
		return e.name
	}
	return variant(e.name, e.id)
}

// nameHolder gives the live session, other than e, that has a name; "" = none
// has. It knows what the store does not know yet: what was adopted just now.
// r.mu is held.
func (r *Registry) nameHolder(name string, e *entry) string {
	for _, other := range r.sessions {
		if other != e && other.name == name && !other.removed && other.record().State.Live() {
			return other.id
		}
	}
	return ""
}

// variant is another name for a session: the old one with the random end of its id.
func variant(name, id string) string {
	const keep, tail = 52, 6
	if len(name) > keep {
		name = name[:keep]
	}
	return name + "-" + id[len(id)-tail:]
}

// judge works out the agent's state and when the store is due. r.mu is held.
func (r *Registry) judge(e *entry) {
	f := AgentFacts{Hook: e.hook, Screen: e.screen}
	if e.seen != nil {
		f.OSC = e.seen.Agent
	}
	e.agent = MergeAgent(e.agent, f, r.cfg.Now())
	r.plan(e)
}

// gone takes the news that a guest has forgotten a session.
func (r *Registry) gone(h *hostState, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.sessions[id]
	if e == nil || e.host != h.link.Name {
		return
	}
	if e.removed {
		delete(r.sessions, id)
		return
	}
	r.miss(e)
	r.broadcast()
}

// reconcile compares what the store has with a guest's full list. r.mu is held.
func (r *Registry) reconcile(h *hostState) {
	h.synced = true
	for id, e := range r.sessions {
		switch {
		case e.host != h.link.Name || e.round == h.round:
		case e.removed:
			delete(r.sessions, id)
		case h.bad[id] != "": // its files are there but cannot be read: unknown, not lost
		default:
			r.miss(e)
		}
	}
}

// miss takes the fact that a guest that listed all it has does not have the
// session. r.mu is held.
func (r *Registry) miss(e *entry) {
	if e.removing {
		e.seen = nil // so that no further news is waited for
	}
	if e.creating || e.removing {
		return // the one who does that knows better
	}
	if e.seen == nil && e.stored != nil && e.stored.State == berth.SessionStarting {
		e.gone = "it was never started: the daemon ended before its guest was asked"
	} else {
		e.gone = "its files are gone"
	}
	if e.seen != nil && e.stored == nil { // adopted and gone before it was ever stored
		e.removed = true
		return
	}
	e.seen = nil
	r.plan(e)
}

// reach waits until the guest of a host answers, for a moment only if it was
// lost just now. name is the host's, for the error where h is nil.
func (r *Registry) reach(ctx context.Context, h *hostState, name string) error {
	if h == nil {
		return berth.Errorf(berth.CodeHostUnreachable, "host %q is not in the configuration", name)
	}
	deadline := time.NewTimer(reachPatience)
	defer deadline.Stop()
	for {
		r.mu.Lock()
		ok, err, lostAt, changed := h.connected, h.err, h.lostAt, r.changed
		r.mu.Unlock()
		if ok {
			return nil
		}
		late := err != nil && time.Since(lostAt) > reachPatience
		if !late {
			select {
			case <-changed:
				continue
			case <-deadline.C:
			case <-r.failed:
				return r.failedWith()
			case <-r.ended:
				return errStopping()
			case <-ctx.Done():
				return interrupted(ctx)
			}
		}
		if err == nil {
			return berth.Errorf(berth.CodeHostUnreachable, "host %s has not answered yet", name).WithFact("host", name)
		}
		return berth.Errorf(berth.CodeHostUnreachable, "host %s cannot be reached: %w", name, err).WithFact("host", name)
	}
}

// call asks a guest something, and once more over its next connection when the
// first try failed in a way that again allows: a guest that is killed is back
// in a moment, and whoever asked in that moment should not have to know.
func (r *Registry) call(ctx context.Context, h *hostState, again func(error) bool, f func() error) error {
	r.mu.Lock()
	round := h.round
	r.mu.Unlock()
	err := f()
	if err == nil || !again(err) {
		return err
	}
	patience := time.NewTimer(reachPatience)
	defer patience.Stop()
	for {
		r.mu.Lock()
		next, changed := h.connected && h.round > round, r.changed
		r.mu.Unlock()
		if next {
			return f()
		}
		select {
		case <-changed:
		case <-patience.C:
			return err
		case <-r.ended:
			return err
		case <-ctx.Done():
			return err
		}
	}
}

// broken reports whether the connection failed: enough to ask again where asking
// twice is the same as asking once.
func broken(err error) bool { return errors.Is(err, berth.CodeHostUnreachable) }

// unsent reports whether nobody heard: the guest did not take the connection.
// What was heard may have been done, and is not asked for twice.
func unsent(err error) bool {
	return broken(err) && (errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT))
}

// wake fills a channel that has room for one: a second wake-up is the same as one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
