package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"berth"
)

// checkDir looks at a directory of berth: ours, closed to others, writable. One
// that is not there yet is looked for at its nearest parent.
func checkDir(check, dir, flag string) berth.Finding {
	f := berth.Finding{Check: check, Status: findingFail, Fix: "give another with " + flag}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		parent := filepath.Dir(dir)
		for parent != "/" {
			if _, err := os.Stat(parent); err == nil {
				break
			}
			parent = filepath.Dir(parent)
		}
		if err := unix.Access(parent, unix.W_OK|unix.X_OK); err != nil {
			f.Detail = fmt.Sprintf("%s is not there and cannot be made in %s: %v", dir, parent, err)
			return f
		}
		return berth.Finding{Check: check, Status: findingOK, Detail: dir + " will be made"}
	case err != nil:
		f.Detail = err.Error()
		return f
	case !info.IsDir():
		f.Detail = dir + " is not a directory"
		return f
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Getuid() {
		f.Detail = fmt.Sprintf("%s belongs to user %d", dir, st.Uid)
		return f
	}
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		f.Detail = fmt.Sprintf("%s cannot be written: %v", dir, err)
		return f
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		f.Detail, f.Fix = fmt.Sprintf("%s has mode %04o: others can look in", dir, mode), "chmod 700 "+dir
		return f
	}
	return berth.Finding{Check: check, Status: findingOK, Detail: dir}
}

// longestSocket is the longest name of a socket below the runtime directory: a
// holder's, "h/s-" with 16 characters and ".sock".
const longestSocket = len("/h/s-0123456789abcdef.sock")

func checkSocketPath(paths berth.Paths) berth.Finding {
	n := len(paths.Runtime) + longestSocket
	f := berth.Finding{Check: "socket-path", Status: findingOK, Detail: fmt.Sprintf("%d of %d bytes", n, berth.SocketPathMax)}
	if n > berth.SocketPathMax {
		f.Status, f.Fix = findingFail, "give a shorter --runtime-dir"
	}
	return f
}

func (a *app) checkXDGRuntime() berth.Finding {
	f := berth.Finding{Check: "xdg-runtime", Status: findingOK, Detail: a.env.Getenv("XDG_RUNTIME_DIR")}
	if f.Detail == "" {
		f.Status = findingWarn
		f.Detail = "XDG_RUNTIME_DIR is not set: sockets are kept in the state directory"
		f.Fix = "nothing, or log in with a session of your own (loginctl)"
	}
	return f
}

// checkLinger looks whether what runs outlives the log-out: systemd ends a
// user's services with the last session unless the user lingers.
func checkLinger(getenv func(string) string) berth.Finding {
	f := berth.Finding{Check: "linger", Status: findingOK}
	if _, err := os.Stat("/run/systemd/system"); err != nil {
		f.Detail = "systemd does not run this machine: nothing ends programs at log-out"
		return f
	}
	user := getenv("USER")
	if os.Getuid() == 0 {
		f.Detail = "root's programs are not ended at log-out"
		return f
	}
	if user == "" || strings.ContainsRune(user, '/') {
		f.Status, f.Detail = findingUnknown, "USER is not set"
		return f
	}
	if _, err := os.Stat("/var/lib/systemd/linger/" + user); err != nil {
		f.Status = findingWarn
		f.Detail = "systemd ends what you run when you log out"
		f.Fix = "loginctl enable-linger " + user
		return f
	}
	f.Detail = "what you run outlives your log-out"
	return f
}

// checkCgroup looks whether a session can have a cgroup of its own, which is
// how kill reaches processes that left its groups.
func checkCgroup() berth.Finding {
	f := berth.Finding{Check: "cgroup", Status: findingWarn}
	self, err1 := os.ReadFile("/proc/self/cgroup")
	mounts, err2 := os.ReadFile("/proc/self/mountinfo")
	if err := errors.Join(err1, err2); err != nil {
		f.Status, f.Detail = findingUnknown, oneLine(err.Error(), 0)
		return f
	}
	const cost = "kill cannot find processes that left a session's groups"
	dir, ok := cgroupDir(self, mounts)
	if !ok {
		f.Detail, f.Fix = "cgroup v2 is not mounted: "+cost, "boot with systemd.unified_cgroup_hierarchy=1"
		return f
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		f.Detail, f.Fix = fmt.Sprintf("%s cannot be written (%v): %s", dir, err, cost), "run the daemon in a systemd user session"
		return f
	}
	f.Status, f.Detail = findingOK, dir+" is writable"
	return f
}

// cgroupDir finds the directory of this process's cgroup v2: its path below the
// root of the hierarchy, seen through the mount, which may show only a part.
func cgroupDir(self, mounts []byte) (string, bool) {
	own, found := "", false
	for line := range strings.Lines(string(self)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			own, found = rest, true
		}
	}
	if !found {
		return "", false
	}
	for line := range strings.Lines(string(mounts)) {
		before, after, ok := strings.Cut(line, " - ")
		fields := strings.Fields(before)
		if !ok || len(fields) < 5 || !strings.HasPrefix(after, "cgroup2 ") {
			continue
		}
		root, at := fields[3], fields[4]
		if rest, err := filepath.Rel(root, own); err == nil && !strings.HasPrefix(rest, "..") {
			return filepath.Join(at, rest), true
		}
	}
	return "", false
}

// checkPidfd looks for the kernel's handle of a process, without which a signal
// may hit another process that has got the same PID.
func checkPidfd() berth.Finding {
	f := berth.Finding{Check: "pidfd", Status: findingOK, Detail: "the kernel has pidfd"}
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		f.Status, f.Detail = findingWarn, "the kernel has no pidfd: "+err.Error()
		f.Fix = "use Linux 5.3 or newer"
		return f
	}
	_ = unix.Close(fd)
	return f
}

// checkBeside looks for a program that belongs to this one, in its directory,
// where the daemon looks for it.
func checkBeside(self, name string) (path string, f berth.Finding) {
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	path = filepath.Join(filepath.Dir(self), name)
	f = berth.Finding{Check: name, Status: findingOK, Detail: path}
	if err := unix.Access(path, unix.X_OK); err != nil {
		f.Status, f.Fix = findingFail, "install "+name+" beside "+self
		f.Detail = fmt.Sprintf("%s: %v", path, err)
	}
	return path, f
}

// checkVersion looks for another of berth's programs and compares its version
// with ours. The holder has none to compare: a running one is never replaced.
func checkVersion(ctx context.Context, self, name string) berth.Finding {
	path, f := checkBeside(self, name)
	if f.Status != findingOK {
		return f
	}
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "version")
	cmd.WaitDelay = doctorTimeout
	out, err := cmd.Output()
	words := strings.Fields(string(out))
	switch {
	case err != nil || len(words) == 0:
		f.Status, f.Detail = findingUnknown, path+" does not tell its version"
	case !slices.Contains(words, berth.Version()):
		f.Status, f.Fix = findingWarn, "install the "+name+" of version "+berth.Version()
		f.Detail = path + " is another version: " + oneLine(string(out), 80)
	default:
		f.Detail += ", version " + berth.Version()
	}
	return f
}

func (a *app) checkTerm() berth.Finding {
	f := berth.Finding{Check: "term", Status: findingOK, Detail: "TERM=" + a.env.Getenv("TERM")}
	switch a.env.Getenv("TERM") {
	case "":
		f.Status, f.Detail = findingWarn, "TERM is not set: sessions get xterm-256color"
		f.Fix = "attach from a terminal"
	case "dumb":
		f.Status, f.Fix = findingWarn, "attach from a terminal that can move its cursor"
	}
	return f
}

// checkLocale looks for UTF-8, which the screen of a session is drawn in.
func (a *app) checkLocale() berth.Finding {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		value := a.env.Getenv(name)
		if value == "" {
			continue
		}
		f := berth.Finding{Check: "locale", Status: findingOK, Detail: name + "=" + value}
		upper := strings.ToUpper(value)
		if !strings.Contains(upper, "UTF-8") && !strings.Contains(upper, "UTF8") {
			f.Status, f.Fix = findingWarn, "set LANG to a UTF-8 locale, like C.UTF-8"
		}
		return f
	}
	return berth.Finding{Check: "locale", Status: findingWarn, Detail: "no locale is set: programs may not write UTF-8", Fix: "set LANG=C.UTF-8"}
}
