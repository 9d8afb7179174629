package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
)

func newEvents(a *app) *cobra.Command {
	var follow bool
	var from int64
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what changed",
		Long: `Show what changed: one line an event, in the daemon's sequence. An event is a
hint that a record is now at a revision; ask for the record. Without --from the
events that are kept are shown, or with -f those from now on.`,
		Example: `berth events
berth events -f --json
berth events -f --from 1200    # number 1200 and later, then what comes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from < 0 {
				return usage(cmd, "--from takes a sequence number")
			}
			if cmd.Flags().Changed("from") {
				from = max(from, 1) // 0 asks for the oldest too
			}
			return a.events(cmd.Context(), from, follow)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what comes")
	cmd.Flags().Int64Var(&from, "from", 0, "begin with this sequence `NUMBER`")
	return cmd
}

func (a *app) events(ctx context.Context, from int64, follow bool) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	show := func(e berth.Event) error {
		if a.flags.json {
			return a.record(e)
		}
		if e.Kind == berth.EventGap {
			a.note("note: the events %d to %d are no longer kept; list everything again", e.From, e.To-1)
			return nil
		}
		var b strings.Builder
		b.WriteString(itoa(int(e.Seq)) + "  " + e.At.Local().Format(time.DateTime) + "  " + oneLine(string(e.Kind), 40) + "  " + oneLine(e.Subject, 80))
		if e.Revision > 0 {
			b.WriteString("  rev " + itoa(int(e.Revision)))
		}
		return a.printf("%s\n", b.String())
	}
	if follow {
		return api.Events(ctx, from, show)
	}
	return api.PastEvents(ctx, from, show)
}
