package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"berth"
)

func newWait(a *app) *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait NAME",
		Short: "Wait until a session's program ends",
		Long: `Wait until a session's program ends, and end with its exit status. A program
that has ended already is answered at once.`,
		Example: `berth wait calm-heron && echo it worked
berth wait calm-heron --timeout 10m`,
		Args:              exactArgs("NAME"),
		ValidArgsFunction: a.completeSessions(false, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if timeout < 0 || timeout == 0 && cmd.Flags().Changed("timeout") {
				return usage(cmd, "--timeout takes a duration above zero, like 30s or 10m")
			}
			return a.wait(cmd.Context(), args[0], timeout)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "give up after this `DURATION`; the session goes on")
	return cmd
}

func (a *app) wait(ctx context.Context, ref string, timeout time.Duration) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	waiting := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	s, err := api.Wait(waiting, ref)
	if err != nil {
		if ctx.Err() == nil && errors.Is(waiting.Err(), context.DeadlineExceeded) {
			return berth.Errorf(berth.CodeTimeout, "%s still runs after %s", ref, timeout).
				WithHint("wait again, or end it with: berth kill " + ref)
		}
		return err
	}
	if a.flags.json {
		if err := a.record(s); err != nil {
			return err
		}
	}
	return a.programStatus(s)
}

// programStatus ends with the program's own code. A program whose end nobody
// saw has none: that is a failure, never success.
func (a *app) programStatus(s berth.Session) error {
	if s.State == berth.SessionExited && s.Exit != nil && s.Exit.Reason == berth.ExitExited {
		return exitWith(s.Exit.Code)
	}
	if a.flags.json {
		return exitStatus(berth.ExitFailed) // the record says it
	}
	return berth.Errorf(berth.CodeSessionLost, "%s has no exit status: %s", s.Name, exitText(s.Exit))
}
