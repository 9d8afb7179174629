package holder

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth"
	"berth/process"
	"berth/terminal"
)

// Run is the holder: it reads its spec from stdin, answers on stdout, and keeps
// the program until it has ended and its end has been told. args are the
// session's directory and the path of the socket. It takes over the process:
// signals, umask and standard streams.
func Run(args []string, stdin, stdout *os.File) error {
	k, err := setUp(args, stdin)
	// When nobody reads the answer any more, the program runs all the same: its
	// record is on disk, and the next guest finds it. (A raw write, since a broken
	// standard output of os.File ends the process.)
	if err != nil {
		_, _ = unix.Write(int(stdout.Fd()), frame(reError, addError(nil, startFailure(err))))
		return err
	}
	_, _ = unix.Write(int(stdout.Fd()), frame(reOK, nil))
	if err := silence(stdin, stdout); err != nil {
		return err
	}
	return k.loop()
}

// setUp does everything that can fail, and leaves nothing behind when it does.
func setUp(args []string, stdin *os.File) (*keeper, error) {
	if len(args) != 2 || !filepath.IsAbs(args[0]) || !filepath.IsAbs(args[1]) {
		return nil, berth.Errorf(berth.CodeUsage, "the holder is started by the guest, with a directory and a socket")
	}
	typ, body, err := readFrame(stdin, nil, maxSpec)
	if err != nil || typ != opHello {
		return nil, berth.Errorf(berth.CodeStartFailed, "the holder got no spec: %w", errors.Join(err, errFrame))
	}
	spec, err := decodeSpec(body)
	if err != nil {
		return nil, berth.Errorf(berth.CodeStartFailed, "the holder got a spec that it does not understand: %w", err)
	}
	// What this process inherited open must not go on to the program.
	_ = unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC) // before Linux 5.11 there is only Go's own close-on-exec
	k := &keeper{spec: spec, dir: args[0], socket: args[1], fds: fds{epoll: -1, wake: -1, listener: -1, pidfd: -1}}
	for _, step := range []func() error{k.takeDir, k.spec.check, k.openTerminal, k.openLoop, k.bind, k.start} {
		if err := step(); err != nil {
			k.undo()
			return nil, err
		}
	}
	return k, nil
}

// check validates what the guest must have validated already: the holder trusts nothing.
func (s *Spec) check() error {
	if s.ID == "" || len(s.ID) > 64 || s.Generation < 1 || len(s.Argv) == 0 || s.Argv[0] == "" || !s.Size.Valid() || s.LogBytes < 0 || s.RingBytes < 0 {
		return berth.Errorf(berth.CodeInvalidArgument, "the spec of the session is not usable")
	}
	for _, c := range []byte(s.ID) { // it becomes a part of the cgroup's name
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return berth.Errorf(berth.CodeInvalidArgument, "%q is not the id of a session", s.ID)
		}
	}
	if s.KillGrace <= 0 {
		s.KillGrace = DefaultKillGrace
	}
	if s.DrainQuiet <= 0 {
		s.DrainQuiet = DefaultDrainQuiet
	}
	return nil
}

// startFailure gives an error that has no code the one of a start that failed.
func startFailure(err error) *berth.Error {
	var e *berth.Error
	if errors.As(err, &e) {
		return e
	}
	return berth.Errorf(berth.CodeStartFailed, "%w", err)
}

// takeDir takes the lock. A directory that had a holder before is refused: its
// output and its exit record are another generation's.
func (k *keeper) takeDir() error {
	lock, err := takeLock(k.dir)
	if err != nil {
		return err
	}
	k.lock = lock
	for _, name := range []string{berth.FileIdentity, berth.FileExit} {
		if _, err := os.Lstat(filepath.Join(k.dir, name)); err == nil {
			k.foreign = true
			return berth.Errorf(berth.CodeConflict, "%s has the records of a program already", k.dir)
		} else if !notThere(err) {
			return fmt.Errorf("look into the session's directory: %w", err)
		}
	}
	return nil
}

func (k *keeper) openTerminal() error {
	var err error
	k.log, err = terminal.OpenLog(terminal.LogConfig{
		Dir: filepath.Join(k.dir, berth.DirOutput), Cap: k.spec.LogBytes, Ring: k.spec.RingBytes, Flushed: k.notify,
	})
	if err != nil {
		return err
	}
	k.pty, err = terminal.OpenPTY(k.spec.Size)
	return err
}

// start starts the program and writes the record, in that order, and nothing
// was read from the terminal yet: whoever finds the record finds all output.
func (k *keeper) start() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the reaper of the program's children: %w", err)
	}
	k.handleSignals()
	if err := defaultSignals(); err != nil {
		return err
	}
	pid, err := k.spawn()
	if err != nil {
		return err
	}
	k.leader = pid
	unix.Umask(0o077) // the program has its user's; from here on it is the holder's
	if k.record.Program, err = process.Of(pid); err == nil {
		k.record.Holder, err = process.Self()
	}
	if err != nil {
		return err
	}
	k.record.Generation, k.record.LogBytes = k.spec.Generation, k.spec.LogBytes
	k.record.StartedAt = time.Now().UTC()
	if err := berth.WriteFile(filepath.Join(k.dir, berth.FileIdentity), k.record.appendJSON(nil), 0o600); err != nil {
		return err
	}
	k.wrote = true
	k.spec.Argv, k.spec.Env = nil, nil // values of variables are kept nowhere
	return k.watchFD(k.fds.pidfd, unix.EPOLLIN)
}

// silence points the standard input and output at nothing. The standard error
// stays holder.log.
func silence(stdin, stdout *os.File) error {
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	for _, f := range []*os.File{stdin, stdout} {
		if err := unix.Dup3(null, int(f.Fd()), 0); err != nil {
			return fmt.Errorf("close the pipe to the guest: %w", err)
		}
	}
	return unix.Close(null)
}

// undo removes what a start that failed had made.
func (k *keeper) undo() {
	if k.leader > 0 {
		_ = unix.Kill(k.leader, unix.SIGKILL) // not reaped yet, so the number is its own
		var ws unix.WaitStatus
		_, _ = unix.Wait4(k.leader, &ws, 0, nil)
	}
	if k.cgroup.Dir() != "" {
		k.removeCgroup(time.Second)
	}
	k.unbind()
	if k.pty != nil {
		k.pty.Close()
	}
	if k.log != nil {
		_ = k.log.Close() // it goes at once
		_ = os.RemoveAll(filepath.Join(k.dir, berth.DirOutput))
	}
	if k.wrote {
		_ = os.Remove(filepath.Join(k.dir, berth.FileIdentity))
	}
	if k.lock != nil && !k.foreign {
		_ = os.Remove(k.lock.Name())
	}
	errLog := filepath.Join(k.dir, berth.FileHolderErr)
	if st, err := os.Lstat(errLog); err == nil && st.Size() == 0 && k.lock != nil {
		_ = os.Remove(errLog)
	}
}

// ended tells the end of the output from a failure.
func ended(err error) bool { return errors.Is(err, io.EOF) }

// exitOf says how a program ended.
func exitOf(ws syscall.WaitStatus) berth.Exit {
	e := berth.Exit{Reason: berth.ExitExited}
	if ws.Signaled() {
		e.Code, e.Signal = 128+int(ws.Signal()), process.SignalName(ws.Signal())
		return e
	}
	e.Code = ws.ExitStatus()
	return e
}
