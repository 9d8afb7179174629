package environment

import (
	"slices"
	"strings"

	"berth"
	"berth/durable"
)

const (
	maxReceiptLog   = 16 << 10 // bytes of a receipt's log that are kept: the last ones
	maxReceiptSteps = 64
	maxNonces       = 256 // host steps of one operation; nobody gets near it
)

// receipt takes what the helper, or the person, says of the host step. The nonce
// and what follows are one commit, so it counts once.
func (s opState) receipt(in opInput) (opStep, error) {
	r := in.Event.Receipt
	if err := s.fits(r); err != nil {
		return opStep{}, err
	}
	s.Nonces = append(slices.Clone(s.Nonces), r.Nonce)
	cancelled := s.Op.CancelAsked
	s = s.withdrawn()
	switch {
	case cancelled:
		return s.cleanUp()
	case r.Outcome == berth.ReceiptDeclined:
		return s.fail(opError(berth.Errorf(berth.CodeElevationDeclined, "the privileged step was declined")))
	case r.Outcome == berth.ReceiptFailed:
		return s.fail(hostStepError(*r, s.Pools))
	}
	s.Claim = r.Outcome
	return s.doing(berth.PhaseAwaitingHostStep, effVerifyHostStep)
}

// fits refuses a receipt that is not for the step that waits.
func (s opState) fits(r *berth.Receipt) error {
	if r == nil || !r.Outcome.Valid() || len(r.Steps) > maxReceiptSteps {
		return berth.Errorf(berth.CodeInvalidArgument, "the receipt has no outcome that berth knows, or too many steps")
	}
	h := s.Op.HostStep
	differs := func(what string) error {
		return berth.Errorf(berth.CodeReceiptConflict, "the receipt is not for the host step that waits: %s", what).WithFact("differs", what)
	}
	switch {
	case slices.Contains(s.Nonces, r.Nonce):
		return differs("its nonce was used before")
	case h == nil || s.Op.Phase != berth.PhaseAwaitingHostStep:
		return differs("none waits")
	case len(s.Nonces) >= maxNonces:
		return differs("too many host steps were answered")
	case r.StepID != h.ID:
		return differs("step_id")
	case r.Nonce != h.Nonce:
		return differs("nonce")
	case r.Revision != h.Revision:
		return differs("revision")
	case r.Action != h.Action:
		return differs("action")
	case r.Recipe != h.Recipe:
		return differs("recipe")
	case r.ParametersDigest != h.ParametersDigest:
		return differs("parameters_digest")
	}
	return nil
}

// hostStepError says why the helper failed, in its own words and, where they are
// known to mislead, in better ones.
func hostStepError(r berth.Receipt, pools poolState) *berth.OpError {
	log := r.LogTail
	if len(log) > maxReceiptLog {
		log = strings.ToValidUTF8(log[len(log)-maxReceiptLog:], "")
	}
	code := berth.CodeHostStepFailed
	if r.ErrorCode == string(berth.CodeHostStepInvalid) {
		code = berth.CodeHostStepInvalid
	}
	err := berth.Errorf(code, "the privileged step failed: %s", lastLine(log)).WithFact("log_tail", log)
	if r.ErrorCode != "" {
		err = err.WithFact("error_code", r.ErrorCode)
	}
	for _, st := range r.Steps {
		if st.Status == "failed" {
			err = err.WithFact("step", st.ID)
		}
	}
	err.Hint = explain(log, pools)
	return opError(err)
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	if text == "" {
		return "it left no log"
	}
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// waited takes the answers of what waits for a person or for the helper.
func (s opState) waited(in opInput) (opStep, error) {
	e := in.Event
	switch {
	case s.Op.Phase == berth.PhaseAwaitingHostStep && e.Kind == evHandedOut && s.Op.HostStep != nil:
		h := *s.Op.HostStep
		h.Request, h.Result, h.Command = e.Step.Request, e.Step.Result, e.Step.Command
		s.Op.HostStep = &h
		return s.doing(berth.PhaseAwaitingHostStep, effAwaitReceipt)
	case s.Op.Phase == berth.PhaseAwaitingHostStep && e.Kind == evWithdrawn:
		return s.cleanUp()
	case s.Op.Phase == berth.PhaseAwaitingHostStep && e.Kind == evHostVerified:
		return s.hostVerified(e)
	case e.Kind == evWaitOver && (s.Op.Phase == berth.PhaseAwaitingRelogin || s.Op.Phase == berth.PhaseAwaitingReboot):
		s.Op.Error = nil
		return s.doing(berth.PhaseChecking, effReconcile)
	}
	return s.refuse(e.Kind)
}

// hostVerified compares what the receipt claimed with what the machine shows.
func (s opState) hostVerified(e opEvent) (opStep, error) {
	claim := s.Claim
	s.Claim, s.BootID, s.Pools, s.Route = "", e.BootID, e.Pools, e.Route
	lacking := standsAgainst(e.Plan)
	if lacking == nil && e.Plan.HostStep != nil {
		lacking = stillPrivileged(e.Plan)
	}
	switch {
	case onlyRelogin(e.Plan):
		s.Op.Error = reloginError(e.Plan)
		return s.doing(berth.PhaseAwaitingRelogin, effWatchRelogin)
	case lacking != nil && claim == berth.ReceiptReboot:
		s.RebootAsked = true
		s.Op.Error = opError(berth.Errorf(berth.CodeRebootRequired, "the machine must be restarted: %s", lacking.Detail))
		return s.doing(berth.PhaseAwaitingReboot, effWatchReboot)
	case s.nothingLeft(e.Plan):
		s.carry(e.Plan)
		return s.remove()
	case lacking != nil:
		return s.fail(lacking)
	case !s.carries(e.Plan): // another image or release meanwhile: never by itself
		s.show(e.Plan)
		s.Op.Error = opError(planChanged(e.Plan.Digest))
		return s.doing(berth.PhaseAwaitingConsent, "")
	}
	s.carry(e.Plan)
	if s.Op.Kind == berth.OperationRemove {
		return s.remove()
	}
	return s.doing(berth.PhasePreparing, effPrepare)
}

// stillPrivileged is the failure of a host step that claims to be done while the
// machine still lacks what it was to do.
func stillPrivileged(p *berth.Plan) *berth.OpError {
	var codes []string
	for _, c := range p.Changes {
		if c.Elevated {
			codes = append(codes, string(c.Code))
		}
	}
	return opError(berth.Errorf(berth.CodePrerequisiteBlocked, "the privileged step says that it is done, but the machine still lacks: %s", strings.Join(codes, ", ")).
		WithFact("changes", strings.Join(codes, ",")))
}

// reconciled goes on from what the machine shows, after a resume or a takeover.
// A wait that a person answers stays as it was; work is planned again from its
// checkpoint.
func (s opState) reconciled(in opInput) (opStep, error) {
	l := in.Event.Look
	boot := s.BootID
	if in.Event.BootID != "" {
		s.BootID = in.Event.BootID
	}
	phase := s.Op.Phase
	switch {
	case phase.Terminal() && phase != berth.PhaseRemoved, phase == berth.PhaseRemoved && s.over():
		return opStep{}, errUnchanged
	case phase == berth.PhaseRemoved:
		return s.doing(phase, effFollowUp)
	case l.Verdict == durable.VerdictForeign:
		return s.fail(opError(berth.Errorf(berth.CodeIdentityMismatch, "%s", l.Detail).WithFact("effect", string(l.Effect))))
	case l.Verdict == durable.VerdictCompleted && l.Effect == effActivate:
		return s.won(berth.PhaseReady)
	case l.Verdict == durable.VerdictCompleted && l.Effect == effRemove:
		return s.won(berth.PhaseRemoved)
	case phase == berth.PhaseAwaitingHostStep && boot == s.BootID:
		return s.hostStepAgain()
	case s.Op.CancelAsked:
		return s.cleanUp()
	case l.Relogin && (phase == berth.PhaseChecking || phase == berth.PhaseAwaitingRelogin):
		err := berth.Errorf(berth.CodeReloginRequired, "the docker group is not effective in this login yet")
		if h := s.Op.Target.Host; h == berth.LocalHost {
			err = err.WithHint("after a new login: berth up. If it still waits then, restart the machine")
		}
		s.Op.Error = opError(err)
		return s.doing(berth.PhaseAwaitingRelogin, effWatchRelogin)
	case l.Reboot && (phase == berth.PhaseChecking || phase == berth.PhaseAwaitingReboot):
		s.Op.Error = opError(berth.Errorf(berth.CodeRebootRequired, "the machine has not been restarted yet"))
		return s.doing(berth.PhaseAwaitingReboot, effWatchReboot)
	}
	s = s.withdrawn()
	s.Op.Error, s.RebootAsked = nil, false
	return s.doing(berth.PhaseChecking, effProbe)
}

// hostStepAgain goes on with the host step after a restart of the daemon in the
// same boot. The helper may be at work under the person's sudo: its nonce stays
// good, so that what it then says still counts once.
func (s opState) hostStepAgain() (opStep, error) {
	switch {
	case s.Claim != "":
		if s.Op.CancelAsked {
			return s.cleanUp()
		}
		return s.doing(berth.PhaseAwaitingHostStep, effVerifyHostStep)
	case s.Op.HostStep == nil:
		return s.doing(berth.PhaseChecking, effProbe)
	case s.Op.CancelAsked:
		return s.doing(berth.PhaseAwaitingHostStep, effWithdraw)
	case s.Op.HostStep.Request == "":
		return s.doing(berth.PhaseAwaitingHostStep, effHostStep)
	}
	return s.doing(berth.PhaseAwaitingHostStep, effAwaitReceipt)
}
