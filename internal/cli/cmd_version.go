package cli

import (
	"runtime"
	"strconv"

	"github.com/spf13/cobra"

	"berth"
)

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show version, build and protocol of this program",
		Example: "berth version --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := berth.VersionInfo{Version: berth.Version(), Build: berth.Build(), Protocol: berth.GuestProtocol, Go: runtime.Version()}
			if a.flags.json {
				return a.record(v)
			}
			return a.printf("berth %s (build %s, guest protocol %d, %s)\n", v.Version, v.Build, v.Protocol, v.Go)
		},
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
