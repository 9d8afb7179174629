package cli

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"berth"
)

func TestDoctorWorksWithoutADaemon(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o700)) //nolint:gosec // a directory needs the bit
	env, out, _ := testEnv(t, &fakeAPI{err: berth.Errorf(berth.CodeDaemonNotRunning, "nobody")}, nil, nil,
		"doctor", "--json", "--state-dir", dir)
	if code := Run(t.Context(), env); code != berth.ExitFailed { // the binaries are not there
		t.Errorf("got %d", code)
	}
	var list findingList
	must(t, json.Unmarshal(out.Bytes(), &list))
	status := map[string]string{}
	for _, f := range list.Findings {
		status[f.Check] = f.Status
		if f.Status == findingFail && f.Fix == "" {
			t.Errorf("%s fails without a fix", f.Check)
		}
		switch f.Status {
		case findingOK, findingWarn, findingFail, findingUnknown:
		default:
			t.Errorf("%s has the status %q", f.Check, f.Status)
		}
	}
	for check, want := range map[string]string{"state-dir": "ok", "daemon": "warn", "berth-daemon": "fail", "berth-guest": "fail", "berth-holder": "fail", "term": "warn"} {
		if status[check] != want {
			t.Errorf("%s is %q, not %q", check, status[check], want)
		}
	}
}

func TestCheckDir(t *testing.T) {
	dir := t.TempDir()
	open := filepath.Join(dir, "open")
	must(t, os.Mkdir(open, 0o755)) //nolint:gosec // on purpose
	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for path, want := range map[string]string{
		filepath.Join(dir, "new", "deep"): findingOK,
		open:                              findingFail,
		file:                              findingFail,
		filepath.Join(file, "below"):      findingFail,
	} {
		if f := checkDir("state-dir", path, "--state-dir"); f.Status != want || want == findingFail && f.Fix == "" {
			t.Errorf("%s: %+v", path, f)
		}
	}
}

func TestCheckSocketPath(t *testing.T) {
	if f := checkSocketPath(berth.Paths{Runtime: "/run/user/1000/berth"}); f.Status != findingOK {
		t.Errorf("got %+v", f)
	}
	if f := checkSocketPath(berth.Paths{Runtime: "/" + strings.Repeat("x", berth.SocketPathMax-longestSocket)}); f.Status != findingFail {
		t.Errorf("got %+v", f)
	}
}

func TestProcessAlive(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	alive := func(start uint64) bool {
		t.Helper()
		ok, err := processAlive(cmd.Process.Pid, start)
		must(t, err)
		return ok
	}
	if !alive(0) || alive(1) { // nothing started one tick after the boot
		t.Error("a process is not told from another that has its PID")
	}
	must(t, cmd.Process.Kill())
	// Not reaped yet: a zombie serves nobody.
	waitFor(t, func() bool { return !alive(0) })
	_ = cmd.Wait()
	if alive(0) {
		t.Error("a reaped process counts as alive")
	}
	if ok, err := processAlive(0, 0); ok || err != nil {
		t.Errorf("pid 0: %v, %v", ok, err)
	}
}

func TestCgroupDir(t *testing.T) {
	const unified = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	const hybrid = "29 23 0:25 / /sys/fs/cgroup ro - tmpfs tmpfs rw\n30 29 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	const inside = "30 23 0:26 /box /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	for _, c := range []struct{ self, mounts, want string }{
		{"0::/user.slice/a\n", unified, "/sys/fs/cgroup/user.slice/a"},
		{"4:cpu:/x\n0::/\n", hybrid, "/sys/fs/cgroup/unified"},
		{"0::/box/a\n", inside, "/sys/fs/cgroup/a"},
		{"0::/elsewhere\n", inside, ""},
		{"4:cpu:/x\n", hybrid, ""},
		{"0::/\n", "29 23 0:25 / /sys/fs/cgroup ro - tmpfs tmpfs rw\n", ""},
	} {
		if got, ok := cgroupDir([]byte(c.self), []byte(c.mounts)); got != c.want || ok != (c.want != "") {
			t.Errorf("%q in %q: got %q, %v", c.self, c.mounts, got, ok)
		}
	}
}
