package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"berth"
)

// fillMachine sets what a test did not.
func (e *Env) fillMachine() {
	if e.LookPath == nil {
		e.LookPath = exec.LookPath
	}
	if e.UserID == nil {
		e.UserID = os.Geteuid
	}
	if e.Attached == nil {
		stdin, stderr := e.Stdin, e.Stderr
		e.Attached = func(argv []string) error {
			// No context: what runs as root half way is not ours to kill. The
			// terminal's Ctrl-C reaches it by itself.
			cmd := exec.Command(argv[0], argv[1:]...) //nolint:noctx // see above
			cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stderr, stderr
			// Who ran the sudo that this shell came from is not who runs this: the
			// helper would look for that user's folder.
			cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
				return strings.HasPrefix(v, "SUDO_") || strings.HasPrefix(v, "PKEXEC_UID=")
			})
			return cmd.Run()
		}
	}
}

// rootCommand is what to run so that a command is run as root: nothing more
// where we are root, sudo on a terminal, pkexec on a desktop. nil = a person
// has to do it somewhere else.
func (a *app) rootCommand(command []string) []string {
	if a.env.UserID() == 0 {
		return command
	}
	var tool string
	switch {
	case a.canAsk():
		tool = "sudo"
	case !a.flags.json && (a.env.Getenv("DISPLAY") != "" || a.env.Getenv("WAYLAND_DISPLAY") != ""):
		tool = "pkexec"
	default:
		return nil
	}
	path, err := a.env.LookPath(tool)
	if err != nil {
		return nil
	}
	return append([]string{path}, command...)
}

// hostStep gets the privileged part done. It returns when the helper has ended,
// or when somebody else has to run it.
func (a *app) hostStep(ctx context.Context, api API, op berth.Operation) error {
	step := op.HostStep
	byHand := "sudo " + quoteArgv(step.Command)
	if op.Target.Host != berth.LocalHost {
		return a.stepByHand(op, fmt.Sprintf("on %s, run", op.Target.Host), byHand)
	}
	argv := a.rootCommand(step.Command)
	if argv == nil {
		return a.stepByHand(op, "run", byHand)
	}
	a.noteElevated(op, argv)
	runErr := a.env.Attached(argv)
	if _, err := os.Stat(step.Result); err == nil || ctx.Err() != nil {
		return nil // the daemon reads the result; or the user left, and the step waits
	}
	// Without a result the helper never ran: the password was refused, or asked
	// for in vain. Its own exit status, with a result, is the daemon's to judge.
	why := "it left no result"
	var exit *exec.ExitError
	switch {
	case errors.As(runErr, &exit):
		why = exit.String()
	case runErr != nil:
		why = runErr.Error()
	}
	a.note("the privileged step did not run: %s", oneLine(why, 200))
	_, err := api.AcceptReceipt(ctx, op.ID, receiptOf(step, berth.ReceiptDeclined))
	if errors.Is(err, berth.CodeReceiptConflict) { // it has gone on meanwhile
		return nil
	}
	return err
}

// stepByHand tells what to run; the operation waits for its result.
func (a *app) stepByHand(op berth.Operation, where, command string) error {
	if a.flags.json {
		return berth.Errorf(berth.CodeConsentRequired, "a privileged step waits: %s: %s", where, command).
			WithHint("run it; then: berth op show " + op.ID)
	}
	// Also with --quiet: without it nothing goes on.
	a.tell("a privileged step waits; %s:\n\n  %s\n\nthe operation goes on by itself when that is done (to refuse: berth op receipt %s --declined)\n", where, oneLine(command, 0), op.ID)
	return nil
}

// noteElevated says plainly what is about to run as root.
func (a *app) noteElevated(op berth.Operation, argv []string) {
	var b strings.Builder
	b.WriteString("as root, the following is done now:\n")
	if op.Plan != nil {
		for _, c := range op.Plan.Changes {
			if c.Elevated {
				b.WriteString("  - " + oneLine(c.Text, 0) + "\n")
			}
		}
	}
	if !a.flags.json { // also with --quiet: nothing runs as root unsaid
		a.tell("%sby: %s\n", b.String(), oneLine(quoteArgv(argv), 0))
	}
}

// receiptOf answers a step with nothing but an outcome.
func receiptOf(step *berth.HostStep, outcome berth.ReceiptOutcome) berth.Receipt {
	return berth.Receipt{
		StepID: step.ID, Nonce: step.Nonce, Revision: step.Revision, Action: step.Action, Recipe: step.Recipe,
		ParametersDigest: step.ParametersDigest, Outcome: outcome,
	}
}
