package cli

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"berth"
)

// runFlags are the flags of run.
type runFlags struct {
	view     viewFlags
	on       string
	name     string
	detach   bool
	cwd      string
	env      []string
	withhold []string
	size     string
	logBytes int64
}

func newRun(a *app) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] [--] CMD…",
		Short: "Start a session",
		Long: `Start a session: a program in a terminal of its own, which goes on whatever
happens to this one. On a terminal berth attaches to it, and ends with the
program's exit status; with -d, or without a terminal, it prints the session's
name.`,
		Example: `berth run -- claude
berth run -d --name build -- make all
berth run --env CI=1 --withhold AWS_SECRET_ACCESS_KEY -- bash`,
		Args: someArgs("CMD"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.run(cmd, args, f) },
	}
	fl := cmd.Flags()
	fl.SetInterspersed(false) // the flags after CMD are its own
	fl.StringVar(&f.on, "on", berth.LocalHost, "`HOST` to run it on")
	fl.StringVar(&f.name, "name", "", "`NAME` of the session; without it one is made")
	fl.BoolVarP(&f.detach, "detach", "d", false, "do not attach; print the name")
	fl.StringVar(&f.cwd, "cwd", "", "`DIR` to start in; without it this one")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "set `NAME=VALUE`; NAME alone takes the value from here")
	fl.StringArrayVar(&f.withhold, "withhold", nil, "keep the variable `NAME` from the program")
	fl.StringVar(&f.size, "size", "", "size of the terminal, `COLSxROWS`")
	fl.Int64Var(&f.logBytes, "log", 0, "keep this many `BYTES` of output on disk; 0 = none")
	f.view.add(cmd)
	return cmd
}

func (a *app) run(cmd *cobra.Command, args []string, f runFlags) error {
	o, err := f.view.options(a, cmd)
	if err != nil {
		return err
	}
	spec, err := a.spec(cmd, args, f)
	if err != nil {
		return err
	}
	var t *userTerminal
	if !f.detach && !a.flags.json {
		if t, err = a.openTerminal(); err == nil && spec.Size == (berth.Size{}) {
			spec.Size = t.size()
		} else if err != nil && !errors.Is(err, berth.CodeNotATerminal) {
			return err
		}
	}
	if err := spec.Validate(); err != nil {
		return err
	}
	key, err := a.idempotencyKey()
	if err != nil {
		return err
	}
	api, err := a.client()
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	s, err := create(ctx, api, spec, key)
	switch {
	case err != nil:
		return err
	case a.flags.json:
		return a.record(s)
	case t == nil:
		return a.printf("%s\n", s.Name)
	}
	o.name, o.ref = s.Name, s.ID
	err = a.attach(ctx, t, o)
	if errors.Is(err, berth.CodeSessionEnded) { // it was over before we looked
		return a.showEnded(ctx, api, s)
	}
	return err
}

// create asks again once when the answer was lost: with the same key the second
// request finds what the first one made.
func create(ctx context.Context, api API, spec berth.SessionSpec, key string) (berth.Session, error) {
	s, err := api.Create(ctx, spec, key)
	if errors.Is(err, berth.CodeDaemonUnreachable) && ctx.Err() == nil {
		return api.Create(ctx, spec, key)
	}
	return s, err
}

func (a *app) idempotencyKey() (string, error) {
	var b [16]byte
	if _, err := io.ReadFull(a.env.Random, b[:]); err != nil {
		return "", fmt.Errorf("make a key: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}

// spec reads the flags of run.
func (a *app) spec(cmd *cobra.Command, args []string, f runFlags) (berth.SessionSpec, error) {
	spec := berth.SessionSpec{
		Name: f.name, Host: f.on, Argv: args, Cwd: f.cwd, Withhold: f.withhold,
		SizePolicy: berth.SizePolicy(f.view.policy),
	}
	if f.size != "" {
		size, err := berth.ParseSize(f.size)
		if err != nil {
			return spec, err
		}
		spec.Size = size
	}
	if cmd.Flags().Changed("log") {
		spec.LogBytes = &f.logBytes
	}
	if err := a.specCwd(&spec); err != nil {
		return spec, err
	}
	if id := a.env.Getenv(envSession); berth.ValidID(berth.SessionID, id) {
		spec.Parent = id
	}
	return spec, a.specEnv(cmd, &spec, f.env)
}

// specCwd makes the directory absolute where this machine is the host: the
// daemon has another one. On another host it is that host's to judge.
func (a *app) specCwd(spec *berth.SessionSpec) error {
	if spec.Host != berth.LocalHost || strings.HasPrefix(spec.Cwd, "/") {
		return nil
	}
	wd, err := os.Getwd()
	if err != nil {
		return berth.Errorf(berth.CodeCwdUnusable, "find this directory: %w", err)
	}
	if spec.Cwd != "" {
		wd = filepath.Join(wd, spec.Cwd)
	}
	spec.Cwd = wd
	return nil
}

func (a *app) specEnv(cmd *cobra.Command, spec *berth.SessionSpec, vars []string) error {
	for _, v := range vars {
		name, value, given := strings.Cut(v, "=")
		if !given {
			if value = a.env.Getenv(name); value == "" {
				return usage(cmd, "--env %s has no value, and there is no such variable here", name)
			}
		}
		if spec.Env == nil {
			spec.Env = map[string]string{}
		}
		spec.Env[name] = value
	}
	return nil
}

// showEnded shows the output of a program that ended before it could be shown.
func (a *app) showEnded(ctx context.Context, api API, s berth.Session) error {
	w := &logWriter{app: a}
	if err := a.logsKept(ctx, api, s.ID, berth.LogRequest{FromStart: true}, w); err != nil {
		return err
	}
	s, err := api.Wait(ctx, s.ID)
	if err != nil {
		return err
	}
	return a.programStatus(s)
}
