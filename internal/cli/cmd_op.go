package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/spf13/cobra"

	"berth"
)

// operationList is the document of op ls.
type operationList struct {
	V          int               `json:"v"`
	Operations []berth.Operation `json:"operations"`
}

func newOp(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "op",
		Short: "Look at operations, go on with them, or end them",
		Long: `Look at operations: the setups, updates and removals that berth does on
machines. They outlive the command that began them.`,
		Example: `berth op ls
berth op show op-06ewr3mvd8x1k2ab
berth op resume op-06ewr3mvd8x1k2ab`,
		Args: cobra.ArbitraryArgs,
		RunE: subcommandOnly,
	}
	cmd.AddCommand(newOpLs(a), newOpShow(a), newOpResume(a), newOpCancel(a), newOpReceipt(a), newOpReset(a), newOpDiagnostics(a))
	return cmd
}

// subcommandOnly is a command that is nothing without another.
func subcommandOnly(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	return usage(cmd, "%s has no command %q", cmd.CommandPath(), args[0])
}

func newOpLs(a *app) *cobra.Command {
	var on string
	var all bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List operations, the newest first",
		Long: `List operations, the newest first: those that are at work or wait, and those that
failed or were cancelled and can be resumed. With --all also those that are done.`,
		Example: "berth op ls\nberth op ls --all --on gpu-box --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := a.client()
			if err != nil {
				return err
			}
			list, err := api.Operations(cmd.Context(), on)
			if err != nil {
				return err
			}
			if !all {
				list = ofConcern(list)
			}
			if a.flags.json {
				return a.answer(operationList{version1, list})
			}
			rows := [][]string{}
			for _, op := range list {
				rows = append(rows, []string{op.ID, phaseText(op), age(a.env.Now(), op.Created), operationTitle(op)})
			}
			return a.table([]string{"ID", "STATE", "AGE", "OPERATION"}, rows)
		},
	}
	cmd.Flags().StringVar(&on, "on", "", "only operations on this `HOST`")
	cmd.Flags().BoolVarP(&all, "all", "a", false, "those that are done or dealt with, too")
	return cmd
}

// ofConcern are the operations that are at work or wait, and of each target the
// last one where that failed or was cancelled: an older failure was dealt with.
// The list has the newest first.
func ofConcern(list []berth.Operation) []berth.Operation {
	newer := map[berth.Target]bool{}
	return slices.DeleteFunc(slices.Clone(list), func(op berth.Operation) bool {
		settled := newer[op.Target]
		newer[op.Target] = true
		return op.Phase == berth.PhaseReady || op.Phase == berth.PhaseRemoved || op.Phase.Terminal() && settled
	})
}

func phaseText(op berth.Operation) string {
	if op.Phase == berth.PhaseFailed && op.Error != nil {
		return "failed:" + oneLine(string(op.Error.Code), 40)
	}
	return oneLine(string(op.Phase), 40)
}

func newOpShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "show ID",
		Short:             "Show an operation: its state, its plan, what it waits for",
		Example:           "berth op show op-06ewr3mvd8x1k2ab\nberth op show op-06ewr3mvd8x1k2ab --json | jq .phase",
		Args:              exactArgs("ID"),
		ValidArgsFunction: a.completeOperations,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := a.client()
			if err != nil {
				return err
			}
			op, err := api.Operation(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.flags.json {
				return a.answer(op)
			}
			return a.printOperation(op)
		},
	}
}

func (a *app) printOperation(op berth.Operation) error {
	var b strings.Builder
	line := func(name, text string) { fmt.Fprintf(&b, "%-11s%s\n", name, oneLine(text, 0)) }
	line("operation", op.ID+", revision "+fmt.Sprint(op.Revision))
	line("what", operationTitle(op))
	if release := releaseOf(op); release != "" {
		line("release", release)
	}
	line("state", progressState(op))
	line("begun", op.Created.Local().Format(time.DateTime)+", "+age(a.env.Now(), op.Created)+" ago")
	if op.Error != nil {
		line("error", op.Error.Detail+" ("+string(op.Error.Code)+")")
		if op.Error.Hint != "" {
			line("", "hint: "+withID(op.Error.Hint, op.ID))
		}
	}
	if step := op.HostStep; op.Phase == berth.PhaseAwaitingHostStep && step != nil && len(step.Command) > 0 {
		line("to run", "sudo "+quoteArgv(step.Command))
	}
	if next := nextStep(op); next != "" {
		line("next", next)
	}
	if err := a.printf("%s", b.String()); err != nil {
		return err
	}
	if op.Plan == nil || op.Phase != berth.PhaseAwaitingConsent && len(op.Plan.Blockers) == 0 {
		return nil
	}
	if err := a.printf("\n"); err != nil {
		return err
	}
	return renderPlan(a.env.Stdout, *op.Plan, a.columns(), a.colours(a.env.Stdout), false)
}

func progressState(op berth.Operation) string {
	if op.Progress != nil {
		return progressText(op, 0, 0, 0)
	}
	if op.CancelAsked && !op.Phase.Terminal() {
		return string(op.Phase) + ", will be cancelled"
	}
	return string(op.Phase)
}

// nextStep is what a person can do with an operation now.
func nextStep(op berth.Operation) string {
	switch op.Phase {
	case berth.PhaseAwaitingConsent:
		return "berth op resume " + op.ID + " --approve " + op.PlanDigest
	case berth.PhaseAwaitingHostStep:
		return "run that command; the operation goes on by itself"
	case berth.PhaseAwaitingRelogin:
		return "log out and in again, then: berth up; the operation goes on by itself"
	case berth.PhaseAwaitingReboot:
		return "restart the machine; the operation goes on by itself"
	case berth.PhaseFailed, berth.PhaseCancelled:
		return "berth op resume " + op.ID
	}
	return ""
}

func newOpResume(a *app) *cobra.Command {
	var agree consent
	cmd := &cobra.Command{
		Use:   "resume ID",
		Short: "Approve a plan, or go on after a wait or a failure",
		Long: `Go on with an operation that failed, was cancelled or waits, or approve its plan;
then follow it to its end. One that is at work is followed.`,
		Example: `berth op resume op-06ewr3mvd8x1k2ab
berth op resume op-06ewr3mvd8x1k2ab --approve sha256:4f0c…`,
		Args:              exactArgs("ID"),
		ValidArgsFunction: a.completeOperations,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := agree.check(cmd); err != nil {
				return err
			}
			return a.resume(cmd.Context(), args[0], agree)
		},
	}
	cmd.Flags().BoolVarP(&agree.yes, "yes", "y", false, "carry out the plan without asking")
	cmd.Flags().StringVar(&agree.approve, "approve", "", "carry out the plan with this `DIGEST`, and no other")
	return cmd
}

func (a *app) resume(ctx context.Context, id string, agree consent) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	op, err := api.Operation(ctx, id)
	if err != nil {
		return err
	}
	switch op.Phase {
	case berth.PhaseFailed, berth.PhaseCancelled, berth.PhaseAwaitingRelogin, berth.PhaseAwaitingReboot:
		if op, err = api.ResumeOperation(ctx, id, berth.ResumeOperation{Revision: op.Revision}); err != nil {
			return err
		}
	}
	return a.follow(ctx, api, op, agree)
}

func newOpCancel(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "cancel ID",
		Short: "End an operation at its next safe boundary",
		Long: `End an operation at its next safe boundary. What was pulled stays in Docker's
cache; berth op resume takes the operation up again.`,
		Example:           "berth op cancel op-06ewr3mvd8x1k2ab",
		Args:              exactArgs("ID"),
		ValidArgsFunction: a.completeOperations,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := a.client()
			if err != nil {
				return err
			}
			op, err := api.CancelOperation(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if op.Phase == berth.PhaseReady || op.Phase == berth.PhaseRemoved {
				return berth.Errorf(berth.CodeConflict, "%s had ended before: it is %s", operationTitle(op), op.Phase).WithFact("operation", op.ID).
					WithHint(doneHint(op))
			}
			return a.operationAnswer(op)
		},
	}
}

// doneHint is how what an operation did is undone.
func doneHint(op berth.Operation) string {
	if op.Phase == berth.PhaseRemoved || op.Target.Engine == "" {
		return "berth op show " + op.ID
	}
	return "berth remove " + op.Target.Engine + " takes it away again"
}

// operationAnswer answers with where an operation stands now.
func (a *app) operationAnswer(op berth.Operation) error {
	if a.flags.json {
		return a.answer(op)
	}
	return a.printf("%s: %s\n", operationTitle(op), progressState(op))
}

func newOpReceipt(a *app) *cobra.Command {
	var declined bool
	cmd := &cobra.Command{
		Use:   "receipt ID [FILE]",
		Short: "Answer the privileged step that waits",
		Long: `Answer the privileged step that waits: with the result that the helper left, or
by declining it. The daemon finds the result by itself where it can; what it
claims is looked for on the machine either way.`,
		Example: `berth op receipt op-06ewr3mvd8x1k2ab --declined
berth op receipt op-06ewr3mvd8x1k2ab result.json`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return usage(cmd, "ID is missing")
			case len(args) > 2:
				return usage(cmd, "%q is one argument too many", args[2])
			case declined == (len(args) == 2):
				return usage(cmd, "give FILE or --declined, one of the two")
			}
			return nil
		},
		ValidArgsFunction: a.completeOperations,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.receipt(cmd.Context(), args)
		},
	}
	cmd.Flags().BoolVar(&declined, "declined", false, "the step is not to be done")
	return cmd
}

// maxReceipt bounds a result of the helper.
const maxReceipt = 1 << 20

func (a *app) receipt(ctx context.Context, args []string) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	var r berth.Receipt
	if len(args) == 2 {
		data, err := berth.ReadFile(args[1], maxReceipt)
		if err != nil {
			return berth.Errorf(berth.CodeInvalidArgument, "read the receipt: %w", err)
		}
		if err := json.Unmarshal(data, &r); err != nil {
			return berth.Errorf(berth.CodeInvalidArgument, "%s is not a receipt: %w", args[1], err)
		}
	} else {
		op, err := api.Operation(ctx, args[0])
		if err != nil {
			return err
		}
		if op.HostStep == nil {
			return berth.Errorf(berth.CodeReceiptConflict, "no privileged step of %s waits: it is %s", op.ID, op.Phase)
		}
		r = receiptOf(op.HostStep, berth.ReceiptDeclined)
	}
	op, err := api.AcceptReceipt(ctx, args[0], r)
	if err != nil {
		return err
	}
	return a.operationAnswer(op)
}

func newOpReset(a *app) *cobra.Command {
	var on string
	cmd := &cobra.Command{
		Use:     "reset",
		Short:   "Put the operations that are over into an archive",
		Long:    "Put the operations of a host that are over into an archive. What they made stays. Refused while one is at work.",
		Example: "berth op reset\nberth op reset --on gpu-box",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := a.client()
			if err != nil {
				return err
			}
			r, err := api.ResetOperations(cmd.Context(), on)
			switch {
			case err != nil:
				return err
			case a.flags.json:
				return a.answer(r)
			case r.Archived == 0:
				return a.printf("there was nothing to put away\n")
			}
			return a.printf("%d operations were put away as %s\n", r.Archived, oneLine(r.Archive, 0))
		},
	}
	cmd.Flags().StringVar(&on, "on", berth.LocalHost, "`HOST` whose operations are put away")
	return cmd
}

func newOpDiagnostics(a *app) *cobra.Command {
	var on string
	cmd := &cobra.Command{
		Use:   "diagnostics",
		Short: "Print a report of a host for a person who helps",
		Long: `Print a read-only report of a host: what was found there, what is installed, the
operations, and what the privileged steps changed. It is JSON and has no secret.`,
		Example: "berth op diagnostics > report.json\nberth op diagnostics --on gpu-box --json | jq .facts.docker",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := a.client()
			if err != nil {
				return err
			}
			stop := a.progress("looking at " + oneLine(on, 40))
			d, err := api.Diagnostics(cmd.Context(), on)
			stop()
			if err != nil {
				return err
			}
			if a.flags.json {
				return a.answer(d)
			}
			text, err := json.MarshalIndent(d, "", "  ")
			if err != nil {
				return fmt.Errorf("encode the report: %w", err)
			}
			return a.printf("%s\n", visible(text))
		},
	}
	cmd.Flags().StringVar(&on, "on", berth.LocalHost, "`HOST` to report on")
	return cmd
}

// visible writes characters of a JSON document that a terminal obeys, or nobody
// sees, as their escapes; it stays the same document.
func visible(document []byte) string {
	var b strings.Builder
	for _, r := range string(document) {
		if r != '\n' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
			for _, unit := range utf16.Encode([]rune{r}) {
				fmt.Fprintf(&b, "\\u%04x", unit)
			}
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// completeOperations completes the id of an operation.
func (a *app) completeOperations(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault // a file, where there is one
	}
	api, err := a.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
	defer cancel()
	list, err := api.Operations(ctx, "")
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var ids []string
	for _, op := range list {
		if strings.HasPrefix(op.ID, prefix) {
			ids = append(ids, op.ID+"\t"+oneLine(phaseText(op)+", "+operationTitle(op), 60))
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}
