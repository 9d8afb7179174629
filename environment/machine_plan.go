package environment

import (
	"strings"

	"berth"
)

// planned decides what a fresh plan means.
func (s opState) planned(in opInput) (opStep, error) {
	e := in.Event
	if s.Op.Phase != berth.PhaseChecking {
		return s.refuse(evPlanned)
	}
	s.BootID, s.Pools, s.Route = e.BootID, e.Pools, e.Route
	s.Next = e.Step
	asked := s.Op.ApprovedDigest != ""
	if onlyRelogin(e.Plan) {
		s.show(e.Plan)
		s.Op.Error = reloginError(e.Plan)
		return s.doing(berth.PhaseAwaitingRelogin, effWatchRelogin)
	}
	if s.nothingLeft(e.Plan) {
		s.carry(e.Plan)
		s.Next, s.Op.Error = nil, nil
		return s.remove()
	}
	if err := standsAgainst(e.Plan); err != nil {
		s.show(e.Plan)
		return s.fail(err)
	}
	if s.carries(e.Plan) {
		s.carry(e.Plan)
		return s.goOn(in)
	}
	s.show(e.Plan)
	if s.Op.Kind == berth.OperationUpdate && e.Plan.AdoptsExisting && len(e.Plan.Changes) == 0 { // it is the newest already
		s.Next = nil
		return s.won(berth.PhaseReady)
	}
	if s.Op.ApprovedDigest != e.Plan.Digest {
		s.Op.Error = nil
		if asked {
			s.Op.Error = opError(planChanged(e.Plan.Digest))
		}
		return s.doing(berth.PhaseAwaitingConsent, "")
	}
	s.Op.Consent, s.Agreed = consentOf(e.Plan), e.Plan
	s.Op.Checkpoint = ""
	return s.goOn(in)
}

// show makes p the plan that a person is asked about.
func (s *opState) show(p *berth.Plan) {
	s.Op.Plan, s.Op.PlanDigest, s.Op.CarriedDigest = p, p.Digest, ""
}

// carry goes on under p with the agreement that was given to another: the
// operation's digest stays the agreed one.
func (s *opState) carry(p *berth.Plan) {
	s.Op.Plan, s.Op.PlanDigest = p, s.Op.Consent.Digest
	s.Op.CarriedDigest = ""
	if p.Digest != s.Op.Consent.Digest {
		s.Op.CarriedDigest = p.Digest
	}
}

// carries reports whether work that had begun may go on under p without asking.
func (s opState) carries(p *berth.Plan) bool {
	c := s.Op.Consent
	return c != nil && s.Op.Checkpoint != "" && s.Op.ApprovedDigest == c.Digest &&
		s.Agreed != nil && Covers(*c, *p) && len(NewlyPrivileged(*s.Agreed, *p)) == 0
}

// nothingLeft reports that a removal which had begun finds nothing to remove any
// more: it came further than its last commit says, and only has to end.
func (s opState) nothingLeft(p *berth.Plan) bool {
	return s.Op.Kind == berth.OperationRemove && s.carries(p) &&
		len(p.Blockers) == 1 && p.Blockers[0].Reason == string(berth.BlockNotInstalled)
}

// goOn begins the work, or goes on from the checkpoint.
func (s opState) goOn(in opInput) (opStep, error) {
	s.Op.Error = nil
	engine := s.Op.Target.Engine != ""
	from := s.Op.Checkpoint
	late := from == berth.PhasePulling || from == berth.PhaseVerifying || from == berth.PhaseActivating
	switch {
	case s.Next != nil:
		return s.handOut(in)
	case s.Op.Kind == berth.OperationRemove:
		return s.remove()
	case engine && late && s.Op.Plan.ImagePresent != nil && *s.Op.Plan.ImagePresent:
		return s.doing(berth.PhaseVerifying, effVerify)
	case engine && late, from == "" && s.Op.Kind == berth.OperationUpdate:
		return s.doing(berth.PhasePulling, effPull)
	case !engine && from == berth.PhaseVerifying:
		return s.doing(berth.PhaseVerifying, effVerify)
	}
	return s.doing(berth.PhasePreparing, effPrepare)
}

func (s opState) remove() (opStep, error) {
	if s.Op.Target.Engine == "" {
		return s.doing(berth.PhaseRemoving, effRemove)
	}
	return s.doing(berth.PhaseRemoving, effUnload)
}

// handOut issues the host step: from here on its nonce is awaited, once.
func (s opState) handOut(in opInput) (opStep, error) {
	h := *s.Next
	h.Revision = in.Revision + 1
	s.Op.HostStep, s.Next = &h, nil
	return s.doing(berth.PhaseAwaitingHostStep, effHostStep)
}

func consentOf(p *berth.Plan) *berth.Consent {
	c := &berth.Consent{Digest: p.Digest, Manifest: p.Manifest, Target: p.Target}
	if p.Release != nil {
		c.Release = p.Release.ID
	}
	if p.Image != nil {
		c.Image = p.Image.Digest
	}
	return c
}

func onlyRelogin(p *berth.Plan) bool {
	return len(p.Blockers) == 1 && p.Blockers[0].Reason == string(berth.BlockRelogin)
}

func reloginError(p *berth.Plan) *berth.OpError {
	err := berth.Errorf(berth.CodeReloginRequired, "%s", p.Blockers[0].Message)
	if list := p.Blockers[0].Commands; len(list) > 0 {
		err = err.WithHint("log out and in again, then: " + strings.Join(list, "; "))
	}
	return opError(err)
}

// standsAgainst is the first reason why p cannot be carried out; nil = none. The
// plan keeps them all.
func standsAgainst(p *berth.Plan) *berth.OpError {
	refusal := p.Refusal()
	if refusal == nil {
		return nil
	}
	return opError(refusal)
}
