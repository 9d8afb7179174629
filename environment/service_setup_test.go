package environment

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
)

func TestSetup(t *testing.T) {
	g := newRig(t)
	op := g.begin(berth.BeginOperation{})
	asked := g.phase(op.ID, berth.PhaseAwaitingConsent)
	if asked.Plan == nil || asked.Plan.Facts != nil || asked.PlanDigest != asked.Plan.Digest || asked.ApprovedDigest != "" {
		t.Fatalf("it asks with %+v", asked)
	}
	g.resume(op.ID, asked.PlanDigest)
	op = g.phase(op.ID, berth.PhaseReady)
	want := []string{"pull cuda@c", "check GPU-1 as nvidia.com/gpu", "pull vllm-openai@1"}
	if got := g.m.did(); !slices.Equal(got, want) {
		t.Errorf("it did %q", got)
	}
	in := g.installed()
	if in == nil || in.Status != berth.InstallationReady || in.Operation != op.ID || in.Device != "gpu" || in.CheckImage == nil ||
		in.Release.ID != "vllm-1" || in.Platform != "linux/amd64" || in.Verified["driver"] != "580.65" || in.Verified["docker"] != "28.3" {
		t.Errorf("installed is %+v", in)
	}
	if op.PlanDigest != op.ApprovedDigest || op.Consent == nil || op.Consent.Image != digest("1") || op.Effect != "" {
		t.Errorf("it ended as %+v", op)
	}
	all, err := g.s.List(t.Context())
	if err != nil || len(all.Environments) != 1 || len(all.Environments[0].Installations) != 1 || all.Environments[0].Active != "" {
		t.Errorf("%+v, %v", all, err)
	}
}

// An operation's own time, with effects that take none, is not felt.
func TestOperationTime(t *testing.T) {
	g := newRig(t)
	p, err := g.s.Probe(t.Context(), berth.ProbeRequest{Target: berth.Target{Host: "local", Engine: testEngine}})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	op := g.begin(berth.BeginOperation{Approve: p.Digest})
	g.phase(op.ID, berth.PhaseReady)
	took := time.Since(began)
	t.Logf("%s", took)
	if took > 100*time.Millisecond {
		t.Errorf("it took %s", took)
	}
}

// The engine's image does not move before a container saw the GPU.
func TestCheckFailsBeforeThePull(t *testing.T) {
	for name, result := range map[string]CheckResult{
		"another card": {Stdout: "GPU-99999999-2222-3333-4444-555555555555\n"},
		"no card":      {ExitCode: 9, Stderr: "no devices were found"},
		"only a part":  {Stdout: "x" + testGPU + "\n"},
		"SELinux":      {ExitCode: 255, Stdout: "Failed to initialize NVML: Insufficient Permissions"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			g.m.check = result
			op := g.failed(g.agreed(berth.BeginOperation{}).ID, berth.CodeCheckFailed)
			if op.Error.Facts["rung"] != "container_gpu" || op.Error.Facts["stderr"] != result.Stderr {
				t.Errorf("facts %v", op.Error.Facts)
			}
			if name == "SELinux" && !strings.Contains(op.Error.Hint, "container_use_devices") {
				t.Errorf("hint %q", op.Error.Hint)
			}
			if slices.Contains(g.m.did(), "pull vllm-openai@1") {
				t.Error("the engine was pulled")
			}
			g.m.set(func() { g.m.check = CheckResult{Stdout: testGPU} })
			g.resume(op.ID, "")
			g.phase(op.ID, berth.PhaseReady)
		})
	}
}

// Each rung that facts can show fails under its own name: a person is told which
// part of the way to the card is broken.
func TestClimb(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*berth.Facts)
		rung   string // "" = it passes
	}{
		"all is well":           {func(*berth.Facts) {}, ""},
		"no card on the bus":    {func(f *berth.Facts) { f.GPU.OnBus = 0 }, "pci"},
		"the bus is not known":  {func(f *berth.Facts) { f.GPU.OnBus = 0; f.Unknown = []berth.Unknown{{Fact: string(FactPCI)}} }, ""},
		"driver was upgraded":   {func(f *berth.Facts) { f.GPU.Library, f.GPU.Cards = "590.1", nil }, "driver"},
		"a library of before":   {func(f *berth.Facts) { f.GPU.Library = "590.1" }, ""}, // the one in use fits, since cards are listed
		"another card":          {func(f *berth.Facts) { f.GPU.Cards[0].UUID = "GPU-2" }, "nvidia_smi"},
		"Docker is gone":        {func(f *berth.Facts) { f.Docker.Reachable = false }, "docker"},
		"CDI was turned off":    {func(f *berth.Facts) { f.Docker.CDI = false }, "gpu_route"},
		"not in any CDI device": {func(f *berth.Facts) { f.Docker.CDIDevices, f.Toolkit.Specs = []string{CDIKind + "=GPU-2"}, nil }, "gpu_route"},
	} {
		f := workingFacts()
		f.GPU.Library = f.GPU.Module
		f.GPU.OnBus = 1
		c.change(&f)
		rung := ""
		if err := climb(f, berth.Plan{GPU: testGPU}); err != nil {
			rung = berth.AsError(err).Facts["rung"]
		}
		if rung != c.rung {
			t.Errorf("%s: fell from %q, want %q", name, rung, c.rung)
		}
	}
}

// What the machine has already is not pulled, and is not berth's to remove.
func TestSetupOwnsOnlyWhatItPulled(t *testing.T) {
	g := newRig(t)
	r := testRelease("vllm-1", "1")
	g.m.images[r.Images["linux/amd64"].Reference()], g.m.images[r.CheckImages["linux/amd64"].Reference()] = true, true
	op := g.phase(g.agreed(berth.BeginOperation{}).ID, berth.PhaseReady)
	if in := g.installed(); in.CheckImage != nil {
		t.Errorf("it claims %+v", in)
	}
	rm := g.agreed(berth.BeginOperation{Kind: berth.OperationRemove})
	g.phase(rm.ID, berth.PhaseRemoved)
	if !g.m.images[r.CheckImages["linux/amd64"].Reference()] {
		t.Errorf("%s removed somebody's image: %q", op.ID, g.m.did())
	}
}

// An image that an operation pulled which then failed is still berth's when a
// later operation finds it.
func TestOwnershipOutlivesAFailedOperation(t *testing.T) {
	g := newRig(t)
	g.m.fail["pull vllm-openai@1"] = berth.Errorf(berth.CodePullFailed, "no")
	g.failed(g.agreed(berth.BeginOperation{}).ID, berth.CodePullFailed)
	g.m.set(func() { clear(g.m.fail) })
	g.phase(g.agreed(berth.BeginOperation{}).ID, berth.PhaseReady)
	if in := g.installed(); in.CheckImage == nil {
		t.Errorf("it forgot what it pulled: %+v", in)
	}
}

func TestPullIsResumedAsAPull(t *testing.T) {
	g := newRig(t)
	g.m.fail["pull vllm-openai@1"] = berth.Errorf(berth.CodePullFailed, "the line broke")
	op := g.failed(g.agreed(berth.BeginOperation{}).ID, berth.CodePullFailed)
	g.m.set(func() { clear(g.m.fail); g.m.calls = nil })
	g.resume(op.ID, op.ApprovedDigest)
	g.phase(op.ID, berth.PhaseReady)
	if got := g.m.did(); !slices.Equal(got, []string{"pull vllm-openai@1"}) {
		t.Errorf("it did %q", got)
	}
}

func TestProgressIsMergedWhileItRuns(t *testing.T) {
	g := newRig(t)
	gate := make(chan struct{})
	g.m.block["pull vllm-openai@1"] = gate
	op := g.agreed(berth.BeginOperation{})
	<-g.m.entered
	now := g.until(op.ID, "pulling with progress", func(o berth.Operation) bool { return o.Progress != nil && o.Progress.Done == 500 })
	if now.Phase != berth.PhasePulling || now.Effect != "pull" || now.Progress.Total != 1000 {
		t.Errorf("%+v", now)
	}
	close(gate)
	if op := g.phase(op.ID, berth.PhaseReady); op.Progress != nil {
		t.Errorf("it is ready with %+v", op.Progress)
	}
}

func TestCancelWhilePulling(t *testing.T) {
	g := newRig(t)
	g.m.block["pull vllm-openai@1"] = make(chan struct{})
	op := g.agreed(berth.BeginOperation{})
	<-g.m.entered
	if _, err := g.s.Cancel(t.Context(), op.ID); err != nil {
		t.Fatal(err)
	}
	g.phase(op.ID, berth.PhaseCancelled)
	again, err := g.s.Cancel(t.Context(), op.ID) // answered as it is
	if err != nil || again.Phase != berth.PhaseCancelled {
		t.Fatalf("%+v, %v", again, err)
	}
	// The host is free again, and the cancelled one cannot come back meanwhile.
	g.m.set(func() { clear(g.m.block) })
	gate := make(chan struct{})
	g.m.set(func() { g.m.block["check GPU-1 as nvidia.com/gpu"] = gate })
	next := g.agreed(berth.BeginOperation{})
	<-g.m.entered
	_, err = g.s.Resume(t.Context(), op.ID, berth.ResumeOperation{Revision: again.Revision})
	wantCode(t, err, berth.CodeConflict)
	if holder := berth.AsError(err).Facts["holder"]; holder != next.ID {
		t.Errorf("held by %s", holder)
	}
	close(gate)
	g.phase(next.ID, berth.PhaseReady)
}

func TestBeginIsIdempotent(t *testing.T) {
	g := newRig(t)
	b := berth.BeginOperation{Kind: berth.OperationSetup, Target: berth.Target{Host: "local", Engine: testEngine}}
	one, created, err := g.s.Begin(t.Context(), "k", b)
	if err != nil || !created {
		t.Fatal(created, err)
	}
	two, created, err := g.s.Begin(t.Context(), "k", b)
	if err != nil || created || two.ID != one.ID {
		t.Fatalf("%s %v %v", two.ID, created, err)
	}
	b.RetainModels = true
	_, _, err = g.s.Begin(t.Context(), "k", b)
	wantCode(t, err, berth.CodeConflict)
	_, _, err = g.s.Begin(t.Context(), "other", b) // the host is taken
	wantCode(t, err, berth.CodeConflict)
	if berth.AsError(err).Facts["holder"] != one.ID {
		t.Errorf("facts %v", berth.AsError(err).Facts)
	}
}

func TestBeginRefusals(t *testing.T) {
	g := newRig(t)
	local := berth.Target{Host: "local", Engine: testEngine}
	for name, c := range map[string]struct {
		b    berth.BeginOperation
		code berth.Code
	}{
		"no kind":            {berth.BeginOperation{Target: local}, berth.CodeInvalidArgument},
		"no such host":       {berth.BeginOperation{Kind: berth.OperationSetup, Target: berth.Target{Host: "moon"}}, berth.CodeNotFound},
		"bad engine":         {berth.BeginOperation{Kind: berth.OperationSetup, Target: berth.Target{Host: "local", Engine: "../x"}}, berth.CodeInvalidArgument},
		"no such release":    {berth.BeginOperation{Kind: berth.OperationSetup, Target: local, Release: "vllm-9"}, berth.CodeReleaseNotFound},
		"release of removal": {berth.BeginOperation{Kind: berth.OperationRemove, Target: local, Release: "vllm-1"}, berth.CodeInvalidArgument},
		"update of the host": {berth.BeginOperation{Kind: berth.OperationUpdate, Target: berth.Target{Host: "local"}}, berth.CodeInvalidArgument},
		"reinstalled host":   {berth.BeginOperation{Reinstall: true, Target: berth.Target{Host: "local"}}, berth.CodeInvalidArgument},
	} {
		_, _, err := g.s.Begin(t.Context(), "", c.b)
		if berth.AsError(err) == nil || berth.AsError(err).Code != c.code {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := g.s.Get(t.Context(), "op-nothing")
	wantCode(t, err, berth.CodeNotFound)
	_, err = g.s.Cancel(t.Context(), "../../x")
	wantCode(t, err, berth.CodeNotFound)
}

// No provisioner is a fact, not a failure of anything.
func TestUnsupportedHost(t *testing.T) {
	g := newRig(t)
	g.stop()
	g.cfg.Hosts = append(g.cfg.Hosts, Host{Name: "mac", Unsupported: "berth sets up Linux hosts"})
	g.start()
	target := berth.Target{Host: "mac", Engine: testEngine}
	p, err := g.s.Probe(t.Context(), berth.ProbeRequest{Target: target})
	if err != nil || p.Availability != berth.Unsupported {
		t.Fatalf("%+v, %v", p, err)
	}
	op := g.failed(g.begin(berth.BeginOperation{Target: target}).ID, berth.CodeUnsupported)
	if !strings.Contains(op.Error.Detail, "Linux") {
		t.Errorf("it says %q", op.Error.Detail)
	}
	all, err := g.s.List(t.Context())
	if err != nil || all.Environments[1].Supported || all.Environments[1].Reason == "" {
		t.Errorf("%+v, %v", all, err)
	}
	g.begin(berth.BeginOperation{Target: target}) // nothing is in the way
}

// An architecture that no engine is made for, or that cannot be read, is what
// stands against a setup: not the lack of a release for it.
func TestArchitectureComesFirst(t *testing.T) {
	for arch, want := range map[string]berth.BlockerReason{"riscv64": berth.BlockArchitecture, "": berth.BlockUnknownFact} {
		g := newRig(t)
		g.m.facts.OS.Architecture = arch
		if arch == "" {
			g.m.facts.Unknown = []berth.Unknown{{Fact: string(FactArchitecture), Reason: ReasonFailed}}
		}
		p, err := g.s.Probe(t.Context(), berth.ProbeRequest{Target: berth.Target{Host: "local", Engine: testEngine}})
		if err != nil || len(p.Blockers) == 0 || p.Blockers[0].Reason != string(want) {
			t.Errorf("%q: %+v, %v", arch, p.Blockers, err)
		}
	}
}

func TestConsent(t *testing.T) {
	g := newRig(t)
	op := g.begin(berth.BeginOperation{Approve: digest("f")})
	asked := g.phase(op.ID, berth.PhaseAwaitingConsent)
	if asked.Error == nil || asked.Error.Code != berth.CodePlanChanged {
		t.Fatalf("it asks again with %+v", asked.Error)
	}
	_, err := g.s.Resume(t.Context(), op.ID, berth.ResumeOperation{Revision: asked.Revision})
	wantCode(t, err, berth.CodeConsentRequired)
	_, err = g.s.Resume(t.Context(), op.ID, berth.ResumeOperation{Revision: asked.Revision - 1, Approve: asked.PlanDigest})
	wantCode(t, err, berth.CodeRevisionMismatch)
	_, err = g.s.Resume(t.Context(), op.ID, berth.ResumeOperation{Revision: asked.Revision, Approve: digest("f")})
	wantCode(t, err, berth.CodePlanChanged)
	// The machine changes between the question and the answer.
	g.m.set(func() { g.m.facts.Docker.Root = "/srv/docker" })
	g.resume(op.ID, asked.PlanDigest)
	again := g.until(op.ID, "asking again", func(o berth.Operation) bool {
		return o.Phase == berth.PhaseAwaitingConsent && o.Revision > asked.Revision
	})
	if again.PlanDigest == asked.PlanDigest || len(g.m.did()) != 0 {
		t.Fatalf("it did %q under %s", g.m.did(), again.PlanDigest)
	}
	g.resume(op.ID, again.PlanDigest)
	g.phase(op.ID, berth.PhaseReady)
}

// What was not learnt ends no wait, and is not taken for a card that is missing.
func TestUnknownEndsNothing(t *testing.T) {
	waiting := berth.Facts{User: berth.UserFacts{UID: 1000, GroupConfigured: true}}
	for name, c := range map[string]struct {
		change func(*berth.Facts)
		over   bool
	}{
		"still waiting": {func(*berth.Facts) {}, false},
		"groups not read": {func(f *berth.Facts) {
			f.User = berth.UserFacts{}
			f.Unknown = []berth.Unknown{{Fact: string(FactUser)}}
		}, false},
		"Docker is stopped": {func(f *berth.Facts) { f.Docker.Service = "inactive" }, false},
		"effective":         {func(f *berth.Facts) { f.User.GroupEffective = true }, true},
		"Docker answers":    {func(f *berth.Facts) { f.Docker.Reachable = true }, true},
		"taken out of it":   {func(f *berth.Facts) { f.User.GroupConfigured = false }, true},
	} {
		f := waiting
		c.change(&f)
		if got := over(effWatchRelogin, opState{}, f); got != c.over {
			t.Errorf("%s: %v", name, got)
		}
	}
	for name, c := range map[string]struct {
		facts berth.Facts
		want  bool
	}{
		"none on the bus": {berth.Facts{}, true},
		"WSL":             {berth.Facts{OS: berth.OSFacts{WSL: 2}}, false},
		"Jetson":          {berth.Facts{GPU: berth.GPUFacts{JetsonRelease: "R36.4"}}, false},
		"a hung driver":   {berth.Facts{Unknown: []berth.Unknown{{Fact: string(FactNVIDIASMI)}}}, false},
		"on the bus":      {berth.Facts{GPU: berth.GPUFacts{OnBus: 1}}, false},
	} {
		if got := cardless(c.facts); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A guest that is replaced, or dies, while a machine is looked at is waited for.
func TestLookOutlastsTheGuest(t *testing.T) {
	g := newRig(t)
	g.m.set(func() { g.m.factsErr = berth.Errorf(berth.CodeHostUnreachable, "gone") })
	op := g.begin(berth.BeginOperation{})
	g.until(op.ID, "looked in vain", func(berth.Operation) bool {
		g.m.mu.Lock()
		defer g.m.mu.Unlock()
		return len(g.m.calls) >= 1
	})
	g.m.set(func() { g.m.factsErr = nil })
	g.phase(op.ID, berth.PhaseAwaitingConsent)
}

// An update to what is installed already changes nothing: what is loaded goes on.
func TestUpdateToTheNewest(t *testing.T) {
	g := newRig(t)
	g.phase(g.agreed(berth.BeginOperation{}).ID, berth.PhaseReady)
	before := g.installed()
	g.m.set(func() { g.m.calls = nil })
	op := g.phase(g.begin(berth.BeginOperation{Kind: berth.OperationUpdate}).ID, berth.PhaseReady)
	g.m.set(func() {
		if slices.ContainsFunc(g.m.calls, func(c string) bool { return strings.HasPrefix(c, "unload") || strings.HasPrefix(c, "pull") }) {
			t.Errorf("it did %q", g.m.calls)
		}
	})
	if len(op.Plan.Changes) != 0 || g.installed().Operation != before.Operation {
		t.Errorf("%+v", op.Plan)
	}
}

// A release that is added while a person reads does not change what they read.
func TestAReleaseIsSettledByTheFirstPlan(t *testing.T) {
	g := newRig(t)
	op := g.begin(berth.BeginOperation{})
	asked := g.phase(op.ID, berth.PhaseAwaitingConsent)
	g.cfg.Releases.(testReleases)["vllm-2"] = testRelease("vllm-2", "2")
	g.resume(op.ID, asked.PlanDigest)
	g.phase(op.ID, berth.PhaseReady)
	if in := g.installed(); in.Release.ID != "vllm-1" {
		t.Errorf("installed is %s", in.Release.ID)
	}
}

func TestRelogin(t *testing.T) {
	g := newRig(t)
	g.m.facts.Docker = berth.DockerFacts{CLI: "/usr/bin/docker", Install: "docker-ce", Package: "28.3", Socket: "/var/run/docker.sock", SocketGroup: "docker", Service: "active", DaemonJSON: daemonAbsent}
	g.m.facts.User.GroupEffective = false
	g.m.facts.Toolkit.Packages = []string{"nvidia-container-toolkit-base=1.18"}
	g.m.facts.Toolkit.Specs = []berth.CDISpec{{Path: "/var/run/cdi/nvidia.yaml", Kind: CDIKind, Devices: []string{testGPU}, Driver: "580.65"}}
	op := g.begin(berth.BeginOperation{})
	got := g.until(op.ID, "waiting", func(o berth.Operation) bool {
		return o.Phase == berth.PhaseAwaitingRelogin || o.Phase == berth.PhaseFailed
	})
	if got.Phase != berth.PhaseAwaitingRelogin {
		t.Skipf("these facts lack more than a login: %s", jsonOf(got.Plan.Blockers))
	}
	if got.Effect != "" {
		t.Errorf("it shows the effect %q", got.Effect)
	}
	// A person who cannot wait is told the same by the machine.
	again := g.resume(op.ID, "")
	got = g.until(op.ID, "waiting again", func(o berth.Operation) bool {
		return o.Phase == berth.PhaseAwaitingRelogin && o.Revision > again.Revision
	})
	// Not every new login is one: what else helps must be said.
	if got.Error == nil || !strings.Contains(got.Error.Hint, "berth up") || !strings.Contains(got.Error.Hint, "restart the machine") {
		t.Errorf("it says %+v", got.Error)
	}
	g.m.set(func() { g.m.facts = workingFacts() })
	g.s.Nudge("local")
	g.phase(op.ID, berth.PhaseAwaitingConsent)
}

func TestUpdate(t *testing.T) {
	g := newRig(t)
	g.phase(g.agreed(berth.BeginOperation{}).ID, berth.PhaseReady)
	g.cfg.Releases.(testReleases)["vllm-2"] = testRelease("vllm-2", "2")
	g.m.set(func() { g.m.calls = nil })
	g.phase(g.agreed(berth.BeginOperation{Kind: berth.OperationUpdate, Release: "vllm-2"}).ID, berth.PhaseReady)
	want := []string{"pull vllm-openai@2", "hold vllm", "unload vllm", "remove containers of vllm", "release vllm", "remove image vllm-openai@1"}
	if got := g.m.did(); !slices.Equal(got, want) {
		t.Errorf("it did %q", got)
	}
	if in := g.installed(); in.Release.ID != "vllm-2" || in.CheckImage == nil || in.Superseded != nil {
		t.Errorf("installed is %+v", in)
	}
}

// A change of any version that the ladder was climbed with asks for a new climb.
func TestChangedVersions(t *testing.T) {
	in := berth.Installation{Verified: versionsOf(workingFacts(), testGPU)}
	if got := changedVersions(in, workingFacts()); len(got) != 0 {
		t.Errorf("nothing changed, and yet %q", got)
	}
	f := workingFacts()
	f.GPU.Module, f.Docker.Version = "590.1", "29.0"
	if got := changedVersions(in, f); !slices.Equal(got, []string{"docker " + workingFacts().Docker.Version + " to 29.0", "driver " + workingFacts().GPU.Module + " to 590.1"}) {
		t.Errorf("changed is %q", got)
	}
	f = workingFacts()
	f.Toolkit.Version = ""
	if got := changedVersions(in, f); len(got) != 0 { // what cannot be seen is not known to be another
		t.Errorf("changed is %q", got)
	}
}

func TestDiagnostics(t *testing.T) {
	g := newRig(t)
	g.phase(g.agreed(berth.BeginOperation{}).ID, berth.PhaseReady)
	d, err := g.s.Diagnostics(t.Context(), "local")
	if err != nil || d.Facts == nil || len(d.Installations) != 1 || len(d.Operations) != 1 || len(d.Releases) != 1 {
		t.Fatalf("%+v, %v", d, err)
	}
	g.m.set(func() { g.m.factsErr = berth.Errorf(berth.CodeHostUnreachable, "gone") })
	if d, err = g.s.Diagnostics(t.Context(), "local"); err != nil || d.FactsError == "" || len(d.Operations) != 1 {
		t.Errorf("%+v, %v", d, err)
	}
	if text, err := json.Marshal(d); err != nil || strings.Contains(string(text), `"nonce":"a`) {
		t.Errorf("%s, %v", text, err)
	}
}

func TestReset(t *testing.T) {
	g := newRig(t)
	done := g.phase(g.agreed(berth.BeginOperation{}).ID, berth.PhaseReady)
	live := g.begin(berth.BeginOperation{Target: berth.Target{Host: "local"}})
	g.phase(live.ID, berth.PhaseAwaitingConsent)
	_, err := g.s.Reset(t.Context(), "local")
	wantCode(t, err, berth.CodeOperationLive)
	if _, err := g.s.Cancel(t.Context(), live.ID); err != nil {
		t.Fatal(err)
	}
	g.phase(live.ID, berth.PhaseCancelled)
	r, err := g.s.Reset(t.Context(), "local")
	if err != nil || r.Archived != 2 || r.Archive == "" {
		t.Fatalf("%+v, %v", r, err)
	}
	_, err = g.s.Get(t.Context(), done.ID)
	wantCode(t, err, berth.CodeNotFound)
	if g.installed() == nil {
		t.Error("the installation went too")
	}
	if r, err = g.s.Reset(t.Context(), "local"); err != nil || r.Archived != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}
