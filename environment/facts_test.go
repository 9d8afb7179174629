package environment

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/guestapi"
)

var update = flag.Bool("update", false, "write the golden facts anew")

// probeFixture looks at a fixture. A hung program is given up soon: the fixture
// needs no patience.
func probeFixture(t testing.TB, g *fixtureGuest) berth.Facts {
	t.Helper()
	f, err := Probe(t.Context(), fixtureProbe(g))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func fixtureProbe(g *fixtureGuest) ProbeConfig {
	return ProbeConfig{Guest: g, Models: "/home/ada/models", Timeouts: Timeouts{SMI: 200 * time.Millisecond, Docker: time.Second}}
}

// TestFacts holds each machine's facts against the golden ones, which a person
// has read.
func TestFacts(t *testing.T) {
	for _, name := range fixtures(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := probeFixture(t, newFixtureGuest(t, name))
			f.ElapsedMS = 0
			got, err := json.MarshalIndent(f, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			golden := filepath.Join("testdata", "facts", name, "facts.golden.json")
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) {
				t.Errorf("facts differ from %s:\n%s", golden, got)
			}
		})
	}
}

func unknownOf(f berth.Facts, fact FactName) string {
	for _, u := range f.Unknown {
		if u.Fact == string(fact) {
			return u.Reason
		}
	}
	return ""
}

// TestFactsSayWhatMatters holds what golden files could be updated away from:
// for each machine, the one thing that other tools have got wrong there.
func TestFactsSayWhatMatters(t *testing.T) {
	for _, tt := range []struct {
		machine, bug string
		ok           func(f berth.Facts) bool
	}{
		{"gb10", "no size taken for no card, or for no memory", func(f berth.Facts) bool {
			c := f.GPU.Cards
			return len(c) == 1 && c[0].UnifiedMemory && c[0].MemoryBytes == 0 && unknownOf(f, FactGPUMemory) == "" && f.Memory.AvailableBytes > 100<<30
		}},
		{"gb10", "the space measured where images no longer lie", func(f berth.Facts) bool {
			return f.Docker.ContainerdStore && slices.ContainsFunc(f.Disk, func(d berth.DiskFacts) bool { return d.Purpose == DiskContainerdRoot })
		}},
		{"stale-cdi", "an error cell taken for unified memory", func(f berth.Facts) bool {
			c := f.GPU.Cards
			return len(c) == 1 && !c[0].UnifiedMemory && strings.HasPrefix(unknownOf(f, FactGPUMemory), ReasonFailed)
		}},
		{"stale-cdi", "a driver before compute_cap taken for no card", func(f berth.Facts) bool {
			return len(f.GPU.Cards) == 1 && f.GPU.SMIError == "" && f.GPU.Cards[0].ComputeCapability == ""
		}},
		{"mig", "the whole card offered although only its instances work", func(f berth.Facts) bool {
			return f.GPU.MIG && len(f.GPU.Cards) == 3 && !slices.ContainsFunc(f.GPU.Cards, func(c berth.GPU) bool { return strings.HasPrefix(c.UUID, "GPU-3f") })
		}},
		{"mig", "an instance shown with the memory of its card", func(f berth.Facts) bool {
			return f.GPU.Cards[0].MemoryBytes == 40_000_000_000 && f.GPU.Cards[1].MemoryBytes == 10_000_000_000
		}},
		{"driver-mismatch", "a mismatch taken for a missing driver", func(f berth.Facts) bool {
			return mismatched(f.GPU, f.OS.WSL) && f.GPU.Module == "550.120" && f.GPU.Library == "550.144.03" && f.OS.RebootDue
		}},
		{"smi-hung", "a driver that hangs taken for no card", func(f berth.Facts) bool {
			return strings.HasPrefix(unknownOf(f, FactNVIDIASMI), ReasonTimeout) && f.GPU.OnBus == 1 && f.GPU.SMIError == "" && !mismatched(f.GPU, f.OS.WSL)
		}},
		{"group-not-effective", "a session from before the group taken for a broken Docker", func(f berth.Facts) bool {
			u := f.User
			return u.GroupConfigured && !u.GroupEffective && !f.Docker.Reachable && f.Docker.SocketGroup == "docker" && unknownOf(f, FactDockerDaemon) == ""
		}},
		{"group-not-effective", "a service that starts on demand taken for one that is off", func(f berth.Facts) bool {
			return f.Docker.Service == "inactive" && f.Docker.OnDemand
		}},
		{"snap", "a snap taken for a package", func(f berth.Facts) bool { return f.Docker.Install == InstallSnap && f.Docker.Package == "28.1.1+1" }},
		{"podman-shim", "Podman taken for Docker", func(f berth.Facts) bool { return f.Docker.Install == InstallPodmanDocker && f.Docker.PodmanShim }},
		{"rootless", "a rootless daemon used or overlooked", func(f berth.Facts) bool {
			return f.Docker.Install == InstallRootless && !f.Docker.Reachable && strings.HasPrefix(f.Docker.Context, "rootless=unix:///run/user/")
		}},
		{"desktop", "Desktop taken for an engine", func(f berth.Facts) bool { return f.Docker.Install == InstallDesktop && !f.Docker.Reachable }},
		{"fedora-moby", "moby-engine not recognised, or the CDI of a runtime believed", func(f berth.Facts) bool {
			return f.Docker.Install == InstallMoby && !f.Docker.CDI && slices.Contains(f.Docker.Runtimes, "nvidia") && slices.Contains(f.Docker.Conflicts, "moby-engine")
		}},
		{"fedora-moby", "a moved containerd measured where it is not", func(f berth.Facts) bool {
			return slices.ContainsFunc(f.Disk, func(d berth.DiskFacts) bool { return d.Path == "/srv/containerd" }) && f.OS.SELinux == "enforcing" && f.OS.SecureBoot
		}},
		{"ostree", "packages planned on an image-based system", func(f berth.Facts) bool { return f.OS.Immutable && !f.User.GroupConfigured }},
		{"wsl2", "WSL taken for a machine without a card", func(f berth.Facts) bool {
			return f.OS.WSL == 2 && f.GPU.OnBus == 0 && len(f.GPU.Cards) == 1 && f.GPU.Library == "572.83" && !mismatched(f.GPU, f.OS.WSL) && !f.OS.Systemd
		}},
		{"daemon-json-denied", "a daemon.json that may not be read taken for none", func(f berth.Facts) bool {
			return f.Docker.DaemonJSON == DaemonJSONUnreadable && strings.HasPrefix(unknownOf(f, FactDaemonJSON), ReasonDenied)
		}},
		{"daemon-json-invalid", "a broken daemon.json taken for none", func(f berth.Facts) bool {
			return f.Docker.DaemonJSON == DaemonJSONInvalid && strings.HasPrefix(unknownOf(f, FactDaemonJSON), ReasonInvalid) && f.Docker.Service == "failed"
		}},
		{"vpn-routes", "next hops lost, or a refused route counted", func(f berth.Facts) bool {
			return slices.Contains(f.Routes, berth.Route{Destination: "172.16.0.0/12", Gateway: "10.8.0.1", Device: "tun0"}) &&
				slices.Contains(f.Routes, berth.Route{Destination: "192.168.0.0/16", Device: "tun0"}) &&
				!slices.ContainsFunc(f.Routes, func(r berth.Route) bool { return r.Device == "*" })
		}},
		{"vpn-routes", "pools lost while Docker does not run", func(f berth.Facts) bool { return slices.Equal(f.Docker.Pools, []string{"172.80.0.0/16 24"}) }},
		{"vpn-routes", "the one who waits for the packages named instead of the one who works", func(f berth.Facts) bool {
			return f.OS.PackageLock == "unattended-upgr (process 2210)"
		}},
		{"stale-cdi", "a spec that cannot be read taken for none", func(f berth.Facts) bool {
			return slices.ContainsFunc(f.Toolkit.Specs, func(s berth.CDISpec) bool {
				return s.Path == "/etc/cdi/secret.yaml" && strings.HasPrefix(s.Error, ReasonDenied)
			}) && slices.ContainsFunc(f.Toolkit.Specs, func(s berth.CDISpec) bool {
				return s.Path == "/etc/cdi/broken.json" && strings.HasPrefix(s.Error, ReasonInvalid)
			})
		}},
		{"stale-cdi", "a spec of an older driver not noticed", func(f berth.Facts) bool {
			return slices.ContainsFunc(f.Toolkit.Specs, func(s berth.CDISpec) bool {
				return s.Path == "/etc/cdi/nvidia.yaml" && s.Driver == "550.120" && slices.Contains(s.Missing, "/usr/lib/x86_64-linux-gnu/libcuda.so.550.120") && s.Mode == "0600"
			})
		}},
		{"docker-hung", "a daemon that hangs taken for none", func(f berth.Facts) bool {
			return !f.Docker.Reachable && strings.HasPrefix(unknownOf(f, FactDockerDaemon), ReasonTimeout)
		}},
		{"h100", "another's process on the card overlooked", func(f berth.Facts) bool {
			p := f.GPU.Cards[0].Processes
			return len(p) == 1 && p[0].PID == 48121 && p[0].UsedBytes == 60512<<20 && p[0].Name == "/opt/vllm/bin/python3, --model, big"
		}},
		{"rented-container", "a container without systemd planned for", func(f berth.Facts) bool {
			return f.OS.Container == "docker" && !f.OS.Systemd && f.User.UID == 0 && f.Docker.CLI == "" && f.Docker.Socket == ""
		}},
		{"rtx4090x2", "a name with a comma cut into wrong cells", func(f berth.Facts) bool {
			return f.GPU.OnBus == 2 && len(f.GPU.Cards) == 2 && f.GPU.Cards[1].Name == "NVIDIA GeForce RTX 4090, D" && f.GPU.Cards[1].ComputeCapability == "8.9"
		}},
	} {
		t.Run(tt.machine+"/"+strings.ReplaceAll(tt.bug, " ", "_"), func(t *testing.T) {
			t.Parallel()
			if f := probeFixture(t, newFixtureGuest(t, tt.machine)); !tt.ok(f) {
				text, _ := json.MarshalIndent(f, "", " ")
				t.Errorf("%s: %s\n%s", tt.machine, tt.bug, text)
			}
		})
	}
}

// A machine on which nothing may be read has no facts, and says so of each: no
// zero value passes for an answer.
func TestDeniedEverywhereIsUnknownEverywhere(t *testing.T) {
	g := newFixtureGuest(t, "h100")
	g.denied = []string{"/"}
	for p := range g.nodes {
		g.denied = append(g.denied, p)
	}
	f := probeFixture(t, g)
	for _, fact := range []FactName{
		FactDistribution, FactArchitecture, FactKernel, FactInit, FactImmutable, FactBootID, FactRebootDue, FactPackageLock, FactSecureBoot,
		FactPackages, FactPCI, FactDriverModule, FactDriverLibrary, FactNVIDIASMI, FactDockerCLI, FactDockerSocket, FactDaemonJSON,
		FactToolkit, FactCDISpecs, FactFreeDisk, FactMemory, FactUser, FactGroupConfigured, FactRoutes,
	} {
		if r := unknownOf(f, fact); r == "" {
			t.Errorf("%s is known on a machine on which nothing may be read", fact)
		}
	}
	if r := unknownOf(f, FactDaemonJSON); !strings.HasPrefix(r, ReasonDenied) {
		t.Errorf("daemon.json: %q", r)
	}
}

// A guest that does not work is an error: thirty unknown facts would be read as
// a machine in a bad state.
func TestBrokenGuestIsAnError(t *testing.T) {
	g := newFixtureGuest(t, "h100")
	g.broken = berth.Errorf(berth.CodeHostUnreachable, "the connection is gone")
	if _, err := Probe(t.Context(), fixtureProbe(g)); !errors.Is(err, berth.CodeHostUnreachable) {
		t.Errorf("got %v", err)
	}
}

func TestProbeEndsWithItsCaller(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Probe(ctx, fixtureProbe(newFixtureGuest(t, "h100"))); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// The deadline of the whole probe holds whatever hangs in it, and what was read
// by then is there.
func TestWholeDeadline(t *testing.T) {
	cfg := fixtureProbe(newFixtureGuest(t, "smi-hung"))
	cfg.Timeouts.SMI, cfg.Timeouts.Whole = time.Minute, 500*time.Millisecond
	began := time.Now()
	f, err := Probe(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("it took %s", d)
	}
	if r := unknownOf(f, FactNVIDIASMI); !strings.HasPrefix(r, ReasonTimeout) {
		t.Errorf("nvidia-smi: %q", r)
	}
	if f.OS.ID != "ubuntu" {
		t.Error("what could be read was lost")
	}
}

// Only programs that change nothing are run, each by an absolute path and with
// nothing of anyone's environment; a driver that hangs gets one process stuck.
func TestProbeRunsOnlyReaders(t *testing.T) {
	allowed := []string{
		"/usr/bin/uname -m", "/usr/bin/id", "/usr/bin/docker --version", "/usr/bin/dpkg-query -W -f ", "/usr/bin/rpm -q --qf ",
		"/usr/bin/systemctl is-active docker.service docker.socket", "/usr/bin/systemctl is-enabled nvidia-cdi-refresh.path",
		"/usr/bin/nvidia-ctk --version", "/usr/bin/nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi",
	}
	for _, name := range fixtures(t) {
		g := newFixtureGuest(t, name)
		probeFixture(t, g)
		for _, argv := range g.ran {
			command := strings.Join(argv, " ")
			if !slices.ContainsFunc(allowed, func(a string) bool { return command == a || strings.HasPrefix(command, a) }) {
				t.Errorf("%s: it runs %q", name, command)
			}
		}
		if name == "smi-hung" && len(slices.DeleteFunc(g.ran, func(a []string) bool { return !strings.HasSuffix(a[0], "nvidia-smi") })) != 1 {
			t.Errorf("a driver that hangs was asked more than once")
		}
		if name == "snap" && slices.ContainsFunc(g.ran, func(a []string) bool { return strings.Contains(a[0], "docker") }) {
			t.Errorf("the snap's docker was run: it writes into the home")
		}
	}
}

// A daemon that fails, or talks nonsense, is not one that answers.
func TestDaemonThatAnswersBadly(t *testing.T) {
	for name, tt := range map[string]struct {
		info, dial string
		fact       bool // it is unknown, not refused
	}{
		"server error":  {dial: "error"},
		"refused":       {dial: "refused"},
		"no JSON":       {info: "<html>", fact: true},
		"no version":    {info: `{"ID":"","ServerVersion":""}`, fact: true},
		"ServerErrors":  {info: `{"ServerErrors":["Cannot connect to the Docker daemon"]}`},
		"beyond bounds": {info: `{"ServerVersion":"28","Name":"` + strings.Repeat("x", maxInfoAnswer) + `"}`, fact: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newFixtureGuest(t, "cpu-only")
			g.dial = tt.dial
			if tt.info != "" {
				g.answers["/info"] = tt.info
			}
			f := probeFixture(t, g)
			if f.Docker.Reachable || f.Docker.Error == "" {
				t.Errorf("reachable %v, error %q", f.Docker.Reachable, f.Docker.Error)
			}
			if got := unknownOf(f, FactDockerDaemon) != ""; got != tt.fact {
				t.Errorf("unknown: %v, want %v", got, tt.fact)
			}
		})
	}
}

// A directory can stand in for a machine.
func TestRootAndPath(t *testing.T) {
	g := newFixtureGuest(t, "cpu-only")
	moved := map[string]*fixtureNode{}
	for p, n := range g.nodes {
		moved[strings.TrimSuffix("/lab/m1"+p, "/")] = n
	}
	moved["/"], moved["/lab"] = g.nodes["/"], g.nodes["/"]
	moved["/lab/m1/var/run"].info.Target = "../run"
	g.nodes = moved
	programs := map[string]fixtureProgram{}
	for c, p := range g.programs {
		programs["/lab/m1"+c] = p
	}
	g.programs = programs
	cfg := fixtureProbe(g)
	cfg.Root, cfg.Path, cfg.Models = "/lab/m1", []string{"/lab/m1/usr/bin"}, ""
	f, err := Probe(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if f.OS.ID != "ubuntu" || !f.Docker.Reachable || f.Docker.Socket != "/lab/m1/var/run/docker.sock" || f.Docker.Install != InstallDockerCE {
		t.Errorf("%+v", f.Docker)
	}
}

func TestProbeConfigRefuses(t *testing.T) {
	g := newFixtureGuest(t, "cpu-only")
	for name, cfg := range map[string]ProbeConfig{
		"no guest":          {},
		"relative root":     {Guest: g, Root: "lab"},
		"negative deadline": {Guest: g, Timeouts: Timeouts{SMI: -1}},
	} {
		if _, err := Probe(t.Context(), cfg); !errors.Is(err, berth.CodeInvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A context with the system's own socket is no other daemon; one elsewhere is,
// and credentials in an address do not come along.
func TestContext(t *testing.T) {
	for name, tt := range map[string]struct {
		env  map[string]string
		want string
	}{
		"none":        {nil, ""},
		"same socket": {map[string]string{"DOCKER_HOST": "unix:///var/run/docker.sock"}, ""},
		"same by run": {map[string]string{"DOCKER_HOST": "unix:///run/docker.sock"}, ""},
		"elsewhere":   {map[string]string{"DOCKER_HOST": "tcp://ada:secret@192.0.2.7:2376"}, "DOCKER_HOST=tcp://ada:xxxxx@192.0.2.7:2376"},
		"by name":     {map[string]string{"DOCKER_CONTEXT": "rootless"}, "rootless"},
		"default":     {map[string]string{"DOCKER_CONTEXT": "default"}, ""},
	} {
		cfg := fixtureProbe(newFixtureGuest(t, "cpu-only"))
		cfg.Env = tt.env
		f, err := Probe(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if f.Docker.Context != tt.want {
			t.Errorf("%s: context %q, want %q", name, f.Docker.Context, tt.want)
		}
	}
}

// gate lets a test hold a probe at its first step.
type gate struct {
	*fixtureGuest
	reached chan struct{} // one token for each probe that begins
	open    chan struct{}
}

func (g *gate) ReadFile(ctx context.Context, name string, limit int64) ([]byte, guestapi.FileInfo, error) {
	if name == "/etc/os-release" {
		g.reached <- struct{}{}
		select {
		case <-g.open:
		case <-ctx.Done():
			return nil, guestapi.FileInfo{}, ctx.Err()
		}
	}
	return g.fixtureGuest.ReadFile(ctx, name, limit)
}

// begun waits until a probe has begun.
func (g *gate) begun(t *testing.T) {
	t.Helper()
	select {
	case <-g.reached:
	case <-time.After(30 * time.Second):
		t.Fatal("no probe began")
	}
}

func newGate(t *testing.T) (*gate, *Prober) {
	g := &gate{fixtureGuest: newFixtureGuest(t, "cpu-only"), reached: make(chan struct{}, 8), open: make(chan struct{})}
	p, err := NewProber(ProbeConfig{Guest: g})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return g, p
}

type probed struct {
	facts berth.Facts
	err   error
}

func start(f func(context.Context) (berth.Facts, error), ctx context.Context) <-chan probed {
	out := make(chan probed, 1)
	go func() {
		facts, err := f(ctx)
		out <- probed{facts, err}
	}()
	return out
}

// waitFor waits until the prober's running probe has n callers.
func waitFor(t *testing.T, p *Prober, n int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		p.mu.Lock()
		have := 0
		if p.now != nil {
			have = p.now.waiting
		}
		p.mu.Unlock()
		if have == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d callers wait, want %d", have, n)
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // a caller that waits shows nowhere else
	}
}

func TestProberSharesAndNeverReuses(t *testing.T) {
	g, p := newGate(t)
	one := start(p.Probe, t.Context())
	g.begun(t)
	two := start(p.Probe, t.Context())
	waitFor(t, p, 2)
	g.setFile("/etc/group", "docker:x:988:\n")
	g.open <- struct{}{}
	if a, b := <-one, <-two; a.err != nil || b.err != nil {
		t.Fatal(a.err, b.err)
	}
	if len(g.reached) != 0 {
		t.Error("two callers at the same time made two probes")
	}
	close(g.open)
	if third := <-start(p.Probe, t.Context()); third.err != nil {
		t.Fatal(third.err)
	}
	if len(g.reached) != 1 {
		t.Error("a probe that had settled was used again")
	}
}

// The bug: the check of a host step joins a probe that looked before the step.
func TestProbeAfterDoesNotJoin(t *testing.T) {
	g, p := newGate(t)
	one := start(p.Probe, t.Context())
	g.begun(t)
	two := start(p.ProbeAfter, t.Context())
	g.begun(t) // it looks for itself
	close(g.open)
	if a, b := <-one, <-two; a.err != nil || b.err != nil {
		t.Fatal(a.err, b.err)
	}
}

func TestProberOutlivesOneCallerNotAll(t *testing.T) {
	g, p := newGate(t)
	ctx, cancel := context.WithCancel(t.Context())
	one := start(p.Probe, ctx)
	g.begun(t)
	two := start(p.Probe, t.Context())
	waitFor(t, p, 2)
	cancel()
	if r := <-one; !errors.Is(r.err, context.Canceled) {
		t.Errorf("the caller that left got %v", r.err)
	}
	g.open <- struct{}{}
	if r := <-two; r.err != nil {
		t.Errorf("the caller that stayed got %v", r.err)
	}
	// All leave: the probe ends, and the next caller gets a new one.
	ctx, cancel = context.WithCancel(t.Context())
	three := start(p.Probe, ctx)
	g.begun(t)
	cancel()
	<-three
	close(g.open)
	if r := <-start(p.Probe, t.Context()); r.err != nil {
		t.Errorf("after one that was broken off: %v", r.err)
	}
}

func TestProberCloses(t *testing.T) {
	g, p := newGate(t)
	one := start(p.Probe, t.Context())
	g.begun(t)
	p.Close()
	if r := <-one; r.err == nil {
		t.Error("a probe went on after Close")
	}
	if _, err := p.Probe(t.Context()); !errors.Is(err, berth.CodeDaemonStopping) {
		t.Errorf("after Close: %v", err)
	}
}
