package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"berth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func run(t *testing.T, argv ...string) *Child {
	t.Helper()
	path, err := exec.LookPath(argv[0])
	if err != nil {
		t.Fatal(err)
	}
	c, err := StartDetached(Detached{Path: path, Args: argv, Env: []string{"PATH=/usr/bin:/bin"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Kill(c.PID, unix.SIGKILL)
		<-c.Done()
	})
	return c
}

func of(t *testing.T, pid int) berth.Identity {
	t.Helper()
	id, err := Of(pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestIdentity(t *testing.T) {
	self, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	if self.PID != os.Getpid() || self.StartTime == 0 || len(self.BootID) != 36 {
		t.Errorf("%+v", self)
	}
	if v := Look(self); v != Alive {
		t.Errorf("self is %s", v)
	}
	other := self
	other.StartTime++
	if v := Look(other); v != Dead {
		t.Errorf("a reused number is %s", v)
	}
	if self.PidfdInode != 0 {
		other = self
		other.PidfdInode++
		if v := Look(other); v != Dead {
			t.Errorf("another inode is %s", v)
		}
	}
	other = self
	other.BootID = "another"
	if v := Look(other); v != Dead {
		t.Errorf("another boot is %s", v)
	}
	for _, none := range []berth.Identity{{}, {PID: self.PID}, {BootID: self.BootID}} {
		if v := Look(none); v != Unknown {
			t.Errorf("%+v is %s", none, v)
		}
	}
	if _, err := Of(1 << 30); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("no process: %v", err)
	}
}

// TestCommandName: a command may contain anything, also what looks like the
// rest of its line.
func TestCommandName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a) R 1 2 (b")
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(sleep, path); err != nil {
		t.Fatal(err)
	}
	c := run(t, path, "1000")
	waitFor(t, func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", c.PID))
		return err == nil && strings.HasPrefix(string(b), "a) R 1")
	})
	st, err := readStat(c.PID)
	if err != nil || st.ppid != os.Getpid() || st.pgrp != c.PID || st.session != c.PID {
		t.Errorf("%+v, %v", st, err)
	}
}

func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline.C:
			t.Fatal("waited in vain")
		case <-tick.C:
		}
	}
}

// TestZombie: a process that has ended but was not reaped is dead.
func TestZombie(t *testing.T) {
	cmd := exec.CommandContext(limited(t), "true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	id := of(t, cmd.Process.Pid)
	waitFor(t, func() bool {
		st, err := readStat(cmd.Process.Pid)
		return err == nil && st.state == 'Z'
	})
	if v := Look(id); v != Dead {
		t.Errorf("a zombie is %s", v)
	}
	if h, err := Open(id); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("a zombie was opened: %v, %v", h, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if v := Look(id); v != Dead {
		t.Errorf("it is %s", v)
	}
}

func TestHandle(t *testing.T) {
	c := run(t, "sleep", "1000")
	id := of(t, c.PID)
	h, err := Open(id)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close() //nolint:errcheck // a pidfd has nothing to lose
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := h.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it still runs: %v", err)
	}
	if err := h.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	h2, err := Open(id)
	if err == nil {
		err = h2.Close()
	}
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	if ws, err := c.Wait(limited(t)); err != nil || !ws.Signaled() || ws.Signal() != unix.SIGTERM {
		t.Errorf("%v, %v", ws, err)
	}
	if err := h.Signal(unix.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after the end: %v", err)
	}
	// A number that belongs to somebody else by now is not opened.
	self, err := Self()
	if err != nil {
		t.Fatal(err)
	}
	self.StartTime--
	if _, err := Open(self); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("another process was opened: %v", err)
	}
}

func TestHandleWait(t *testing.T) {
	c := run(t, "sleep", "1000")
	h, err := Open(of(t, c.PID))
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close() //nolint:errcheck // a pidfd has nothing to lose
	done := make(chan error, 1)
	go func() { done <- h.Wait(limited(t)) }()
	if err := h.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestStartDetached(t *testing.T) {
	dir := t.TempDir()
	out, err := os.Create(filepath.Join(dir, "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close() //nolint:errcheck // it is read by its name
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close() //nolint:errcheck // it is only there to be inherited
	defer w.Close() //nolint:errcheck // likewise
	// A descriptor that does not close on exec, like one that a shell left us.
	leak, err := unix.Dup(int(w.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak) //nolint:errcheck // likewise
	c, err := StartDetached(Detached{
		Path: "/bin/sh", Args: []string{"sh", "-c", "echo $A$HOME; pwd; ls /proc/self/fd | wc -l; ps -o sid= -p $$; readlink /proc/self/fd/0"},
		Env: []string{"A=b", "PATH=/usr/bin:/bin"}, Stdout: out,
	})
	if err != nil {
		t.Fatal(err)
	}
	if ws, err := c.Wait(limited(t)); err != nil || ws.ExitStatus() != 0 {
		t.Fatalf("%v, %v", ws, err)
	}
	b, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(string(b))
	want := []string{"b", "/", "4", strconv.Itoa(c.PID), "/dev/null"}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := StartDetached(Detached{Path: "/no/such/file", Args: []string{"x"}}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
}

func TestTree(t *testing.T) {
	c := run(t, "sh", "-c", "sh -c 'sleep 1000 & wait' & wait")
	var members []Member
	waitFor(t, func() bool {
		members = InSession(c.PID)
		return len(members) == 3
	})
	d := Descendants(c.PID)
	if len(d) != 2 || d[0].Parent != c.PID || d[1].Parent != d[0].PID {
		t.Errorf("%+v", d)
	}
	stranger := members[0]
	stranger.start++
	if err := stranger.Signal(unix.SIGKILL); err != nil {
		t.Error(err)
	}
	if len(InSession(c.PID)) != 3 {
		t.Error("a process was signalled that the listing did not see")
	}
	for _, m := range members {
		if err := m.Signal(unix.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	waitFor(t, func() bool { return len(InSession(c.PID)) == 0 })
}

func TestCgroup(t *testing.T) {
	cg, err := MakeCgroup("berth-test-" + strconv.Itoa(os.Getpid()))
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Cleanup(func() {
		_ = cg.Kill()
		if err := cg.Remove(limited(t)); err != nil {
			t.Error(err)
		}
		if cg.Exists() {
			t.Error("it is still there")
		}
	})
	if !cg.Exists() || OpenCgroup("/").Exists() || OpenCgroup("").Exists() {
		t.Error("what exists as a cgroup and what does not")
	}
	inner := filepath.Join(cg.Dir(), "inner")
	if err := os.Mkdir(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	c := run(t, "sh", "-c", "read x; sleep 1000")
	other := run(t, "sleep", "1000")
	if err := os.WriteFile(filepath.Join(inner, "cgroup.procs"), []byte(strconv.Itoa(c.PID)), 0); err != nil {
		t.Fatal(err)
	}
	_ = other
	c2 := run(t, "sleep", "1000")
	if err := os.WriteFile(filepath.Join(cg.Dir(), "cgroup.procs"), []byte(strconv.Itoa(c2.PID)), 0); err != nil {
		t.Fatal(err)
	}
	pids, err := cg.Procs()
	if err != nil || len(pids) < 1 {
		t.Errorf("%v, %v", pids, err)
	}
	short, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if err := cg.Remove(short); err == nil {
		t.Error("a cgroup with a process was removed")
	}
	if err := cg.Signal(unix.SIGTERM); err != nil {
		t.Error(err)
	}
	if ws, err := c2.Wait(limited(t)); err != nil || ws.Signal() != unix.SIGTERM {
		t.Errorf("%v, %v", ws, err)
	}
	if v := Look(of(t, other.PID)); v != Alive {
		t.Errorf("one outside is %s", v)
	}
}

func TestCgroupDir(t *testing.T) {
	for _, c := range []struct{ self, mounts, want string }{
		{"0::/user.slice/x\n", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup/user.slice/x"},
		{"4:memory:/m\n0::/\n", "39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup/unified"},
		{"0::/docker/abc/x\n", "31 23 0:28 /docker/abc /sys/fs/cgroup rw shared:1 - cgroup2 cgroup rw\n", "/sys/fs/cgroup/x"},
		{"0::/docker/abcd\n", "31 23 0:28 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw\n", ""},
		{"0::/a\n", "31 23 0:28 / /mnt/a\\040b rw - cgroup2 cgroup2 rw\n", "/mnt/a b/a"},
		{"0::/../x\n", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", ""},
		{"4:memory:/m\n", "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", ""},
		{"0::/\n", "", ""},
	} {
		if got, ok := cgroupDir([]byte(c.self), []byte(c.mounts)); got != c.want || ok != (c.want != "") {
			t.Errorf("%q: got %q, want %q", c.self, got, c.want)
		}
	}
}

func TestParseSignal(t *testing.T) {
	for text, want := range map[string]unix.Signal{
		"INT": unix.SIGINT, "SIGINT": unix.SIGINT, "sigint": unix.SIGINT, "2": unix.SIGINT, "kill": unix.SIGKILL, "64": 64, "WINCH": unix.SIGWINCH,
	} {
		if got, err := ParseSignal(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "65", "NOPE", "SIG", "9 "} {
		if got, err := ParseSignal(text); !errors.Is(err, berth.CodeInvalidArgument) {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	if SignalName(unix.SIGTERM) != "SIGTERM" || SignalName(40) != "SIG40" {
		t.Error(SignalName(unix.SIGTERM), SignalName(40))
	}
}

func FuzzStat(f *testing.F) {
	f.Add([]byte("1 (a) b) S 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22\n"))
	f.Add([]byte(")"))
	f.Fuzz(func(t *testing.T, b []byte) {
		parseStat(b)
		cgroupDir(b, b)
	})
}
