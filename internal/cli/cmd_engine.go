package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth"
)

// Documents of the engine commands.
type (
	engineList struct {
		V       int            `json:"v"`
		Engines []berth.Engine `json:"engines"`
	}
	addedRelease struct {
		berth.ReleaseView
		Added bool `json:"added"` // false = it was there already
	}
)

func newEngine(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "engine",
		Short: "Look at engines and their releases",
		Long: `Look at the engines that berth can set up. A release is the pinned description of
one version of an engine: its images by digest, and what a machine must have.`,
		Example: `berth engine ls
berth engine show vllm
berth engine releases add ./vllm-next.json`,
		Args: cobra.ArbitraryArgs,
		RunE: subcommandOnly,
	}
	releases := &cobra.Command{
		Use:     "releases",
		Short:   "Add releases",
		Long:    "Add releases to the ones that come with berth. A release never changes: the same id with other content is refused.",
		Example: "berth engine releases add ./vllm-next.json\nberth engine releases add https://example.org/vllm-next.json",
		Args:    cobra.ArbitraryArgs,
		RunE:    subcommandOnly,
	}
	releases.AddCommand(newReleaseAdd(a))
	cmd.AddCommand(newEngineLs(a), newEngineShow(a), releases)
	return cmd
}

func newEngineLs(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "List engines, their releases, and where they are installed",
		Example: "berth engine ls\nberth engine ls --json | jq -r '.engines[].engine'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := a.client()
			if err != nil {
				return err
			}
			list, err := api.Engines(cmd.Context())
			if err != nil {
				return err
			}
			if a.flags.json {
				return a.answer(engineList{version1, list})
			}
			return a.printEngines(list)
		},
	}
}

func (a *app) printEngines(list []berth.Engine) error {
	rows := [][]string{}
	for _, e := range list {
		for _, r := range e.Releases {
			rows = append(rows, []string{oneLine(e.Engine, 40), r.ID, deviceText(r), strings.Join(platformsOf(r), " "), installedText(e, r.ID)})
		}
		if len(e.Releases) == 0 {
			rows = append(rows, []string{oneLine(e.Engine, 40), "-", "-", "-", installedText(e, "")})
		}
	}
	return a.table([]string{"ENGINE", "RELEASE", "DEVICE", "PLATFORMS", "INSTALLED ON"}, rows)
}

func deviceText(r berth.ReleaseView) string {
	if r.NeedsGPU() {
		return "gpu"
	}
	return "cpu"
}

func platformsOf(r berth.ReleaseView) []string {
	var names []string
	for name := range r.Images {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// installedText lists the hosts that have a release; release "" = any.
func installedText(e berth.Engine, release string) string {
	var hosts []string
	for _, in := range e.Installations {
		if release == "" || in.Release.ID == release {
			text := oneLine(in.Host, 40)
			if in.Status != berth.InstallationReady {
				text += " (" + string(in.Status) + ")"
			}
			hosts = append(hosts, text)
		}
	}
	if len(hosts) == 0 {
		return "-"
	}
	return strings.Join(hosts, " ")
}

func newEngineShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "show ENGINE",
		Short:             "Show an engine: each release with what it needs and what is not known of it",
		Example:           "berth engine show vllm\nberth engine show vllm --json | jq '.releases[0].images'",
		Args:              exactArgs("ENGINE"),
		ValidArgsFunction: a.completeEngines,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := a.client()
			if err != nil {
				return err
			}
			e, err := api.Engine(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if a.flags.json {
				return a.record(e)
			}
			return a.printEngine(e)
		},
	}
}

// noBound is the capability of a release for GPUs that sets none.
const noBound = "0.0"

func (a *app) printEngine(e berth.Engine) error {
	var b strings.Builder
	line := func(name, text string) { fmt.Fprintf(&b, "  %-11s%s\n", name, oneLine(text, 0)) }
	for i, r := range e.Releases {
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString(a.styled(a.env.Stdout, styleBold, oneLine(r.ID, 0)) + "\n")
		line("version", r.Version)
		need := "runs on the CPU"
		if r.NeedsGPU() {
			need = "NVIDIA GPU"
			if r.MinComputeCapability != noBound {
				need += " of compute capability " + r.MinComputeCapability + " or more"
			}
			if r.MinDriver != "" {
				need += ", driver " + r.MinDriver + " or newer"
			}
		}
		line("needs", need)
		if r.RequiredDiskBytes > 0 {
			line("disk", planBytes(r.RequiredDiskBytes))
		}
		for _, platform := range platformsOf(r) {
			line("image", platform+"  "+r.Images[platform].Reference())
			if c, ok := r.CheckImages[platform]; ok {
				line("check", platform+"  "+c.Reference())
			}
		}
		line("installed", installedText(e, r.ID))
		for _, text := range r.Notices {
			line("notice", text)
		}
		for _, text := range r.Unknown {
			line("unknown", text)
		}
		line("source", r.Source)
	}
	if len(e.Releases) == 0 {
		line("installed", installedText(e, ""))
	}
	return a.printf("%s", b.String())
}

func newReleaseAdd(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "add FILE|URL",
		Short: "Add a release from a file or an https URL",
		Long: `Add a release from a file, from standard input (-) or from an https URL, which
the daemon gets. It is checked strictly and kept; it is never fetched again.`,
		Example: `berth engine releases add ./vllm-next.json
berth engine releases add https://example.org/vllm-next.json`,
		Args: exactArgs("FILE"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"json"}, cobra.ShellCompDirectiveFilterFileExt
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.addRelease(cmd.Context(), args[0]) },
	}
}

// maxRelease bounds a document, as the daemon does.
const maxRelease = 1 << 20

func (a *app) addRelease(ctx context.Context, source string) error {
	api, err := a.client()
	if err != nil {
		return err
	}
	var view berth.ReleaseView
	var added bool
	if strings.Contains(source, "://") && !strings.HasPrefix(source, "file://") {
		view, added, err = api.AddReleaseFrom(ctx, source)
	} else {
		var data []byte
		if data, err = a.readRelease(strings.TrimPrefix(source, "file://")); err != nil {
			return err
		}
		view, added, err = api.AddRelease(ctx, data)
	}
	switch {
	case err != nil:
		return err
	case a.flags.json:
		return a.answer(addedRelease{view, added})
	case added:
		return a.printf("%s was added\n", view.ID)
	}
	return a.printf("%s was there already\n", view.ID)
}

func (a *app) readRelease(path string) ([]byte, error) {
	if path != "-" {
		data, err := berth.ReadFile(path, maxRelease)
		if err != nil {
			return nil, berth.Errorf(berth.CodeInvalidArgument, "read the release: %w", err)
		}
		return data, nil
	}
	data, err := io.ReadAll(io.LimitReader(a.env.Stdin, maxRelease+1))
	if err == nil && len(data) > maxRelease {
		err = errors.New("it is larger than a release may be")
	}
	if err != nil {
		return nil, berth.Errorf(berth.CodeInvalidArgument, "read the release from standard input: %w", err)
	}
	return data, nil
}

// completeEngines completes the name of an engine.
func (a *app) completeEngines(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, e := range a.enginesInTime(cmd.Context()) {
		if strings.HasPrefix(e.Engine, prefix) {
			names = append(names, e.Engine)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeReleases completes the id of a release, of the engine where it is
// given already.
func (a *app) completeReleases(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	var ids []string
	for _, e := range a.enginesInTime(cmd.Context()) {
		for _, r := range e.Releases {
			if strings.HasPrefix(r.ID, prefix) && (len(args) == 0 || args[0] == e.Engine) {
				ids = append(ids, r.ID)
			}
		}
	}
	return ids, cobra.ShellCompDirectiveNoFileComp
}

// enginesInTime are the engines for a completion, which no shell waits long for;
// none when nobody answers.
func (a *app) enginesInTime(ctx context.Context) []berth.Engine {
	api, err := a.client()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	list, _ := api.Engines(ctx)
	return list
}

// completeHosts completes the name of a host.
func completeHosts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{berth.LocalHost}, cobra.ShellCompDirectiveNoFileComp
}
