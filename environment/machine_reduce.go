package environment

import (
	"berth"
	"berth/durable"
)

type (
	opInput = durable.Input[opEvent]
	opStep  = durable.Step[opState]
)

// errUnchanged refuses an event that asks for what is already so. Whoever sent
// it reads the operation instead; isUnchanged knows it also when it comes from
// the daemon next door.
var errUnchanged error = berth.Errorf(berth.CodeConflict, "nothing changes").WithFact(factUnchanged, "true")

const factUnchanged = "unchanged"

func isUnchanged(err error) bool { return err != nil && berth.AsError(err).Facts[factUnchanged] != "" }

// reduce is the whole of what an operation decides.
func reduce(s opState, in opInput) (opStep, error) {
	if err := in.Event.wellFormed(in.Effect != nil); err != nil {
		return opStep{}, err
	}
	switch in.Event.Kind {
	case evCancel:
		return s.cancel()
	case evResume:
		return s.resume(in)
	case evApprove:
		return s.approve(in)
	case evReceipt:
		return s.receipt(in)
	case evFailed:
		return s.failed(in.Event)
	case evReconciled:
		return s.reconciled(in)
	case evPlanned:
		return s.planned(in)
	case evHandedOut, evWithdrawn, evHostVerified, evWaitOver:
		return s.waited(in)
	}
	return s.worked(in.Event)
}

// wellFormed refuses what only looks like an event: an event may come from the
// daemon next door, of another version, through the store. An answer counts only
// as an answer.
func (e opEvent) wellFormed(answers bool) error {
	complete := true
	outside := false
	switch e.Kind {
	case evCancel, evResume, evApprove:
		outside = true
	case evReceipt:
		outside, complete = true, e.Receipt != nil
	case evReconciled: // of a recovery, which answers nothing
		outside, complete = true, e.Look != nil
	case evFailed:
		outside, complete = true, e.Error != nil
	case evPlanned, evHostVerified:
		complete = e.Plan != nil && (e.Step == nil || e.Kind == evPlanned)
	case evHandedOut:
		complete = e.Step != nil
	case evFollowed:
		complete = e.Begun != ""
	case evWithdrawn, evWaitOver, evPrepared, evPulled, evVerified, evUnloaded, evActivated, evRemoved, evCleaned:
	default:
		complete = false
	}
	if !complete || !answers && !outside {
		return berth.Errorf(berth.CodeInvalidArgument, "%.40q is no event that an operation takes so", e.Kind)
	}
	return nil
}

// begun is the first state of an operation.
func begun(op berth.Operation) opState {
	s := opState{Op: op}
	return s.to(berth.PhaseChecking, effProbe)
}

// to enters a phase and names the effect that it waits for; "" = none.
func (s opState) to(p berth.Phase, k effectKind) opState {
	s.Op.Phase = p
	s.Op.Effect = string(k)
	switch p {
	case berth.PhaseAwaitingHostStep, berth.PhasePreparing, berth.PhasePulling, berth.PhaseVerifying, berth.PhaseActivating, berth.PhaseRemoving:
		s.Op.Checkpoint = p
	}
	return s
}

// doing is the step that goes to a phase and begins its effect.
func (s opState) doing(p berth.Phase, k effectKind) (opStep, error) {
	next := s.to(p, k)
	if k == "" {
		return next.commit(), nil
	}
	return next.commit(k), nil
}

// commit is the step that makes s the state and begins effects.
func (s opState) commit(kinds ...effectKind) opStep {
	st := opStep{State: s, Plan: effectPlans(kinds...), Terminal: s.over(), Events: []durable.EventDraft{{Kind: berth.EventOperationChanged}}}
	if !s.Op.Phase.Terminal() {
		st.BusyKey = busyKey(s.Op.Target.Host)
	}
	if s.Op.Phase == berth.PhaseReady || s.Op.Phase == berth.PhaseRemoved {
		st.Events = append(st.Events, durable.EventDraft{Kind: berth.EventEnvironmentChanged, Subject: s.Op.Target.Host})
	}
	return st
}

// noted is the step that writes something down while the effect goes on.
func (s opState) noted() opStep {
	st := s.commit()
	st.Keep = true
	return st
}

// over reports whether nothing more is done. A removal with a setup behind it is
// over when that has begun.
func (s opState) over() bool {
	if s.Op.Phase == berth.PhaseRemoved && s.Op.FollowUp != nil {
		return s.Op.FollowUp.Begun != "" || s.Op.Error != nil
	}
	return s.Op.Phase.Terminal()
}

func (s opState) fail(e *berth.OpError) (opStep, error) {
	s = s.withdrawn()
	s.Op.CancelAsked = false
	s.Op.Error = e
	return s.doing(berth.PhaseFailed, "")
}

// withdrawn forgets the host step that waits; no receipt fits any more.
func (s opState) withdrawn() opState {
	if s.Op.HostStep != nil {
		s.Last = s.Op.HostStep
	}
	s.Op.HostStep, s.Next, s.Claim = nil, nil, ""
	return s
}

func (s opState) cleanUp() (opStep, error) {
	s = s.withdrawn()
	s.Op.CancelAsked = true
	return s.doing(berth.PhaseCancelling, effCleanup)
}

// refuse is the answer to an event that does not fit the phase.
func (s opState) refuse(k eventKind) (opStep, error) {
	return opStep{}, berth.Errorf(berth.CodeConflict, "the operation is %s: %s does not fit", s.Op.Phase, k).WithFact("phase", string(s.Op.Phase))
}

func (s opState) approve(in opInput) (opStep, error) {
	if err := s.asRead(in); err != nil {
		return opStep{}, err
	}
	switch {
	case s.Op.Phase != berth.PhaseAwaitingConsent:
		return s.refuse(evApprove)
	case in.Event.Approve == "":
		return opStep{}, berth.Errorf(berth.CodeConsentRequired, "nothing was approved").WithFact("plan_digest", s.Op.PlanDigest)
	case in.Event.Approve != s.Op.PlanDigest:
		return opStep{}, planChanged(s.Op.PlanDigest)
	}
	// The machine may have changed while the person read: only a fresh plan with
	// the same digest is carried out.
	s.Op.ApprovedDigest, s.Op.Error = s.Op.PlanDigest, nil
	return s.doing(berth.PhaseChecking, effProbe)
}

func planChanged(now string) error {
	return berth.Errorf(berth.CodePlanChanged, "the approved digest is not that of the operation's plan").WithFact("plan_digest", now)
}

// asRead refuses what was decided on another revision.
func (s opState) asRead(in opInput) error {
	if in.Event.Revision == in.Revision {
		return nil
	}
	return berth.Errorf(berth.CodeRevisionMismatch, "the operation is at revision %d, not %d", in.Revision, in.Event.Revision)
}

func (s opState) resume(in opInput) (opStep, error) {
	switch s.Op.Phase {
	case berth.PhaseReady, berth.PhaseRemoved:
		return opStep{}, errUnchanged
	case berth.PhaseAwaitingConsent:
		return s.approve(in)
	case berth.PhaseFailed, berth.PhaseCancelled, berth.PhaseAwaitingRelogin, berth.PhaseAwaitingReboot:
	default:
		return opStep{}, berth.Errorf(berth.CodeOperationLive, "the operation is %s already", s.Op.Phase).WithFact("phase", string(s.Op.Phase))
	}
	if err := s.asRead(in); err != nil {
		return opStep{}, err
	}
	if a := in.Event.Approve; a != "" {
		if a != s.Op.PlanDigest && a != s.Op.ApprovedDigest {
			return opStep{}, planChanged(s.Op.PlanDigest)
		}
		// Who cancelled while being asked may agree now. An agreement that was
		// given is never replaced by this: the question comes again.
		if s.Op.ApprovedDigest == "" {
			s.Op.ApprovedDigest = a
		}
	}
	s.Op.Error, s.Op.CancelAsked = nil, false
	return s.doing(berth.PhaseChecking, effReconcile)
}

func (s opState) cancel() (opStep, error) {
	if s.Op.CancelAsked {
		return opStep{}, errUnchanged
	}
	note := s
	note.Op.CancelAsked = true
	switch s.Op.Phase {
	case berth.PhaseReady, berth.PhaseRemoved, berth.PhaseCancelled, berth.PhaseCancelling:
		return opStep{}, errUnchanged
	case berth.PhaseFailed:
		if s.Op.Checkpoint == "" {
			s.Op.Error = nil
			return s.doing(berth.PhaseCancelled, "")
		}
	case berth.PhaseActivating:
		return note.noted(), nil
	case berth.PhaseRemoving:
		if s.Op.Effect == string(effRemove) {
			return note.noted(), nil
		}
	case berth.PhaseAwaitingHostStep:
		// While nobody has taken the request, it is taken back. Where the helper
		// has it, its end is awaited: what runs as root cannot be stopped from
		// here.
		if s.Op.HostStep != nil {
			return note.doing(berth.PhaseAwaitingHostStep, effWithdraw)
		}
	}
	return s.cleanUp()
}

func (s opState) failed(e opEvent) (opStep, error) {
	switch s.Op.Phase {
	case berth.PhaseRemoved: // the setup after it could not begin; the removal stands
		s.Op.Error, s.Op.Effect = e.Error, ""
		return s.commit(), nil
	case berth.PhaseReady, berth.PhaseFailed, berth.PhaseCancelled:
		return s.refuse(evFailed)
	}
	return s.fail(e.Error)
}

// worked is the straight way through the work.
func (s opState) worked(e opEvent) (opStep, error) {
	type place struct {
		phase berth.Phase
		event eventKind
	}
	engine := s.Op.Target.Engine != ""
	switch (place{s.Op.Phase, e.Kind}) {
	case place{berth.PhasePreparing, evPrepared}:
		if engine {
			return s.doing(berth.PhasePulling, effPull)
		}
		return s.doing(berth.PhaseVerifying, effVerify)
	case place{berth.PhasePulling, evPulled}:
		return s.doing(berth.PhaseVerifying, effVerify)
	case place{berth.PhaseVerifying, evVerified}:
		s.Versions = e.Versions
		switch {
		case !engine:
			return s.won(berth.PhaseReady)
		case s.Op.Kind == berth.OperationUpdate:
			return s.doing(berth.PhaseActivating, effUnload)
		}
		return s.doing(berth.PhaseActivating, effActivate)
	case place{berth.PhaseActivating, evUnloaded}:
		if s.Op.CancelAsked {
			return s.cleanUp()
		}
		return s.doing(berth.PhaseActivating, effActivate)
	case place{berth.PhaseActivating, evActivated}:
		return s.won(berth.PhaseReady)
	case place{berth.PhaseRemoving, evUnloaded}:
		return s.doing(berth.PhaseRemoving, effRemove)
	case place{berth.PhaseRemoving, evRemoved}:
		return s.won(berth.PhaseRemoved)
	case place{berth.PhaseRemoved, evFollowed}:
		f := *s.Op.FollowUp
		f.Begun = e.Begun
		s.Op.FollowUp, s.Op.Effect = &f, ""
		return s.commit(), nil
	case place{berth.PhaseCancelling, evCleaned}:
		s.Op.CancelAsked, s.Op.Error = false, nil
		return s.doing(berth.PhaseCancelled, "")
	}
	return s.refuse(e.Kind)
}

// won ends the work. A cancel that came too late is dropped.
func (s opState) won(p berth.Phase) (opStep, error) {
	s = s.withdrawn()
	s.Op.CancelAsked, s.Op.Error = false, nil
	if p == berth.PhaseRemoved && s.Op.FollowUp != nil && s.Op.FollowUp.Begun == "" {
		return s.doing(p, effFollowUp)
	}
	return s.doing(p, "")
}
