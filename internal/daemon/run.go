// Package daemon is the one composition: it reads the settings, takes its place
// on disk, builds every room and joins them, serves, and stops in order. It
// may be killed at any moment; what it was doing is on disk or goes on without it.
package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/lmittmann/tint"
	xterm "golang.org/x/term"

	"berth"
)

// envReadyFD names the descriptor on which `berth up` waits for "ready" or for
// the reason of a failure, one line of JSON.
const envReadyFD = "BERTH_READY_FD"

const usage = "berth-daemon serve [--state-dir DIR] [--runtime-dir DIR] [--config FILE] [--machine-dir DIR] | berth-daemon version"

// Run is the daemon: it serves until ctx ends, a SIGTERM comes, somebody
// asks it to stop, or its store fails.
func Run(ctx context.Context, args []string, stderr io.Writer) error {
	return RunOn(ctx, args, stderr, Standin{})
}

// RunOn is Run on a machine that stands in for this one, for the programs of
// tests.
func RunOn(ctx context.Context, args []string, stderr io.Writer, machine Standin) error {
	if len(args) == 1 && args[0] == "version" {
		_, err := fmt.Printf("berth-daemon %s (%s)\n", berth.Version(), berth.Build())
		return err
	}
	if len(args) == 0 || args[0] != "serve" {
		err := berth.Errorf(berth.CodeUsage, "nothing to do").WithHint("usage: " + usage)
		_, werr := fmt.Fprintf(stderr, "%s\n  %s\n", err.Detail, err.Hint)
		return errors.Join(err, werr)
	}
	flags := flag.NewFlagSet("berth-daemon", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var given berth.Paths
	flags.StringVar(&given.State, "state-dir", "", "state directory")
	flags.StringVar(&given.Runtime, "runtime-dir", "", "runtime directory")
	flags.StringVar(&given.Config, "config", "", "config file")
	flags.StringVar(&given.Machine, "machine-dir", "", "machine directory")
	if err := flags.Parse(args[1:]); err != nil {
		return berth.Errorf(berth.CodeUsage, "%w", err)
	}
	ready := readyPipe(os.Getenv(envReadyFD))
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	signal.Ignore(syscall.SIGHUP) // the terminal that started us may go
	home, err := os.UserHomeDir()
	if err != nil {
		home = ""
	}
	paths, err := berth.ResolvePaths(given, os.Getenv, home)
	if err == nil {
		err = serve(ctx, Config{
			Paths:     paths,
			Home:      home,
			Env:       os.Environ(),
			Log:       newLog(stderr),
			Ready:     ready.ready,
			ShowToken: ready.token,
			BinDir:    binDir(),
			Standin:   machine,
		})
	}
	ready.failed(err)
	return err
}

// newLog writes JSON lines to a file and coloured text to a terminal.
func newLog(w io.Writer) *slog.Logger {
	if f, ok := w.(*os.File); ok && xterm.IsTerminal(int(f.Fd())) { //nolint:gosec // a descriptor fits
		return slog.New(tint.NewTextHandler(w, &tint.Options{TimeFormat: time.TimeOnly}))
	}
	return slog.New(slog.NewJSONHandler(w, nil))
}

// starter is whoever waits for the daemon to answer; w is nil where nobody does.
type starter struct{ w io.WriteCloser }

// readyPipe takes the pipe over. It must not reach the guest or a program: an
// end of it that stays open would let `berth up` wait for ever.
func readyPipe(fd string) *starter {
	n, err := strconv.Atoi(fd)
	if err != nil || n < 3 {
		return &starter{}
	}
	syscall.CloseOnExec(n)
	return &starter{w: os.NewFile(uintptr(n), "ready")}
}

func (s *starter) ready() { s.say("ready") }

// token tells a new token to whoever started the daemon; it is never logged.
func (s *starter) token(token string) {
	if s.w != nil {
		_, _ = io.WriteString(s.w, "token "+token+"\n") // whoever waited may have gone: remove api.token for another
	}
}

func (s *starter) failed(err error) {
	if err == nil || s.w == nil {
		return
	}
	e := berth.AsError(err)
	line, err := json.Marshal(berth.ProblemDocument{Code: e.Code, Detail: e.Detail, Hint: e.Hint, Facts: e.Facts})
	if err != nil {
		line = fmt.Appendf(nil, `{"code":%q}`, e.Code)
	}
	s.say(string(line))
}

func (s *starter) say(line string) {
	if s.w == nil {
		return
	}
	_, err := io.WriteString(s.w, line+"\n")
	_ = errors.Join(err, s.w.Close()) // whoever waited may have gone
	s.w = nil
}
