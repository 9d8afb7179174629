package environment

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/durable"
)

// sim keeps an operation as the kernel does: revisions, pending effects, what is
// kept and what is superseded. It performs nothing.
type sim struct {
	m       durable.Machine[opState, opEvent]
	state   opState
	rev     int64
	pending []durable.Effect
	gone    []durable.Effect // superseded or answered: their answers are late
	over    bool
	busy    string
	steps   int
	last    *berth.Receipt // that was accepted last
}

func newSim(op berth.Operation) *sim {
	s := &sim{m: operations()}
	op.ID = "op-1"
	s.commit(begun(op).commit(effProbe), nil)
	return s
}

func (s *sim) commit(st opStep, answered *durable.Effect) {
	var kept []durable.Effect
	for _, e := range s.pending {
		if st.Keep && (answered == nil || e.ID != answered.ID) {
			kept = append(kept, e)
		} else {
			s.gone = append(s.gone, e)
		}
	}
	s.pending = append(kept, durable.Planned(st.Plan, s.rev)...)
	s.state, s.over, s.busy = st.State, st.Terminal, st.BusyKey
}

var errDropped = errors.New("dropped: no pending effect takes it")

// feed gives an event to the machine, as the answer to the pending effect or
// from outside.
func (s *sim) feed(e opEvent, answer bool) error {
	in := opInput{Event: e, At: time.Unix(0, 0).UTC(), Revision: s.rev}
	if answer {
		i := slices.IndexFunc(s.pending, func(p durable.Effect) bool { return s.m.Answers(p.Kind, e) })
		if i < 0 {
			return errDropped
		}
		eff := s.pending[i]
		in.Effect = &eff
	}
	st, err := s.m.Reduce(s.state, in)
	if err != nil {
		return err
	}
	s.rev++
	s.commit(st, in.Effect)
	return nil
}

func (s *sim) effect() effectKind {
	if len(s.pending) == 0 {
		return ""
	}
	return effectKind(s.pending[0].Kind)
}

// newStep is the host step of a plan, with an id and a nonce of its own.
func (s *sim) newStep() *berth.HostStep {
	s.steps++
	action := "apply"
	if s.state.Op.Kind == berth.OperationRemove {
		action = "undo"
	}
	return &berth.HostStep{
		ID: fmt.Sprintf("st-%d", s.steps), Action: action, Nonce: fmt.Sprintf("n%d", s.steps),
		Recipe: berth.RecipeRef{ID: "linux", Digest: "R"}, ParametersDigest: "P",
	}
}

func (s *sim) receipt(o berth.ReceiptOutcome) *berth.Receipt {
	h := s.state.Op.HostStep
	if h == nil {
		h = &berth.HostStep{ID: "st-0", Nonce: "n0", Recipe: berth.RecipeRef{ID: "linux", Digest: "R"}, ParametersDigest: "P", Action: "apply"}
	}
	return &berth.Receipt{StepID: h.ID, Nonce: h.Nonce, Revision: h.Revision, Action: h.Action, Recipe: h.Recipe, ParametersDigest: h.ParametersDigest, Outcome: o}
}

// testPlan is a plan of the operation with what a test says of it.
type testPlan struct {
	digest, release string
	blockers        []string
	hostStep        []string // codes of elevated changes
	image           string   // present, absent or "" = not known
	unsupported     bool
}

func (s *sim) plan(p testPlan) *berth.Plan {
	op := s.state.Op
	out := &berth.Plan{V: 1, Digest: p.digest, Kind: op.Kind, Target: op.Target, Availability: berth.SetupRequired, Blockers: []berth.PlanNote{}, Warnings: []berth.PlanNote{}, Changes: []berth.Change{}}
	if p.unsupported {
		out.Availability = berth.Unsupported
	}
	for _, b := range p.blockers {
		out.Blockers = append(out.Blockers, berth.PlanNote{Reason: b, Message: "blocked: " + b})
	}
	for _, c := range p.hostStep {
		out.Changes = append(out.Changes, berth.Change{Code: berth.ChangeCode(c), Text: c, Elevated: true})
	}
	if len(p.hostStep) > 0 {
		out.Recipe, out.HostStep = &berth.RecipeRef{ID: "linux", Digest: "R"}, &berth.HostStepParameters{}
	}
	if op.Target.Engine != "" && op.Kind != berth.OperationRemove {
		release := p.release
		if release == "" {
			release = "vllm-1"
		}
		out.Release = &berth.ReleaseRef{ID: release, Engine: op.Target.Engine}
		out.Image = &berth.Image{Repository: "docker.io/vllm/vllm", Digest: "I-" + release}
		if p.image != "" {
			present := p.image == "present"
			out.ImagePresent = &present
		}
	}
	return out
}

func (s *sim) planned(p testPlan) opEvent {
	e := opEvent{Kind: evPlanned, Plan: s.plan(p), BootID: "boot-1"}
	if len(p.hostStep) > 0 {
		e.Step = s.newStep()
	}
	return e
}

func (s *sim) String() string {
	o := s.state.Op
	var b strings.Builder
	fmt.Fprintf(&b, "r%d %s", s.rev, o.Phase)
	say := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, " %s=%s", name, value)
		}
	}
	for _, e := range s.pending {
		say("effect", e.ID+":"+e.Kind)
	}
	say("checkpoint", string(o.Checkpoint))
	say("plan", o.PlanDigest)
	say("approved", o.ApprovedDigest)
	say("carried", o.CarriedDigest)
	if o.Consent != nil {
		say("consent", o.Consent.Digest)
	}
	if h := o.HostStep; h != nil {
		fmt.Fprintf(&b, " step=%s@r%d", h.ID, h.Revision)
		if h.Request != "" {
			b.WriteString("+file")
		}
	}
	say("nonces", strings.Join(s.state.Nonces, ","))
	say("claim", string(s.state.Claim))
	if o.Error != nil {
		say("error", string(o.Error.Code))
	}
	if o.CancelAsked {
		b.WriteString(" cancel_asked")
	}
	if o.FollowUp != nil && o.FollowUp.Begun != "" {
		say("begun", o.FollowUp.Begun)
	}
	if s.over {
		b.WriteString(" over")
	}
	if s.busy != "" {
		b.WriteString(" busy")
	}
	return b.String()
}
