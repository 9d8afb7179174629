package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"berth"
)

// changeFlags are the flags of the commands that change a machine.
type changeFlags struct {
	agree       consent
	on          string
	release     string
	plan        bool
	environment bool
	models      bool
	reinstall   bool
}

func (f *changeFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&f.on, "on", berth.LocalHost, "`HOST` to change")
	_ = cmd.RegisterFlagCompletionFunc("on", completeHosts) // the flag exists
	fl.BoolVarP(&f.agree.yes, "yes", "y", false, "carry out the plan without asking")
	fl.StringVar(&f.agree.approve, "approve", "", "carry out the plan with this `DIGEST`, and no other")
	fl.BoolVar(&f.plan, "plan", false, "show the plan and stop")
}

// addRelease adds the flag of commands that take a release.
func (f *changeFlags) addRelease(cmd *cobra.Command, a *app) {
	cmd.Flags().StringVar(&f.release, "release", "", "`ID` of the release; without it the newest that fits the machine")
	_ = cmd.RegisterFlagCompletionFunc("release", a.completeReleases) // the flag exists
}

// check refuses a consent that is none.
func (c consent) check(cmd *cobra.Command) error {
	switch {
	case c.yes && c.approve != "":
		return usage(cmd, "give --yes or --approve, one of the two")
	case c.approve != "" && !berth.ValidDigest(c.approve):
		return usage(cmd, "--approve takes the digest of a plan: sha256: and 64 digits")
	}
	return nil
}

// request is what the flags and the argument ask for.
func (f *changeFlags) request(cmd *cobra.Command, kind berth.OperationKind, args []string) (berth.BeginOperation, error) {
	b := berth.BeginOperation{Kind: kind, Target: berth.Target{Host: f.on}, Release: f.release, Approve: f.agree.approve}
	switch {
	case len(args) == 0 && !f.environment:
		return b, usage(cmd, "ENGINE is missing")
	case len(args) > 0 && f.environment:
		return b, usage(cmd, "give an engine or --environment, not both")
	case f.environment && (f.release != "" || f.models):
		return b, usage(cmd, "an environment has neither a release nor models")
	case f.plan && (f.agree.yes || f.agree.approve != ""):
		return b, usage(cmd, "--plan shows the plan and stops: it goes with neither --yes nor --approve")
	}
	if err := f.agree.check(cmd); err != nil {
		return b, err
	}
	if len(args) > 0 {
		b.Target.Engine = args[0]
		if !berth.ValidEngine(args[0]) {
			return b, usage(cmd, "%q is not the name of an engine", args[0])
		}
	}
	if kind == berth.OperationRemove {
		b.RetainModels = !f.models
	}
	return b, nil
}

// mostOneArg takes one argument or none.
func mostOneArg(cmd *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usage(cmd, "%q is one argument too many", args[1])
	}
	return nil
}

func newProbe(a *app) *cobra.Command {
	var f changeFlags
	cmd := &cobra.Command{
		Use:   "probe [ENGINE]",
		Short: "Look at a machine: what an engine would need there",
		Long: `Look at a machine and show what the setup of an engine would change, or without
one what the machine lacks for engines in containers. Nothing is changed. The
exit status is 5 when a person must do something first, and 1 when it is not
possible there.`,
		Example: `berth probe
berth probe vllm --on gpu-box
berth probe vllm --json | jq -r .digest`,
		Args:              mostOneArg,
		ValidArgsFunction: a.completeEngines,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.environment = len(args) == 0
			b, err := f.request(cmd, berth.OperationSetup, args)
			if err != nil {
				return err
			}
			return a.showPlanOf(cmd.Context(), b)
		},
	}
	cmd.Flags().StringVar(&f.on, "on", berth.LocalHost, "`HOST` to look at")
	_ = cmd.RegisterFlagCompletionFunc("on", completeHosts) // the flag exists
	f.addRelease(cmd, a)
	return cmd
}

func newSetup(a *app) *cobra.Command {
	var f changeFlags
	cmd := &cobra.Command{
		Use:   "setup ENGINE",
		Short: "Make a machine ready for an engine, with your consent",
		Long: `Make a machine ready for an engine: look at it, show exactly what would change,
ask, do it, and prove that it works. It survives this command, the daemon, a
log-in and a restart half way. Given again while it is at work, it is followed.

What needs root is done by a helper of its own, which you start with sudo or
pkexec. Without a terminal its command is printed, and its result awaited.`,
		Example: `berth setup vllm
berth setup llama.cpp --release llama.cpp-2026-cpu-r1
berth setup vllm --plan                     # show what would be done
berth setup vllm --approve sha256:4f0c…     # do just that
berth setup vllm --reinstall                # remove it first, keep its models
berth setup --environment                   # containers and GPU only`,
		Args:              mostOneArg,
		ValidArgsFunction: a.completeEngines,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.reinstall {
				return a.reinstall(cmd, args, &f)
			}
			return a.change(cmd, berth.OperationSetup, args, &f)
		},
	}
	f.add(cmd)
	f.addRelease(cmd, a)
	cmd.Flags().BoolVar(&f.environment, "environment", false, "make the machine ready for engines, and set none up")
	cmd.Flags().BoolVar(&f.reinstall, "reinstall", false, "remove the engine first, all but its models; without --release the same one again")
	return cmd
}

func newUpdate(a *app) *cobra.Command {
	var f changeFlags
	cmd := &cobra.Command{
		Use:   "update ENGINE",
		Short: "Put another release of an engine in place",
		Long: `Put the newest release of an engine, or the one that is named, in place of the
installed one. The plan is shown and approved as in setup.`,
		Example: `berth update vllm
berth update vllm --release vllm-0.31.0-r1 --yes`,
		Args:              mostOneArg,
		ValidArgsFunction: a.completeEngines,
		RunE:              func(cmd *cobra.Command, args []string) error { return a.change(cmd, berth.OperationUpdate, args, &f) },
	}
	f.add(cmd)
	f.addRelease(cmd, a)
	return cmd
}

func newRemove(a *app) *cobra.Command {
	var f changeFlags
	cmd := &cobra.Command{
		Use:   "remove ENGINE",
		Short: "Remove what berth added, and nothing else",
		Long: `Remove an engine: its containers, its images, its caches. Models stay unless
--models is given. Docker, drivers, groups, and whatever berth did not make are
not touched.

With --environment, undo what the privileged step changed and nobody has
changed since, as listed in the plan.`,
		Example: `berth remove vllm
berth remove vllm --models --yes
berth remove --environment --plan`,
		Args:              mostOneArg,
		ValidArgsFunction: a.completeEngines,
		RunE:              func(cmd *cobra.Command, args []string) error { return a.change(cmd, berth.OperationRemove, args, &f) },
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&f.models, "models", false, "remove the models too")
	cmd.Flags().BoolVar(&f.environment, "environment", false, "undo what was changed on the machine")
	return cmd
}

// change begins an operation and follows it.
func (a *app) change(cmd *cobra.Command, kind berth.OperationKind, args []string, f *changeFlags) error {
	b, err := f.request(cmd, kind, args)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	if f.plan {
		return a.showPlanOf(ctx, b)
	}
	key, err := a.idempotencyKey()
	if err != nil {
		return err
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	return a.begin(ctx, api, b, key, f.agree)
}

// begin begins an operation, or joins the one that is at work, and follows it.
func (a *app) begin(ctx context.Context, api API, b berth.BeginOperation, key string, agree consent) error {
	op, _, err := api.BeginOperation(ctx, b, key)
	if errors.Is(err, berth.CodeDaemonUnreachable) && ctx.Err() == nil { // the answer was lost: the key finds it
		op, _, err = api.BeginOperation(ctx, b, key)
	}
	if errors.Is(err, berth.CodeConflict) {
		op, err = a.joinOperation(ctx, api, b, err)
	}
	if err != nil {
		return err
	}
	return a.follow(ctx, api, op, agree)
}

// reinstall shows what would be removed, asks, and follows the removal and the
// setup after it. The one is agreed to before it begins, the other when its plan
// is there.
func (a *app) reinstall(cmd *cobra.Command, args []string, f *changeFlags) error {
	if f.environment || f.agree.approve != "" {
		return usage(cmd, "--reinstall goes with neither --environment nor --approve: it has two plans")
	}
	b, err := f.request(cmd, berth.OperationSetup, args)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	removal := berth.BeginOperation{Kind: berth.OperationRemove, Target: b.Target, RetainModels: true}
	if f.plan {
		return a.showPlanOf(ctx, removal)
	}
	key, err := a.idempotencyKey()
	if err != nil {
		return err
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	if b.Release == "" {
		if b.Release, err = installedRelease(ctx, api, b.Target); err != nil {
			return err
		}
	}
	stop := a.progress("looking at " + oneLine(b.Target.Host, 40))
	plan, err := api.Plan(ctx, berth.ProbeRequest{Kind: removal.Kind, Target: b.Target, RetainModels: true})
	stop()
	if err != nil {
		return err
	}
	if !f.agree.yes {
		a.showPlan(a.env.Stderr, plan)
		switch {
		case !a.canAsk():
			return berth.Errorf(berth.CodeConsentRequired, "nobody is here to agree to the removal that comes first; nothing was changed").
				WithFact("digest", plan.Digest).WithHint("berth setup " + b.Target.Engine + " --reinstall --yes")
		case !a.ask(ctx, "Remove this, then set up "+b.Release+"?"):
			if ctx.Err() != nil {
				return berth.Errorf(berth.CodeInterrupted, "interrupted; nothing was changed")
			}
			return berth.Errorf(berth.CodeConsentRequired, "the removal was not approved; nothing was changed").WithHint("berth setup " + b.Target.Engine + " --reinstall --plan shows it again")
		}
	}
	b.Reinstall, b.Approve = true, plan.Digest
	return a.begin(ctx, api, b, key, f.agree)
}

// installedRelease is what a reinstallation sets up again.
func installedRelease(ctx context.Context, api API, t berth.Target) (string, error) {
	list, err := api.Engines(ctx)
	if err != nil {
		return "", err
	}
	for _, e := range list {
		for _, in := range e.Installations {
			if e.Engine == t.Engine && in.Host == t.Host {
				return in.Release.ID, nil
			}
		}
	}
	return "", berth.Errorf(berth.CodeNotFound, "%s is not installed on %s", t.Engine, t.Host).WithHint("berth setup " + t.Engine)
}

// joinOperation follows the operation that is at work already where it is the
// one that was asked for. conflict is the answer that named it.
func (a *app) joinOperation(ctx context.Context, api API, b berth.BeginOperation, conflict error) (berth.Operation, error) {
	id := berth.AsError(conflict).Facts["holder"]
	if !berth.ValidID(berth.OperationID, id) {
		return berth.Operation{}, conflict
	}
	op, err := api.Operation(ctx, id)
	if err != nil {
		return berth.Operation{}, conflict
	}
	if !sameChange(op, b) {
		return berth.Operation{}, inTheWay(op)
	}
	a.note("%s is at work already; following %s", operationTitle(op), id)
	return op, nil
}

// inTheWay says what the operation is that another has to wait for.
func inTheWay(op berth.Operation) error {
	hint := "wait for it (berth op show " + op.ID + "), or end it: berth op cancel " + op.ID
	if op.Phase == berth.PhaseAwaitingConsent {
		hint = "berth op resume " + op.ID + ", or end it: berth op cancel " + op.ID
	}
	return berth.Errorf(berth.CodeConflict, "%s is not over: it is %s", operationTitle(op), op.Phase).WithFact("holder", op.ID).WithHint(hint)
}

// sameChange reports whether an operation is what would be begun: a
// reinstallation is known by the setup that follows it.
func sameChange(op berth.Operation, b berth.BeginOperation) bool {
	if b.Reinstall {
		return op.Target == b.Target && op.FollowUp != nil && op.FollowUp.Release == b.Release
	}
	return op.Kind == b.Kind && op.Target == b.Target && op.RetainModels == b.RetainModels && op.FollowUp == nil && (b.Release == "" || b.Release == op.Release)
}

// showPlanOf shows what a change would do.
func (a *app) showPlanOf(ctx context.Context, b berth.BeginOperation) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	stop := a.progress("looking at " + oneLine(b.Target.Host, 40))
	p, err := api.Plan(ctx, berth.ProbeRequest{Kind: b.Kind, Target: b.Target, Release: b.Release, RetainModels: b.RetainModels})
	stop()
	if err != nil {
		return err
	}
	if a.flags.json {
		err = a.answer(p)
	} else {
		err = renderPlan(a.env.Stdout, p, a.columns(), a.colours(a.env.Stdout), true)
	}
	if refusal := p.Refusal(); err == nil && refusal != nil {
		return exitStatus(berth.ExitCode(refusal)) // that of an operation; the plan says why
	}
	return err
}
