package environment

import (
	"fmt"
	"testing"

	"berth"
	"berth/durable/durabletest"
)

// The daemon dies at each of its writes in turn, once before and once after the
// write took effect: the next one brings the very same request to the same end.
func TestCrashAtEachWrite(t *testing.T) {
	target := berth.Target{Host: "local", Engine: testEngine}
	digestOf := func(g *rig, kind berth.OperationKind) string {
		p, err := g.s.Probe(t.Context(), berth.ProbeRequest{Kind: kind, Target: target})
		if err != nil {
			t.Fatal(err)
		}
		return p.Digest
	}
	for name, c := range map[string]struct {
		make    func(*testing.T) *rig
		request func(*rig) berth.BeginOperation
		ended   func(*testing.T, *rig, berth.Operation)
	}{
		"setup": {newRig, func(g *rig) berth.BeginOperation {
			return berth.BeginOperation{Kind: berth.OperationSetup, Target: target, Approve: digestOf(g, berth.OperationSetup)}
		}, func(t *testing.T, g *rig, op berth.Operation) {
			g.phase(op.ID, berth.PhaseReady)
			if in := g.installed(); in == nil || in.Operation != op.ID || in.CheckImage == nil {
				t.Errorf("installed is %+v", in)
			}
		}},
		"removal": {removable, func(g *rig) berth.BeginOperation {
			return berth.BeginOperation{Kind: berth.OperationRemove, Target: target, Approve: digestOf(g, berth.OperationRemove)}
		}, func(t *testing.T, g *rig, op berth.Operation) {
			g.phase(op.ID, berth.PhaseRemoved)
			if g.installed() != nil || len(g.m.images) != 0 {
				t.Errorf("it left %v", g.m.images)
			}
		}},
		"reinstallation": {removable, func(*rig) berth.BeginOperation {
			return berth.BeginOperation{Reinstall: true, Target: target}
		}, func(t *testing.T, g *rig, op berth.Operation) {
			op = g.until(op.ID, "followed", func(o berth.Operation) bool { return o.FollowUp.Begun != "" })
			next := g.phase(op.FollowUp.Begun, berth.PhaseAwaitingConsent)
			g.resume(next.ID, next.PlanDigest)
			g.phase(next.ID, berth.PhaseReady)
			all, err := g.s.Operations(t.Context(), "local", "", 0)
			if err != nil || len(all.Operations) != 3 {
				t.Errorf("%d operations: a setup was begun twice, or never (%v)", len(all.Operations), err)
			}
		}},
	} {
		for _, effect := range []durabletest.Effect{durabletest.NotWritten, durabletest.Written} {
			t.Run(fmt.Sprintf("%s/%d", name, effect), func(t *testing.T) {
				n := 1
				for crashAt(t, c.make(t), c.request, c.ended, n, effect) {
					n++
				}
				if n < 10 {
					t.Errorf("it has %d writes only", n)
				}
			})
		}
	}
}

// crashAt reports whether there was an n-th write at which to die.
func crashAt(t *testing.T, g *rig, request func(*rig) berth.BeginOperation, ended func(*testing.T, *rig, berth.Operation), n int, effect durabletest.Effect) bool {
	b := request(g)
	store := g.store.(*durabletest.Fault)
	store.FailWrite(n, effect)
	op, _, err := g.s.Begin(t.Context(), "k", b)
	died := err != nil
	for !died && !settled(t, g, op.ID) {
		select {
		case <-store.Failed():
			died = true
		default:
		}
	}
	if !died {
		store.FailWrite(1<<30, effect) // it came to its end before
		select {
		case <-store.Failed():
			died = true
		default:
		}
	}
	if died {
		g.die()
		g.recover()
	}
	again, _, err := g.s.Begin(t.Context(), "k", b)
	if err != nil {
		t.Fatalf("write %d: the same request: %v", n, err)
	}
	if now, err := g.s.Get(t.Context(), again.ID); err == nil && now.Phase == berth.PhaseFailed {
		t.Fatalf("write %d: it failed for good: %+v", n, now.Error)
	}
	ended(t, g, again)
	g.stop()
	return died
}

// settled reports whether nothing goes on without a person.
func settled(t *testing.T, g *rig, id string) bool {
	op, err := g.s.Get(t.Context(), id)
	if err == nil && op.FollowUp != nil && op.FollowUp.Begun != "" {
		op, err = g.s.Get(t.Context(), op.FollowUp.Begun)
	}
	waits := op.Phase == berth.PhaseAwaitingConsent || op.Phase.Terminal() && op.FollowUp == nil
	return err == nil && waits
}
