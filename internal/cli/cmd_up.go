package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth"
)

// How long `up` waits for the daemon, and how often it looks. Adoption of what
// runs goes on after the daemon answers, so this is the time of a program start
// and of opening the store.
const (
	upDeadline = 10 * time.Second
	pollEvery  = 20 * time.Millisecond
	firstLook  = 2 * time.Second
	// An older daemon that is still stopping holds the lock and answers nobody:
	// after this long without an answer `up` tries to start its own again.
	upRetryAfter = 500 * time.Millisecond
)

// daemonProgram is the daemon's file name. It is not this program: the libraries
// of the store and the API would cost every command 4 ms before its first line.
const daemonProgram = "berth-daemon"

// readyFD is the descriptor on which the daemon says "ready", or why it ends,
// and envReadyFD the variable that tells it so.
const (
	readyFD    = 3
	envReadyFD = "BERTH_READY_FD"
)

func newUp(a *app) *cobra.Command {
	var replaceGuest bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the daemon and wait until it answers",
		Long: `Start the daemon and wait until it answers. Where one already runs, say so:
nothing is restarted, unless this login is in a group that the daemon's was not
in yet (as after a setup added you to group docker). The daemon's environment is the one of this command, and
is what sessions on this machine start with.`,
		Example: `berth up
berth down && berth up        # the daemon of this version in place of another`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.up(cmd.Context(), replaceGuest) },
	}
	cmd.Flags().BoolVar(&replaceGuest, "replace-guest", false, "put a guest of this version in place of an older one; sessions go on")
	return cmd
}

// upAnswer is the status with what `up` itself did.
type upAnswer struct {
	berth.Status
	Started bool   `json:"started"` // by this command
	Version string `json:"version"` // of this program; daemon.version is the daemon's
	// Token of the TCP listener, when the daemon has just made one: the only
	// time that it is shown.
	Token string `json:"token,omitempty"`
}

func (a *app) up(ctx context.Context, replaceGuest bool) error {
	api, err := a.ownClient()
	if err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, upDeadline)
	defer cancel()
	stop := a.progress("starting the daemon")
	status, started, err := a.ensureDaemon(starting, api)
	stop()
	if err != nil {
		return err
	}
	if groups := newerGroups(status.Daemon.PID); !started && len(groups) > 0 {
		if status, err = a.restartForLogin(starting, api, status.Daemon, groups); err != nil {
			return err
		}
		started, replaceGuest = true, true // the guest has the old login's groups too
	}
	if replaceGuest {
		stop := a.progress("replacing the guest")
		err := api.ReplaceGuest(ctx) // every screen is deposited first
		stop()
		if err != nil {
			return err
		}
		if status, err = api.Status(ctx); err != nil {
			return err
		}
	}
	if a.flags.json {
		return a.record(upAnswer{status, started, berth.Version(), a.newToken})
	}
	return a.printUp(status, started)
}

func (a *app) printUp(s berth.Status, started bool) error {
	verb := "already runs"
	if started {
		verb = "is up"
	}
	err := a.printf("berth %s %s (pid %d)\n  socket    %s\n  sessions  %d running, %d ended\n",
		s.Daemon.Version, verb, s.Daemon.PID, s.Daemon.Socket, s.Sessions.Running, s.Sessions.Exited+s.Sessions.Lost)
	if err != nil {
		return err
	}
	if a.newToken != "" {
		a.tell("the token of the TCP listener, shown this once:\n  %s\n", oneLine(a.newToken, 0))
	}
	if s.Daemon.Version != berth.Version() {
		a.note("note: the daemon is version %s, this program is %s\n  %s berth down && berth up", s.Daemon.Version, berth.Version(), a.styled(a.env.Stderr, styleHint, "hint:"))
	}
	for _, p := range s.Problems {
		a.noteProblem(p)
	}
	if s.Sessions.Running > 0 {
		return a.printf("\nnext:\n  berth ps                  what runs\n  berth attach NAME         come back to it\n")
	}
	return a.printf("\nnext:\n  berth run -- %-12s start a session (ctrl-\\ d leaves it running)\n  berth probe               what this machine lacks for engines in containers\n", a.shellName())
}

// shellName is the user's shell, for an example that they can type.
func (a *app) shellName() string {
	if sh := filepath.Base(a.env.Getenv("SHELL")); sh != "." && sh != "/" {
		return oneLine(sh, 12)
	}
	return "sh"
}

// ensureDaemon answers the status of the daemon, and starts one where none
// answers. Two callers at once get the same daemon: the one that loses the lock
// waits for the one that has it.
func (a *app) ensureDaemon(ctx context.Context, api API) (status berth.Status, started bool, err error) {
	// A socket that takes connections and says nothing may be anybody's: the
	// daemon to be finds out, since it knows by the lock whether one serves.
	look, cancel := context.WithTimeout(ctx, firstLook)
	status, err = api.Status(look)
	cancel()
	if err == nil {
		return status, false, nil
	}
	for {
		err := a.startDaemon(ctx)
		started = err == nil
		if err != nil && !errors.Is(err, berth.CodeAlreadyRunning) {
			return status, false, err
		}
		// Also one that said that it is ready can be gone by now: then the next
		// try starts another.
		wait, cancel := context.WithTimeout(ctx, upRetryAfter)
		status, last := pollStatus(wait, api)
		cancel()
		if last == nil {
			return status, started, nil
		}
		if ctx.Err() != nil {
			if started || errors.Is(context.Cause(ctx), context.Canceled) {
				return status, false, last
			}
			return status, false, berth.Errorf(berth.CodeDaemonUnreachable,
				"a daemon holds %s but does not answer within %s", a.stateDir(), upDeadline)
		}
	}
}

func (a *app) stateDir() string {
	p, err := a.paths()
	if err != nil {
		return "the state directory"
	}
	return p.State
}

// pollStatus asks until the daemon answers or ctx ends.
func pollStatus(ctx context.Context, api API) (berth.Status, error) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		status, err := api.Status(ctx)
		if err == nil {
			return status, nil
		}
		select {
		case <-ctx.Done():
			return status, err
		case <-tick.C:
		}
	}
}

// startDaemon starts this program as a daemon that outlives us, and returns
// when it says that it is ready or why it ended.
func (a *app) startDaemon(ctx context.Context) error {
	paths, err := a.paths()
	if err != nil {
		return err
	}
	self, err := a.env.Executable()
	if err != nil {
		return berth.Errorf(berth.CodeDaemonFailed, "find this program: %w", err)
	}
	program := filepath.Join(filepath.Dir(self), daemonProgram) // they are installed together
	logFile, err := openDaemonLog(paths)
	if err != nil {
		return err
	}
	defer logFile.Close() //nolint:errcheck // the daemon has its own copy
	r, w, err := os.Pipe()
	if err != nil {
		return berth.Errorf(berth.CodeDaemonFailed, "make a pipe: %w", err)
	}
	defer r.Close() //nolint:errcheck // it was only read
	// The command has no context: what we start must not end with us.
	cmd := exec.Command(program, "serve", "--state-dir", paths.State, "--runtime-dir", paths.Runtime, "--config", paths.Config, "--machine-dir", paths.Machine) //nolint:noctx // see above
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.Dir = "/"
	cmd.Env = append(a.env.Environ(), fmt.Sprintf("%s=%d", envReadyFD, readyFD))
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	_ = w.Close() // ours; the daemon's copy decides when the pipe ends
	if err != nil {
		return berth.Errorf(berth.CodeDaemonFailed, "start %s: %w", program, err).WithHint("install berth's programs into one directory")
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }() // ends with the daemon, or with this process
	return a.awaitReady(ctx, r, exited, paths)
}

// tokenPrefix begins the line with a token of the TCP listener that the daemon
// has just made. It is shown once and kept nowhere.
const tokenPrefix = "token "

// awaitReady reads the daemon's answer: a token where it made one, then one line.
// A pipe that ends without it means that the daemon ended, and its log says why.
func (a *app) awaitReady(ctx context.Context, r *os.File, exited <-chan error, paths berth.Paths) error {
	if deadline, ok := ctx.Deadline(); ok {
		_ = r.SetReadDeadline(deadline) // a pipe takes deadlines
	}
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	lines := bufio.NewReaderSize(io.LimitReader(r, 64<<10), 4096)
	line, err := lines.ReadString('\n')
	if token, ok := strings.CutPrefix(line, tokenPrefix); ok {
		a.newToken = strings.TrimSpace(token)
		line, err = lines.ReadString('\n')
	}
	line = strings.TrimSpace(line)
	switch {
	case line == "ready":
		return nil
	case line != "":
		return startError(line)
	case errors.Is(err, os.ErrDeadlineExceeded):
		if errors.Is(ctx.Err(), context.Canceled) {
			return berth.Errorf(berth.CodeInterrupted, "interrupted")
		}
		return berth.Errorf(berth.CodeDaemonUnreachable, "the daemon was started but is not ready after %s", upDeadline)
	}
	how := "ended"
	select {
	case werr := <-exited:
		if werr != nil {
			how = "ended with " + werr.Error()
		}
	case <-ctx.Done():
	}
	detail := "the daemon " + how + " while it started"
	if last := lastLine(paths.DaemonLog()); last != "" {
		detail += ": " + last
	}
	return berth.Errorf(berth.CodeDaemonFailed, "%s", detail)
}

// startError reads the problem that the daemon wrote.
func startError(line string) error {
	var p problem
	if err := json.Unmarshal([]byte(line), &p); err != nil || p.Code == "" {
		return berth.Errorf(berth.CodeDaemonFailed, "the daemon ended while it started: %s", oneLine(line, 500))
	}
	return &berth.Error{Code: p.Code, Detail: p.Detail, Hint: p.Hint, Facts: p.Facts}
}

func openDaemonLog(paths berth.Paths) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(paths.DaemonLog()), 0o700); err != nil {
		return nil, berth.Errorf(berth.CodeStateDir, "make the state directory: %w", err)
	}
	f, err := os.OpenFile(paths.DaemonLog(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, berth.Errorf(berth.CodeStateDir, "open the daemon's log: %w", err)
	}
	return f, nil
}

// lastLine is the last line of a log, safe to show.
func lastLine(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // it was only read
	const tail = 4096
	if end, err := f.Seek(0, io.SeekEnd); err != nil || end == 0 {
		return ""
	} else if _, err = f.Seek(max(0, end-tail), io.SeekStart); err != nil {
		return ""
	}
	data, err := io.ReadAll(io.LimitReader(f, tail))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return oneLine(lines[len(lines)-1], 500)
}

// noteProblem shows a standing condition.
func (a *app) noteProblem(p berth.Problem) {
	a.note("%s %s", a.styled(a.env.Stderr, styleWarn, "problem:"), oneLine(p.Detail, 0))
	if p.Hint != "" {
		a.note("  %s %s", a.styled(a.env.Stderr, styleHint, "hint:"), oneLine(p.Hint, 0))
	}
}
