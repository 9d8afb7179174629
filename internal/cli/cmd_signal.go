package cli

import (
	"github.com/spf13/cobra"
)

func newSignal(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "signal NAME SIGNAL",
		Short: "Signal what runs in the foreground of a session",
		Example: `berth signal calm-heron INT
berth signal calm-heron SIGUSR1`,
		Args: exactArgs("NAME", "SIGNAL"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return []string{"INT", "TERM", "HUP", "QUIT", "KILL", "USR1", "USR2", "STOP", "CONT", "WINCH"}, cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeSessions(true, 1)(cmd, args, prefix)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := a.client()
			if err != nil {
				return err
			}
			if err := api.Signal(cmd.Context(), args[0], args[1]); err != nil {
				return err
			}
			if a.flags.json {
				return a.answer(signalAnswer{version1, args[0], args[1]})
			}
			return nil
		},
	}
}

// signalAnswer is the document of signal.
type signalAnswer struct {
	V       int    `json:"v"`
	Session string `json:"session"` // as it was named
	Signal  string `json:"signal"`
}
