package holder

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth"
	"berth/process"
)

// spawn starts the program on the terminal, in a cgroup of its own where one
// can be made, and gives its PID.
func (k *keeper) spawn() (int, error) {
	if err := usableDir(k.spec.Cwd); err != nil {
		return 0, err
	}
	path, err := lookPath(k.spec.Argv[0], k.spec.Cwd, k.spec.Env)
	if err != nil {
		return 0, err
	}
	cgroupFD := -1
	name := "berth-" + k.spec.ID + "-" + strconv.Itoa(k.spec.Generation)
	if cg, err := process.MakeCgroup(name); err == nil {
		k.cgroup = cg
		if cgroupFD, err = cg.OpenFD(); err == nil {
			defer unix.Close(cgroupFD) //nolint:errcheck // it was only looked at
		}
	}
	pid, err := k.exec(path, k.spec.Argv, cgroupFD)
	if err != nil && cgroupFD >= 0 && !isMissing(err) {
		// A kernel before 5.7, or a cgroup that may be made but not entered.
		pid, err = k.exec(path, k.spec.Argv, -1)
		cgroupFD = -1
	}
	if errors.Is(err, unix.ENOEXEC) {
		// A script without a first line: every shell, and execvp, runs it with sh.
		pid, err = k.exec("/bin/sh", append([]string{"sh", path}, k.spec.Argv[1:]...), cgroupFD)
	}
	if err != nil {
		return 0, execError(k.spec.Argv[0], err)
	}
	if cgroupFD < 0 && k.cgroup.Dir() != "" {
		_ = os.Remove(k.cgroup.Dir()) // empty; at worst an empty directory stays
		k.cgroup = process.Cgroup{}
	}
	k.record.Cgroup = k.cgroup.Dir()
	return pid, nil
}

// exec forks and executes. The child begins with an empty signal mask, whatever
// this process was started with.
func (k *keeper) exec(path string, argv []string, cgroupFD int) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var none, old unix.Sigset_t
	if unix.PthreadSigmask(unix.SIG_SETMASK, &none, &old) == nil {
		defer unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) //nolint:errcheck // it was set a moment ago
	}
	slave := uintptr(k.pty.Slave)
	pidfd := -1
	attr := &syscall.ProcAttr{
		Dir: k.spec.Cwd, Env: k.spec.Env, Files: []uintptr{slave, slave, slave},
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0, PidFD: &pidfd},
	}
	if attr.Env == nil {
		attr.Env = []string{}
	}
	if cgroupFD >= 0 {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, cgroupFD
	}
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		if pidfd >= 0 {
			_ = unix.Close(pidfd) // of a child that is gone
		}
		return 0, err
	}
	if pidfd < 0 { // a kernel without CLONE_PIDFD; the child is not reaped, so this is it
		if pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
			_ = unix.Kill(pid, unix.SIGKILL)
			return 0, err
		}
	}
	k.fds.pidfd = pidfd
	return pid, nil
}

func isMissing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOEXEC) || errors.Is(err, unix.ENOTDIR)
}

func execError(name string, err error) error {
	if isMissing(err) { // after the file was found: its interpreter is not there
		return berth.Errorf(berth.CodeCommandNotFound, "%s cannot be executed: %w", name, err)
	}
	return berth.Errorf(berth.CodeStartFailed, "start %s: %w", name, err)
}

func usableDir(dir string) error {
	if !filepath.IsAbs(dir) {
		return berth.Errorf(berth.CodeCwdUnusable, "the directory %q is not absolute", dir)
	}
	st, err := os.Stat(dir)
	if err == nil && !st.IsDir() {
		err = unix.ENOTDIR
	}
	if err == nil {
		err = unix.Access(dir, unix.X_OK)
	}
	if err != nil {
		var errno syscall.Errno
		if errors.As(err, &errno) {
			err = errno
		}
		return berth.Errorf(berth.CodeCwdUnusable, "%s: %w", dir, err)
	}
	return nil
}

// lookPath finds the program by the PATH of the session, not that of the
// holder. Relative paths count from the directory that it starts in.
func lookPath(name, cwd string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(cwd, name)
		}
		if err := executable(path); err != nil {
			return "", berth.Errorf(berth.CodeCommandNotFound, "%s: %w", name, err)
		}
		return path, nil
	}
	path := "/usr/local/bin:/usr/bin:/bin" // what execvp takes when there is none
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	var denied error
	for dir := range strings.SplitSeq(path, ":") {
		if !filepath.IsAbs(dir) { // empty and relative entries mean the working directory
			dir = filepath.Join(cwd, dir)
		}
		p := filepath.Join(dir, name)
		err := executable(p)
		if err == nil {
			return p, nil
		}
		if errors.Is(err, unix.EACCES) {
			denied = berth.Errorf(berth.CodeCommandNotFound, "%s is not executable", p)
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", berth.Errorf(berth.CodeCommandNotFound, "%s is in no directory of PATH", name)
}

func executable(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.EISDIR
	}
	// To root the kernel says yes when any of the three x bits is set, which is
	// also when it executes.
	return unix.Access(path, unix.X_OK)
}
