package session

import (
	"context"
	"errors"
	"path"
	"slices"
	"time"

	"berth"
	"berth/durable"
	"berth/guestapi"
)

// Bounds of a creation.
const (
	// createPatience is how long a guest is asked again, with the same id, when
	// it was not clear whether it had heard.
	createPatience = 10 * time.Second
	createTimeout  = 30 * time.Second
	createPause    = 100 * time.Millisecond
	maxNames       = 32 // draws of a generated name; with 10,000 names and 1,000 sessions, 32 clashes in a row do not happen
)

// Create starts a session. The same idempotency key and spec again answers the
// session that is there; key "" = none.
//
// The record is committed before the guest is asked, so nothing can run that
// the store does not know. A crash in between leaves a record in state starting
// that no guest has: the next daemon finds it and says that it was never
// started. It does not ask the guest again: it no longer has the values of the
// environment, and whoever asked has long been told that the daemon went away.
//
// When the guest refuses (no such program, no such directory), the record is
// forgotten again and the error is the guest's: nothing ran.
func (r *Registry) Create(ctx context.Context, spec berth.SessionSpec, key string) (s berth.Session, created bool, err error) {
	fingerprint, err := fingerprintOf(spec, key)
	if err != nil {
		return s, false, err
	}
	spec, env, err := r.complete(spec)
	if err != nil {
		return s, false, err
	}
	if err := r.ready(ctx); err != nil {
		return s, false, err
	}
	if e := r.byKey(key); e != nil {
		s, err = r.replay(ctx, e, fingerprint)
		return s, false, err
	}
	h := r.host(spec.Host)
	if err := r.reach(ctx, h, spec.Host); err != nil {
		return s, false, err
	}
	e, created, err := r.beginCreate(ctx, spec, key, fingerprint)
	if err != nil {
		return s, false, r.storeError(err)
	}
	if !created {
		s, err = r.replay(ctx, e, fingerprint)
		return s, false, err
	}
	// From here on the caller may go away; the session is decided.
	actCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), createTimeout)
	defer cancel()
	if err := r.start(actCtx, h, e, r.request(e, spec, env)); err != nil {
		return s, false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.view(e), true, nil
}

// complete checks the request and fills in what was left out.
func (r *Registry) complete(spec berth.SessionSpec) (berth.SessionSpec, []string, error) {
	if err := spec.Validate(); err != nil {
		return spec, nil, err
	}
	if spec.Host == "" {
		spec.Host = berth.LocalHost
	}
	if r.host(spec.Host) == nil {
		return spec, nil, berth.Errorf(berth.CodeNotFound, "there is no host %q", CleanText(spec.Host, 64)).WithHint("without a host it is this machine")
	}
	local := spec.Host == berth.LocalHost
	if spec.Cwd == "" && local {
		spec.Cwd = r.cfg.Home
	}
	if spec.Cwd != "" && !path.IsAbs(spec.Cwd) {
		return spec, nil, berth.Errorf(berth.CodeInvalidArgument, "directory %q is not an absolute path", CleanText(spec.Cwd, 256))
	}
	if spec.Size == (berth.Size{}) {
		spec.Size = berth.DefaultSize
	}
	if spec.SizePolicy == "" {
		spec.SizePolicy = r.cfg.Defaults.SizePolicy
	}
	if spec.LogBytes == nil {
		spec.LogBytes = &r.cfg.Defaults.LogBytes
	}
	var base []string
	if local {
		base = r.cfg.BaseEnv
	}
	env, err := Environ(base, spec)
	return spec, env, err
}

// fingerprintOf tells two requests apart that came with one key. The values of
// the environment are part of it, as a hash: another value is another request.
func fingerprintOf(spec berth.SessionSpec, key string) (string, error) {
	if key == "" {
		return "", nil
	}
	if spec.Host == "" {
		spec.Host = berth.LocalHost
	}
	return durable.Fingerprint(spec)
}

func (r *Registry) byKey(key string) *entry {
	if key == "" {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.sessions {
		if e.key == key && !e.removed {
			return e
		}
	}
	return nil
}

// replay answers a request that was made before. It waits until the first one
// is through, so that both get the same answer.
func (r *Registry) replay(ctx context.Context, e *entry, fingerprint string) (berth.Session, error) {
	if e.fingerprint != fingerprint {
		return berth.Session{}, berth.Errorf(berth.CodeConflict, "the idempotency key was used for another request").
			WithFact("session", e.id).WithHint("use a new key for a new request")
	}
	for {
		r.mu.Lock()
		creating, failed, removed, changed, s := e.creating, e.createErr, e.removed, r.changed, r.view(e)
		r.mu.Unlock()
		switch {
		case failed != nil:
			return berth.Session{}, failed
		case removed:
			return berth.Session{}, berth.Errorf(berth.CodeNotFound, "session %s was removed", s.Name)
		case !creating:
			return s, nil
		}
		select {
		case <-changed:
		case <-r.ended:
			return berth.Session{}, errStopping()
		case <-ctx.Done():
			return berth.Session{}, interrupted(ctx)
		}
	}
}

// beginCreate commits the record and puts it into the registry as being created.
func (r *Registry) beginCreate(ctx context.Context, spec berth.SessionSpec, key, fingerprint string) (*entry, bool, error) {
	now := r.cfg.Now().UTC()
	id, err := berth.NewID(berth.SessionID, now, r.cfg.Random)
	if err != nil {
		return nil, false, err
	}
	s := berth.Session{
		ID: id, Host: spec.Host, Argv: spec.Argv, Cwd: spec.Cwd, Size: spec.Size, SizePolicy: spec.SizePolicy,
		State: berth.SessionStarting, Generation: 1, Log: berth.LogInfo{Cap: *spec.LogBytes},
		EnvNames: sortedNames(spec.Env), Withheld: slices.Compact(slices.Sorted(slices.Values(spec.Withhold))),
		CreatedAt: now, Parent: spec.Parent,
	}
	s = cloneSession(s)
	for range maxNames {
		if s.Name = spec.Name; s.Name == "" {
			if s.Name, err = berth.GenerateName(r.cfg.Random); err != nil {
				return nil, false, err
			}
		}
		e, created, by, err := r.beginNamed(ctx, durable.Begin{
			Kind: recordKind, ID: id, Schema: recordSchema, State: encodeSession(s),
			IdempotencyKey: key, Fingerprint: fingerprint, BusyKey: busyKey(s),
			Events: []durable.EventDraft{{Kind: berth.EventSessionCreated, Subject: id}},
		}, s.Name)
		switch {
		case by != "" && spec.Name != "":
			return nil, false, berth.Errorf(berth.CodeNameTaken, "a live session has the name %s", spec.Name).
				WithFact("name", spec.Name).WithFact("holder", by)
		case by != "":
			continue
		}
		return e, created, err
	}
	return nil, false, berth.Errorf(berth.CodeNameTaken, "no free name was found").WithHint("give one with --name")
}

// beginNamed asks the store, unless a live session has the name already; by is
// who has it. The name is reserved meanwhile, so that no session is adopted
// under it between the answer and the entry.
func (r *Registry) beginNamed(ctx context.Context, b durable.Begin, name string) (e *entry, created bool, by string, err error) {
	r.mu.Lock()
	by = r.nameHolder(name, nil)
	if by != "" && (b.IdempotencyKey == "" || r.sessions[by].key != b.IdempotencyKey) {
		r.mu.Unlock()
		return nil, false, by, nil
	}
	r.reserved[name]++
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.reserved[name]--; r.reserved[name] == 0 {
			delete(r.reserved, name)
		}
	}()
	rec, created, err := r.cfg.Store.Begin(ctx, b)
	if by = holder(err); by != "" || err != nil {
		return nil, false, by, err
	}
	return r.enter(rec, created), created, "", nil
}

// enter puts a record that Begin answered into the registry.
func (r *Registry) enter(rec durable.Record, created bool) *entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e, ok := r.sessions[rec.ID]; ok {
		return e
	}
	e := loadEntry(rec)
	// A record that is not ours alone was begun by a twin request a moment ago,
	// which has not come this far yet; it will find this entry.
	e.creating = created || e.stored.State == berth.SessionStarting
	e.wrote = time.Now()
	r.sessions[e.id] = e
	r.broadcast()
	return e
}

func sortedNames(env map[string]string) []string {
	names := make([]string, 0, len(env))
	for name := range env {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (r *Registry) request(e *entry, spec berth.SessionSpec, env []string) guestapi.CreateSession {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := e.record()
	return guestapi.CreateSession{
		ID: s.ID, Name: s.Name, Argv: s.Argv, Cwd: s.Cwd, Env: env, EnvNames: s.EnvNames, Withheld: s.Withheld,
		Size: s.Size, SizePolicy: s.SizePolicy, LogBytes: *spec.LogBytes, RingBytes: r.cfg.Defaults.RingBytes,
		Parent: s.Parent, CreatedAt: s.CreatedAt,
	}
}

// start asks the guest and brings the record to what came of it.
func (r *Registry) start(ctx context.Context, h *hostState, e *entry, req guestapi.CreateSession) error {
	s, err := r.ask(ctx, h, req)
	if err != nil && !definite(err) {
		// Nobody knows whether it runs. Leave the record: the guest's next full
		// list settles it.
		r.finish(e, func() {
			if e.seen == nil && r.settled(e.host) && e.round != h.round {
				r.plan(e)
			}
		})
		return berth.AsError(err).WithFact("session", e.id)
	}
	if err != nil {
		r.abandon(ctx, h, e, err)
		return err
	}
	r.finish(e, func() { r.see(h, s) })
	return r.flush(ctx, e)
}

// finish ends the time in which only Create may judge the session.
func (r *Registry) finish(e *entry, f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.creating = false
	f()
	r.broadcast()
}

// ask asks the guest until it is clear what it did. To ask again with the same
// id is safe: it answers the session that is there and starts nothing.
func (r *Registry) ask(ctx context.Context, h *hostState, req guestapi.CreateSession) (guestapi.Session, error) {
	until := time.NewTimer(createPatience)
	defer until.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		s, err := h.link.Guest.Create(ctx, req)
		if err == nil || definite(err) {
			return s, err
		}
		pause.Reset(createPause)
		select {
		case <-pause.C:
		case <-until.C:
			return s, err
		case <-ctx.Done():
			return s, err
		}
		if reach := r.reach(ctx, h, h.link.Name); reach != nil {
			return s, err
		}
	}
}

// definite reports whether an error says that nothing was started. An error of
// the connection does not say so, and neither does one that nobody foresaw.
func definite(err error) bool {
	var e *berth.Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code {
	case berth.CodeHostUnreachable, berth.CodeTimeout, berth.CodeInterrupted, berth.CodeInternal,
		berth.CodeDaemonStopping, berth.CodeDaemonUnreachable:
		return false
	}
	return true
}

// abandon forgets a session that was never started. What fails here is left to
// the next full list of the guest, which makes the record a lost one.
func (r *Registry) abandon(ctx context.Context, h *hostState, e *entry, cause error) {
	if err := h.link.Guest.Remove(ctx, e.id); err != nil && !errors.Is(err, berth.CodeNotFound) {
		r.cfg.Log.Warn("remove what is left of a session that was not started", "session", e.id, "err", err)
	}
	r.mu.Lock()
	e.createErr, e.gone = cause, "it was not started: "+cause.Error()
	e.creating, e.removing = false, true
	r.mu.Unlock()
	if err := r.forget(ctx, e); err != nil {
		r.cfg.Log.Warn("forget a session that was not started", "session", e.id, "err", err)
		r.mu.Lock()
		e.removing = false
		r.plan(e)
		r.mu.Unlock()
	}
}
