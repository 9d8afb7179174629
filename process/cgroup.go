package process

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cgroup is one directory of the cgroup v2 tree. It is how everything that a
// program started is found again, also what left its process groups, its
// session and its parent.
type Cgroup struct{ dir string }

// OpenCgroup names an existing cgroup; nothing is looked at.
func OpenCgroup(dir string) Cgroup { return Cgroup{dir} }

// Dir is its directory.
func (c Cgroup) Dir() string { return c.dir }

// MakeCgroup makes a cgroup below that of this process. It fails where there is
// no cgroup v2 or where this user may not: the caller then does without.
//
// No controller is enabled in it, so the rule that a cgroup with controllers
// holds no processes beside its children does not concern it.
func MakeCgroup(name string) (Cgroup, error) {
	own, err := ownCgroup()
	if err != nil {
		return Cgroup{}, err
	}
	dir := filepath.Join(own, name)
	err = os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) && os.Remove(dir) == nil { // an empty one that was left
		err = os.Mkdir(dir, 0o755)
	}
	if err != nil {
		return Cgroup{}, fmt.Errorf("make a cgroup: %w", err)
	}
	return Cgroup{dir}, nil
}

// ownCgroup finds the directory of this process's cgroup v2.
func ownCgroup() (string, error) {
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", fmt.Errorf("find the own cgroup: %w", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("find the cgroup mount: %w", err)
	}
	dir, ok := cgroupDir(self, mounts)
	if !ok {
		return "", errors.New("no cgroup v2 holds this process")
	}
	return dir, nil
}

// cgroupDir puts the "0::" line of /proc/self/cgroup and the cgroup2 mount of
// /proc/self/mountinfo together. In a container the mount may show only a part
// of the tree: its root is then cut off the path.
func cgroupDir(self, mounts []byte) (string, bool) {
	var own string
	for line := range strings.Lines(string(self)) {
		if p, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			own = p
		}
	}
	if own == "" || strings.HasPrefix(own, "/..") {
		return "", false // none, or outside the part that this namespace shows
	}
	s := bufio.NewScanner(bytes.NewReader(mounts))
	for s.Scan() {
		before, after, ok := strings.Cut(s.Text(), " - ")
		f := strings.Fields(before)
		if !ok || len(f) < 5 || !strings.HasPrefix(after, "cgroup2 ") {
			continue
		}
		root, point := unescapeMount(f[3]), unescapeMount(f[4])
		rest := own
		if root != "/" {
			if rest, ok = strings.CutPrefix(own, root); !ok || rest != "" && rest[0] != '/' {
				continue
			}
		}
		return filepath.Join(point, rest), true
	}
	return "", false
}

// unescapeMount undoes the octal escapes of mountinfo ("\040" is a space).
func unescapeMount(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// OpenFD opens the directory, for SysProcAttr.CgroupFD. The caller closes it.
func (c Cgroup) OpenFD() (int, error) {
	fd, err := unix.Open(c.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open cgroup %s: %w", c.dir, err)
	}
	return fd, nil
}

// Exists reports whether the directory is there and is a cgroup.
func (c Cgroup) Exists() bool {
	var st unix.Statfs_t
	return c.dir != "" && unix.Statfs(c.dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// Procs lists the processes in it and in the cgroups below it. Zombies that
// wait for their parent are not among them.
func (c Cgroup) Procs() ([]int, error) {
	var pids []int
	err := c.walk(func(dir string) error {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			pid, err := strconv.Atoi(strings.TrimSpace(line))
			if err != nil || pid <= 0 { // 0 = a process of another PID namespace
				continue
			}
			if st, err := readStat(pid); err == nil && st.state != 'Z' && st.state != 'X' {
				pids = append(pids, pid)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list cgroup %s: %w", c.dir, err)
	}
	return pids, nil
}

// walk calls f for the cgroup and all below it, those below first. What
// disappears meanwhile is skipped.
func (c Cgroup) walk(f func(dir string) error) error {
	entries, err := os.ReadDir(c.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := (Cgroup{filepath.Join(c.dir, e.Name())}).walk(f); err != nil {
				return err
			}
		}
	}
	err = f(c.dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// Kill sends SIGKILL to every process in it and below it, at once where the
// kernel has cgroup.kill (5.14), else one by one. It does not wait.
func (c Cgroup) Kill() error {
	err := os.WriteFile(filepath.Join(c.dir, "cgroup.kill"), []byte("1"), 0)
	if err == nil || !c.Exists() {
		return nil
	}
	return c.Signal(unix.SIGKILL)
}

// Signal sends a signal to each process in it and below it. It is checked
// through the pidfd that the number still belongs to a member.
func (c Cgroup) Signal(sig unix.Signal) error {
	pids, err := c.Procs()
	if err != nil {
		return err
	}
	var failed error
	for _, pid := range pids {
		h, err := openPID(pid)
		if err != nil {
			continue // it ended meanwhile
		}
		if c.contains(pid) {
			if err := h.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
				failed = err
			}
		}
		_ = h.Close() // the process is not touched
	}
	return failed
}

// contains reports whether a process that is held by a pidfd is a member.
func (c Cgroup) contains(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if p, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return strings.Contains(p+"/", "/"+filepath.Base(c.dir)+"/")
		}
	}
	return false
}

// Remove removes the cgroup and those below it. It tries until the context ends
// since the kernel empties a cgroup some time after the last process was killed.
func (c Cgroup) Remove(ctx context.Context) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := c.walk(func(dir string) error { return unix.Rmdir(dir) })
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("remove cgroup %s: %w", c.dir, err)
		case <-tick.C:
		}
	}
}
