package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"berth"
	"berth/container"
	"berth/durable"
	"berth/durable/sqlite"
	"berth/engine"
	"berth/environment"
	"berth/process"
)

// Standin is a machine that stands in for this one: a directory of files and
// programs that a test made. The zero Standin is this machine.
type Standin struct {
	Root   string          // before each path of a system file
	Path   []string        // where programs are looked for; nil = the system directories
	Socket string          // Docker's; "" = the settings'
	Helper []string        // command of the host step; nil = berth-hoststep beside this program
	Recipe berth.RecipeRef // of that helper; zero = this build's
	Watch  time.Duration
}

// machine is what belongs to this user on this machine, and not to this daemon
// alone: its store is shared with other daemons.
type machine struct {
	store      *sqlite.Store
	prober     *environment.Prober
	containers *container.Client
	releases   *engine.Releases
	service    *environment.Service
}

// openMachine opens the shared store and makes the rooms over it. Nothing runs
// and nothing is looked at before keepMachine. Who can write in its directory can
// make berth pull what they like, so it is closed to others.
func (d *daemon) openMachine(ctx context.Context) (opened *machine, err error) {
	p := d.cfg.Paths
	if err := privateDir(p.Machine, berth.CodeStateDir); err != nil {
		return nil, err
	}
	if err := sameMachine(p.Machine, filepath.Join("/", d.cfg.Standin.Root, "etc/machine-id")); err != nil {
		return nil, err
	}
	m := &machine{}
	defer func() {
		if err != nil {
			opened, err = nil, errors.Join(err, m.close())
		}
	}()
	if m.store, err = sqlite.Open(ctx, sqlite.Config{
		Path: p.MachineStore(), Owner: d.self, Shared: true, Log: d.cfg.Log, Loss: "what was set up stays, and berth no longer knows what of it is its own to remove",
	}); err != nil {
		return nil, err
	}
	if m.releases, err = engine.NewReleases(engine.Config{Dir: filepath.Join(p.Machine, berth.DirReleases), Log: d.cfg.Log}); err != nil {
		return nil, err
	}
	stand, socket := d.cfg.Standin, d.dockerSocket()
	if m.prober, err = environment.NewProber(environment.ProbeConfig{
		Guest: d.guest, Root: stand.Root, Path: stand.Path, Socket: socket, Env: userVariables(d.cfg.Env),
	}); err != nil {
		return nil, err
	}
	journal, err := container.NewStoreJournal(m.store, berth.LocalHost)
	if err != nil {
		return nil, err
	}
	if m.containers, err = container.New(container.Config{
		Dial:    func(ctx context.Context) (net.Conn, error) { return d.guest.Dial(ctx, "unix", socket) },
		Journal: journal, Self: d.self, Log: d.cfg.Log,
	}); err != nil {
		return nil, err
	}
	manifests, err := environment.EmbeddedManifests()
	if err != nil {
		return nil, err
	}
	helper := stand.Helper
	if helper == nil {
		helper = []string{filepath.Join(d.cfg.BinDir, "berth-hoststep")}
	}
	m.service, err = environment.New(environment.Config{
		Store: m.store,
		Hosts: []environment.Host{{
			Name: berth.LocalHost, Guest: d.guest, Facts: m.prober, State: m.prober, Containers: dockerOf{m.containers, journal, berth.LocalHost},
			StepDir: filepath.Join(p.Machine, berth.DirHostSteps), Helper: helper,
		}},
		Releases: m.releases, HostSteps: hostSteps{stand.Recipe}, Manifests: manifests,
		Liveness: liveness, Now: time.Now, Random: rand.Reader, Log: d.cfg.Log, Version: berth.Version(),
		WatchEvery: stand.Watch,
	})
	return m, err
}

// sameMachine refuses the machine directory of another machine, as a home that
// machines share has it: their boot ids differ, so each would take the other's
// daemons for dead, and what is installed there for its own. A machine without an
// id cannot tell.
func sameMachine(dir, idFile string) error {
	id, err := os.ReadFile(idFile)
	here := strings.TrimSpace(string(id))
	if err != nil || len(here) < 16 || len(here) > 64 {
		return nil //nolint:nilerr // see above
	}
	marker := filepath.Join(dir, berth.FileMachineID)
	data, err := berth.ReadFile(marker, 128)
	switch there := strings.TrimSpace(string(data)); {
	case err == nil && there == here:
		return nil
	case err == nil && there != "":
		return berth.Errorf(berth.CodeStateDir, "%s is of another machine (%.8s…), whose operations and installations it holds", dir, there).WithFact("path", dir).
			WithHint("give each machine its own with --machine-dir or BERTH_MACHINE_DIR; where this is the same machine with a new id, remove " + marker)
	}
	return berth.WriteFile(marker, []byte(here+"\n"), 0o600)
}

// withoutMachine has the daemon serve sessions alone, and say so: what belongs to
// the machine cannot be read, or was written by a newer berth.
func (d *daemon) withoutMachine(err error) {
	e := berth.AsError(err)
	// What the catalogue says of the state directory holds of this one.
	e = e.WithHint(strings.NewReplacer("--state-dir", "--machine-dir", "state directory", "machine directory").Replace(e.Hint))
	hint := strings.TrimSuffix(e.Hint, ", then: berth up")
	if hint != "" {
		hint += ", then: "
	}
	e = e.WithHint(hint + "berth down && berth up")
	d.noMachine = e
	d.problems = append(d.problems, berth.Problem{Code: e.Code, Detail: "environments and engines are not there: " + e.Detail, Hint: e.Hint})
	d.cfg.Log.Error("environments and engines are not served", "error", err)
}

// dockerSocket is where Docker answers.
func (d *daemon) dockerSocket() string {
	stand := d.cfg.Standin
	return cmp.Or(stand.Socket, d.settings.Docker.Socket, filepath.Join("/", stand.Root, "var/run/docker.sock"))
}

// close lets go of everything; each part may be nil.
func (m *machine) close() error {
	if m.prober != nil {
		m.prober.Close()
	}
	if m.containers != nil {
		m.containers.Close()
	}
	if m.store != nil {
		return m.store.Close()
	}
	return nil
}

// keepMachine takes up what dead daemons left, at the start and while this one
// runs.
func (d *daemon) keepMachine(ctx context.Context) {
	select {
	case <-d.sessions.Synced(): // the guest answers, or is known not to
	case <-ctx.Done():
		return
	}
	if _, err := d.machine.containers.Reconcile(ctx, nil); err != nil && ctx.Err() == nil {
		d.cfg.Log.Warn("look after containers that were left", "error", err)
	}
	tick := time.NewTicker(takeUpEvery)
	defer tick.Stop()
	for {
		if err := d.machine.service.Recover(ctx); err != nil && ctx.Err() == nil {
			d.cfg.Log.Error("take up operations that were left", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// takeUpEvery is how soon an operation of another daemon that died goes on here:
// nobody has to ask for it.
const takeUpEvery = 3 * time.Second

// relayMachine passes the shared store's events on into the daemon's own
// sequence, which is the one that readers follow. They are hints: one that was
// missed while no daemon ran is not made up for.
func (d *daemon) relayMachine(ctx context.Context) {
	wake := d.machine.store.Watch(ctx)
	page, err := d.machine.store.Events(ctx, 0, 1)
	if err != nil {
		d.cfg.Log.Warn("read the machine's events", "error", err)
		return
	}
	after := page.Last
	for range wake {
		for {
			page, err := d.machine.store.Events(ctx, after, 0)
			if err != nil || len(page.Events) == 0 {
				break
			}
			after = page.Events[len(page.Events)-1].Seq
			if err := d.relay(ctx, page.Events); err != nil && ctx.Err() == nil {
				d.cfg.Log.Warn("pass on the machine's events", "error", err)
			}
		}
	}
}

func (d *daemon) relay(ctx context.Context, events []berth.Event) error {
	var drafts []durable.EventDraft
	for _, e := range events {
		switch e.Kind {
		case berth.EventOperationChanged, berth.EventEnvironmentChanged:
			drafts = append(drafts, durable.EventDraft{Kind: e.Kind, Subject: e.Subject, Revision: e.Revision})
		}
	}
	if len(drafts) == 0 {
		return nil
	}
	_, err := d.store.Publish(ctx, drafts...)
	return err
}

func liveness(id berth.Identity) durable.Liveness {
	switch process.Look(id) {
	case process.Alive:
		return durable.OwnerAlive
	case process.Dead:
		return durable.OwnerDead
	}
	return durable.OwnerUnknown
}

// userVariables are those of the user's environment that say where Docker is.
func userVariables(env []string) map[string]string {
	out := map[string]string{}
	for _, v := range env {
		switch name, value, ok := strings.Cut(v, "="); name {
		case "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "XDG_RUNTIME_DIR":
			if ok {
				out[name] = value
			}
		}
	}
	return out
}
