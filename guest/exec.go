package guest

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth"
	"berth/guestapi"
)

// maxExecs is how many programs of execs run at a time; each may have 16 MiB of
// output in memory. Further calls wait until their callers do not.
const maxExecs = 64

// systemPath is the PATH of a program whose caller gives none.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// parseExec reads the body of an exec, and puts the defaults in that depend on
// nothing but it.
func parseExec(body []byte) (guestapi.Exec, error) {
	var in guestapi.Exec
	if err := json.Unmarshal(body, &in); err != nil {
		return in, berth.Errorf(berth.CodeInvalidArgument, "the request is not the JSON that is expected: %w", err)
	}
	bad := func(format string, args ...any) (guestapi.Exec, error) {
		return guestapi.Exec{}, berth.Errorf(berth.CodeInvalidArgument, format, args...)
	}
	if len(in.Argv) == 0 || in.Argv[0] == "" {
		return bad("argv names no program")
	}
	if name := in.Argv[0]; strings.Contains(name, "/") && !filepath.IsAbs(name) {
		return bad("the program %q is neither a name nor an absolute path", name)
	}
	for _, text := range append(append([]string{in.Cwd}, in.Argv...), in.Env...) {
		if strings.ContainsRune(text, 0) {
			return bad("%q has a zero byte", text)
		}
	}
	for _, e := range in.Env {
		if strings.Index(e, "=") < 1 {
			return bad("the environment has an entry that is not NAME=VALUE") // which may be a secret
		}
	}
	most := guestapi.MaxExecTimeout.Milliseconds()
	switch {
	case in.Cwd != "" && !filepath.IsAbs(in.Cwd):
		return bad("the directory %q is not absolute", in.Cwd)
	case in.TimeoutMS < 0 || in.TimeoutMS > most:
		return bad("a timeout of %d ms is outside 0 to %d", in.TimeoutMS, most)
	case in.MaxOutput < 0 || in.MaxOutput > guestapi.MaxExecOutput:
		return bad("an output of %d bytes is outside 0 to %d", in.MaxOutput, guestapi.MaxExecOutput)
	case len(in.Stdin) > guestapi.MaxExecStdin:
		return guestapi.Exec{}, berth.Errorf(berth.CodeTooLarge, "stdin of %d bytes is more than %d", len(in.Stdin), guestapi.MaxExecStdin)
	}
	if in.Cwd == "" {
		in.Cwd = "/"
	}
	if in.TimeoutMS == 0 {
		in.TimeoutMS = guestapi.ExecTimeout.Milliseconds()
	}
	if in.MaxOutput == 0 {
		in.MaxOutput = guestapi.MaxExecOutput
	}
	return in, nil
}

// exec runs a program to its end. The program does not outlive the caller, nor
// the guest when it stops in good order.
func (g *Guest) exec(ctx context.Context, in guestapi.Exec) (guestapi.ExecResult, error) {
	if len(in.Env) == 0 {
		in.Env = []string{"PATH=" + systemPath, "LANG=C.UTF-8", "HOME=" + home()}
	}
	path, err := findProgram(in.Argv[0], in.Env)
	if err != nil {
		return guestapi.ExecResult{}, err
	}
	if err := enterable(in.Cwd); err != nil {
		return guestapi.ExecResult{}, err
	}
	var res guestapi.ExecResult
	var runErr error
	done := make(chan struct{})
	// A goroutine of the guest and not of the handler's: a stop waits for those.
	if !g.spawn(func() {
		defer close(done)
		res, runErr = runProgram(ctx, g.stopping, path, in)
	}) {
		return guestapi.ExecResult{}, errStopping()
	}
	<-done
	return res, runErr
}

// home is the home directory of the guest's user, and not what an environment
// says that it is.
func home() string {
	u, err := user.LookupId(strconv.Itoa(os.Geteuid()))
	if err != nil || u.HomeDir == "" {
		return "/"
	}
	return u.HomeDir
}

// findProgram finds a name in the PATH of the program's own environment.
// Relative entries of PATH are passed over.
func findProgram(name string, env []string) (string, error) {
	if filepath.IsAbs(name) {
		if errno := executable(name); errno != 0 {
			return "", programError(name, errno)
		}
		return name, nil
	}
	path := systemPath
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	var failed error // the first that says more than "not there"
	for dir := range strings.SplitSeq(path, ":") {
		if !filepath.IsAbs(dir) {
			continue
		}
		p := filepath.Join(dir, name)
		errno := executable(p)
		if errno == 0 {
			return p, nil
		}
		if fileCode(errno) != berth.CodeNotFound && failed == nil {
			failed = programError(p, errno)
		}
	}
	if failed != nil {
		return "", failed
	}
	return "", berth.Errorf(berth.CodeCommandNotFound, "%s is in no directory of PATH", name).WithFact("errno", errnoName(unix.ENOENT))
}

// Reasons why a file that can be looked at is no program.
const (
	errNotExecutable = unix.ENOEXEC
	errIsDir         = unix.EISDIR
)

// executable gives 0 for a program, EACCES where it may not even be looked at.
func executable(path string) syscall.Errno {
	var st unix.Stat_t
	if errno := errnoOf(unix.Stat(path, &st)); errno != 0 {
		return errno
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return errIsDir
	}
	if unix.Access(path, unix.X_OK) != nil {
		return errNotExecutable
	}
	return 0
}

func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if err != nil && !errors.As(err, &errno) {
		return unix.EIO
	}
	return errno
}

// programError says why a file cannot be run.
func programError(path string, errno syscall.Errno) error {
	e := berth.Errorf(berth.CodeStartFailed, "start %s: %w", path, errno)
	switch errno {
	case unix.ENOENT, unix.ENOTDIR:
		// For a file that was found: the interpreter that it names is not there.
		e = berth.Errorf(berth.CodeCommandNotFound, "%s is not there, or its interpreter is not", path)
	case errNotExecutable, errIsDir:
		e = berth.Errorf(berth.CodeCommandNotFound, "%s is no program that can be executed", path)
	case unix.EACCES, unix.EPERM:
		e = berth.Errorf(berth.CodeForbidden, "%s may not be executed: %w", path, errno)
	case unix.E2BIG:
		e = berth.Errorf(berth.CodeTooLarge, "the arguments and environment of %s are more than the system takes", path)
	}
	return e.WithFact("errno", errnoName(errno))
}

func enterable(dir string) error {
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFDIR {
		err = unix.ENOTDIR
	}
	if err == nil {
		err = unix.Access(dir, unix.X_OK)
	}
	if err != nil {
		return berth.Errorf(berth.CodeCwdUnusable, "%s: %w", dir, err).WithFact("errno", errnoName(errnoOf(err)))
	}
	return nil
}

// runProgram starts the program, waits for it and says how it ended.
func runProgram(ctx context.Context, stopping <-chan struct{}, path string, in guestapi.Exec) (guestapi.ExecResult, error) {
	began := time.Now()
	p, err := startProgram(path, in)
	if err != nil {
		return guestapi.ExecResult{}, err
	}
	// What ends it early. The wait for its end watches one context alone.
	late := errors.New("the timeout")
	bound, cancel := context.WithTimeoutCause(ctx, time.Duration(in.TimeoutMS)*time.Millisecond, late)
	defer cancel()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-stopping:
			cancel()
		case <-bound.Done():
		}
	}()
	status, err := p.wait(bound)
	timedOut := p.cut && errors.Is(context.Cause(bound), late)
	cancel()
	<-watched
	switch {
	case err != nil:
		return guestapi.ExecResult{}, err
	case p.cut && !timedOut && ctx.Err() != nil:
		return guestapi.ExecResult{}, ctx.Err()
	case p.cut && !timedOut:
		return guestapi.ExecResult{}, errStopping()
	}
	res := guestapi.ExecResult{
		Code: status.ExitStatus(), TimedOut: timedOut, Path: path,
		Stdout: p.stdout.kept.bytes(), Stderr: p.stderr.kept.bytes(),
		Truncated: p.stdout.kept.dropped || p.stderr.kept.dropped,
		ElapsedMS: time.Since(began).Milliseconds(),
	}
	if status.Signaled() {
		res.Code, res.Signal = -1, unix.SignalName(status.Signal())
	}
	return res, nil
}
