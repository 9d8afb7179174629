package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"berth"
)

func newKill(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "kill NAME…",
		Short: "End a session's program and wait until it is gone",
		Long: `End a session's program and wait until it is gone: hang-up first, then TERM,
then KILL, two seconds apart. What it wrote stays until berth rm.`,
		Example: `berth kill calm-heron
berth kill calm-heron && berth rm calm-heron`,
		Args:              someArgs("NAME"),
		ValidArgsFunction: a.completeSessions(true, 0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(args, func(ref string) error { return a.kill(cmd.Context(), ref) })
		},
	}
}

// each does the same to several sessions. One that fails does not stop the
// others; all failures are told, and the first one gives the exit status.
func (a *app) each(refs []string, do func(ref string) error) error {
	var first error
	for _, ref := range refs {
		err := do(ref)
		if err == nil {
			continue
		}
		if first != nil {
			a.reportError(first)
			first = exitStatus(berth.ExitCode(first))
			a.reportError(err)
			continue
		}
		first = err
	}
	return first
}

// killAnswer is the document of kill.
type killAnswer struct {
	V       int    `json:"v"`
	Session string `json:"session"` // as it was named
	berth.KillResult
}

func (a *app) kill(ctx context.Context, ref string) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	stop := a.progress("ending " + oneLine(ref, 70))
	result, err := api.Kill(ctx, ref)
	stop()
	if err != nil {
		return err
	}
	if a.flags.json {
		if result.Survivors == nil {
			result.Survivors = []int{}
		}
		if err := a.answer(killAnswer{version1, ref, result}); err != nil {
			return err
		}
	}
	if result.Exit == nil {
		return berth.Errorf(berth.CodeKillIncomplete, "%s is still there after SIGKILL%s", ref, survivors(result.Survivors))
	}
	if len(result.Survivors) > 0 {
		a.note("note: %s ended, but processes that it started are still there%s", ref, survivors(result.Survivors))
	} else if !result.Contained {
		a.note("note: %s had no cgroup of its own here: a process that left its groups would not have been found", ref)
	}
	if a.flags.json {
		return nil
	}
	return a.printf("%s %s\n", ref, exitText(result.Exit))
}

func survivors(pids []int) string {
	if len(pids) == 0 {
		return ""
	}
	text := make([]string, len(pids))
	for i, pid := range pids {
		text[i] = itoa(pid)
	}
	return fmt.Sprintf(" (pid %s)", strings.Join(text, ", "))
}
