package guest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/guestapi"
	"berth/holder"
)

// Bounds of a request to create.
const (
	maxEnv = 4096
	// startTimeout bounds the start of a holder: a binary on a dead network
	// disk must not keep a session in "starting" for ever.
	startTimeout = 30 * time.Second
)

// validateCreate checks everything about a request that needs no look at the machine.
func validateCreate(r guestapi.CreateSession) error {
	spec := berth.SessionSpec{
		Name: r.Name, Argv: r.Argv, Cwd: r.Cwd, Withhold: r.Withheld,
		Size: r.Size, SizePolicy: r.SizePolicy, LogBytes: &r.LogBytes, Parent: r.Parent,
	}
	if err := spec.Validate(); err != nil {
		return err
	}
	switch {
	case !berth.ValidID(berth.SessionID, r.ID):
		return berth.Errorf(berth.CodeInvalidArgument, "%q is not a session id", r.ID)
	case r.Name == "":
		return berth.Errorf(berth.CodeInvalidArgument, "a session needs a name")
	case !filepath.IsAbs(r.Cwd) || strings.ContainsRune(r.Cwd, 0):
		return berth.Errorf(berth.CodeInvalidArgument, "cwd %q is not an absolute path", r.Cwd)
	case r.RingBytes < 0 || r.RingBytes > maxRing:
		return berth.Errorf(berth.CodeInvalidArgument, "ring_bytes %d is outside 0 to %d", r.RingBytes, maxRing)
	case len(r.Env) > maxEnv || len(r.EnvNames) > maxEnv:
		return berth.Errorf(berth.CodeInvalidArgument, "more than %d variables", maxEnv)
	}
	for _, v := range r.Env {
		name, _, ok := strings.Cut(v, "=")
		if !ok || !berth.ValidEnvName(name) || strings.ContainsRune(v, 0) {
			return berth.Errorf(berth.CodeInvalidArgument, "variable %q is not NAME=VALUE", name)
		}
	}
	return nil
}

// maxRing bounds the holder's memory.
const maxRing = 64 << 20

// create starts a session, or gives the one that has the id already.
func (g *Guest) create(ctx context.Context, r guestapi.CreateSession) (s *session, created bool, err error) {
	if err := validateCreate(r); err != nil {
		return nil, false, err
	}
	g.mu.Lock()
	if s := g.sessions[r.ID]; s != nil {
		g.mu.Unlock()
		return s, false, s.waitSettled(ctx) // another call may be starting it now
	}
	if detail, ok := g.unreadable[r.ID]; ok {
		g.mu.Unlock()
		return nil, false, berth.Errorf(berth.CodeRecordUnreadable, "session %s is there and cannot be read: %s", r.ID, detail)
	}
	if len(g.sessions)+len(g.unreadable) >= maxSessions {
		g.mu.Unlock()
		return nil, false, berth.Errorf(berth.CodeConflict, "this host has %d sessions, the most that a guest keeps", maxSessions).
			WithHint("remove sessions that have ended with: berth rm")
	}
	if g.closed || g.isStopping() {
		g.mu.Unlock()
		return nil, false, errStopping()
	}
	s = g.newSession(newRecord(r, g.bootID, g.now()), g.sessionDir(r.ID))
	g.sessions[r.ID] = s
	g.mu.Unlock()
	s.changed(true)

	// A caller that goes away must not leave half a session: the start is
	// carried through, and the caller finds it when it asks again.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	if err := g.start(ctx, s, r); err != nil {
		return nil, false, err
	}
	return s, true, s.waitSettled(ctx)
}

// start makes the directory, the sockets and the holder, in this order: a guest
// that dies between any two leaves a session that says how far it came.
func (g *Guest) start(ctx context.Context, s *session, r guestapi.CreateSession) error {
	err := g.prepare(s)
	if err == nil {
		err = g.startHolder(ctx, s, r)
	}
	if err == nil {
		if !g.spawn(func() { s.run(g.work) }) {
			return errStopping() // the program runs; the next guest adopts it
		}
		return nil
	}
	if alive, aliveErr := g.holders.Alive(s.dir); alive || aliveErr != nil {
		// Its fate is not known, so its files stay: it is adopted like any other.
		s.log.Error("a start failed and its holder may live", "error", err)
		g.spawn(func() { s.run(g.work) })
		return err
	}
	s.log.Info("a session could not be started", "error", err)
	if cleanErr := g.erase(s); cleanErr != nil {
		s.log.Error("what a failed start left could not be removed", "error", cleanErr)
	}
	s.startErr = err
	g.mu.Lock()
	delete(g.sessions, s.id)
	g.mu.Unlock()
	close(s.settled)
	close(s.ready)
	g.hub.mark(s.id, true)
	return err
}

func (g *Guest) prepare(s *session) error {
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		return berth.Errorf(berth.CodeStartFailed, "make the session's directory: %w", err)
	}
	if err := s.rec.write(s.dir); err != nil {
		return err
	}
	if err := berth.SyncDir(g.cfg.Sessions); err != nil {
		return err
	}
	if err := clearStale(g.holderSocket(s.id)); err != nil {
		return err
	}
	return g.relays.open(s)
}

func (g *Guest) startHolder(ctx context.Context, s *session, r guestapi.CreateSession) error {
	running, err := g.holders.Start(ctx, holder.StartConfig{
		Binary: g.cfg.Holder, Dir: s.dir, Socket: g.holderSocket(s.id), Scope: g.cfg.Scope,
		Spec: holder.Spec{
			ID: s.id, Generation: s.rec.Generation, Argv: r.Argv, Env: g.environment(s.id, r.Env),
			Cwd: r.Cwd, Size: s.rec.Size, LogBytes: s.rec.LogBytes, RingBytes: s.rec.RingBytes,
		},
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.running = running
	s.mu.Unlock()
	return nil
}

// environment is what the caller chose and what berth sets, which wins: a
// program must not talk to the session around this one.
func (g *Guest) environment(id string, asked []string) []string {
	ours := []string{
		"BERTH_SESSION=" + id,
		"BERTH_SOCKET=" + g.relays.hookPath(id),
		"SSH_AUTH_SOCK=" + g.relays.agentPath(id),
	}
	env := make([]string, 0, len(asked)+len(ours)+1)
	hasTerm := false
	for _, v := range asked {
		name, value, _ := strings.Cut(v, "=")
		if slices.ContainsFunc(ours, func(o string) bool { return strings.HasPrefix(o, name+"=") }) {
			continue
		}
		if name == "TERM" {
			if value == "" {
				continue
			}
			hasTerm = true
		}
		env = append(env, v)
	}
	if !hasTerm {
		env = append(env, "TERM=xterm-256color")
	}
	return append(env, ours...)
}

// remove erases a session that has ended. It ends a holder that lingers only to
// keep a log in memory, and kills nothing.
func (g *Guest) remove(ctx context.Context, id string) error {
	s, err := g.find(id)
	if errors.Is(err, berth.CodeRecordUnreadable) {
		return g.removeUnreadable(id)
	}
	if err != nil {
		return err
	}
	if s.isLive() {
		return berth.Errorf(berth.CodeSessionLive, "session %s still runs", s.rec.Name)
	}
	if s.lingers() {
		ctx, cancel := context.WithTimeout(ctx, holderTimeout)
		defer cancel()
		if err := s.holder.Quit(ctx); err != nil && !errors.Is(err, holder.ErrGone) {
			return fmt.Errorf("end the holder of session %s: %w", s.rec.Name, err)
		}
		if err := g.awaitHolderGone(ctx, s.dir); err != nil {
			return err
		}
	}
	if err := g.erase(s); err != nil {
		return err
	}
	g.mu.Lock()
	delete(g.sessions, id)
	g.mu.Unlock()
	g.hub.mark(id, true)
	return nil
}

// awaitHolderGone waits for the lock: until it is free the holder may still
// write into the directory.
func (g *Guest) awaitHolderGone(ctx context.Context, dir string) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if alive, err := g.holders.Alive(dir); err == nil && !alive {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return berth.Errorf(berth.CodeTimeout, "the holder of %s did not end", dir)
		}
	}
}

// removeUnreadable removes a session whose files are damaged, unless a holder
// lives in its directory.
func (g *Guest) removeUnreadable(id string) error {
	dir := g.sessionDir(id)
	if alive, err := g.holders.Alive(dir); alive {
		return berth.Errorf(berth.CodeSessionLive, "the files of session %s are damaged, but its holder lives", id)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look at the holder of %s: %w", dir, err)
	}
	if err := g.eraseFiles(id); err != nil {
		return err
	}
	g.mu.Lock()
	delete(g.unreadable, id)
	g.mu.Unlock()
	g.hub.mark(id, true)
	return nil
}

// erase removes every file of a session, and its cgroup where that is empty.
func (g *Guest) erase(s *session) error {
	s.saving.Lock()
	s.removed = true
	s.saving.Unlock()
	g.relays.close(s.id)
	s.mu.Lock()
	cgroup := s.running.Cgroup
	s.mu.Unlock()
	if cgroup != "" {
		// One that still has processes refuses, and stays: they are not ours to end.
		if err := os.Remove(cgroup); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("the cgroup of a removed session stays", "cgroup", cgroup, "error", err)
		}
	}
	return g.eraseFiles(s.id)
}

func (g *Guest) eraseFiles(id string) error {
	for _, path := range []string{g.holderSocket(id), g.relays.hookPath(id), g.relays.agentPath(id)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a socket: %w", err)
		}
	}
	if err := os.RemoveAll(g.sessionDir(id)); err != nil {
		return fmt.Errorf("remove the session's directory: %w", err)
	}
	return berth.SyncDir(g.cfg.Sessions)
}
