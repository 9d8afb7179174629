package environment

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"berth"
)

// requirementWithin bounds the question to the registry what an image asks of
// the driver. It saves a pull in vain; the plan does not wait for it for long.
const requirementWithin = 10 * time.Second

// question is what a plan is asked for.
type question struct {
	kind         berth.OperationKind
	target       berth.Target
	release      string // id; "" = the newest
	retainModels bool
	consent      *berth.Consent // work began: only what was agreed to counts
	pullBegan    bool
}

// questionOf is that of an operation. Which release is asked about is settled by
// the first plan that can be carried out, and after consent for good.
func questionOf(s opState) question {
	q := question{kind: s.Op.Kind, target: s.Op.Target, release: s.Op.Release, retainModels: s.Op.RetainModels, consent: s.Op.Consent}
	if q.release == "" && s.Op.Plan != nil && s.Op.Plan.Release != nil && s.Op.Plan.Feasible() {
		q.release = s.Op.Plan.Release.ID
	}
	if s.Op.Consent != nil && s.Op.Consent.Release != "" {
		q.release = s.Op.Consent.Release
	}
	switch s.Op.Checkpoint {
	case berth.PhasePulling, berth.PhaseVerifying, berth.PhaseActivating:
		q.pullBegan = true
	}
	return q
}

// probe is the effect: facts, judgement, and a host step with a nonce of its own
// where one is needed.
func (p *performer) probe(ctx context.Context, s opState) (opEvent, error) {
	plan, err := p.examine(ctx, questionOf(s), true)
	if err != nil {
		return opEvent{}, err
	}
	e := p.planned(evPlanned, plan)
	if plan.HostStep != nil {
		if e.Step, err = p.newStep(s.Op.Kind, plan); err != nil {
			return opEvent{}, err
		}
	}
	return e, nil
}

func (p *performer) verifyHostStep(ctx context.Context, s opState) (opEvent, error) {
	plan, err := p.examine(ctx, questionOf(s), true)
	if err != nil {
		return opEvent{}, err
	}
	return p.planned(evHostVerified, plan), nil
}

// planned is the event of a plan. The facts are for the person who looks now;
// an operation keeps what follows from them.
func (p *performer) planned(k eventKind, plan berth.Plan) opEvent {
	e := opEvent{Kind: k, Plan: &plan}
	if f := plan.Facts; f != nil {
		e.BootID, e.Pools, e.Route = f.BootID, poolsOf(*f), routeOf(*f, plan.GPU)
	}
	plan.Facts = nil
	return e
}

func poolsOf(f berth.Facts) poolState {
	_, configured, ok := dockerPoolsOf(f.Docker)
	switch {
	case f.Docker.DaemonJSON != daemonAbsent && f.Docker.DaemonJSON != daemonOK, factUnknown(&f, FactDaemonJSON):
		return poolsUnknown
	case configured, !ok:
		return poolsSet
	}
	return poolsUnset
}

// newStep draws the id and the nonce of a host step. The reducer issues it.
func (p *performer) newStep(kind berth.OperationKind, plan berth.Plan) (*berth.HostStep, error) {
	id, err := berth.NewID(berth.StepID, p.cfg.Now(), p.cfg.Random)
	if err != nil {
		return nil, err
	}
	nonce, err := newNonce(p.cfg.Random)
	if err != nil {
		return nil, err
	}
	digest, err := p.cfg.HostSteps.ParametersDigest(*plan.HostStep)
	if err != nil {
		return nil, berth.Errorf(berth.CodeHostStepInvalid, "the parameters of the host step: %w", err)
	}
	step := &berth.HostStep{ID: id, Action: actionApply, Recipe: p.cfg.HostSteps.Recipe(), Parameters: *plan.HostStep, ParametersDigest: digest, Nonce: nonce}
	if kind == berth.OperationRemove {
		step.Action = actionUndo
	}
	return step, nil
}

// examine makes a plan. A host without a provisioner gets one that says so.
// Operations ask afresh: a look that was under way before may not have seen what
// they just changed.
func (p *performer) examine(ctx context.Context, q question, afresh bool) (berth.Plan, error) {
	h, err := p.at(q.target.Host)
	if err != nil {
		return UnsupportedPlan(q.kind, q.target, berth.AsError(err).Detail), nil
	}
	insts, err := p.insts.on(ctx, q.target.Host)
	if err != nil {
		return berth.Plan{}, err
	}
	facts, err := h.look(ctx, afresh)
	if err != nil {
		return berth.Plan{}, fmt.Errorf("probe %s: %w", q.target.Host, err)
	}
	if q.kind == berth.OperationRemove {
		return p.examineRemoval(ctx, h, q, facts, insts)
	}
	in := JudgeInput{
		Kind: q.kind, Target: q.target, Facts: facts, Recipe: p.cfg.HostSteps.Recipe(),
		PullBegan: q.pullBegan, Installations: insts, RetainModels: q.retainModels, Platform: platforms[facts.OS.Architecture],
	}
	if in.Manifest, err = p.manifest(q.consent); err != nil {
		return berth.Plan{}, err
	}
	if q.target.Engine != "" {
		if cpu, err := p.cfg.Releases.LatestForCPU(q.target.Engine, in.Platform); err == nil {
			in.CPURelease = cpu.ID
		}
		if in.Release, err = p.release(q, facts, in.Platform); err != nil {
			return berth.Plan{}, err
		}
	}
	if in.Release != nil {
		if image, ok := in.Release.Images[in.Platform]; ok {
			if there, err := h.Containers.ImagePresent(ctx, image); err == nil {
				in.ImagePresent = &there
			}
			in.RequireCUDA = h.requirement(ctx, *in.Release, image)
		}
	}
	return Judge(in), nil
}

// release finds the release by what is known without a network. Nothing but the
// agreed one is used once work has begun. Where none is named and there is
// certainly no card, it is one for the CPU where there is one: the plan says so,
// and is agreed to.
func (p *performer) release(q question, facts berth.Facts, platform string) (*berth.Release, error) {
	if q.release == "" && cardless(facts) {
		if r, err := p.cfg.Releases.LatestForCPU(q.target.Engine, platform); err == nil {
			return &r, nil
		}
	}
	if q.release == "" && platform == "" {
		return nil, nil // the plan says what it knows of the architecture, which decides
	}
	if q.release == "" {
		r, err := p.cfg.Releases.Latest(q.target.Engine, platform)
		return &r, err
	}
	r, err := p.cfg.Releases.Get(q.release)
	if err != nil {
		return nil, err
	}
	if q.consent != nil && q.consent.Image != "" && r.Images[platform].Digest != q.consent.Image {
		return nil, berth.Errorf(berth.CodeDigestMismatch, "release %s has another image than the one that was agreed to", r.ID).WithFact("release", r.ID)
	}
	return &r, nil
}

// cardless: there is certainly no card of NVIDIA's. The bus tells that, but for
// WSL and the Jetsons, whose card is on none.
func cardless(f berth.Facts) bool {
	g := f.GPU
	elsewhere := f.OS.WSL != 0 || g.JetsonRelease != "" || g.Module != ""
	return !elsewhere && !factUnknown(&f, FactPCI) && !factUnknown(&f, FactNVIDIASMI) && g.OnBus == 0 && len(g.Cards) == 0
}

// manifest is the newest, and after consent the agreed one. Where none was known
// at the consent, none is taken up later.
func (p *performer) manifest(c *berth.Consent) (*Manifest, error) {
	if c == nil {
		if len(p.cfg.Manifests) == 0 {
			return nil, nil
		}
		return &p.cfg.Manifests[0], nil
	}
	for i := range p.cfg.Manifests {
		// A plan that installs nothing names no manifest: then any may say what is
		// qualified, since a new install would be asked about anyway.
		if c.Manifest == "" || p.cfg.Manifests[i].ID == c.Manifest {
			return &p.cfg.Manifests[i], nil
		}
	}
	if c.Manifest == "" {
		return nil, nil
	}
	return nil, berth.Errorf(berth.CodeReleaseNotFound, "the environment manifest %s, which was agreed to, is not known to this berth", c.Manifest).WithFact("manifest", c.Manifest)
}

// requirements are what images ask of the driver. What is pinned by digest never
// changes, so it is asked once.
type requirements struct {
	mu   sync.Mutex
	byID map[string]string // NVIDIA_REQUIRE_CUDA by image digest
}

// requirement asks the registry what the image wants of the driver. Where that
// cannot be had the pull will tell.
func (h *provisioner) requirement(ctx context.Context, r berth.Release, image berth.Image) string {
	if !r.NeedsGPU() {
		return ""
	}
	h.mu.Lock()
	known, ok := h.byID[image.Digest]
	h.mu.Unlock()
	if ok {
		return known
	}
	ctx, cancel := context.WithTimeout(ctx, requirementWithin)
	defer cancel()
	text, err := h.Containers.RequireCUDA(ctx, image)
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			h.log.Info("what an image asks of the driver could not be read", "host", h.Name, "image", image.Reference(), "error", err)
		}
		return ""
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.byID == nil {
		h.byID = map[string]string{}
	}
	h.byID[image.Digest] = text
	return text
}
