package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"berth"
)

func newStatus(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show what runs and what is wrong",
		Example: `berth status
berth status --json | jq .sessions.running`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := a.client()
			if err != nil {
				return err
			}
			s, err := api.Status(cmd.Context())
			if err != nil {
				return err
			}
			if a.flags.json {
				return a.record(s)
			}
			return a.printStatus(s)
		},
	}
}

func (a *app) printStatus(s berth.Status) error {
	var b strings.Builder
	line := func(name string, parts ...string) {
		b.WriteString(name + strings.Repeat(" ", max(1, 11-len(name))) + strings.Join(parts, "") + "\n")
	}
	line("daemon", s.Daemon.Version, ", pid ", itoa(s.Daemon.PID), ", up ", age(a.env.Now(), s.Daemon.StartedAt))
	line("socket", s.Daemon.Socket)
	g := s.Guest
	if g.Reachable {
		line("guest", g.Version, ", pid ", itoa(g.PID), ", protocol ", itoa(g.Protocol))
	} else {
		line("guest", a.styled(a.env.Stdout, styleWarn, "not reachable"), ": ", oneLine(g.Error, 0))
	}
	counts := []string{itoa(s.Sessions.Running), " running, ", itoa(s.Sessions.Exited), " exited, ", itoa(s.Sessions.Lost), " lost"}
	if s.Sessions.Unknown > 0 {
		counts = append(counts, ", ", itoa(s.Sessions.Unknown), " unknown")
	}
	line("sessions", counts...)
	for _, l := range []struct{ name, addr string }{
		{"api", s.Listeners.API}, {"gateway", s.Listeners.Gateway}, {"dashboard", s.Listeners.Dashboard},
	} {
		if l.addr != "" {
			line(l.name, l.addr)
		}
	}
	if len(s.Problems) == 0 {
		line("problems", "none")
	}
	for _, p := range s.Problems {
		line(a.styled(a.env.Stdout, styleWarn, "problem"), "    ", oneLine(p.Detail, 0), " (", string(p.Code), ")")
		if p.Hint != "" {
			line("", "hint: ", oneLine(p.Hint, 0))
		}
	}
	return a.printf("%s", b.String())
}
