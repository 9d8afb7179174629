package environment

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"berth"
	"berth/hoststep"
)

// toldOnly are edits of a plan that a person need not agree to again.
var toldOnly = map[string]func(*rapid.T, *berth.Plan){
	"warnings": func(t *rapid.T, p *berth.Plan) {
		p.Warnings = append(p.Warnings, berth.PlanNote{Reason: rapid.String().Draw(t, "reason"), Message: rapid.String().Draw(t, "message")})
	},
	"free":             func(t *rapid.T, p *berth.Plan) { n := rapid.Int64().Draw(t, "free"); p.FreeBytes = &n },
	"path":             func(t *rapid.T, p *berth.Plan) { p.DiskPath = rapid.String().Draw(t, "path") },
	"why":              func(t *rapid.T, p *berth.Plan) { p.Changes[0].Why = rapid.String().Draw(t, "why") },
	"bytes":            func(t *rapid.T, p *berth.Plan) { p.Changes[0].Bytes = rapid.Int64().Draw(t, "bytes") },
	"download":         func(t *rapid.T, p *berth.Plan) { p.DownloadBytes = rapid.Int64().Draw(t, "download") },
	"required":         func(t *rapid.T, p *berth.Plan) { p.RequiredBytes = rapid.Int64().Draw(t, "required") },
	"facts":            func(_ *rapid.T, p *berth.Plan) { p.Facts = &berth.Facts{ElapsedMS: 7} },
	"notices":          func(t *rapid.T, p *berth.Plan) { p.Notices = append(p.Notices, rapid.String().Draw(t, "notice")) },
	"digest":           func(t *rapid.T, p *berth.Plan) { p.Digest = rapid.String().Draw(t, "digest") },
	"availability":     func(_ *rapid.T, p *berth.Plan) { p.Availability = berth.Unsupported },
	"present":          func(t *rapid.T, p *berth.Plan) { p.ImagePresent = answer(rapid.Bool().Draw(t, "present")) },
	"order of cards":   func(_ *rapid.T, p *berth.Plan) { slices.Reverse(p.GPUs) },
	"memory of a card": func(t *rapid.T, p *berth.Plan) { p.GPUs[0].FreeBytes = rapid.Int64().Draw(t, "gpu free") },
}

// wouldDo are edits that change what is done, or on what.
var wouldDo = map[string]func(*berth.Plan){
	"host":             func(p *berth.Plan) { p.Target.Host += "x" },
	"engine":           func(p *berth.Plan) { p.Target.Engine += "x" },
	"recipe":           func(p *berth.Plan) { p.Recipe.ID += "x" },
	"recipe's digest":  func(p *berth.Plan) { p.Recipe.Digest += "0" },
	"no recipe":        func(p *berth.Plan) { p.Recipe = nil },
	"adopts":           func(p *berth.Plan) { p.AdoptsExisting = !p.AdoptsExisting },
	"code":             func(p *berth.Plan) { p.Changes[0].Code += "x" },
	"text":             func(p *berth.Plan) { p.Changes[0].Text += "x" },
	"value of a param": func(p *berth.Plan) { p.Changes[0].Params["vendor"] += "x" },
	"a param more":     func(p *berth.Plan) { p.Changes[0].Params["x"] = "" },
	"a change more":    func(p *berth.Plan) { p.Changes = append(p.Changes, p.Changes[0]) },
	"a change less":    func(p *berth.Plan) { p.Changes = p.Changes[1:] },
	"order of changes": func(p *berth.Plan) { slices.Reverse(p.Changes) },
	"elevation":        func(p *berth.Plan) { p.Elevation = !p.Elevation },
	"relogin":          func(p *berth.Plan) { p.Relogin = !p.Relogin },
	"reboot":           func(p *berth.Plan) { p.Reboot = !p.Reboot },
	"release":          func(p *berth.Plan) { p.Release.ID += "x" },
	"image":            func(p *berth.Plan) { p.Image.Digest = checkSum },
	"manifest":         func(p *berth.Plan) { p.Manifest += "x" },
	"a card more":      func(p *berth.Plan) { p.GPUs = append(p.GPUs, berth.GPU{UUID: "GPU-x"}) },
	"other card":       func(p *berth.Plan) { p.GPUs[0].UUID += "x" },
	"disk":             func(p *berth.Plan) { p.DiskSufficient = nil },
	"disk no":          func(p *berth.Plan) { p.DiskSufficient = answer(false) },
	"docker root":      func(p *berth.Plan) { p.DockerRoot += "x" },
}

func planToDigest() berth.Plan {
	in := goodInput()
	noDocker(&in)
	in.Facts.GPU.Cards = append(in.Facts.GPU.Cards, berth.GPU{UUID: cardOld, Name: "NVIDIA RTX A4000", ComputeCapability: "8.6", MemoryBytes: 16e9, Driver: "580.95.05"})
	return Judge(in)
}

// TestPlanDigestCoversWhatIsDone holds that an approval is withdrawn by every
// change of what would be done, and by nothing that is only told.
func TestPlanDigestCoversWhatIsDone(t *testing.T) {
	names := func(m map[string]bool) []string {
		var out []string
		for n := range m {
			out = append(out, n)
		}
		slices.Sort(out)
		return out
	}
	told, done := map[string]bool{}, map[string]bool{}
	for n := range toldOnly {
		told[n] = true
	}
	for n := range wouldDo {
		done[n] = true
	}
	first := planToDigest().Digest
	rapid.Check(t, func(t *rapid.T) {
		p := planToDigest()
		for _, n := range rapid.SliceOf(rapid.SampledFrom(names(told))).Draw(t, "told") {
			toldOnly[n](t, &p)
		}
		if got, err := PlanDigest(p); err != nil || got != first {
			t.Fatalf("what is only told changed the digest: %v", err)
		}
		wouldDo[rapid.SampledFrom(names(done)).Draw(t, "done")](&p)
		if got, err := PlanDigest(p); err != nil || got == first {
			t.Fatalf("what would be done changed and the digest did not: %v", err)
		}
	})
}

// TestPlanDigestTellsPlansApart holds that no two of the machines that differ in
// what would be done have one digest.
func TestPlanDigestTellsPlansApart(t *testing.T) {
	type done struct {
		Changes    []digestChange
		Components []string
		Release    string
	}
	seen := map[string]string{}
	add := func(p berth.Plan) {
		d := done{Changes: digestChanges(p.Changes), Release: releaseIDOf(p)}
		if p.HostStep != nil {
			d.Components = p.HostStep.Components
		}
		text, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if was, ok := seen[p.Digest]; ok && was != string(text) {
			t.Errorf("one digest for\n%s\n%s", was, text)
		}
		seen[p.Digest] = string(text)
	}
	for _, c := range planCases {
		for _, user := range []string{"ada", "bob"} {
			in := goodInput()
			c.edit(&in)
			if in.Facts.User.Name == "ada" {
				in.Facts.User.Name = user
			}
			if p := Judge(in); p.Feasible() {
				add(p)
			}
		}
	}
	for _, c := range removalCases {
		in := goodRemoval()
		c.edit(&in)
		add(JudgeRemoval(in))
	}
	if len(seen) < 25 {
		t.Errorf("only %d digests", len(seen))
	}
}

// TestPlanDigestIsStable pins the form: approvals outlive an upgrade of berth.
func TestPlanDigestIsStable(t *testing.T) {
	p := berth.Plan{Kind: berth.OperationSetup, Target: berth.Target{Host: "local", Engine: "vllm"}, Elevation: true,
		Changes: []berth.Change{{Code: berth.ChangeAddToGroup, Text: "Add ada to group docker", Params: map[string]string{"user": "ada", "group": "docker"}}}}
	got, err := PlanDigest(p)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", "plan_digest.txt")
	if *update {
		if err := os.WriteFile(file, []byte(got+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	pinned, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != strings.TrimSpace(string(pinned)) {
		t.Errorf("the digest of a fixed plan is %s, was %s", got, pinned)
	}
}

func TestJudgeIsPure(t *testing.T) {
	for _, c := range planCases {
		in := goodInput()
		c.edit(&in)
		before, _ := json.Marshal(in)
		a := Judge(in)
		if after, _ := json.Marshal(in); string(before) != string(after) {
			t.Errorf("%s: the input was changed", c.name)
		}
		if b := Judge(in); a.Digest != b.Digest || planText("", a) != planText("", b) {
			t.Errorf("%s: twice the same question, two answers", c.name)
		}
	}
}

// TestJudgeAnyFacts throws every mixture of machines and unknown facts at it:
// each plan is sound, and no fact that is not known is taken for one that is.
func TestJudgeAnyFacts(t *testing.T) {
	facts := []FactName{FactArchitecture, FactDistribution, FactInit, FactImmutable, FactPackages, FactPCI, FactDriverModule, FactNVIDIASMI,
		FactDockerDaemon, FactDockerService, FactDockerSocket, FactDockerCLI, FactDaemonJSON, FactToolkit, FactCDISpecs, FactFreeDisk, FactFreeContainerd,
		FactUser, FactGroupConfigured, FactRoutes, FactLinger, FactMIG, FactCUDA}
	rapid.Check(t, func(rt *rapid.T) {
		in := goodInput()
		for range rapid.IntRange(1, 4).Draw(rt, "edits") {
			edit := planCases[rapid.IntRange(0, len(planCases)-1).Draw(rt, "case")].edit
			func() { // an edit of what another took away does what it can
				defer func() { _ = recover() }()
				edit(&in)
			}()
		}
		for _, f := range rapid.SliceOfN(rapid.SampledFrom(facts), 0, 4).Draw(rt, "unknown") {
			unknownFact(&in, f, "failed: a test")
		}
		p := Judge(in)
		soundPlan(t, p)
		if t.Failed() {
			rt.Fatalf("the plan is not sound: %s", planText("", p))
		}
		if p.HostStep != nil {
			for _, f := range []FactName{FactDistribution, FactImmutable, FactArchitecture, FactDockerDaemon} {
				if factUnknown(&in.Facts, f) {
					rt.Fatalf("a host step although %s is not known: %s", f, planText("", p))
				}
			}
			if !in.Facts.Docker.Reachable && factUnknown(&in.Facts, FactUser) {
				rt.Fatalf("a host step although it is not known who asks: %s", planText("", p))
			}
		}
		if p.AdoptsExisting && (factUnknown(&in.Facts, FactDockerDaemon) || !in.Facts.Docker.Reachable) {
			rt.Fatalf("a Docker is adopted that does not answer: %s", planText("", p))
		}
	})
}

func TestChooseGPU(t *testing.T) {
	card := func(uuid, capability string, memory int64) berth.GPU {
		return berth.GPU{UUID: uuid, ComputeCapability: capability, MemoryBytes: memory}
	}
	unified := berth.GPU{UUID: "GPU-u", ComputeCapability: "12.1", UnifiedMemory: true}
	for _, c := range []struct {
		name  string
		cards []berth.GPU
		min   string
		free  int64
		want  string
		how   Verdict
	}{
		{"most memory", []berth.GPU{card("GPU-a", "8.9", 24), card("GPU-b", "8.0", 80)}, "8.0", 0, "GPU-b", Met},
		{"only those that can", []berth.GPU{card("GPU-a", "8.9", 24), card("GPU-b", "7.5", 80)}, "8.0", 0, "GPU-a", Met},
		{"10.0 is more than 9.0", []berth.GPU{card("GPU-a", "10.0", 24)}, "9.0", 0, "GPU-a", Met},
		{"equal ones by UUID", []berth.GPU{card("GPU-b", "8.9", 24), card("GPU-a", "8.9", 24)}, "8.0", 0, "GPU-a", Met},
		{"unified by what the host has", []berth.GPU{card("GPU-a", "8.9", 24), unified}, "8.0", 100, "GPU-u", Met},
		{"unified of a full host", []berth.GPU{card("GPU-a", "8.9", 24), unified}, "8.0", 10, "GPU-a", Met},
		{"none", []berth.GPU{card("GPU-a", "7.5", 24)}, "8.0", 0, "", Unmet},
		{"not known", []berth.GPU{card("GPU-a", "7.5", 24), card("GPU-b", "", 24)}, "8.0", 0, "", Unsettled},
		{"not known beside one that can", []berth.GPU{card("GPU-a", "", 80), card("GPU-b", "8.0", 24)}, "8.0", 0, "GPU-b", Met},
		{"any", []berth.GPU{card("GPU-a", "", 24)}, "", 0, "GPU-a", Met},
	} {
		got, how := ChooseGPU(c.cards, c.min, berth.MemoryFacts{AvailableBytes: c.free})
		if got.UUID != c.want || how != c.how {
			t.Errorf("%s: %q %s, want %q %s", c.name, got.UUID, how, c.want, c.how)
		}
	}
}

func TestCompareVersions(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"580.95.05", "580.0", 1}, {"580", "580.0.0", 0}, {"28.2", "28.10", -1}, {"5:29.2.0-1~ubuntu.24.04~noble", "28.2", 1},
		{"20.10.24+dfsg1", "20.10.24", 0}, {"28.1.1", "28.2", -1}, {"9.0", "10.0", -1}, {"99999999999999999999999", "1", 1}, {"", "0", 0},
	} {
		if got := compareVersions(c.a, c.b); got != c.want || compareVersions(c.b, c.a) != -c.want {
			t.Errorf("%s and %s: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

// TestComponentsAreTheRecipes holds that the two ends name the same closed list,
// and the same distributions.
func TestComponentsAreTheRecipes(t *testing.T) {
	var theirs []string
	for _, c := range hoststep.Components {
		theirs = append(theirs, string(c))
	}
	if !slices.Equal(theirs, componentOrder) {
		t.Errorf("the recipe has %v, the judgement %v", theirs, componentOrder)
	}
	for c, shown := range map[hoststep.Component]string{hoststep.NVIDIARuntime: runtimeEdit, hoststep.EnableCDI: cdiEdit} {
		var theirs, ours any
		if json.Unmarshal([]byte("{"+hoststep.JSONEdit(c)+"}"), &theirs) != nil || json.Unmarshal([]byte("{"+shown+"}"), &ours) != nil || !reflect.DeepEqual(theirs, ours) {
			t.Errorf("%s: the plan shows %s, the helper sets %s", c, shown, hoststep.JSONEdit(c))
		}
	}
	manifests, err := EmbeddedManifests()
	if err != nil {
		t.Fatal(err)
	}
	m := manifests[0]
	if m.Recipe != hoststep.RecipeID {
		t.Errorf("the newest manifest is for recipe %s, this build has %s", m.Recipe, hoststep.RecipeID)
	}
	for _, d := range m.Distributions {
		for _, arch := range d.Architectures {
			if family, ok := hoststep.Qualified(d.ID, d.Version, arch); !ok || family != d.Family {
				t.Errorf("the helper does not know %s %s %s as %s", d.ID, d.Version, arch, d.Family)
			}
		}
	}
}

func TestCovers(t *testing.T) {
	in := goodInput()
	noDocker(&in)
	plan := Judge(in)
	consent := berth.Consent{Digest: plan.Digest, Release: plan.Release.ID, Image: plan.Image.Digest, Manifest: plan.Manifest, Target: plan.Target}
	adopted := Judge(goodInput())
	for _, c := range []struct {
		name string
		edit func(*berth.Consent, *berth.Plan)
		want bool
	}{
		{"the same", func(*berth.Consent, *berth.Plan) {}, true},
		{"less is left to do", func(_ *berth.Consent, p *berth.Plan) { *p = adopted }, true},
		{"other target", func(_ *berth.Consent, p *berth.Plan) { p.Target.Host = "other" }, false},
		{"other release", func(_ *berth.Consent, p *berth.Plan) { p.Release = &berth.ReleaseRef{ID: "x"} }, false},
		{"other image", func(_ *berth.Consent, p *berth.Plan) { p.Image = &berth.Image{Digest: checkSum} }, false},
		{"other manifest for a host step", func(_ *berth.Consent, p *berth.Plan) { p.Manifest = "linux-r3" }, false},
		{"a host step where none was agreed to", func(c *berth.Consent, _ *berth.Plan) { c.Manifest = "" }, false},
		{"no consent", func(c *berth.Consent, _ *berth.Plan) { *c = berth.Consent{Target: plan.Target} }, false},
		{"removal with another image", func(_ *berth.Consent, p *berth.Plan) { p.Kind, p.Image = berth.OperationRemove, nil }, true},
		{"removal of another", func(_ *berth.Consent, p *berth.Plan) { p.Kind, p.Target.Engine = berth.OperationRemove, "x" }, false},
	} {
		c2, p2 := consent, plan
		c.edit(&c2, &p2)
		if got := Covers(c2, p2); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestNewlyPrivileged(t *testing.T) {
	judged := func(edits ...func(*JudgeInput)) berth.Plan {
		in := goodInput()
		for _, e := range edits {
			e(&in)
		}
		return Judge(in)
	}
	old27 := func(in *JudgeInput) { docker(in, "27.5.1", "1.47"); noToolkit(in) }
	running := func(n int) func(*JudgeInput) { return func(in *JudgeInput) { in.Facts.Docker.Running = n } }
	fresh := judged(noDocker)
	groupOnly := judged(unreachable, func(in *JudgeInput) { in.Facts.User.GroupConfigured = false })
	bob := judged(noDocker, func(in *JudgeInput) { in.Facts.User.Name = "bob" })
	otherRecipe := judged(noDocker, func(in *JudgeInput) { in.Recipe.Digest = imageSum })
	for _, c := range []struct {
		name     string
		old, new berth.Plan
		want     bool
	}{
		{"the same", fresh, fresh, false},
		{"nothing is left to do", fresh, judged(), false},
		{"only the group is left", fresh, groupOnly, false},
		{"more than the group", groupOnly, fresh, true},
		{"a host step where there was none", judged(), groupOnly, true},
		{"a restart that nobody agreed to", judged(noToolkit), judged(old27), true},
		{"a restart that stops more", judged(old27, running(1)), judged(old27, running(3)), true},
		{"a restart that stops fewer", judged(old27, running(3)), judged(old27, running(1)), false},
		{"another user", fresh, bob, true},
		{"another recipe", fresh, otherRecipe, true},
		{"against nothing", berth.Plan{}, fresh, true},
	} {
		if got := NewlyPrivileged(c.old, c.new); (len(got) > 0) != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestNewlyPrivilegedIsClosed holds, over all pairs of machines, that what is
// not newly privileged has no component that was not agreed to.
func TestNewlyPrivilegedIsClosed(t *testing.T) {
	plans := map[string]berth.Plan{}
	for _, c := range planCases {
		in := goodInput()
		c.edit(&in)
		plans[c.name] = Judge(in)
	}
	for a, old := range plans {
		for b, next := range plans {
			if next.HostStep == nil || len(NewlyPrivileged(old, next)) > 0 {
				continue
			}
			if old.HostStep == nil {
				t.Errorf("%s → %s: a host step out of nothing", a, b)
				continue
			}
			for _, c := range next.HostStep.Components {
				if !slices.Contains(old.HostStep.Components, c) {
					t.Errorf("%s → %s: %s was not agreed to", a, b, c)
				}
			}
		}
	}
}

func TestUnsupportedPlan(t *testing.T) {
	p := UnsupportedPlan(berth.OperationSetup, berth.Target{Host: "vm"}, "there is no provisioner for this kind of host")
	if p.Availability != berth.Unsupported || !berth.ValidDigest(p.Digest) || len(p.Notices) != 1 {
		t.Errorf("%+v", p)
	}
}
