package environment

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sort"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/guestapi"
)

// FactName names a fact in berth.Unknown. The names are stable: judgement and
// clients compare them.
type FactName string

// The facts that can be unknown.
const (
	FactDistribution    FactName = "distribution"     // /etc/os-release
	FactArchitecture    FactName = "architecture"     // uname -m
	FactKernel          FactName = "kernel"           // /proc/sys/kernel/osrelease
	FactInit            FactName = "init_system"      // is it systemd
	FactImmutable       FactName = "immutable_os"     // may packages be installed
	FactContainer       FactName = "container"        // is this a container itself
	FactBootID          FactName = "boot_id"          // a wait for a reboot cannot end without it
	FactRebootDue       FactName = "reboot_due"       //
	FactPackageLock     FactName = "package_lock"     //
	FactSecureBoot      FactName = "secure_boot"      //
	FactSELinux         FactName = "selinux"          //
	FactPackages        FactName = "packages"         // the package database
	FactPCI             FactName = "pci_gpus"         // cards on the bus
	FactDriverModule    FactName = "driver_module"    //
	FactDriverLibrary   FactName = "driver_library"   //
	FactNVIDIASMI       FactName = "nvidia_smi"       // hung, or cannot be looked for: no card is known
	FactGPUMemory       FactName = "gpu_memory"       // a card that shows neither a size nor that it has none
	FactGPUFree         FactName = "gpu_free_memory"  //
	FactGPUProcesses    FactName = "gpu_processes"    //
	FactMIG             FactName = "mig_devices"      // MIG is on, its instances are not known
	FactCUDA            FactName = "cuda_version"     //
	FactDockerCLI       FactName = "docker_cli"       //
	FactDockerSocket    FactName = "docker_socket"    //
	FactDockerDaemon    FactName = "docker_daemon"    // it hangs or answers nonsense; a refusal is an answer
	FactDockerNetworks  FactName = "docker_networks"  //
	FactDockerService   FactName = "docker_service"   //
	FactDockerContext   FactName = "docker_context"   //
	FactDaemonJSON      FactName = "daemon_json"      //
	FactContainerdRoot  FactName = "containerd_root"  //
	FactToolkit         FactName = "toolkit"          // nvidia-ctk
	FactCDISpecs        FactName = "cdi_specs"        //
	FactCDIRefresh      FactName = "cdi_refresh"      //
	FactFreeDisk        FactName = "free_disk"        // at the Docker root
	FactFreeContainerd  FactName = "free_disk_images" // at the containerd root
	FactFreeModels      FactName = "free_disk_models" //
	FactMemory          FactName = "memory"           //
	FactUser            FactName = "user"             // who asks, and the groups in force
	FactGroupConfigured FactName = "group_configured" // /etc/group
	FactLinger          FactName = "linger"           //
	FactRoutes          FactName = "routes"           //
)

// Reasons begin with one of these words and a colon, or are that word.
const (
	ReasonDenied  = "permission denied"
	ReasonTimeout = "timed out"
	ReasonInvalid = "invalid"
	ReasonFailed  = "failed"
)

// Purposes of berth.DiskFacts.
const (
	DiskDockerRoot     = "docker_root"
	DiskContainerdRoot = "containerd_root"
	DiskModels         = "models"
)

// Timeouts bound the parts of a probe; 0 = the default.
type Timeouts struct {
	File    time.Duration // one file or directory; 2 s
	Program time.Duration // one program; 5 s
	SMI     time.Duration // one run of nvidia-smi, which needs seconds where no persistence daemon keeps the driver up; 10 s
	Docker  time.Duration // all that the daemon is asked; 5 s
	Whole   time.Duration // the probe; 30 s
}

// ProbeConfig says how to look at a host.
type ProbeConfig struct {
	Guest Guest // of the host; required
	// Root is put before every path of a system file, so that a directory can
	// stand in for a machine; "" = /. Facts carry the paths without it, but for
	// Docker.Socket, which is dialled.
	Root string
	// Path are the directories in which programs are looked for, in order and as
	// they are; nil = the system directories.
	Path []string
	// Socket is the Docker socket; "" = /var/run/docker.sock below Root.
	Socket string
	// Env is what the caller knows of the user's own variables: DOCKER_HOST,
	// DOCKER_CONTEXT, DOCKER_CONFIG, XDG_RUNTIME_DIR. Nil = nothing known.
	Env map[string]string
	// Models is where models are kept; "" = that place is not measured.
	Models   string
	Timeouts Timeouts
}

// systemPath is where programs of the system lie. The last is where WSL puts
// nvidia-smi.
var systemPath = []string{
	"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/snap/bin", "/usr/lib/wsl/lib",
}

const (
	defaultSocket = "/var/run/docker.sock"
	// atOnce bounds the calls that one probe has under way at the guest.
	atOnce = 16
	// grace is what a call gets beyond the deadline that the guest enforces, to
	// say that the program had to be killed.
	grace = 3 * time.Second

	kib       = 1 << 10
	maxSmall  = 64 * kib   // one-line files, os-release
	maxTable  = 1024 * kib // passwd, group, routes, locks
	maxOutput = 1024 * kib // of a program
	maxReason = 300        // bytes of a reason or an error text in the facts
)

func (c ProbeConfig) complete() (ProbeConfig, error) {
	if c.Guest == nil {
		return c, berth.Errorf(berth.CodeInvalidArgument, "a probe needs a guest")
	}
	if c.Root == "/" {
		c.Root = ""
	}
	if c.Root != "" && !path.IsAbs(c.Root) {
		return c, berth.Errorf(berth.CodeInvalidArgument, "the root %q of a probe is not absolute", c.Root)
	}
	if c.Path == nil {
		c.Path = systemPath
	}
	if c.Socket == "" {
		c.Socket = c.Root + defaultSocket
	}
	for _, t := range []struct {
		d    *time.Duration
		want time.Duration
	}{
		{&c.Timeouts.File, 2 * time.Second},
		{&c.Timeouts.Program, 5 * time.Second},
		{&c.Timeouts.SMI, 10 * time.Second},
		{&c.Timeouts.Docker, 5 * time.Second},
		{&c.Timeouts.Whole, 30 * time.Second},
	} {
		if *t.d < 0 {
			return c, berth.Errorf(berth.CodeInvalidArgument, "a deadline of a probe is negative")
		}
		if *t.d == 0 {
			*t.d = t.want
		}
	}
	return c, nil
}

// probe is one look at one host. Each part writes fields of facts that no other
// part that runs at the same time touches; unknown has its own lock.
type probe struct {
	cfg   ProbeConfig
	slots chan struct{} // bounds the calls under way

	facts          berth.Facts
	packages       map[string]string // name → version of what is installed; nil = not known
	groups         map[string]group  // of the group files; nil = not known
	gids           []int             // in force
	home           string            // of the user; "" = not known
	socketGID      int               // of the Docker socket
	managed        bool              // containerd is Docker's own child
	snap           string            // version of the Docker snap; "" = not installed
	shim           bool              // the docker program is podman
	signs          installSigns
	containerdRoot string // "" = not known

	mu      sync.Mutex
	unknown map[FactName]string
	broken  error // the guest itself failed
}

// Probe looks at a host. It changes nothing there, starts no shell, and answers
// in bounded time whatever hangs. What could not be read is in Unknown; an
// error means that the guest did not answer, or that ctx ended: then nothing is
// known.
//
// One thing may begin on the host: where systemd listens in Docker's place,
// asking Docker starts it, as any use of Docker would.
func Probe(ctx context.Context, cfg ProbeConfig) (berth.Facts, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return berth.Facts{}, err
	}
	began := time.Now()
	whole, cancel := context.WithTimeout(ctx, cfg.Timeouts.Whole)
	defer cancel()
	p := newProbe(cfg)
	p.run(whole)
	if err := ctx.Err(); err != nil {
		return berth.Facts{}, fmt.Errorf("probe: %w", err)
	}
	if p.broken != nil {
		return berth.Facts{}, fmt.Errorf("probe: %w", p.broken)
	}
	f := p.facts
	f.Unknown = make([]berth.Unknown, 0, len(p.unknown))
	for fact, reason := range p.unknown {
		f.Unknown = append(f.Unknown, berth.Unknown{Fact: string(fact), Reason: reason})
	}
	sort.Slice(f.Unknown, func(i, j int) bool { return f.Unknown[i].Fact < f.Unknown[j].Fact })
	f.ElapsedMS = time.Since(began).Milliseconds()
	return f, nil
}

func newProbe(cfg ProbeConfig) *probe {
	p := &probe{cfg: cfg, slots: make(chan struct{}, atOnce), unknown: map[FactName]string{}}
	p.facts.GPU.Cards = []berth.GPU{}
	return p
}

// run reads everything. The cards run beside all else, because a driver that
// hangs takes its whole deadline; the second stage needs answers of the first.
func (p *probe) run(ctx context.Context) {
	var cards sync.WaitGroup
	cards.Go(func() { p.readGPU(ctx) })
	all(
		func() { p.readRelease(ctx) },
		func() { p.readMachine(ctx) },
		func() { p.readInit(ctx) },
		func() { p.readReboot(ctx) },
		func() { p.readLock(ctx) },
		func() { p.readUser(ctx) },
		func() { p.readMemory(ctx) },
		func() { p.readRoutes(ctx) },
		func() { p.readDaemonJSON(ctx) },
		func() { p.readCLI(ctx) },
		func() { p.readDaemon(ctx) },
		func() { p.readCTK(ctx) },
	)
	all(
		func() { p.readPackages(ctx) },
		func() { p.readMembership(ctx) },
		func() { p.readContext(ctx) },
		func() { p.readSigns(ctx) },
		func() { p.readService(ctx) },
		func() { p.readSpecs(ctx) },
		func() { p.readContainerd(ctx) },
	)
	p.readDisks(ctx)
	cards.Wait()
	p.facts.OS.Immutable = p.facts.OS.Immutable || immutableID(p.facts.OS.ID)
	d := &p.facts.Docker
	d.PodmanShim = d.PodmanShim || p.shim
	d.Install, d.Package = installMethod(*d, p.packages, p.signs)
	d.Conflicts = conflicting(p.facts.OS.Family, p.packages)
	p.facts.Toolkit.Packages = toolkitPackages(p.packages)
	if !d.Reachable {
		d.Pools = configuredPools(d.DaemonJSONKeys)
	}
}

// all runs the parts at the same time and waits for them.
func all(parts ...func()) {
	var wg sync.WaitGroup
	for _, part := range parts {
		wg.Go(part)
	}
	wg.Wait()
}

// miss records that a fact is not known. The first reason stays.
func (p *probe) miss(fact FactName, err error) {
	p.missReason(fact, reasonOf(err))
	if e := guestFailure(err); e != nil {
		p.mu.Lock()
		if p.broken == nil {
			p.broken = e
		}
		p.mu.Unlock()
	}
}

func (p *probe) missReason(fact FactName, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.unknown[fact]; !ok {
		p.unknown[fact] = clip(reason)
	}
}

// guestFailure tells a guest that does not work from a fact that cannot be
// read: no number of unknown facts describes a host that cannot be reached.
func guestFailure(err error) error {
	for _, code := range []berth.Code{
		berth.CodeHostUnreachable, berth.CodeGuestFailed, berth.CodeGuestOutdated, berth.CodeUnauthorized, berth.CodeMethodNotAllowed,
	} {
		if errors.Is(err, code) {
			return err
		}
	}
	return nil
}

func reasonOf(err error) string {
	switch {
	case errors.Is(err, berth.CodeForbidden):
		return ReasonDenied + ": " + err.Error()
	case timedOut(err):
		return ReasonTimeout + ": " + err.Error()
	case errors.Is(err, errInvalid):
		return ReasonInvalid + ": " + err.Error()
	}
	return ReasonFailed + ": " + err.Error()
}

func timedOut(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, berth.CodeTimeout)
}

// absent reports whether err says that the thing is not there, which is an
// answer and no failure.
func absent(err error) bool {
	return errors.Is(err, berth.CodeNotFound) || errors.Is(err, berth.CodeCommandNotFound)
}

// errInvalid marks bytes that were read and make no sense.
var errInvalid = errors.New("not understood")

func invalidf(format string, args ...any) error {
	return invalidError{fmt.Errorf(format, args...)}
}

type invalidError struct{ error }

func (e invalidError) Unwrap() error        { return e.error }
func (e invalidError) Is(target error) bool { return target == errInvalid }

// clip makes foreign text fit for a fact: one line, bounded, valid UTF-8.
func clip(s string) string {
	s = strings.ToValidUTF8(strings.Join(strings.Fields(s), " "), "?")
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "") + "…"
	}
	return s
}

// call runs f with a slot and a deadline.
func (p *probe) call(ctx context.Context, d time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	select {
	case p.slots <- struct{}{}:
		defer func() { <-p.slots }()
	case <-ctx.Done():
		return fmt.Errorf("waiting for a turn at the guest: %w", ctx.Err())
	}
	return f(ctx)
}

// file reads a system file of at most limit bytes; a longer one is invalid.
func (p *probe) file(ctx context.Context, name string, limit int64) ([]byte, guestapi.FileInfo, error) {
	var data []byte
	var info guestapi.FileInfo
	err := p.call(ctx, p.cfg.Timeouts.File, func(ctx context.Context) (err error) {
		data, info, err = p.cfg.Guest.ReadFile(ctx, p.cfg.Root+name, limit)
		return err
	})
	switch {
	case errors.Is(err, berth.CodeTooLarge), err == nil && (int64(len(data)) > limit || info.Size > limit):
		return nil, info, invalidf("%s is larger than %d bytes", name, limit)
	case err != nil:
		return nil, info, err
	}
	return data, info, nil
}

// line reads a file of one line.
func (p *probe) line(ctx context.Context, name string) (string, error) {
	data, _, err := p.file(ctx, name, maxSmall)
	return strings.TrimSpace(string(data)), err
}

func (p *probe) stat(ctx context.Context, name string, follow bool) (guestapi.FileInfo, error) {
	var info guestapi.FileInfo
	err := p.call(ctx, p.cfg.Timeouts.File, func(ctx context.Context) (err error) {
		info, err = p.cfg.Guest.Stat(ctx, p.cfg.Root+name, follow)
		return err
	})
	return info, err
}

// there reports whether a path is there.
func (p *probe) there(ctx context.Context, name string) (bool, error) {
	_, err := p.stat(ctx, name, true)
	if absent(err) {
		return false, nil
	}
	return err == nil, err
}

// list gives the names in a directory, sorted; one that is not there has none.
func (p *probe) list(ctx context.Context, name string) ([]string, error) {
	var entries []guestapi.FileInfo
	err := p.call(ctx, p.cfg.Timeouts.File, func(ctx context.Context) (err error) {
		entries, err = p.cfg.Guest.ReadDir(ctx, p.cfg.Root+name)
		return err
	})
	if absent(err) {
		return nil, nil
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, path.Base(e.Path))
	}
	sort.Strings(names)
	return names, err
}

// find looks a program up in the path. "" with nil = it is in none of the
// directories; a directory that may not be searched is an error, unless another
// has the program.
func (p *probe) find(ctx context.Context, name string) (string, error) {
	var first error
	for _, dir := range p.cfg.Path {
		full := path.Join(dir, name)
		var info guestapi.FileInfo
		err := p.call(ctx, p.cfg.Timeouts.File, func(ctx context.Context) (err error) {
			info, err = p.cfg.Guest.Stat(ctx, full, true)
			return err
		})
		if err == nil && info.Type == guestapi.FileRegular && info.Mode&0o111 != 0 {
			return full, nil
		}
		if err != nil && !absent(err) && first == nil {
			first = err
		}
	}
	return "", first
}

// exec runs a program that find found, with nothing of anyone's environment.
// One that had to be stopped is an error; one that failed is a result.
func (p *probe) exec(ctx context.Context, d time.Duration, argv ...string) (guestapi.ExecResult, error) {
	var r guestapi.ExecResult
	err := p.call(ctx, d+grace, func(ctx context.Context) (err error) {
		r, err = p.cfg.Guest.Exec(ctx, guestapi.Exec{
			Argv:      argv,
			Env:       []string{"PATH=" + strings.Join(p.cfg.Path, ":"), "LANG=C.UTF-8", "LC_ALL=C.UTF-8"},
			TimeoutMS: d.Milliseconds(),
			MaxOutput: maxOutput,
		})
		return err
	})
	switch {
	case err != nil:
		return r, err
	case r.TimedOut:
		return r, berth.Errorf(berth.CodeTimeout, "%s gave no answer in %s", argv[0], d)
	case r.Truncated:
		return r, invalidf("%s says more than %d bytes", argv[0], maxOutput)
	}
	return r, nil
}

// said is what a program that failed had to say.
func said(r guestapi.ExecResult) string {
	text := clip(string(r.Stdout) + " " + string(r.Stderr))
	if text == "" {
		text = fmt.Sprintf("status %d", r.Code)
		if r.Signal != "" {
			text = r.Signal
		}
	}
	return text
}
