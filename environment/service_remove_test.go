package environment

import (
	"slices"
	"strings"
	"testing"

	"berth"
)

// removable is a rig with an engine installed; the calls so far are forgotten.
func removable(t *testing.T) *rig {
	g := newRig(t)
	g.phase(g.agreed(berth.BeginOperation{}).ID, berth.PhaseReady)
	g.m.set(func() { g.m.calls = nil })
	return g
}

// An image that was there before berth is not berth's to remove.
func TestFoundImageStays(t *testing.T) {
	g := newRig(t)
	image := testRelease("vllm-1", "1").Images["linux/amd64"]
	g.m.set(func() { g.m.images[image.Reference()] = true })
	g.phase(g.agreed(berth.BeginOperation{}).ID, berth.PhaseReady)
	if in := g.installed(); !in.Found {
		t.Errorf("%+v", in)
	}
	// Setting it up again does not make it berth's.
	g.phase(g.agreed(berth.BeginOperation{}).ID, berth.PhaseReady)
	op := g.phase(g.remove(true).ID, berth.PhaseRemoved)
	if notices := strings.Join(op.Plan.Notices, "\n"); !strings.Contains(notices, "it was there before") {
		t.Errorf("the plan says %q", notices)
	}
	g.m.set(func() {
		if !g.m.images[image.Reference()] {
			t.Error("it was removed")
		}
	})
}

func (g *rig) remove(retain bool) berth.Operation {
	g.t.Helper()
	return g.agreed(berth.BeginOperation{Kind: berth.OperationRemove, RetainModels: retain})
}

var wholeRemoval = []string{
	"hold vllm", "unload vllm", "remove containers of vllm", "release vllm", // cancellable so far
	"hold vllm", "unload vllm", "remove containers of vllm",
	"remove image vllm-openai@1", "remove image cuda@c", "remove caches of vllm-1", "remove models", "release vllm",
}

func TestRemoval(t *testing.T) {
	g := removable(t)
	g.phase(g.remove(false).ID, berth.PhaseRemoved)
	if got := g.m.did(); !slices.Equal(got, wholeRemoval) {
		t.Errorf("it did %q", got)
	}
	if g.installed() != nil {
		t.Error("the record stays")
	}
	// A second one finds nothing; a setup begins from nothing.
	g.failed(g.remove(false).ID, berth.CodeNotFound)
	g.phase(g.agreed(berth.BeginOperation{}).ID, berth.PhaseReady)
}

func TestRemovalKeeps(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(*rig)
		retain  bool
		kept    []string
	}{
		"models that are asked for": {func(*rig) {}, true, []string{"remove models"}},
		"an image in use": {func(g *rig) {
			g.m.users[testRelease("vllm-1", "1").Images["linux/amd64"].Reference()] = []string{"somebodys"}
		}, false, []string{"remove image vllm-openai@1"}},
		"what another engine needs": {func(g *rig) {
			check := testRelease("vllm-1", "1").CheckImages["linux/amd64"]
			err := g.s.does.insts.put(t.Context(), berth.Installation{Host: "local", Engine: "llama.cpp", Status: berth.InstallationReady, Image: berth.Image{Repository: "docker.io/l/l", Digest: digest("2")}, CheckImage: &check}, nil)
			if err != nil {
				t.Fatal(err)
			}
		}, false, []string{"remove image cuda@c", "remove models"}},
	} {
		t.Run(name, func(t *testing.T) {
			g := removable(t)
			c.prepare(g)
			g.phase(g.remove(c.retain).ID, berth.PhaseRemoved)
			want := slices.DeleteFunc(slices.Clone(wholeRemoval), func(s string) bool { return slices.Contains(c.kept, s) })
			if got := g.m.did(); !slices.Equal(got, want) {
				t.Errorf("it did %q", got)
			}
		})
	}
}

// A removal that breaks off anywhere can be taken up again and comes to the same
// end, also when the daemon dies there.
func TestRemovalIsRepeatableAtEachStep(t *testing.T) {
	for _, call := range slices.Compact(slices.Sorted(slices.Values(wholeRemoval))) {
		if strings.HasPrefix(call, "release") {
			continue
		}
		t.Run(call, func(t *testing.T) {
			g := removable(t)
			g.m.fail[call] = berth.Errorf(berth.CodeStopUnconfirmed, "in doubt")
			op := g.failed(g.remove(false).ID, berth.CodeStopUnconfirmed)
			if in := g.installed(); in == nil {
				t.Fatal("the record went first")
			}
			if strings.HasPrefix(call, "unload") || strings.Contains(call, "containers") {
				for _, c := range g.m.did() {
					if strings.HasPrefix(c, "remove image") {
						t.Fatalf("something was removed although a stop is in doubt: %q", g.m.did())
					}
				}
			}
			if n := countOf(g.m.did(), "hold vllm") - countOf(g.m.did(), "release vllm"); n > 0 && call != "hold vllm" {
				t.Errorf("loads are held off after it failed: %q", g.m.did())
			}
			g.m.set(func() { clear(g.m.fail) })
			g.resume(op.ID, op.ApprovedDigest)
			g.phase(op.ID, berth.PhaseRemoved)
			if g.installed() != nil || len(g.m.images) != 0 {
				t.Errorf("it left %v", g.m.images)
			}
		})
		t.Run(call+", daemon dies", func(t *testing.T) {
			g := removable(t)
			g.m.set(func() { g.m.block[call] = make(chan struct{}) })
			op := g.remove(false)
			<-g.m.entered
			g.m.set(func() { clear(g.m.block) })
			g.die()
			g.recover()
			g.phase(op.ID, berth.PhaseRemoved)
			if g.installed() != nil || len(g.m.images) != 0 {
				t.Errorf("it left %v", g.m.images)
			}
		})
	}
}

func countOf(list []string, s string) (n int) {
	for _, l := range list {
		if l == s {
			n++
		}
	}
	return n
}

func TestCancelOfARemoval(t *testing.T) {
	t.Run("while it unloads", func(t *testing.T) {
		g := removable(t)
		g.m.set(func() { g.m.block["unload vllm"] = make(chan struct{}) })
		op := g.remove(false)
		<-g.m.entered
		if _, err := g.s.Cancel(t.Context(), op.ID); err != nil {
			t.Fatal(err)
		}
		g.phase(op.ID, berth.PhaseCancelled)
		if in := g.installed(); in == nil || in.Status != berth.InstallationReady {
			t.Errorf("installed is %+v", in)
		}
	})
	t.Run("while it deletes", func(t *testing.T) {
		g := removable(t)
		gate := make(chan struct{})
		g.m.set(func() { g.m.block["remove image cuda@c"] = gate })
		op := g.remove(false)
		<-g.m.entered
		now, err := g.s.Cancel(t.Context(), op.ID)
		if err != nil || now.Phase != berth.PhaseRemoving || !now.CancelAsked {
			t.Fatalf("%+v, %v", now, err)
		}
		close(gate)
		if op = g.phase(op.ID, berth.PhaseRemoved); op.CancelAsked {
			t.Error("the cancel stays")
		}
	})
}

func TestReinstall(t *testing.T) {
	g := removable(t)
	g.cfg.Releases.(testReleases)["vllm-2"] = testRelease("vllm-2", "2")
	b := berth.BeginOperation{Reinstall: true, Target: berth.Target{Host: "local", Engine: testEngine}, Release: "vllm-2"}
	op, created, err := g.s.Begin(t.Context(), "k", b)
	if err != nil || !created || op.Kind != berth.OperationRemove || !op.RetainModels {
		t.Fatalf("%+v %v %v", op, created, err)
	}
	op = g.until(op.ID, "followed", func(o berth.Operation) bool { return o.FollowUp.Begun != "" })
	if op.Phase != berth.PhaseRemoved || slices.Contains(g.m.did(), "remove models") {
		t.Fatalf("%s, it did %q", op.Phase, g.m.did())
	}
	next := g.phase(op.FollowUp.Begun, berth.PhaseAwaitingConsent) // it asks its own consent
	if next.Plan.Release.ID != "vllm-2" {
		t.Errorf("it plans %+v", next.Plan.Release)
	}
	// A retry finds the same removal, at each point.
	again, created, err := g.s.Begin(t.Context(), "k", b)
	if err != nil || created || again.ID != op.ID {
		t.Fatalf("%s %v %v", again.ID, created, err)
	}
	g.resume(next.ID, next.PlanDigest)
	g.phase(next.ID, berth.PhaseReady)
	if in := g.installed(); in.Release.ID != "vllm-2" {
		t.Errorf("installed is %+v", in)
	}
}

// The setup of a reinstallation begins once, whoever dies when.
func TestReinstallSurvivesTheDaemon(t *testing.T) {
	g := removable(t)
	g.m.set(func() { g.m.block["remove caches of vllm-1"] = make(chan struct{}) })
	op, _, err := g.s.BeginReinstall(t.Context(), "k", berth.Target{Host: "local", Engine: testEngine}, "", "")
	if err != nil {
		t.Fatal(err)
	}
	<-g.m.entered
	g.m.set(func() { clear(g.m.block) })
	g.die()
	g.recover()
	op = g.until(op.ID, "followed", func(o berth.Operation) bool { return o.FollowUp.Begun != "" })
	g.die()
	g.recover()
	all, err := g.s.Operations(t.Context(), "local", "", 0)
	if err != nil || len(all.Operations) != 3 || all.Operations[0].ID != op.FollowUp.Begun {
		t.Fatalf("%d operations, %v", len(all.Operations), err)
	}
	g.phase(op.FollowUp.Begun, berth.PhaseAwaitingConsent)
}
