package cli

import (
	"context"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth"
)

// exportFormats are the formats that the daemon writes.
var exportFormats = []string{"cast", "text"}

func newExport(a *app) *cobra.Command {
	var format, out string
	cmd := &cobra.Command{
		Use:   "export NAME",
		Short: "Write a session's output as a recording or as plain text",
		Long: `Write what is kept of a session's output: as an asciinema recording (cast, for
asciinema play), or as plain text without control sequences.`,
		Example: `berth export calm-heron --format text > session.txt
berth export calm-heron --format cast -o session.cast`,
		Args:              exactArgs("NAME"),
		ValidArgsFunction: a.completeSessions(false, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains(exportFormats, format) {
				return usage(cmd, "--format %q is not %s", format, strings.Join(exportFormats, " or "))
			}
			if a.flags.json {
				return usage(cmd, "export writes the recording itself; it has no --json")
			}
			return a.export(cmd.Context(), args[0], format, out)
		},
	}
	cmd.Flags().StringVar(&format, "format", "cast", "`FORMAT` of the answer: cast or text")
	cmd.Flags().StringVarP(&out, "output", "o", "", "`FILE` to write; - is standard output")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(exportFormats, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return cmd
}

func (a *app) export(ctx context.Context, ref, format, out string) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	if out == "" || out == "-" {
		return api.Export(ctx, ref, format, a.env.Stdout)
	}
	stop := a.progress("exporting")
	err = exportFile(out, func(w io.Writer) error { return api.Export(ctx, ref, format, w) })
	stop()
	return err
}

// exportFile writes next to the target and renames, so that a failure half way
// leaves what was there.
func exportFile(path string, write func(io.Writer) error) (err error) {
	f, err := os.OpenFile(path+".part", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return berth.Errorf(berth.CodeInvalidArgument, "write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()           // the first failure is the one to report
			_ = os.Remove(f.Name()) // it was never the file at path
		}
	}()
	if err = write(f); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
