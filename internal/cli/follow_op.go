package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"berth"
)

// How an operation is followed. It is asked for again and again rather than on
// events: its progress has none, and a look at the daemon's memory costs nothing.
const (
	operationPoll = 200 * time.Millisecond
	// awayMax is how long the daemon may be gone, as it is while it is replaced.
	awayMax = 30 * time.Second
)

// consent is how a person agrees.
type consent struct {
	yes     bool   // to the plan that is made, whatever it is
	approve string // the digest of a plan that was seen before
}

// follower follows one operation until it ends, or until a person is needed who
// is not here.
type follower struct {
	a       *app
	api     API
	agree   consent
	asked   string // digest that was approved by this command
	stepRun string // id of the host step that was run, or told of
	bar     opBar
}

// follow drives an operation from where it is to its end and answers it.
func (a *app) follow(ctx context.Context, api API, op berth.Operation, agree consent) error {
	f := &follower{a: a, api: api, agree: agree, bar: opBar{a: a}}
	op, err := f.run(ctx, op)
	f.bar.clear()
	if ctx.Err() != nil && op.Phase == berth.PhaseAwaitingConsent {
		a.note("\n%s waits for your consent\n  approve: berth op resume %s\n  cancel:  berth op cancel %s", operationTitle(op), op.ID, op.ID)
		return berth.Errorf(berth.CodeInterrupted, "interrupted; the operation %s waits for your consent", op.ID)
	}
	if ctx.Err() != nil && !op.Phase.Terminal() {
		a.note("\n%s goes on without this command\n  look:   berth op show %s\n  cancel: berth op cancel %s", operationTitle(op), op.ID, op.ID)
		return berth.Errorf(berth.CodeInterrupted, "interrupted; the operation %s goes on", op.ID)
	}
	if err == nil {
		err = outcomeOf(op)
	}
	if a.flags.json && op.ID != "" {
		if werr := a.answer(op); werr != nil {
			return werr
		}
		return err
	}
	if err != nil {
		if op.Phase == berth.PhaseFailed && op.Plan != nil && len(op.Plan.Blockers) > 0 {
			a.showPlan(a.env.Stderr, *op.Plan)
		}
		return err
	}
	return a.printf("%s\n", doneText(op))
}

// run returns the last state that was seen, and why it stops before the end;
// nil = the operation is over, or waits for something that outcomeOf names.
func (f *follower) run(ctx context.Context, op berth.Operation) (berth.Operation, error) {
	for {
		f.bar.show(op)
		var err error
		switch {
		case followed(op):
			f.bar.clear()
			f.a.note("%s; now its setup", doneText(op))
			f.asked = "" // its plan is another
		case op.Phase.Terminal() && !following(op), op.Phase == berth.PhaseAwaitingRelogin, op.Phase == berth.PhaseAwaitingReboot:
			return op, nil
		case op.Phase == berth.PhaseAwaitingConsent:
			op, err = f.consent(ctx, op)
			if err == nil {
				continue
			}
		case op.Phase == berth.PhaseAwaitingHostStep && op.HostStep != nil && len(op.HostStep.Command) > 0 && op.HostStep.ID != f.stepRun:
			f.stepRun = op.HostStep.ID
			f.bar.clear()
			err = f.a.hostStep(ctx, f.api, op)
		}
		if err != nil {
			return op, err
		}
		id := op.ID
		if followed(op) {
			id = op.FollowUp.Begun
		}
		next, err := f.next(ctx, id)
		if err != nil {
			return op, err
		}
		op = next
	}
}

// following reports a removal after which a setup is about to begin.
func following(op berth.Operation) bool {
	return op.Phase == berth.PhaseRemoved && op.FollowUp != nil && op.FollowUp.Begun == "" && op.Error == nil
}

// followed reports a removal whose setup has begun.
func followed(op berth.Operation) bool {
	return op.Phase == berth.PhaseRemoved && op.FollowUp != nil && op.FollowUp.Begun != ""
}

// next waits a moment and reads the operation again. A daemon that is replaced
// meanwhile is waited for.
func (f *follower) next(ctx context.Context, id string) (berth.Operation, error) {
	every := f.a.env.Poll
	if every <= 0 {
		every = operationPoll
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	var since time.Time // when it went away; zero = it answers
	for {
		select {
		case <-ctx.Done():
			return berth.Operation{}, ctx.Err()
		case <-tick.C:
		}
		op, err := f.api.Operation(ctx, id)
		if err == nil {
			return op, nil
		}
		if !away(err) || ctx.Err() != nil {
			return op, err
		}
		f.bar.away()
		now := f.a.env.Now()
		if since.IsZero() {
			since = now
		}
		if now.Sub(since) >= awayMax {
			return op, berth.AsError(err).WithHint("berth up; the operation goes on, and berth op show " + id + " shows it")
		}
	}
}

// consent gets the plan approved, by the digest that was given, by --yes, or by
// asking. A plan that is another than the one that this command has approved is
// never approved unasked.
func (f *follower) consent(ctx context.Context, op berth.Operation) (berth.Operation, error) {
	changed := f.asked != "" && f.asked != op.PlanDigest
	f.bar.clear()
	switch {
	case op.Plan == nil:
		return op, berth.Errorf(berth.CodeInternal, "the operation %s asks for consent and shows no plan", op.ID)
	case f.agree.approve != "" && f.agree.approve == op.PlanDigest:
	case f.agree.approve != "" || changed && !f.a.canAsk():
		f.a.showPlan(f.a.env.Stderr, *op.Plan)
		return op, berth.Errorf(berth.CodePlanChanged, "the plan is no longer the one that was approved; nothing was changed").
			WithFact("digest", op.PlanDigest).WithFact("operation", op.ID).WithHint("look at it, then: berth op resume " + op.ID + " --approve " + op.PlanDigest)
	case len(op.Plan.Changes) == 0: // nothing to agree to
	case f.asked == op.PlanDigest: // asked again by the next daemon, for the same
	case f.agree.yes && !changed:
		f.a.showPlan(f.a.env.Stderr, *op.Plan)
	case f.a.canAsk():
		f.a.showPlan(f.a.env.Stderr, *op.Plan)
		if changed {
			f.a.tell("the plan is no longer the one that you approved\n")
		}
		if !f.a.ask(ctx, "Carry out this plan?") {
			return f.refused(ctx, op)
		}
	default:
		f.a.showPlan(f.a.env.Stderr, *op.Plan)
		return op, berth.Errorf(berth.CodeConsentRequired, "nobody is here to agree to the plan; nothing was changed").
			WithFact("digest", op.PlanDigest).WithFact("operation", op.ID).WithHint("berth op resume " + op.ID + " --approve " + op.PlanDigest)
	}
	f.asked = op.PlanDigest
	next, err := f.api.ResumeOperation(ctx, op.ID, berth.ResumeOperation{Revision: op.Revision, Approve: op.PlanDigest})
	if errors.Is(err, berth.CodeRevisionMismatch) || errors.Is(err, berth.CodePlanChanged) || errors.Is(err, berth.CodeOperationLive) {
		// Somebody was faster, or its daemon died and another has just taken it
		// over, which looks at the machine again: see what there is now.
		return f.next(ctx, op.ID)
	}
	if away(err) && ctx.Err() == nil {
		// The answer was lost; the daemon that comes next knows whether the
		// approval was.
		return f.next(ctx, op.ID)
	}
	if err != nil {
		return op, err
	}
	return next, nil
}

// away reports whether there is no daemon to answer now.
func away(err error) bool {
	return errors.Is(err, berth.CodeDaemonNotRunning) || errors.Is(err, berth.CodeDaemonUnreachable) || errors.Is(err, berth.CodeDaemonStopping)
}

// refused ends an operation that nobody wants: nothing of it was done, and it
// would only stand in the way of the next one. Somebody else may have approved it
// while the question stood; that is not for this answer to end.
func (f *follower) refused(ctx context.Context, op berth.Operation) (berth.Operation, error) {
	if ctx.Err() != nil {
		return op, ctx.Err()
	}
	now, err := f.api.Operation(ctx, op.ID)
	if err == nil && now.Phase != berth.PhaseAwaitingConsent {
		return now, berth.Errorf(berth.CodeConsentRequired, "it was decided meanwhile: %s is %s", operationTitle(now), now.Phase).
			WithFact("operation", op.ID).WithHint("berth op show " + op.ID)
	}
	if err == nil {
		now, err = f.api.CancelOperation(ctx, op.ID)
	}
	if err != nil {
		return op, berth.Errorf(berth.CodeConsentRequired, "the plan was not approved, and it could not be ended: it waits still (%s)", berth.AsError(err).Detail).
			WithFact("operation", op.ID).WithHint("berth op cancel " + op.ID)
	}
	return now, berth.Errorf(berth.CodeConsentRequired, "the plan was not approved; nothing was changed").WithHint(planCommand(op) + " shows it again")
}

// planCommand is what shows the plan of an operation like this one.
func planCommand(op berth.Operation) string {
	what := op.Target.Engine
	if what == "" {
		what = "--environment"
	}
	return oneLine("berth "+string(op.Kind)+" "+what+" --plan", 0)
}

// canAsk reports whether a person sits at a terminal and can be asked.
func (a *app) canAsk() bool {
	return !a.flags.json && isTerminal(a.env.Stdin) && isTerminal(a.env.Stderr)
}

// ask asks a question whose answer is no unless it is yes.
func (a *app) ask(ctx context.Context, question string) bool {
	a.tell("%s [y/N] ", question)
	line := make(chan string, 1)
	go func() { // ends with its line, or with this process
		text, err := bufio.NewReader(io.LimitReader(a.env.Stdin, 1024)).ReadString('\n')
		if err != nil {
			text = ""
		}
		line <- text
	}()
	select {
	case text := <-line:
		switch strings.ToLower(strings.TrimSpace(text)) {
		case "y", "yes":
			return true
		}
	case <-ctx.Done():
		a.tell("\n")
	}
	return false
}

// showPlan shows a plan to a person; with --json the plan is in the record.
func (a *app) showPlan(w io.Writer, p berth.Plan) {
	if a.flags.json {
		return
	}
	_ = renderPlan(w, p, widthOf(w), a.colours(w), false) // standard error has nobody to fail to
}

// outcomeOf is the error that an operation ends with, or waits with; nil = it
// did what was asked.
func outcomeOf(op berth.Operation) error {
	switch op.Phase {
	case berth.PhaseRemoved:
		if op.FollowUp != nil && op.Error != nil {
			return berth.Errorf(op.Error.Code, "it was removed, and its setup did not begin: %s", op.Error.Detail).
				WithFact("operation", op.ID).WithHint("berth setup " + op.FollowUp.Target.Engine + " --release " + op.FollowUp.Release)
		}
		return nil
	case berth.PhaseReady:
		return nil
	case berth.PhaseAwaitingRelogin:
		return berth.Errorf(berth.CodeReloginRequired, "%s waits until you have logged out and in again", operationTitle(op)).WithFact("operation", op.ID)
	case berth.PhaseAwaitingReboot:
		return berth.Errorf(berth.CodeRebootRequired, "%s waits until the machine was restarted", operationTitle(op)).WithFact("operation", op.ID)
	case berth.PhaseCancelled:
		return berth.Errorf(berth.CodeOperationCancelled, "%s was cancelled", operationTitle(op)).WithFact("operation", op.ID).
			WithHint("berth op resume " + op.ID + " takes it up again")
	}
	if op.Error == nil {
		return berth.Errorf(berth.CodeInternal, "%s failed and does not say why", operationTitle(op)).WithFact("operation", op.ID)
	}
	e := &berth.Error{Code: op.Error.Code, Detail: op.Error.Detail, Hint: op.Error.Hint}
	for key, value := range op.Error.Facts {
		e = e.WithFact(key, value)
	}
	e = berth.AsError(e.WithFact("operation", op.ID)) // with the catalogue's hint, where it has none
	switch {
	case e.Code == berth.CodeUnsupported: // it never will be possible
	case e.Hint == "":
		e.Hint = resumeCommand + " " + op.ID
	default:
		e.Hint = withID(e.Hint, op.ID)
	}
	return e
}

const resumeCommand = "berth op resume"

// withID puts the operation into a hint, so that it can be copied.
func withID(hint, id string) string {
	if strings.Contains(hint, id) {
		return hint
	}
	return strings.Replace(hint, resumeCommand, resumeCommand+" "+id, 1)
}

// operationTitle says what an operation is: "setup of vllm on local".
func operationTitle(op berth.Operation) string {
	what := "the environment"
	if op.Target.Engine != "" {
		what = op.Target.Engine
	}
	kind := map[berth.OperationKind]string{berth.OperationRemove: "removal"}[op.Kind]
	if kind == "" {
		kind = string(op.Kind)
	}
	return oneLine(kind+" of "+what+" on "+op.Target.Host, 0)
}

// releaseOf is the release that an operation is about: that of its plan, else
// the one that was asked for; "" = not known.
func releaseOf(op berth.Operation) string {
	if op.Plan != nil && op.Plan.Release != nil {
		return op.Plan.Release.ID
	}
	return op.Release
}

// doneText is the answer of an operation that did what was asked.
func doneText(op berth.Operation) string {
	what := op.Target.Engine
	switch {
	case op.Phase == berth.PhaseRemoved && what == "":
		what = "what berth added to " + op.Target.Host + " was removed"
	case op.Phase == berth.PhaseRemoved:
		what += " was removed from " + op.Target.Host
	case what == "":
		what = op.Target.Host + " is ready for engines"
	default:
		what += " is ready on " + op.Target.Host
		if release := releaseOf(op); release != "" {
			what += " (" + release + ")"
		}
	}
	return oneLine(what, 0)
}
