package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
)

// app is one run of the command line.
type app struct {
	env      Env
	flags    globals
	started  bool     // a command's own code runs: the command line was understood
	api      API      // see client
	newToken string   // of the TCP listener, where the daemon that this command started made one
	order    []string // of the commands in help: as one meets them, not by the alphabet
}

// globals are the flags that every command takes.
type globals struct {
	json    bool
	quiet   bool
	noColor bool
	paths   berth.Paths
}

func newRoot(a *app) *cobra.Command {
	root := &cobra.Command{
		Use:   "berth",
		Short: "Run terminal programs that you cannot lose",
		Long: `berth keeps terminal programs running through the loss of the client, the
network, the daemon and its upgrade, and gives back the exact screen and every
byte of their output.`,
		Example: `berth up                      # start the daemon
berth run -- claude           # start a session and attach to it
berth attach calm-heron       # come back to it; ctrl-\ d detaches
berth ps                      # what runs`,
		Version:       berth.Version(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs, // so that an unknown command is ours to tell
		RunE:          a.noCommand,
		PersistentPreRun: func(*cobra.Command, []string) {
			a.started = true
		},
	}
	root.SetOut(a.env.Stdout)
	root.SetErr(a.env.Stderr)
	root.SetIn(a.env.Stdin)
	root.SetHelpFunc(a.help)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, "%w", err) })
	root.SuggestionsMinimumDistance = 2
	f := root.PersistentFlags()
	f.BoolVar(&a.flags.json, "json", false, "answer in JSON")
	f.StringVar(&a.flags.paths.State, "state-dir", "", "state directory (BERTH_STATE_DIR)")
	f.StringVar(&a.flags.paths.Runtime, "runtime-dir", "", "directory of the sockets (BERTH_RUNTIME_DIR)")
	f.StringVar(&a.flags.paths.Machine, "machine-dir", "", "directory that all daemons of this user share (BERTH_MACHINE_DIR)")
	f.StringVar(&a.flags.paths.Config, "config", "", "config file (BERTH_CONFIG)")
	f.BoolVar(&a.flags.noColor, "no-color", false, "no colours (NO_COLOR)")
	f.BoolVarP(&a.flags.quiet, "quiet", "q", false, "no notes and no progress")
	commands := []*cobra.Command{
		newUp(a), newDown(a), newStatus(a), newDoctor(a), newVersion(a),
		newRun(a), newAttach(a), newPs(a), newScreen(a), newLogs(a), newSend(a),
		newSignal(a), newResize(a), newWait(a), newKill(a), newRm(a), newExport(a),
		newProbe(a), newSetup(a), newUpdate(a), newRemove(a), newOp(a), newEngine(a),
		newEvents(a), newHook(a),
	}
	for _, c := range commands {
		a.order = append(a.order, c.Name())
	}
	root.AddCommand(commands...)
	return root
}

// noCommand is `berth` alone, which is a question, and `berth NOSUCH`.
func (a *app) noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	err := berth.Errorf(berth.CodeUsage, "there is no command %q", args[0])
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return err.WithHint("did you mean: " + strings.Join(near, ", "))
	}
	return err.WithHint("berth --help")
}

// usage is an error of the command line itself, with where to read more.
func usage(cmd *cobra.Command, format string, args ...any) error {
	return berth.Errorf(berth.CodeUsage, format, args...).WithHint(cmd.CommandPath() + " --help")
}

// exactArgs takes n arguments, named for the message.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usage(cmd, "%s is missing", names[len(args)])
		case len(args) > len(names):
			return usage(cmd, "%q is one argument too many", args[len(names)])
		}
		return nil
	}
}

// someArgs takes one argument or more.
func someArgs(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usage(cmd, "%s is missing", name)
		}
		return nil
	}
}

// jsonWanted reports whether --json was given, also when the command line could
// not be parsed as far as that.
func (a *app) jsonWanted() bool {
	if a.flags.json || a.started {
		return a.flags.json
	}
	args := a.env.Args
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return slices.Contains(args, "--json") || slices.Contains(args, "--json=true")
}

func (a *app) paths() (berth.Paths, error) {
	home, err := os.UserHomeDir()
	if err != nil || a.env.Getenv("HOME") != "" {
		home = "" // ResolvePaths asks HOME itself, and says what is missing
	}
	return berth.ResolvePaths(a.flags.paths, a.env.Getenv, home)
}

// client is the API of the daemon that a command is for: the one of these
// directories, or, inside a session and where none were given, the one that the
// session belongs to. It does not connect.
func (a *app) client() (API, error) {
	if a.api != nil {
		return a.api, nil
	}
	paths, err := a.paths()
	if err != nil {
		return nil, err
	}
	if runtime := a.enclosingRuntime(); runtime != "" {
		paths.Runtime = runtime
	}
	a.api, err = a.env.Connect(paths)
	return a.api, err
}

// ownClient is client without a look at an enclosing session: what starts and
// stops a daemon means the one of its directories.
func (a *app) ownClient() (API, error) {
	paths, err := a.paths()
	if err != nil {
		return nil, err
	}
	a.api, err = a.env.Connect(paths)
	return a.api, err
}

// enclosingRuntime finds the runtime directory of the daemon of the session that
// this runs in: none of the variables that name directories reach a program,
// but its relay socket lies in one. On another host no daemon's socket is there.
func (a *app) enclosingRuntime() string {
	given := a.flags.paths.State + a.flags.paths.Runtime + a.env.Getenv("BERTH_STATE_DIR") + a.env.Getenv("BERTH_RUNTIME_DIR")
	relay := a.env.Getenv(envSocket)
	if given != "" || !filepath.IsAbs(relay) {
		return ""
	}
	runtime := filepath.Dir(filepath.Dir(relay))
	info, err := os.Lstat(filepath.Join(runtime, berth.SocketDaemon))
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return ""
	}
	return runtime
}

// completeTimeout bounds a look-up while the user waits for the TAB key.
const completeTimeout = 500 * time.Millisecond

// completeSessions completes the names of sessions: all of them, or the live
// ones. max bounds how many arguments are sessions; 0 = any number.
func (a *app) completeSessions(liveOnly bool, max int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if max > 0 && len(args) >= max {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		api, err := a.client()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), completeTimeout)
		defer cancel()
		list, err := api.Sessions(ctx, berth.SessionFilter{})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, s := range list {
			if strings.HasPrefix(s.Name, prefix) && !slices.Contains(args, s.Name) && (s.State.Live() || !liveOnly) {
				names = append(names, fmt.Sprintf("%s\t%s", s.Name, oneLine(describe(s), 60)))
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
