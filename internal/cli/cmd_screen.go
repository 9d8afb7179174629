package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

func newScreen(a *app) *cobra.Command {
	var ansi bool
	cmd := &cobra.Command{
		Use:   "screen NAME",
		Short: "Show what stands on a session's screen",
		Long: `Show what stands on a session's screen as text. With --ansi the answer is the
sequences that draw it, colours and cursor included.`,
		Example: `berth screen calm-heron
berth screen calm-heron --ansi   # draw it in this terminal`,
		Args:              exactArgs("NAME"),
		ValidArgsFunction: a.completeSessions(false, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := a.client()
			if err != nil {
				return err
			}
			screen, err := api.Screen(cmd.Context(), args[0], ansi)
			switch {
			case err != nil:
				return err
			case a.flags.json:
				return a.record(screen)
			case ansi:
				_, err = a.env.Stdout.Write(screen.ANSI)
				return err
			}
			lines := make([]string, len(screen.Lines))
			for i, line := range screen.Lines {
				lines[i] = oneLine(line, 0)
			}
			return a.printf("%s\n", strings.TrimRight(strings.Join(lines, "\n"), "\n"))
		},
	}
	cmd.Flags().BoolVar(&ansi, "ansi", false, "the sequences that draw it")
	return cmd
}
