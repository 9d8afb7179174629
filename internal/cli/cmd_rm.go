package cli

import (
	"context"

	"github.com/spf13/cobra"

	"berth"
)

func newRm(a *app) *cobra.Command {
	var force, allEnded bool
	cmd := &cobra.Command{
		Use:   "rm NAME…",
		Short: "Remove sessions that ended, with all their files",
		Long: `Remove sessions that ended, with all their files. --force ends a program that
still runs first.`,
		Example: `berth rm calm-heron
berth rm --all-ended`,
		Args: func(cmd *cobra.Command, args []string) error {
			if allEnded {
				if force {
					return usage(cmd, "--all-ended and --force exclude each other: what ended needs no force")
				}
				return exactArgs()(cmd, args)
			}
			return someArgs("NAME")(cmd, args)
		},
		ValidArgsFunction: a.completeSessions(false, 0),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.rm(cmd.Context(), args, force, allEnded)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "end the program first")
	cmd.Flags().BoolVar(&allEnded, "all-ended", false, "every session that ended or was lost")
	return cmd
}

// rmAnswer is the document of rm: what was removed, as it was named.
type rmAnswer struct {
	V       int      `json:"v"`
	Removed []string `json:"removed"` // never nil
}

func (a *app) rm(ctx context.Context, refs []string, force, allEnded bool) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	names := map[string]string{}
	if allEnded {
		list, err := api.Sessions(ctx, berth.SessionFilter{States: []berth.SessionState{berth.SessionExited, berth.SessionLost}})
		if err != nil {
			return err
		}
		for _, s := range list {
			refs = append(refs, s.ID) // several ended sessions may have had one name
			names[s.ID] = s.Name
		}
	}
	removed := []string{}
	stop := func() {}
	if force {
		stop = a.progress("ending and removing")
	}
	err = a.each(refs, func(ref string) error {
		if err := api.Remove(ctx, ref, force); err != nil {
			return err
		}
		if name, ok := names[ref]; ok {
			ref = name
		}
		removed = append(removed, ref)
		return nil
	})
	stop()
	if a.flags.json {
		if werr := a.answer(rmAnswer{version1, removed}); werr != nil {
			return werr
		}
		return err
	}
	for _, name := range removed {
		if werr := a.printf("%s\n", name); werr != nil {
			return werr
		}
	}
	return err
}
