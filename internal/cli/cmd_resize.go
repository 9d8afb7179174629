package cli

import (
	"github.com/spf13/cobra"

	"berth"
)

func newResize(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "resize NAME COLSxROWS",
		Short:             "Change the size of a session's terminal",
		Example:           "berth resize calm-heron 120x40",
		Args:              exactArgs("NAME", "COLSxROWS"),
		ValidArgsFunction: a.completeSessions(true, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			size, err := berth.ParseSize(args[1])
			if err != nil {
				return err
			}
			api, err := a.client()
			if err != nil {
				return err
			}
			s, err := api.Resize(cmd.Context(), args[0], size)
			if err != nil {
				return err
			}
			if a.flags.json {
				return a.record(s)
			}
			return nil
		},
	}
}
