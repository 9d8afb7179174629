package environment

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"berth"
)

// waiting begins a setup on a machine with nothing installed, and answers it when
// the host step is handed out.
func (g *rig) waiting() berth.Operation {
	g.t.Helper()
	g.m.set(func() { g.m.facts = bareFacts() })
	return g.handedOut(g.agreed(berth.BeginOperation{}).ID)
}

func (g *rig) handedOut(id string) berth.Operation {
	g.t.Helper()
	return g.until(id, "handed out", func(o berth.Operation) bool {
		if o.Phase == berth.PhaseFailed {
			g.t.Fatalf("it failed: %+v", o.Error)
		}
		return o.HostStep != nil && o.HostStep.Request != ""
	})
}

func receiptOf(h berth.HostStep, o berth.ReceiptOutcome) berth.Receipt {
	return berth.Receipt{StepID: h.ID, Nonce: h.Nonce, Revision: h.Revision, Action: h.Action, Recipe: h.Recipe, ParametersDigest: h.ParametersDigest, Outcome: o}
}

// leave is the helper: it leaves its result where it was told to.
func (g *rig) leave(h berth.HostStep, r berth.Receipt) {
	data, err := json.Marshal(r)
	if err != nil {
		g.t.Fatal(err)
	}
	g.m.set(func() { g.m.files[h.Result] = data })
}

func TestHostStepByItsResultFile(t *testing.T) {
	g := newRig(t)
	op := g.waiting()
	h := *op.HostStep
	if op.Effect != "" || h.Action != "apply" || !slices.Equal(h.Command, []string{"/usr/lib/berth/berth-hoststep", h.Request}) {
		t.Fatalf("%s %+v", op.Effect, h)
	}
	if g.m.modes["/home/ada/steps"] != 0o700 || g.m.modes[h.Request] != 0o600 {
		t.Fatalf("modes %v", g.m.modes)
	}
	var asked berth.HostStep
	if err := json.Unmarshal(g.m.files[h.Request], &asked); err != nil || asked.Nonce != h.Nonce || asked.Revision != h.Revision {
		t.Fatalf("the request is %+v, %v", asked, err)
	}
	// The machine is changed first, then the helper says so.
	g.m.set(func() { g.m.facts = workingFacts() })
	g.leave(h, receiptOf(h, berth.ReceiptCompleted))
	op = g.phase(op.ID, berth.PhaseReady)
	if op.CarriedDigest == "" || op.PlanDigest != op.ApprovedDigest || op.HostStep != nil {
		t.Errorf("it ended as %+v", op)
	}
	_, err := g.s.AcceptReceipt(t.Context(), op.ID, receiptOf(h, berth.ReceiptCompleted))
	wantCode(t, err, berth.CodeReceiptConflict)
}

func TestReceiptFromOutside(t *testing.T) {
	g := newRig(t)
	op := g.waiting()
	r := receiptOf(*op.HostStep, berth.ReceiptCompleted)
	for name, spoil := range map[string]func(*berth.Receipt){
		"step": func(r *berth.Receipt) { r.StepID = "st-x" }, "nonce": func(r *berth.Receipt) { r.Nonce += "x" },
		"revision": func(r *berth.Receipt) { r.Revision++ }, "recipe": func(r *berth.Receipt) { r.Recipe.Digest = digest("9") },
		"parameters": func(r *berth.Receipt) { r.ParametersDigest = "x" }, "action": func(r *berth.Receipt) { r.Action = "undo" },
	} {
		bad := r
		spoil(&bad)
		if _, err := g.s.AcceptReceipt(t.Context(), op.ID, bad); !errors.Is(err, berth.CodeReceiptConflict) {
			t.Errorf("%s: %v", name, err)
		}
	}
	bad := r
	bad.Outcome = "maybe"
	_, err := g.s.AcceptReceipt(t.Context(), op.ID, bad)
	wantCode(t, err, berth.CodeInvalidArgument)
	if now, err := g.s.Get(t.Context(), op.ID); err != nil || now.Revision != op.Revision {
		t.Fatalf("a refused receipt changed it: %d → %d, %v", op.Revision, now.Revision, err)
	}
	// It says that it is done, and the machine says that it is not.
	if _, err := g.s.AcceptReceipt(t.Context(), op.ID, r); err != nil {
		t.Fatal(err)
	}
	op = g.failed(op.ID, berth.CodePrerequisiteBlocked)
	if !strings.Contains(op.Error.Facts["changes"], "install_packages") {
		t.Errorf("it names %v", op.Error.Facts)
	}
	// Asked again with another nonce; the old one is no good for it.
	g.resume(op.ID, op.ApprovedDigest)
	op = g.handedOut(op.ID)
	if op.HostStep.Nonce == r.Nonce {
		t.Error("the nonce came again")
	}
	again := receiptOf(*op.HostStep, berth.ReceiptCompleted)
	again.Nonce = r.Nonce
	_, err = g.s.AcceptReceipt(t.Context(), op.ID, again)
	wantCode(t, err, berth.CodeReceiptConflict)
	g.m.set(func() { g.m.facts = workingFacts() })
	if _, err := g.s.AcceptReceipt(t.Context(), op.ID, receiptOf(*op.HostStep, berth.ReceiptCompleted)); err != nil {
		t.Fatal(err)
	}
	g.phase(op.ID, berth.PhaseReady)
}

func TestHostStepOutcomes(t *testing.T) {
	t.Run("declined", func(t *testing.T) {
		g := newRig(t)
		op := g.waiting()
		looked := len(g.m.calls)
		if _, err := g.s.AcceptReceipt(t.Context(), op.ID, receiptOf(*op.HostStep, berth.ReceiptDeclined)); err != nil {
			t.Fatal(err)
		}
		g.failed(op.ID, berth.CodeElevationDeclined)
		// What was refused asks root for nothing any more, by whatever prompt still stands.
		g.m.set(func() {
			if _, there := g.m.files[op.HostStep.Request]; there {
				t.Error("the declined request is still there")
			}
		})
		if len(g.m.calls) != looked {
			t.Errorf("it looked: %q", g.m.calls[looked:])
		}
	})
	t.Run("failed", func(t *testing.T) {
		g := newRig(t)
		g.m.set(func() { g.m.facts = bareFacts(); g.m.facts.Docker.Pools = []string{"10.0.0.0/24"} })
		op := g.handedOut(g.agreed(berth.BeginOperation{}).ID)
		r := receiptOf(*op.HostStep, berth.ReceiptFailed)
		r.LogTail = strings.Repeat("x", 20<<10) + "\nall predefined address pools have been fully subnetted"
		r.Steps = []berth.ReceiptStep{{ID: "docker_service", Status: "failed"}}
		if _, err := g.s.AcceptReceipt(t.Context(), op.ID, r); err != nil {
			t.Fatal(err)
		}
		op = g.failed(op.ID, berth.CodeHostStepFailed)
		if !strings.Contains(op.Error.Hint, "default-address-pools are used up") || op.Error.Facts["step"] != "docker_service" || len(op.Error.Facts["log_tail"]) > maxReceiptLog {
			t.Errorf("it says %+v", op.Error)
		}
	})
	t.Run("failed for a reason that is known", func(t *testing.T) {
		g := newRig(t)
		op := g.waiting()
		r := receiptOf(*op.HostStep, berth.ReceiptFailed)
		r.LogTail = "docker.service: Start request repeated too quickly."
		if _, err := g.s.AcceptReceipt(t.Context(), op.ID, r); err != nil {
			t.Fatal(err)
		}
		if op = g.failed(op.ID, berth.CodeHostStepFailed); !strings.Contains(op.Error.Hint, "journalctl") {
			t.Errorf("it says %+v", op.Error)
		}
	})
	t.Run("login", func(t *testing.T) {
		g := newRig(t)
		op := g.waiting()
		g.m.set(func() {
			g.m.facts = workingFacts()
			g.m.facts.Docker = berth.DockerFacts{CLI: "/usr/bin/docker", Install: "docker-ce", Package: "28.3", Socket: "/var/run/docker.sock", SocketGroup: "docker", Service: "active", DaemonJSON: daemonAbsent}
			g.m.facts.User.GroupEffective = false
			g.m.facts.Toolkit.Packages = []string{"nvidia-container-toolkit-base=1.18"}
			g.m.facts.Toolkit.Specs = []berth.CDISpec{{Path: "/var/run/cdi/nvidia.yaml", Kind: CDIKind, Devices: []string{testGPU}, Driver: "580.65"}}
		})
		g.leave(*op.HostStep, receiptOf(*op.HostStep, berth.ReceiptCompleted))
		g.phase(op.ID, berth.PhaseAwaitingRelogin)
		g.m.set(func() { g.m.facts = workingFacts() })
		g.phase(op.ID, berth.PhaseReady) // by itself
	})
	t.Run("restart", func(t *testing.T) {
		g := newRig(t)
		op := g.waiting()
		g.leave(*op.HostStep, receiptOf(*op.HostStep, berth.ReceiptReboot))
		wait := g.phase(op.ID, berth.PhaseAwaitingReboot)
		g.resume(op.ID, "") // no restart happened: it waits on
		g.until(op.ID, "waiting again", func(o berth.Operation) bool {
			return o.Phase == berth.PhaseAwaitingReboot && o.Revision > wait.Revision+1
		})
		g.m.set(func() { g.m.facts = workingFacts(); g.m.facts.BootID = "boot-2" })
		g.phase(op.ID, berth.PhaseReady)
	})
	t.Run("of another step", func(t *testing.T) {
		g := newRig(t)
		op := g.waiting()
		r := receiptOf(*op.HostStep, berth.ReceiptCompleted)
		r.Nonce = "another"
		g.leave(*op.HostStep, r)
		g.failed(op.ID, berth.CodeHostStepFailed)
	})
	t.Run("refused by another build", func(t *testing.T) {
		g := newRig(t)
		op := g.waiting()
		r := receiptOf(*op.HostStep, berth.ReceiptFailed)
		r.Recipe, r.ErrorCode, r.LogTail = berth.RecipeRef{ID: "linux-r9", Digest: digest("9")}, "host_step_invalid", "another recipe"
		g.leave(*op.HostStep, r)
		g.failed(op.ID, berth.CodeHostStepInvalid)
	})
	t.Run("no JSON", func(t *testing.T) {
		g := newRig(t)
		op := g.waiting()
		g.m.set(func() { g.m.files[op.HostStep.Result] = []byte("{") })
		g.failed(op.ID, berth.CodeHostStepFailed)
	})
}

func TestCancelOfAHostStep(t *testing.T) {
	t.Run("nobody took it", func(t *testing.T) {
		g := newRig(t)
		op := g.waiting()
		if _, err := g.s.Cancel(t.Context(), op.ID); err != nil {
			t.Fatal(err)
		}
		g.phase(op.ID, berth.PhaseCancelled)
		if len(g.m.files) != 0 {
			t.Errorf("files stay: %v", g.m.files)
		}
		g.m.set(func() { g.m.facts = workingFacts() })
		g.resume(op.ID, "")
		g.phase(op.ID, berth.PhaseReady)
	})
	t.Run("the helper runs", func(t *testing.T) {
		g := newRig(t)
		op := g.waiting()
		h := *op.HostStep
		g.m.set(func() { g.m.helper = true })
		now, err := g.s.Cancel(t.Context(), op.ID)
		if err != nil || now.Phase != berth.PhaseAwaitingHostStep || !now.CancelAsked {
			t.Fatalf("%+v, %v", now, err)
		}
		g.until(op.ID, "withdrawn", func(berth.Operation) bool { g.m.mu.Lock(); defer g.m.mu.Unlock(); return g.m.files[h.Request] == nil })
		g.leave(h, receiptOf(h, berth.ReceiptCompleted))
		op = g.phase(op.ID, berth.PhaseCancelled)
		_, err = g.s.AcceptReceipt(t.Context(), op.ID, receiptOf(h, berth.ReceiptCompleted)) // it counted, once
		wantCode(t, err, berth.CodeReceiptConflict)
	})
	t.Run("it ends without a word", func(t *testing.T) {
		g := newRig(t)
		op := g.waiting()
		g.m.set(func() { g.m.helper = true })
		if _, err := g.s.Cancel(t.Context(), op.ID); err != nil {
			t.Fatal(err)
		}
		g.m.set(func() { g.m.helper = false })
		g.phase(op.ID, berth.PhaseCancelled)
	})
	t.Run("nobody can tell", func(t *testing.T) {
		g := newRig(t)
		g.m.fail["look pgrep"] = berth.Errorf(berth.CodeCommandNotFound, "no pgrep")
		op := g.waiting()
		if _, err := g.s.Cancel(t.Context(), op.ID); err != nil {
			t.Fatal(err)
		}
		g.phase(op.ID, berth.PhaseCancelled)
	})
}

// A folder that others may enter is refused here, where the reason can be told;
// the helper would refuse it too.
func TestHostStepFolder(t *testing.T) {
	g := newRig(t)
	g.m.modes["/home/ada/steps"] = 0o755
	g.m.facts = bareFacts()
	op := g.failed(g.agreed(berth.BeginOperation{}).ID, berth.CodeStateDir)
	if op.HostStep != nil || len(g.m.files) != 0 {
		t.Errorf("it handed out %+v", op.HostStep)
	}
}

func TestEnvironmentTarget(t *testing.T) {
	g := newRig(t)
	env := berth.Target{Host: "local"}
	op := g.agreed(berth.BeginOperation{Target: env})
	g.phase(op.ID, berth.PhaseReady)
	for _, c := range g.m.did() {
		if strings.HasPrefix(c, "pull") {
			t.Errorf("it pulled: %s", c)
		}
	}
	// What a host step did is taken back by the same helper.
	g.m.set(func() {
		g.m.undo = []UndoEntry{{Change: berth.HostChange{Step: "install_packages", Kind: "package", Name: "docker-ce", After: "28.3"}, Component: compDockerEngine}}
	})
	rm := g.handedOut(g.agreed(berth.BeginOperation{Kind: berth.OperationRemove, Target: env}).ID)
	if rm.HostStep.Action != "undo" {
		t.Fatalf("it hands out %+v", rm.HostStep)
	}
	g.m.set(func() { g.m.undo = nil; g.m.facts = bareFacts() })
	g.leave(*rm.HostStep, receiptOf(*rm.HostStep, berth.ReceiptCompleted))
	g.phase(rm.ID, berth.PhaseRemoved)
	if len(g.m.files) != 0 {
		t.Errorf("files stay: %v", g.m.files)
	}
}

func TestQuoteRegexp(t *testing.T) {
	if got := quoteRegexp("/a.b+c (d)[e]{f}^$|*?\\"); got != `/a\.b\+c \(d\)\[e\]\{f\}\^\$\|\*\?\\` {
		t.Errorf("%s", got)
	}
}
