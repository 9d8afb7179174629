package daemon

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"berth"
	"berth/durable"
	"berth/durable/sqlite"
	"berth/guestapi"
	"berth/host/local"
	"berth/internal/server"
	"berth/process"
	"berth/session"
)

// Config is what a daemon is made of.
type Config struct {
	Paths berth.Paths
	Home  string   // where sessions start when nobody said; "" = /
	Env   []string // what sessions of this machine start with
	Log   *slog.Logger
	Ready func() // called once when the socket answers and sessions are adopted
	// ShowToken is called with a token of the TCP listener that was just made:
	// the only time that anybody sees it.
	ShowToken func(token string)
	BinDir    string // where berth-guest, berth-holder and berth-hoststep are
	Standin   Standin
}

// Bounds of the daemon's own steps.
const (
	// adoptWithin is how long readiness waits for the sessions of this machine.
	// 200 of them take a tenth of it; a guest that hangs must not keep the
	// daemon from answering.
	adoptWithin = 3 * time.Second
	// stopWithin is how long viewers and requests may take to end.
	stopWithin = 3 * time.Second
	// housekeeping is how often leases are looked at; events are pruned each
	// hundredth time.
	housekeeping = 2 * time.Second
	prunesEvery  = 100
)

// binDir is where this program is: the three binaries are installed together.
func binDir() string {
	self, err := os.Executable()
	if err != nil {
		return "."
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	return filepath.Dir(self)
}

// daemon is the composition.
type daemon struct {
	cfg       Config
	settings  Settings
	self      berth.Identity
	started   time.Time
	place     *place
	store     durable.Store
	driver    *local.Driver
	guest     *guestapi.Client
	machine   *machine // nil = it cannot be served; see noMachine
	noMachine error    // why it is not served; nil = it is
	sessions  *session.Registry
	server    *server.Server
	unix      net.Listener
	tcp       net.Listener // nil = off
	problems  []berth.Problem
	stop      context.CancelFunc // ends what Run started
}

// serve builds, serves and stops. The order is the story: what can be wrong
// with the settings is said before anything is touched; the place is taken
// before the store is opened, since it keeps a second daemon out of it; the
// socket answers only when there is something to answer with.
func serve(ctx context.Context, cfg Config) (err error) {
	d := &daemon{cfg: cfg, started: time.Now().UTC()}
	if d.settings, err = LoadSettings(cfg.Paths.Config); err != nil {
		return err
	}
	if d.self, err = process.Self(); err != nil {
		return err
	}
	if d.place, err = takePlace(cfg.Paths); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.place.leave()) }()
	if d.unix, err = d.place.listenSocket(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closed(d.unix.Close())) }()
	store, err := sqlite.Open(ctx, sqlite.Config{
		Path: cfg.Paths.Store(), Owner: d.self, Log: cfg.Log, Loss: "sessions are found again without it; names and events are lost",
	})
	if err != nil {
		return err
	}
	d.store = store
	defer func() { err = errors.Join(err, d.store.Close()) }()
	err = d.build(ctx)
	defer func() { err = errors.Join(err, d.closeRooms()) }()
	if err != nil {
		return err
	}
	return d.run(ctx)
}

// closeRooms lets go of what build made, as far as it came.
func (d *daemon) closeRooms() error {
	var err error
	if d.machine != nil {
		err = d.machine.close()
	}
	if d.guest != nil {
		err = errors.Join(err, d.guest.Close())
	}
	return err
}

// build makes the rooms; nothing runs yet.
func (d *daemon) build(ctx context.Context) (err error) {
	p := d.cfg.Paths
	if d.driver, err = local.New(local.Config{
		Sessions:     p.Sessions(),
		Runtime:      p.Runtime,
		GuestBinary:  filepath.Join(d.cfg.BinDir, "berth-guest"),
		HolderBinary: filepath.Join(d.cfg.BinDir, "berth-holder"),
		GuestLog:     p.GuestLog(),
		Getenv:       os.Getenv,
		Log:          d.cfg.Log,
	}); err != nil {
		return err
	}
	d.guest = guestapi.NewClient(d.driver.Dial)
	home := d.cfg.Home
	if home == "" {
		home = "/"
	}
	if d.sessions, err = session.New(session.Config{
		Store: d.store,
		Hosts: []session.HostLink{{Name: berth.LocalHost, Ensure: d.driver.Ensure, Guest: d.guest}},
		Defaults: session.Defaults{
			LogBytes:   d.settings.Sessions.LogBytes,
			RingBytes:  d.settings.Sessions.RingBytes,
			SizePolicy: d.settings.Sessions.SizePolicy,
		},
		BaseEnv: d.cfg.Env,
		Home:    home,
		Now:     time.Now,
		Random:  rand.Reader,
		Log:     d.cfg.Log,
	}); err != nil {
		return err
	}
	if d.machine, err = d.openMachine(ctx); err != nil {
		if ctx.Err() != nil {
			return err
		}
		d.withoutMachine(err) // sessions need none of it
	}
	hash, err := d.openTCP(ctx)
	if err != nil {
		return err
	}
	doors := server.Config{
		Sessions: d.sessions,
		Attach:   d.attach,
		Direct:   d.direct,
		Export: func(ctx context.Context, ref, format string, w io.Writer) error {
			return d.sessions.Export(ctx, ref, session.ExportFormat(format), w)
		},
		ReplaceGuest: d.replaceGuest,
		Unavailable:  d.noMachine,
		Events:       d.store,
		Status:       d,
		Stop:         func() { d.stop() },
		TokenHash:    hash,
		Log:          d.cfg.Log,
	}
	if m := d.machine; m != nil {
		doors.Environments, doors.Releases = m.service, m.releases
	}
	d.server, err = server.New(doors)
	return err
}

// openTCP opens the door for browsers and SDKs where the settings ask for it.
func (d *daemon) openTCP(ctx context.Context) (hash [sha256.Size]byte, err error) {
	address := d.settings.API.address()
	if address == "" {
		return hash, nil
	}
	if hash, err = apiToken(d.cfg.Paths, d.cfg.ShowToken); err != nil {
		return hash, err
	}
	var problem *berth.Problem
	if d.tcp, problem = listenTCP(ctx, address); problem != nil {
		d.problems = append(d.problems, *problem)
	}
	return hash, nil
}

func (d *daemon) attach(ctx context.Context, ref string, q berth.AttachRequest) (server.AttachStream, error) {
	s, err := d.sessions.Attach(ctx, ref, q)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// direct tells a viewer of this user on this machine where the guest is.
func (d *daemon) direct(ctx context.Context, ref string) (berth.DirectAttach, error) {
	s, err := d.sessions.Get(ctx, ref)
	if err != nil {
		return berth.DirectAttach{}, err
	}
	g := d.sessions.Guest(s.Host)
	if s.Host != berth.LocalHost || !g.Reachable || !slices.Contains(g.Features, guestapi.FeatureDirect) {
		return berth.DirectAttach{}, berth.Errorf(berth.CodeNotFound, "session %s cannot be reached without the daemon", s.Name).
			WithHint("attach through the daemon")
	}
	return berth.DirectAttach{Session: s.ID, Socket: d.cfg.Paths.GuestSocket()}, nil
}

// replaceGuest puts a guest of this build in place of the local one. The old one
// leaves its screens with the holders and goes; the next one finds them. What
// runs notices nothing, viewers reconnect.
func (d *daemon) replaceGuest(ctx context.Context) error {
	old, err := d.guest.Info(ctx)
	if err != nil {
		return err
	}
	if err := d.guest.Retire(ctx); err != nil {
		return err
	}
	if err := d.driver.Ensure(ctx); err != nil {
		return err
	}
	tick := time.NewTicker(20 * time.Millisecond) // the registry reconnects by itself
	defer tick.Stop()
	for {
		if g := d.sessions.Guest(berth.LocalHost); g.Reachable && g.PID != old.Identity.PID {
			return nil
		}
		select {
		case <-ctx.Done():
			return berth.Errorf(berth.CodeTimeout, "the new guest has not answered yet: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// run serves until something ends it, then stops in the opposite order:
// viewers and requests first, then what follows the guests, then the store.
func (d *daemon) run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	d.stop = stop
	failure := make(chan error, 4) // one for each goroutine below
	var wg sync.WaitGroup
	follow, unfollow := context.WithCancel(context.WithoutCancel(ctx))
	defer unfollow()
	wg.Go(func() { failure <- d.sessions.Run(follow) })
	wg.Go(func() { d.keepHouse(follow) })
	var machineFailed <-chan struct{}
	if d.machine != nil {
		wg.Go(func() { d.keepMachine(follow) })
		wg.Go(func() { d.relayMachine(follow) })
		machineFailed = d.machine.store.Failed()
	}
	wg.Go(func() { failure <- d.server.ServeUnix(d.unix) })
	if d.tcp != nil {
		wg.Go(func() { failure <- d.server.ServeTCP(d.tcp) })
	}
	err := d.announce(ctx)
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-failure:
		case <-d.store.Failed():
			err = berth.Errorf(berth.CodeStoreFailed, "the store in %s failed; what runs goes on without the daemon", d.cfg.Paths.State)
		case <-machineFailed:
			err = berth.Errorf(berth.CodeStoreFailed, "the store in %s failed; what runs goes on without the daemon", d.cfg.Paths.Machine)
		}
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
	defer cancel()
	if cut := d.server.Shutdown(bounded); cut != nil {
		d.cfg.Log.Warn("some requests were cut", "error", cut)
	}
	if d.machine != nil {
		if late := d.machine.service.Shutdown(bounded); late != nil {
			d.cfg.Log.Warn("operations go on with the next daemon; one did not stop in time", "error", late)
		}
	}
	unfollow()
	wg.Wait()
	d.cfg.Log.Info("stopped", "error", err)
	return errors.Join(err, os.Remove(d.cfg.Paths.DaemonJSON()))
}

// announce says who serves, once sessions are adopted and the socket answers.
func (d *daemon) announce(ctx context.Context) error {
	adopted, cancel := context.WithTimeout(ctx, adoptWithin)
	defer cancel()
	select {
	case <-d.sessions.Synced():
	case <-adopted.Done():
	}
	if err := writeDaemonJSON(d.cfg.Paths, d.record()); err != nil {
		return err
	}
	if _, err := d.store.Publish(ctx, durable.EventDraft{Kind: berth.EventDaemonStarted, Subject: fmt.Sprint(d.self.PID)}); err != nil && ctx.Err() == nil {
		return err
	}
	counts := d.sessions.Counts()
	d.cfg.Log.Info("ready", "version", berth.Version(), "pid", d.self.PID, "socket", d.cfg.Paths.DaemonSocket(),
		"running", counts.Running, "after_ms", time.Since(d.started).Milliseconds())
	if d.cfg.Ready != nil {
		d.cfg.Ready()
	}
	return nil
}

// keepHouse ends leases that are over and drops old events.
func (d *daemon) keepHouse(ctx context.Context) {
	tick := time.NewTicker(housekeeping)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if _, err := d.store.Expire(ctx); err != nil && ctx.Err() == nil {
			d.cfg.Log.Warn("expire leases", "error", err)
		}
		if n%prunesEvery != 0 {
			continue
		}
		stores := []durable.Store{d.store}
		if d.machine != nil {
			stores = append(stores, d.machine.store)
		}
		for _, store := range stores {
			if _, err := store.Prune(ctx); err != nil && ctx.Err() == nil {
				d.cfg.Log.Warn("prune events", "error", err)
			}
		}
	}
}

func (d *daemon) record() berth.Daemon {
	return berth.Daemon{
		PID:       d.self.PID,
		BootID:    d.self.BootID,
		StartTime: d.self.StartTime,
		Version:   berth.Version(),
		StartedAt: d.started,
		Socket:    d.cfg.Paths.DaemonSocket(),
	}
}

// Status says what runs and what is wrong.
func (d *daemon) Status(context.Context) (berth.Status, error) {
	s := berth.Status{
		Daemon:   d.record(),
		Guest:    d.sessions.Guest(berth.LocalHost),
		Sessions: d.sessions.Counts(),
		Problems: append(append([]berth.Problem{}, d.problems...), d.sessions.Problems()...),
	}
	if d.tcp != nil {
		s.Listeners.API = d.tcp.Addr().String()
	}
	return s, nil
}

// closed forgives a listener that its server closed before.
func closed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
