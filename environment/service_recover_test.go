package environment

import (
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/durable"
	"berth/durable/sqlite"
)

// Wherever the daemon dies, the next one comes to the same end, and does nothing
// twice that must be done once.
func TestRecoverAtEachStep(t *testing.T) {
	for call, again := range map[string][]string{
		"look facts":                    {"pull cuda@c", "check GPU-1 as nvidia.com/gpu", "pull vllm-openai@1"},
		"pull cuda@c":                   {"pull cuda@c", "pull cuda@c", "check GPU-1 as nvidia.com/gpu", "pull vllm-openai@1"},
		"check GPU-1 as nvidia.com/gpu": {"pull cuda@c", "check GPU-1 as nvidia.com/gpu", "check GPU-1 as nvidia.com/gpu", "pull vllm-openai@1"},
		"pull vllm-openai@1":            {"pull cuda@c", "check GPU-1 as nvidia.com/gpu", "pull vllm-openai@1", "pull vllm-openai@1"},
	} {
		t.Run(call, func(t *testing.T) {
			g := newRig(t)
			p, err := g.s.Probe(t.Context(), berth.ProbeRequest{Target: berth.Target{Host: "local", Engine: testEngine}})
			if err != nil {
				t.Fatal(err)
			}
			g.m.set(func() { g.m.block[call] = make(chan struct{}) })
			op := g.begin(berth.BeginOperation{Approve: p.Digest})
			<-g.m.entered
			g.m.set(func() { clear(g.m.block) })
			g.die()
			g.recover()
			now := g.phase(op.ID, berth.PhaseReady)
			if got := g.m.did(); !slices.Equal(got, again) {
				t.Errorf("it did %q", got)
			}
			if in := g.installed(); in == nil || in.CheckImage == nil {
				t.Errorf("what the dead one pulled is not known as berth's: %+v", in)
			}
			if now.Epoch < 2 {
				t.Errorf("nobody took it over: epoch %d", now.Epoch)
			}
		})
	}
}

// The pull came to its end, and only its answer was lost: nothing moves again.
func TestRecoverFindsThePulledImage(t *testing.T) {
	g := newRig(t)
	p, err := g.s.Probe(t.Context(), berth.ProbeRequest{Target: berth.Target{Host: "local", Engine: testEngine}})
	if err != nil {
		t.Fatal(err)
	}
	g.m.set(func() { g.m.block["pull vllm-openai@1"] = make(chan struct{}) })
	op := g.begin(berth.BeginOperation{Approve: p.Digest})
	<-g.m.entered
	g.m.set(func() {
		clear(g.m.block)
		g.m.images[testRelease("vllm-1", "1").Images["linux/amd64"].Reference()] = true
	})
	g.die()
	g.recover()
	g.phase(op.ID, berth.PhaseReady)
	if n := countOf(g.m.did(), "pull vllm-openai@1"); n != 1 {
		t.Errorf("it was pulled %d times", n)
	}
}

func TestRecoverKeepsWaits(t *testing.T) {
	t.Run("consent", func(t *testing.T) {
		g := newRig(t)
		op := g.begin(berth.BeginOperation{})
		was := g.phase(op.ID, berth.PhaseAwaitingConsent)
		g.die()
		g.recover()
		now := g.until(op.ID, "asking again", func(o berth.Operation) bool {
			return o.Phase == berth.PhaseAwaitingConsent && o.Revision > was.Revision
		})
		if now.PlanDigest != was.PlanDigest {
			t.Errorf("it asks about %s, not %s", now.PlanDigest, was.PlanDigest)
		}
		g.resume(op.ID, now.PlanDigest)
		g.phase(op.ID, berth.PhaseReady)
	})
	// A person is typing their password while the daemon is restarted: what the
	// helper then says still counts.
	t.Run("host step", func(t *testing.T) {
		g := newRig(t)
		op := g.waiting()
		h := *op.HostStep
		g.die()
		g.recover()
		now := g.handedOut(op.ID)
		if now.HostStep.Nonce != h.Nonce || now.HostStep.Revision != h.Revision {
			t.Fatalf("the step is %+v, and was %+v", now.HostStep, h)
		}
		g.m.set(func() { g.m.facts = workingFacts() })
		g.leave(h, receiptOf(h, berth.ReceiptCompleted))
		g.phase(op.ID, berth.PhaseReady)
	})
	t.Run("host step over a restart", func(t *testing.T) {
		g := newRig(t)
		op := g.waiting()
		h := *op.HostStep
		g.m.set(func() { g.m.facts.BootID = "boot-2" })
		g.die()
		g.recover()
		now := g.until(op.ID, "handed out anew", func(o berth.Operation) bool {
			return o.HostStep != nil && o.HostStep.Request != "" && o.HostStep.Nonce != h.Nonce
		})
		_, err := g.s.AcceptReceipt(t.Context(), op.ID, receiptOf(h, berth.ReceiptCompleted))
		wantCode(t, err, berth.CodeReceiptConflict)
		if now.ApprovedDigest != op.ApprovedDigest {
			t.Error("it lost its approval")
		}
	})
	t.Run("failure", func(t *testing.T) {
		g := newRig(t)
		g.m.check = CheckResult{ExitCode: 1}
		op := g.failed(g.agreed(berth.BeginOperation{}).ID, berth.CodeCheckFailed)
		g.die()
		g.recover()
		if now := g.phase(op.ID, berth.PhaseFailed); now.Revision != op.Revision {
			t.Errorf("a recovery changed what is over: %d → %d", op.Revision, now.Revision)
		}
		g.m.set(func() { g.m.check = CheckResult{Stdout: testGPU} })
		g.resume(op.ID, "")
		g.phase(op.ID, berth.PhaseReady)
	})
}

// A host that nobody can look at fails its operation with the reason, so that it
// is in nobody's way; and it can be resumed.
func TestRecoverWithoutTheHost(t *testing.T) {
	g := newRig(t)
	op := g.begin(berth.BeginOperation{})
	g.phase(op.ID, berth.PhaseAwaitingConsent)
	g.m.set(func() { g.m.factsErr = berth.Errorf(berth.CodeHostUnreachable, "gone") })
	g.die()
	g.recover()
	g.failed(op.ID, berth.CodeHostUnreachable)
	g.m.set(func() { g.m.factsErr = nil })
	g.resume(op.ID, "")
	g.phase(op.ID, berth.PhaseAwaitingConsent)
}

func TestShutdownDoesNotWaitForWaits(t *testing.T) {
	g := newRig(t)
	g.waiting()
	began := time.Now()
	g.stop()
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %s", took)
	}
}

// Two daemons of one user share a machine: what one runs the other sees, cannot
// run a second time, can cancel, and takes up when the first one dies.
func TestTwoDaemons(t *testing.T) {
	g := newRig(t)
	g.stop() // its machine is used, and two daemons of its own kind
	path := filepath.Join(t.TempDir(), "machine.db")
	var dead atomic.Int64 // PID of the dead one; 0 = none
	daemon := func() (*Service, berth.Identity, func()) {
		who := owner()
		store, err := sqlite.Open(t.Context(), sqlite.Config{Path: path, Owner: who, Shared: true})
		if err != nil {
			t.Fatal(err)
		}
		cfg := g.cfg
		cfg.Store = store
		cfg.Liveness = func(i berth.Identity) durable.Liveness {
			if int64(i.PID) == dead.Load() {
				return durable.OwnerDead
			}
			return durable.OwnerAlive
		}
		s, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return s, who, func() {
			if err := s.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			if err := store.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	one, first, stopOne := daemon()
	two, second, stopTwo := daemon()
	defer stopTwo()
	target := berth.Target{Host: "local", Engine: testEngine}
	p, err := one.Probe(t.Context(), berth.ProbeRequest{Target: target})
	if err != nil {
		t.Fatal(err)
	}
	g.m.set(func() { g.m.block["pull vllm-openai@1"] = make(chan struct{}) })
	b := berth.BeginOperation{Kind: berth.OperationSetup, Target: target, Approve: p.Digest}
	op, _, err := one.Begin(t.Context(), "k", b)
	if err != nil {
		t.Fatal(err)
	}
	<-g.m.entered
	same, created, err := two.Begin(t.Context(), "k", b)
	if err != nil || created || same.ID != op.ID {
		t.Fatalf("%s %v %v", same.ID, created, err)
	}
	_, _, err = two.Begin(t.Context(), "other", b)
	wantCode(t, err, berth.CodeConflict)
	if err := two.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now, err := two.Get(t.Context(), op.ID); err != nil || now.Owner != first || now.Phase != berth.PhasePulling {
		t.Fatalf("%+v %v", now, err)
	}
	if now, err := two.Cancel(t.Context(), op.ID); err != nil || now.Owner != first || now.Phase != berth.PhaseCancelling && now.Phase != berth.PhaseCancelled {
		t.Fatalf("a cancel through the other daemon: %+v %v", now, err)
	}
	g.s = two
	op = g.phase(op.ID, berth.PhaseCancelled)
	if again, err := two.Cancel(t.Context(), op.ID); err != nil || again.Revision != op.Revision { // nothing to do is no error over the inbox either
		t.Fatalf("%+v %v", again, err)
	}
	// The first one runs it again, and dies.
	if _, err := one.Resume(t.Context(), op.ID, berth.ResumeOperation{Revision: op.Revision}); err != nil {
		t.Fatal(err)
	}
	<-g.m.entered
	g.m.set(func() { clear(g.m.block) })
	stopOne()
	dead.Store(int64(first.PID))
	if err := two.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	op = g.phase(op.ID, berth.PhaseReady)
	if op.Owner != second || op.Epoch < 2 {
		t.Errorf("owner %d, epoch %d", op.Owner.PID, op.Epoch)
	}
}
