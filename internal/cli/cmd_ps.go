package cli

import (
	"github.com/spf13/cobra"

	"berth"
)

func newPs(a *app) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:     "ps",
		Aliases: []string{"ls"},
		Short:   "List sessions",
		Long:    "List the sessions whose program runs, newest first; with --all also those that ended.",
		Example: `berth ps
berth ps --all --json | jq -r '.sessions[].name'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := a.client()
			if err != nil {
				return err
			}
			list, err := api.Sessions(cmd.Context(), berth.SessionFilter{})
			if err != nil {
				return err
			}
			return a.printSessions(list, all)
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also sessions that ended or were lost")
	return cmd
}

// sessionList is the document of a list of sessions.
type sessionList struct {
	V        int             `json:"v"`
	Sessions []berth.Session `json:"sessions"` // never nil
}

func (a *app) printSessions(list []berth.Session, all bool) error {
	shown := []berth.Session{}
	ended := 0
	for _, s := range list {
		if s.State.Live() || all {
			shown = append(shown, s)
		} else {
			ended++
		}
	}
	if a.flags.json {
		return a.answer(sessionList{version1, shown})
	}
	if len(shown) == 0 {
		if ended > 0 {
			a.note("no session runs; berth ps --all shows the %d that ended", ended)
		} else {
			a.note("no sessions; berth run -- CMD starts one")
		}
		return nil
	}
	rows := make([][]string, len(shown))
	for i, s := range shown {
		rows[i] = []string{s.Name, stateText(s), agentText(s.Agent), age(a.env.Now(), s.CreatedAt), s.Size.String(), oneLine(describe(s), 0)}
	}
	return a.table([]string{"NAME", "STATE", "AGENT", "AGE", "SIZE", "TITLE/COMMAND"}, rows)
}

// stateText is the state, and how it ended.
func stateText(s berth.Session) string {
	if s.State != berth.SessionExited {
		return string(s.State)
	}
	return cut(exitText(s.Exit), 24)
}

func agentText(g *berth.Agent) string {
	if g == nil {
		return "-"
	}
	text := string(g.State)
	if g.Kind != "" {
		text += ":" + string(g.Kind)
	}
	if g.Progress != nil {
		text += " " + itoa(*g.Progress) + "%"
	}
	return oneLine(text, 24)
}
