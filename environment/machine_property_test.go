package environment

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"berth"
	"berth/durable"
)

// mayRun are the effects that each phase may have; a phase that is not here has
// none.
var mayRun = map[berth.Phase][]effectKind{
	berth.PhaseChecking:         {effProbe, effReconcile},
	berth.PhaseAwaitingHostStep: {effHostStep, effAwaitReceipt, effWithdraw, effVerifyHostStep},
	berth.PhaseAwaitingRelogin:  {effWatchRelogin},
	berth.PhaseAwaitingReboot:   {effWatchReboot},
	berth.PhasePreparing:        {effPrepare},
	berth.PhasePulling:          {effPull},
	berth.PhaseVerifying:        {effVerify},
	berth.PhaseActivating:       {effUnload, effActivate},
	berth.PhaseRemoving:         {effUnload, effRemove},
	berth.PhaseRemoved:          {effFollowUp},
	berth.PhaseCancelling:       {effCleanup},
}

// world is what a person did, kept beside the machine: the machine cannot be its
// own witness.
type world struct {
	agreed  map[string]bool     // digests that a person gave
	elev    map[string][]string // elevated changes by digest, as shown
	counted map[string]bool     // nonces that were accepted
	ended   berth.Phase         // ready or removed, once it was
	was     opState
}

// Whatever comes in whatever order: no work without an agreement to exactly what
// is done, no privilege that nobody agreed to, each nonce once, an end that is
// one, and a revision for each change and for nothing else.
func TestPropertyOperation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]berth.OperationKind{berth.OperationSetup, berth.OperationUpdate, berth.OperationRemove}).Draw(t, "kind")
		op := berth.Operation{Kind: kind, Target: berth.Target{Host: "local", Engine: rapid.SampledFrom([]string{"", "vllm"}).Draw(t, "engine")}}
		w := &world{agreed: map[string]bool{}, elev: map[string][]string{}, counted: map[string]bool{}}
		if rapid.Bool().Draw(t, "approved at once") {
			op.ApprovedDigest = "d0"
			w.agreed["d0"] = true
		}
		if kind == berth.OperationRemove && rapid.Bool().Draw(t, "reinstall") {
			op.FollowUp = &berth.FollowUp{Key: "k", Target: op.Target, Release: "vllm-2"}
		}
		s := newSim(op)
		w.check(t, s)
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			before, rev, pending := jsonOf(s.state), s.rev, len(s.pending)
			w.was = s.state
			e, answer := draw(t, s, w)
			if err := s.feed(e, answer); err != nil {
				if jsonOf(s.state) != before || s.rev != rev || len(s.pending) != pending {
					t.Fatalf("a refused %s changed the operation: %v", e.Kind, err)
				}
				continue
			}
			if s.rev != rev+1 {
				t.Fatalf("%s raised the revision by %d", e.Kind, s.rev-rev)
			}
			w.saw(t, e)
			w.check(t, s)
		}
	})
}

func jsonOf(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// drawPlan draws one of a few plans. What is elevated goes with the digest, as
// it does with a real one.
func drawPlan(t *rapid.T, s *sim, w *world) testPlan {
	n := rapid.IntRange(0, 5).Draw(t, "plan")
	p := testPlan{digest: fmt.Sprintf("d%d", n), image: rapid.SampledFrom([]string{"", "present", "absent"}).Draw(t, "image")}
	p.hostStep = [][]string{nil, {"a"}, {"a", "b"}, {"b"}, nil, nil}[n]
	if n == 4 {
		p.release = "vllm-2"
	}
	if n == 5 {
		p.blockers = rapid.SampledFrom([][]string{{"relogin_required"}, {"driver_missing"}, {"relogin_required", "no_gpu"}}).Draw(t, "blockers")
	}
	w.elev[p.digest] = p.hostStep
	return p
}

// draw draws an event: as a rule the answer that is awaited, else anything from
// anywhere.
func draw(t *rapid.T, s *sim, w *world) (opEvent, bool) {
	if eff := s.effect(); eff != "" && rapid.IntRange(0, 9).Draw(t, "from outside") < 6 {
		if rapid.IntRange(0, 9).Draw(t, "fails") == 0 {
			return failedEvent(string(eff), berth.Errorf(berth.CodeInternal, "it failed")), true
		}
		return make1(t, s, w, rapid.SampledFrom(answerOf[eff]).Draw(t, "answer")), true
	}
	k := rapid.SampledFrom([]eventKind{evCancel, evResume, evResume, evApprove, evApprove, evReceipt, evReconciled,
		evPlanned, evPulled, evActivated, evRemoved, evHostVerified, evHandedOut, evWithdrawn, evWaitOver, evCleaned, evPrepared, evVerified}).Draw(t, "event")
	e := make1(t, s, w, k)
	switch k {
	case evCancel, evResume, evApprove, evReceipt, evReconciled:
		return e, false
	}
	return e, true // a late or a duplicate answer
}

func make1(t *rapid.T, s *sim, w *world, k eventKind) opEvent {
	e := opEvent{Kind: k}
	switch k {
	case evPlanned:
		return s.planned(drawPlan(t, s, w))
	case evHostVerified:
		e.Plan, e.BootID = s.plan(drawPlan(t, s, w)), "boot-1"
	case evHandedOut:
		e.Step = &berth.HostStep{Request: "/q", Result: "/r"}
	case evApprove, evResume:
		e.Approve = rapid.SampledFrom([]string{"", s.state.Op.PlanDigest, "d0", "d1", "d2"}).Draw(t, "digest")
		e.Revision = s.rev - int64(rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "stale"))
	case evReceipt:
		e.Receipt = s.receipt(rapid.SampledFrom([]berth.ReceiptOutcome{berth.ReceiptCompleted, berth.ReceiptCompleted, berth.ReceiptDeclined, berth.ReceiptFailed, berth.ReceiptRelogin, berth.ReceiptReboot}).Draw(t, "outcome"))
		if len(s.state.Nonces) > 0 && rapid.Bool().Draw(t, "reused") {
			e.Receipt.Nonce = rapid.SampledFrom(s.state.Nonces).Draw(t, "nonce")
		}
	case evReconciled:
		e.BootID = rapid.SampledFrom([]string{"boot-1", "boot-1", "boot-2"}).Draw(t, "boot")
		e.Look = &sighting{Relogin: rapid.Bool().Draw(t, "relogin"), Reboot: rapid.Bool().Draw(t, "reboot")}
		if s.effect() != "" {
			e.Look.Effect = s.effect()
			e.Look.Verdict = rapid.SampledFrom([]durable.Verdict{durable.VerdictAbsent, durable.VerdictAbsent, durable.VerdictCompleted, durable.VerdictForeign}).Draw(t, "verdict")
		}
	case evFollowed:
		e.Begun = "op-2"
	}
	return e
}

// An event can come from another daemon through the store: whatever it is, it is
// refused or taken, and never ends the daemon.
func FuzzEvent(f *testing.F) {
	s := newSim(berth.Operation{Kind: berth.OperationSetup, Target: berth.Target{Host: "local", Engine: "vllm"}, ApprovedDigest: "A"})
	states := []opState{s.state}
	for _, e := range []opEvent{
		s.planned(testPlan{digest: "A", hostStep: []string{"x"}}), {Kind: evHandedOut, Step: &berth.HostStep{Request: "/q"}},
	} {
		f.Add([]byte(jsonOf(e)), false)
		if err := s.feed(e, true); err != nil {
			f.Fatal(err)
		}
		states = append(states, s.state)
	}
	for _, e := range []opEvent{
		{Kind: evReceipt, Receipt: s.receipt(berth.ReceiptFailed)}, {Kind: evCancel}, {Kind: evFailed}, {Kind: evPlanned},
		{Kind: evReconciled, Look: &sighting{Verdict: durable.VerdictForeign}}, {Kind: evHostVerified, Plan: &berth.Plan{Blockers: []berth.PlanNote{{}}}}, {Kind: evFollowed},
	} {
		f.Add([]byte(jsonOf(e)), true)
	}
	cancelling := s.state.to(berth.PhaseCancelling, effCleanup)
	removed := s.state.to(berth.PhaseRemoved, effFollowUp)
	states = append(states, cancelling, removed, s.state.to(berth.PhaseFailed, ""), s.state.to(berth.PhaseAwaitingReboot, effWatchReboot))
	f.Fuzz(func(t *testing.T, text []byte, answer bool) {
		var e opEvent
		if json.Unmarshal(text, &e) != nil {
			return
		}
		for _, s := range states {
			before := jsonOf(s)
			in := opInput{Event: e, Revision: 3}
			if answer {
				in.Effect = &durable.Effect{ID: "3.1", Kind: s.Op.Effect}
			}
			st, err := reduce(s, in)
			if jsonOf(s) != before {
				t.Fatalf("%s changed what it was given", e.Kind)
			}
			if err == nil && (!st.State.Op.Phase.Valid() || st.Terminal && len(st.Plan) > 0) {
				t.Fatalf("%s made %+v", e.Kind, st)
			}
		}
	})
}

func (w *world) saw(t *rapid.T, e opEvent) {
	switch e.Kind {
	case evApprove, evResume:
		if e.Approve != "" {
			if e.Approve != w.was.Op.PlanDigest && e.Approve != w.was.Op.ApprovedDigest {
				t.Fatalf("%s was accepted while %s was shown", e.Approve, w.was.Op.PlanDigest)
			}
			w.agreed[e.Approve] = true
		}
	case evReceipt:
		if w.counted[e.Receipt.Nonce] {
			t.Fatalf("the nonce %s counted twice", e.Receipt.Nonce)
		}
		w.counted[e.Receipt.Nonce] = true
	}
}

func (w *world) check(t *rapid.T, s *sim) {
	o := s.state.Op
	if !o.Phase.Valid() {
		t.Fatalf("phase %q", o.Phase)
	}
	if w.ended != "" && o.Phase != w.ended {
		t.Fatalf("it was %s and is %s", w.ended, o.Phase)
	}
	works := false
	switch o.Phase {
	case berth.PhaseReady, berth.PhaseRemoved:
		w.ended = o.Phase
		works = true
	case berth.PhaseAwaitingHostStep, berth.PhasePreparing, berth.PhasePulling, berth.PhaseVerifying, berth.PhaseActivating, berth.PhaseRemoving:
		works = true
		if o.Checkpoint != o.Phase {
			t.Fatalf("%s has the checkpoint %s", o.Phase, o.Checkpoint)
		}
	}
	if works && (o.Consent == nil || !w.agreed[o.Consent.Digest] || o.PlanDigest != o.ApprovedDigest || o.ApprovedDigest != o.Consent.Digest) {
		t.Fatalf("%s without consent to it: plan %s, approved %s, consent %+v", o.Phase, o.PlanDigest, o.ApprovedDigest, o.Consent)
	}
	if o.ApprovedDigest != "" && !w.agreed[o.ApprovedDigest] {
		t.Fatalf("%s was approved by nobody", o.ApprovedDigest)
	}
	if o.HostStep != nil {
		if o.Phase != berth.PhaseAwaitingHostStep || slices.Contains(s.state.Nonces, o.HostStep.Nonce) {
			t.Fatalf("a host step waits in %s with the nonce %s of %v", o.Phase, o.HostStep.Nonce, s.state.Nonces)
		}
		for _, c := range o.Plan.Changes {
			if c.Elevated && !slices.Contains(w.elev[o.Consent.Digest], string(c.Code)) {
				t.Fatalf("%s is handed out; agreed was %v", c.Code, w.elev[o.Consent.Digest])
			}
		}
	}
	w.checkEffects(t, s)
	var again opState
	if err := json.Unmarshal([]byte(jsonOf(s.state)), &again); err != nil || jsonOf(again) != jsonOf(s.state) {
		t.Fatalf("the state does not survive the disk: %v", err)
	}
}

func (w *world) checkEffects(t *rapid.T, s *sim) {
	o := s.state.Op
	if len(s.pending) > 1 {
		t.Fatalf("%d effects at once", len(s.pending))
	}
	if k := s.effect(); k != "" && !slices.Contains(mayRun[o.Phase], k) {
		t.Fatalf("%s does %s", o.Phase, k)
	}
	if string(s.effect()) != o.Effect {
		t.Fatalf("it shows %q and does %q", o.Effect, s.effect())
	}
	if waits := o.Phase == berth.PhaseAwaitingConsent || s.over; waits != (len(s.pending) == 0) {
		t.Fatalf("%s with %d effects", o.Phase, len(s.pending))
	}
	if (s.busy != "") == o.Phase.Terminal() {
		t.Fatalf("%s with the busy key %q", o.Phase, s.busy)
	}
	if s.over && !o.Phase.Terminal() || o.CancelAsked && o.Phase.Terminal() {
		t.Fatalf("%s, over %v, cancel asked %v", o.Phase, s.over, o.CancelAsked)
	}
	if len(s.state.Nonces) != len(w.counted) {
		t.Fatalf("%d nonces are kept, %d counted", len(s.state.Nonces), len(w.counted))
	}
}
