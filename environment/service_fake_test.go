package environment

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/durable"
	"berth/durable/durabletest"
	"berth/guestapi"
)

const (
	testGPU    = "GPU-11111111-2222-3333-4444-555555555555"
	testEngine = "vllm"
)

func digest(c string) string { return "sha256:" + strings.Repeat(c, 64) }

func testRelease(id string, n string) berth.Release {
	return berth.Release{
		V: 1, ID: id, Engine: testEngine, Version: "0.31", MinComputeCapability: "8.0", MinDriver: "570.0", RequiredDiskBytes: 1 << 30, Port: 8000, Health: "/health", Source: "test",
		Images:      map[string]berth.Image{"linux/amd64": {Repository: "docker.io/vllm/vllm-openai", Digest: digest(n), DownloadBytes: 1000}},
		CheckImages: map[string]berth.Image{"linux/amd64": {Repository: "docker.io/nvidia/cuda", Digest: digest("c"), DownloadBytes: 10}},
	}
}

// machine is a host that is made of what a test says of it. All of it is guarded
// by mu; calls are noted in the order in which they came.
type machine struct {
	mu       sync.Mutex
	facts    berth.Facts
	factsErr error
	calls    []string
	fail     map[string]error // by call, until taken out
	images   map[string]bool
	users    map[string][]string // containers by image reference
	check    CheckResult
	files    map[string][]byte
	modes    map[string]uint32
	undo     []UndoEntry
	owned    []string
	helper   bool // a process has the request among its arguments
	block    map[string]chan struct{}
	entered  chan string // names of blocked calls as they are entered
}

func newMachine() *machine {
	return &machine{
		facts: workingFacts(), fail: map[string]error{}, images: map[string]bool{}, users: map[string][]string{},
		check: CheckResult{Stdout: testGPU + "\n"}, files: map[string][]byte{}, modes: map[string]uint32{},
		block: map[string]chan struct{}{}, entered: make(chan string, 64),
	}
}

// workingFacts are those of a machine on which containers get the GPU already.
func workingFacts() berth.Facts {
	return berth.Facts{
		OS:  berth.OSFacts{ID: "debian", Version: "12", Codename: "bookworm", Family: FamilyAPT, Architecture: "x86_64", Systemd: true},
		GPU: berth.GPUFacts{OnBus: 1, Module: "580.65", Library: "580.65", CUDA: "13.0", SMI: "/usr/bin/nvidia-smi", Cards: []berth.GPU{{UUID: testGPU, Name: "NVIDIA H100", ComputeCapability: "9.0", MemoryBytes: 80 << 30, FreeBytes: 80 << 30, Driver: "580.65"}}},
		Docker: berth.DockerFacts{CLI: "/usr/bin/docker", Install: "docker-ce", Socket: "/var/run/docker.sock", SocketGroup: "docker", Reachable: true, Version: "28.3", API: "1.51",
			CDI: true, CDIDevices: []string{"nvidia.com/gpu=" + testGPU}, Root: "/var/lib/docker", Service: "active", DaemonJSON: daemonAbsent},
		Toolkit: berth.ToolFacts{CTK: "/usr/bin/nvidia-ctk", Version: "1.18"},
		Disk:    []berth.DiskFacts{{Purpose: DiskDockerRoot, Path: "/var/lib/docker", FreeBytes: 1 << 40}, {Purpose: DiskContainerdRoot, Path: "/var/lib/containerd", FreeBytes: 1 << 40}},
		Memory:  berth.MemoryFacts{TotalBytes: 64 << 30, AvailableBytes: 60 << 30},
		User:    berth.UserFacts{Name: "ada", UID: 1000, GID: 1000, GroupConfigured: true, GroupEffective: true, Linger: true},
		Unknown: []berth.Unknown{}, BootID: "boot-1",
	}
}

// bareFacts are those of the same machine before anything was installed.
func bareFacts() berth.Facts {
	f := workingFacts()
	f.Docker = berth.DockerFacts{DaemonJSON: daemonAbsent}
	f.Toolkit = berth.ToolFacts{}
	f.User.GroupConfigured, f.User.GroupEffective = false, false
	return f
}

// call notes a call, waits where a test blocks it, and fails where one says so.
func (m *machine) call(ctx context.Context, format string, a ...any) error {
	name := fmt.Sprintf(format, a...)
	m.mu.Lock()
	m.calls = append(m.calls, name)
	err, gate := m.fail[name], m.block[name]
	m.mu.Unlock()
	if gate != nil {
		m.entered <- name
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

func (m *machine) set(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// did are the calls so far, without those that only look.
func (m *machine) did() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(m.calls), func(c string) bool { return strings.HasPrefix(c, "look ") })
}

func (m *machine) Probe(ctx context.Context) (berth.Facts, error) { return m.ProbeAfter(ctx) }
func (m *machine) ProbeAfter(ctx context.Context) (berth.Facts, error) {
	if err := m.call(ctx, "look facts"); err != nil {
		return berth.Facts{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.facts, m.factsErr
}

func short(i berth.Image) string { return path.Base(i.Repository) + "@" + i.Digest[7:8] }

func (m *machine) ImagePresent(ctx context.Context, i berth.Image) (bool, error) {
	if err := m.call(ctx, "look image %s", short(i)); err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.images[i.Reference()], nil
}

func (m *machine) Pull(ctx context.Context, i berth.Image, report func(berth.Progress)) error {
	report(berth.Progress{Stage: "download", Done: i.DownloadBytes / 2, Total: i.DownloadBytes, Unit: "bytes"})
	if err := m.call(ctx, "pull %s", short(i)); err != nil {
		return err
	}
	m.set(func() { m.images[i.Reference()] = true })
	return nil
}

func (m *machine) Check(ctx context.Context, c Check) (CheckResult, error) {
	if err := m.call(ctx, "check %s as %s", c.GPU[:5], c.CDIDevice[:len("nvidia.com/gpu")]); err != nil {
		return CheckResult{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.check, nil
}

func (m *machine) ImageUsers(ctx context.Context, i berth.Image) ([]string, error) {
	err := m.call(ctx, "look users %s", short(i))
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.users[i.Reference()], err
}

func (m *machine) RemoveImage(ctx context.Context, i berth.Image) error {
	if err := m.call(ctx, "remove image %s", short(i)); err != nil {
		return err
	}
	m.set(func() { delete(m.images, i.Reference()) })
	return nil
}

func (m *machine) Owned(context.Context, string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.owned, nil
}

func (m *machine) RemoveOwned(ctx context.Context, engine string) error {
	return m.call(ctx, "remove containers of %s", engine)
}

func (m *machine) RequireCUDA(context.Context, berth.Image) (string, error) { return "", nil }

func (m *machine) Hold(ctx context.Context, engine string) (func(), error) {
	return func() { _ = m.call(context.Background(), "release %s", engine) }, m.call(ctx, "hold %s", engine)
}

func (m *machine) Unload(ctx context.Context, engine string) error {
	return m.call(ctx, "unload %s", engine)
}

func (m *machine) RemoveCaches(ctx context.Context, release string) error {
	return m.call(ctx, "remove caches of %s", release)
}

func (m *machine) RemoveModels(ctx context.Context) error { return m.call(ctx, "remove models") }

// The guest of the machine: files, and a pgrep.
type machineGuest struct {
	Guest // what is not here is not called
	m     *machine
}

func (g machineGuest) Exec(ctx context.Context, e guestapi.Exec) (guestapi.ExecResult, error) {
	if err := g.m.call(ctx, "look %s", e.Argv[0]); err != nil {
		return guestapi.ExecResult{}, err
	}
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	if g.m.helper {
		return guestapi.ExecResult{}, nil
	}
	return guestapi.ExecResult{Code: 1}, nil
}

func (g machineGuest) ReadFile(_ context.Context, p string, _ int64) ([]byte, guestapi.FileInfo, error) {
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	if data, ok := g.m.files[p]; ok {
		return data, guestapi.FileInfo{}, nil
	}
	return nil, guestapi.FileInfo{}, berth.Errorf(berth.CodeNotFound, "no file %s", p)
}

func (g machineGuest) Stat(_ context.Context, p string, _ bool) (guestapi.FileInfo, error) {
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	return guestapi.FileInfo{Path: p, Type: guestapi.FileDir, Mode: g.m.modes[p]}, nil
}

func (g machineGuest) MkdirAll(_ context.Context, p string, mode uint32) error {
	g.m.set(func() {
		if _, ok := g.m.modes[p]; !ok {
			g.m.modes[p] = mode
		}
	})
	return nil
}

func (g machineGuest) WriteFile(ctx context.Context, p string, data []byte, mode uint32) error {
	if err := g.m.call(ctx, "write %s", path.Ext(p)); err != nil {
		return err
	}
	g.m.set(func() { g.m.files[p], g.m.modes[p] = data, mode })
	return nil
}

func (g machineGuest) RemoveFile(_ context.Context, p string) error {
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	if _, ok := g.m.files[p]; !ok {
		return berth.Errorf(berth.CodeNotFound, "no file %s", p)
	}
	delete(g.m.files, p)
	return nil
}

func (g machineGuest) Dial(context.Context, string, string) (net.Conn, error) {
	return nil, net.ErrClosed
}

// testSteps writes host steps as JSON of the root nouns.
type testSteps struct{ m *machine }

func (testSteps) Recipe() berth.RecipeRef {
	return berth.RecipeRef{ID: "linux-r2", Digest: digest("e")}
}
func (testSteps) ParametersDigest(p berth.HostStepParameters) (string, error) {
	return durable.Fingerprint(p)
}
func (testSteps) Files(id string) (string, string) { return id + ".request", id + ".result" }
func (testSteps) Request(op string, s berth.HostStep, _ time.Time) ([]byte, error) {
	return json.Marshal(s)
}
func (testSteps) TrustHelper(context.Context, Guest, string, int) error { return nil }
func (testSteps) Receipt(data []byte) (r berth.Receipt, err error) {
	return r, json.Unmarshal(data, &r)
}
func (t testSteps) Undo(context.Context, HostState) ([]UndoEntry, error) {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	return slices.Clone(t.m.undo), nil
}

type testReleases map[string]berth.Release

func (t testReleases) Get(id string) (berth.Release, error) {
	if r, ok := t[id]; ok {
		return r, nil
	}
	return berth.Release{}, berth.Errorf(berth.CodeReleaseNotFound, "no release %s", id)
}

func (t testReleases) Known(engine string) error {
	_, err := t.newest(engine, false)
	return err
}

func (t testReleases) Latest(engine, _ string) (berth.Release, error) {
	return t.newest(engine, false)
}

func (t testReleases) LatestForCPU(engine, _ string) (berth.Release, error) {
	return t.newest(engine, true)
}

func (t testReleases) newest(engine string, cpu bool) (berth.Release, error) {
	var best berth.Release
	for _, r := range t {
		if r.Engine == engine && r.ID > best.ID && (!cpu || !r.NeedsGPU()) {
			best = r
		}
	}
	if best.ID == "" {
		return best, berth.Errorf(berth.CodeReleaseNotFound, "no release of %s", engine)
	}
	return best, nil
}

// rig is a service on a machine, with a store in memory.
type rig struct {
	t     *testing.T
	m     *machine
	store durable.Store
	cfg   Config
	s     *Service
	log   *bytes.Buffer
}

var pids atomic.Int64

func owner() berth.Identity {
	return berth.Identity{BootID: "4d3c2b1a-0000-4000-8000-000000000000", PID: int(pids.Add(1)), StartTime: 7}
}

func newRig(t *testing.T) *rig {
	t.Helper()
	manifests, err := EmbeddedManifests()
	if err != nil {
		t.Fatal(err)
	}
	g := &rig{t: t, m: newMachine(), store: durabletest.NewFault(durabletest.FaultConfig{Owner: owner()}), log: &bytes.Buffer{}}
	g.cfg = Config{
		Releases: testReleases{"vllm-1": testRelease("vllm-1", "1")}, HostSteps: testSteps{g.m}, Manifests: manifests,
		Liveness: func(berth.Identity) durable.Liveness { return durable.OwnerDead },
		Now:      time.Now, Random: &counter{}, Log: slog.New(slog.NewTextHandler(&syncBuffer{b: g.log}, nil)), Version: "1.0", WatchEvery: 5 * time.Millisecond,
		Hosts: []Host{{Name: "local", Guest: machineGuest{m: g.m}, Facts: g.m, State: &Prober{}, Containers: g.m, Engines: g.m, StepDir: "/home/ada/steps", Helper: []string{"/usr/lib/berth/berth-hoststep"}}},
	}
	g.start()
	t.Cleanup(func() { g.stop() })
	return g
}

type syncBuffer struct {
	mu sync.Mutex
	b  *bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

// counter is a source of randomness whose every draw is another.
type counter struct{ n atomic.Uint64 }

func (c *counter) Read(p []byte) (int, error) {
	n := c.n.Add(1)
	for i := range p {
		p[i] = byte(n >> (8 * (uint(i) % 8)))
	}
	return len(p), nil
}

func (g *rig) start() {
	g.t.Helper()
	g.cfg.Store = g.store
	s, err := New(g.cfg)
	if err != nil {
		g.t.Fatal(err)
	}
	g.s = s
}

func (g *rig) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := g.s.Shutdown(ctx); err != nil {
		g.t.Errorf("shutdown: %v", err)
	}
}

// die ends the daemon and lets the next one open the store. What ran stays as it
// was.
func (g *rig) die() {
	g.t.Helper()
	g.stop()
	g.store = g.store.(*durabletest.Fault).Reopen(owner())
	g.start()
}

func (g *rig) recover() {
	g.t.Helper()
	if err := g.s.Recover(g.t.Context()); err != nil {
		g.t.Fatal(err)
	}
}

func (g *rig) begin(b berth.BeginOperation) berth.Operation {
	g.t.Helper()
	if b.Kind == "" {
		b.Kind = berth.OperationSetup
	}
	if b.Target.Host == "" {
		b.Target = berth.Target{Host: "local", Engine: testEngine}
	}
	op, _, err := g.s.Begin(g.t.Context(), "", b)
	if err != nil {
		g.t.Fatal(err)
	}
	return op
}

// until waits until an operation is as wanted, and fails with where it stands.
func (g *rig) until(id string, what string, want func(berth.Operation) bool) berth.Operation {
	g.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		op, err := g.s.Get(g.t.Context(), id)
		if err != nil {
			g.t.Fatal(err)
		}
		if want(op) {
			return op
		}
		if time.Now().After(deadline) {
			g.t.Fatalf("it is not %s, but %s %s: %+v\n%s", what, op.Phase, op.Effect, op.Error, jsonOf(op.Plan))
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // a condition that nobody signals
	}
}

func (g *rig) phase(id string, p berth.Phase) berth.Operation {
	g.t.Helper()
	return g.until(id, string(p), func(o berth.Operation) bool {
		if o.Phase == berth.PhaseFailed && p != berth.PhaseFailed {
			g.t.Fatalf("it failed instead of being %s: %+v", p, o.Error)
		}
		return o.Phase == p
	})
}

func (g *rig) failed(id string, code berth.Code) berth.Operation {
	g.t.Helper()
	op := g.phase(id, berth.PhaseFailed)
	if op.Error == nil || op.Error.Code != code {
		g.t.Fatalf("it failed with %+v, not %s", op.Error, code)
	}
	return op
}

func (g *rig) resume(id, approve string) berth.Operation {
	g.t.Helper()
	op, err := g.s.Get(g.t.Context(), id)
	if err != nil {
		g.t.Fatal(err)
	}
	if op, err = g.s.Resume(g.t.Context(), id, berth.ResumeOperation{Revision: op.Revision, Approve: approve}); err != nil {
		g.t.Fatal(err)
	}
	return op
}

// agreed begins an operation with the digest of its plan.
func (g *rig) agreed(b berth.BeginOperation) berth.Operation {
	g.t.Helper()
	if b.Target.Host == "" {
		b.Target = berth.Target{Host: "local", Engine: testEngine}
	}
	p, err := g.s.Probe(g.t.Context(), berth.ProbeRequest{Kind: b.Kind, Target: b.Target, Release: b.Release, RetainModels: b.RetainModels})
	if err != nil {
		g.t.Fatal(err)
	}
	b.Approve = p.Digest
	return g.begin(b)
}

func (g *rig) installed() *berth.Installation {
	g.t.Helper()
	in, _, err := g.s.does.insts.get(g.t.Context(), berth.Target{Host: "local", Engine: testEngine})
	if err != nil {
		g.t.Fatal(err)
	}
	return in
}

func wantCode(t *testing.T, err error, code berth.Code) {
	t.Helper()
	if berth.AsError(err) == nil || berth.AsError(err).Code != code {
		t.Fatalf("%v is not %s", err, code)
	}
}
