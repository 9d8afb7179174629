package environment

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/durable"
)

// Host is one host that operations may change. All fields are required where
// Unsupported is "", but Engines.
type Host struct {
	Name string
	// Unsupported says why berth sets nothing up there; "" = it does. The other
	// fields are not looked at then.
	Unsupported string
	Guest       Guest
	Facts       FactSource
	State       HostState
	Containers  Containers
	Engines     Engines // nil = none loads anything there
	// StepDir is the folder of the host steps on the host, absolute: the user's
	// own. It is made with mode 0700.
	StepDir string
	// Helper is the command before the path of the request: ["/usr/lib/berth/berth-hoststep"].
	// What makes it root (sudo, pkexec) is the person's choice and not in it.
	Helper []string
}

// Config is what a Service is made of. All fields are required, but Manifests,
// Dropped, OnChange and WatchEvery.
type Config struct {
	// Store is the machine store, which all daemons of this user share.
	Store     durable.Store
	Hosts     []Host
	Releases  Releases
	HostSteps HostSteps
	Manifests []Manifest // the newest first
	// Liveness looks at the owner of an operation; see durable.Config.
	Liveness func(berth.Identity) durable.Liveness
	Now      func() time.Time
	Random   io.Reader // crypto/rand.Reader, but for tests
	Log      *slog.Logger
	Version  string          // of berth, for diagnostics
	Dropped  durable.Counter // of late answers; nil = nobody counts
	// OnChange gets each change of an operation that this daemon runs, and its
	// progress in between, at the same revision. It should return soon and calls
	// nothing that writes. nil = nobody listens.
	OnChange func(berth.Operation)
	// WatchEvery is the time between two looks of a wait (for the helper's result,
	// a login, a restart); 0 = DefaultWatchEvery.
	WatchEvery time.Duration
}

// DefaultWatchEvery is short enough that nobody waits for it, and long enough
// that a wait of days costs nothing.
const DefaultWatchEvery = 3 * time.Second

func (c Config) withDefaults() (Config, error) {
	bad := func(format string, args ...any) (Config, error) {
		return c, berth.Errorf(berth.CodeInvalidArgument, "environment: "+format, args...)
	}
	switch {
	case c.Store == nil || c.Releases == nil || c.HostSteps == nil || c.Liveness == nil:
		return bad("store, releases, host steps and the look at owners are required")
	case c.Now == nil || c.Random == nil || c.Log == nil || c.Version == "":
		return bad("clock, random source, log and version are required")
	case c.WatchEvery < 0:
		return bad("the time between two looks is negative")
	}
	if c.WatchEvery == 0 {
		c.WatchEvery = DefaultWatchEvery
	}
	seen := map[string]bool{}
	for _, h := range c.Hosts {
		switch {
		case h.Name == "" || strings.Contains(h.Name, "/") || seen[h.Name]:
			return bad("host %q is unnamed, has a slash or is given twice", h.Name)
		case h.Unsupported != "":
		case h.Guest == nil || h.Facts == nil || h.State == nil || h.Containers == nil || len(h.Helper) == 0 || !strings.HasPrefix(h.StepDir, "/"):
			return bad("host %s is incomplete", h.Name)
		}
		seen[h.Name] = true
	}
	return c, nil
}

// Service is what the API and other rooms call. It is safe for concurrent use.
type Service struct {
	cfg    Config
	does   *performer
	runner *durable.Runner[opState, opEvent]
	names  []string // of the hosts, as given
}

// New makes a service. It touches no operation before Recover.
func New(cfg Config) (*Service, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg}
	s.does = &performer{cfg: cfg, hosts: map[string]*provisioner{}, insts: installations{cfg.Store}, follow: s.beginFollowUp}
	for _, h := range cfg.Hosts {
		s.does.hosts[h.Name] = &provisioner{Host: h, steps: cfg.HostSteps, now: cfg.Now, every: cfg.WatchEvery, log: cfg.Log}
		s.names = append(s.names, h.Name)
	}
	kernel := durable.Config[opState, opEvent]{
		Store: cfg.Store, Machine: operations(), Performer: s.does, Liveness: cfg.Liveness,
		Now: cfg.Now, Log: cfg.Log, Dropped: cfg.Dropped,
	}
	if cfg.OnChange != nil {
		kernel.OnChange = func(snap durable.Snapshot[opState]) { cfg.OnChange(view(snap)) }
	}
	s.runner, err = durable.New(kernel)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Recover takes up the operations whose daemons died. Call it once the guests of
// the hosts can be asked.
func (s *Service) Recover(ctx context.Context) error { return s.runner.Recover(ctx) }

// Shutdown ends what runs; it goes on with the next daemon. See durable.Runner.
func (s *Service) Shutdown(ctx context.Context) error { return s.runner.Shutdown(ctx) }

// Nudge makes waits on a host look at once: its guest was just reached, or
// somebody logged in.
func (s *Service) Nudge(host string) {
	if h := s.does.hosts[host]; h != nil {
		h.nudge()
	}
}

// List shows every host with what is installed there. Nothing is probed.
func (s *Service) List(ctx context.Context) (berth.Environments, error) {
	all := berth.Environments{V: 1, Environments: []berth.Environment{}}
	active, err := s.active(ctx)
	if err != nil {
		return all, err
	}
	insts, err := s.does.insts.on(ctx, "")
	if err != nil {
		return all, err
	}
	for _, name := range s.names {
		e := berth.Environment{Host: name, Installations: []berth.Installation{}, Active: active[name]}
		e.Reason = s.does.hosts[name].Unsupported
		e.Supported = e.Reason == ""
		for _, in := range insts {
			if in.Host == name {
				e.Installations = append(e.Installations, in)
			}
		}
		all.Environments = append(all.Environments, e)
	}
	return all, nil
}

// active are the operations that are not over, by host.
func (s *Service) active(ctx context.Context) (map[string]string, error) {
	active := map[string]string{}
	q := durable.Query{Live: true}
	for {
		list, next, err := s.runner.List(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, o := range list {
			if !o.State.Op.Phase.Terminal() {
				active[o.State.Op.Target.Host] = o.Record.ID
			}
		}
		if q.After = next; next == "" {
			return active, nil
		}
	}
}

// Probe makes a plan with the facts that it was judged from. It changes nothing.
func (s *Service) Probe(ctx context.Context, r berth.ProbeRequest) (berth.Plan, error) {
	if r.Kind == "" {
		r.Kind = berth.OperationSetup
	}
	if err := s.valid(r.Kind, r.Target, r.Release); err != nil {
		return berth.Plan{}, err
	}
	return s.does.examine(ctx, question{kind: r.Kind, target: r.Target, release: r.Release, retainModels: r.RetainModels}, false)
}

// PlanRemoval is Probe of a removal.
func (s *Service) PlanRemoval(ctx context.Context, target berth.Target, retainModels bool) (berth.Plan, error) {
	return s.Probe(ctx, berth.ProbeRequest{Kind: berth.OperationRemove, Target: target, RetainModels: retainModels})
}

// valid checks what is asked for before anything is begun.
func (s *Service) valid(kind berth.OperationKind, t berth.Target, release string) error {
	switch {
	case !kind.Valid():
		return berth.Errorf(berth.CodeInvalidArgument, "%.40q is no kind of operation", kind)
	case t.Engine != "" && !berth.ValidEngine(t.Engine):
		return berth.Errorf(berth.CodeInvalidArgument, "%.80q is not the name of an engine", t.Engine)
	case release != "" && (t.Engine == "" || kind == berth.OperationRemove):
		return berth.Errorf(berth.CodeInvalidArgument, "a release belongs to the setup or the update of an engine")
	case kind == berth.OperationUpdate && t.Engine == "":
		return berth.Errorf(berth.CodeInvalidArgument, "an environment is not updated: set it up again")
	case s.onHost(t.Host) != nil:
		return s.onHost(t.Host)
	case release != "":
		_, err := s.cfg.Releases.Get(release)
		return err
	case t.Engine != "" && kind != berth.OperationRemove: // a slip of the pen is no operation
		return s.cfg.Releases.Known(t.Engine)
	}
	return nil
}

// onHost is CodeNotFound for a host that there is not.
func (s *Service) onHost(host string) error {
	if slices.Contains(s.names, host) {
		return nil
	}
	return berth.Errorf(berth.CodeNotFound, "there is no host %.80q", host).WithHint("there are: " + strings.Join(s.names, ", "))
}

// Release shows a release that is known, without a network.
func (s *Service) Release(id string) (berth.Release, error) { return s.cfg.Releases.Get(id) }
