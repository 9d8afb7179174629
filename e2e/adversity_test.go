package e2e

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth"
)

// problem is what a failed command printed with --json.
func (h *house) problem(args ...string) (berth.Problem, int) {
	h.t.Helper()
	out, errs, code := h.run(append([]string{args[0], "--json"}, args[1:]...)...)
	if code == 0 {
		h.t.Fatalf("berth %v succeeded:\n%s", args, out)
	}
	var p berth.Problem
	if err := json.Unmarshal([]byte(errs), &p); err != nil {
		h.t.Fatalf("berth %v: stderr is not one problem document: %v\n%s", args, err, errs)
	}
	if p.Detail == "" || p.Hint == "" {
		h.t.Errorf("berth %v: the problem %+v has no detail or no hint", args, p)
	}
	return p, code
}

func TestForeignSocketIsLeftAlone(t *testing.T) {
	h := bareHouse(t)
	if err := os.MkdirAll(h.runtime(), 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(h.runtime(), berth.SocketDaemon)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if p, code := h.problem("up"); p.Code != berth.CodeForeignSocket || code != berth.ExitRefused {
		t.Errorf("a socket that answers: %+v, exit %d", p, code)
	}
	if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("the foreign socket was touched: %v", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	h.must("up") // nobody answers any more: it is stale
	h.must("down")

	if err := os.WriteFile(path, []byte("a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, _ := h.problem("up"); p.Code != berth.CodeForeignSocket {
		t.Errorf("a plain file: %+v", p)
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "a file" {
		t.Errorf("the file was touched: %q, %v", data, err)
	}
}

func TestStaleSocketAfterKill(t *testing.T) {
	h := newHouse(t)
	s := h.startSession("--name", "stays", "--", "sleep", "3000")
	for range 3 {
		h.killDaemon()
		if p, code := h.problem("ps"); p.Code != berth.CodeDaemonNotRunning || code != berth.ExitFailed {
			t.Errorf("without a daemon: %+v, exit %d", p, code)
		}
		h.must("up")
		if now := h.session(s.ID); now.State != berth.SessionRunning {
			t.Errorf("after the kill it is %s", now.State)
		}
	}
}

func TestTwoUpsAtOnce(t *testing.T) {
	h := bareHouse(t)
	const n = 4
	var wg sync.WaitGroup
	pids := make([]int, n)
	for i := range n {
		wg.Go(func() {
			out, err := h.command("up", "--json").Output()
			var s berth.Status
			if err != nil || json.Unmarshal(out, &s) != nil {
				t.Errorf("up: %v\n%s", err, out)
			}
			pids[i] = s.Daemon.PID
		})
	}
	wg.Wait()
	for _, pid := range pids {
		if pid != pids[0] || pid == 0 {
			t.Fatalf("several daemons: %v", pids)
		}
	}
}

func TestUnusableDirectories(t *testing.T) {
	h := bareHouse(t)
	if err := os.WriteFile(h.state(), nil, 0o600); err != nil { // root passes every mode, but nobody enters a file
		t.Fatal(err)
	}
	if p, code := h.problem("up"); p.Code != berth.CodeStateDir || code != berth.ExitFailed {
		t.Errorf("a file in the place of the state directory: %+v, exit %d", p, code)
	}
	if err := os.Remove(h.state()); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(h.runtime(), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(h.runtime(), 0o777); err != nil { //nolint:gosec // that is the point
		t.Fatal(err)
	}
	if p, _ := h.problem("up"); p.Code != berth.CodeRuntimeDir {
		t.Errorf("a runtime directory that anybody can write to: %+v", p)
	}
	if err := os.Chmod(h.runtime(), 0o700); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(h.dir, strings.Repeat("x", 100))
	if p, _ := h.problem("up", "--runtime-dir", long); p.Code != berth.CodeSocketPathTooLong {
		t.Errorf("a runtime directory that is too long: %+v", p)
	}
	if err := os.WriteFile(filepath.Join(h.dir, "config.toml"), []byte("[sessions]\n\nlog_bites = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if p, code := h.problem("up"); p.Code != berth.CodeConfigUnknownKey || !strings.Contains(p.Detail, "line 3") || code != berth.ExitUsage {
		t.Errorf("an unknown key: %+v, exit %d", p, code)
	}
}

// TestStateWithoutPermission runs as an ordinary user in a directory of root's.
func TestStateWithoutPermission(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	dir, err := os.MkdirTemp("", "bp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })  // a directory in the temporary one
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // another user must reach it, and may not write
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "berth")
	data, err := os.ReadFile(filepath.Join(binaries, "berth"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bin, data, 0o755); err != nil { //nolint:gosec // another user runs it
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), bin, "up", "--json", "--state-dir", filepath.Join(dir, "s"))
	cmd.Env = append(cleanEnv(), "HOME=/nonexistent")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	var errs strings.Builder
	cmd.Stderr = &errs
	err = cmd.Run()
	var p berth.Problem
	if uerr := json.Unmarshal([]byte(errs.String()), &p); uerr != nil || p.Code != berth.CodeStateDir || err == nil {
		t.Errorf("got %v, %s", err, errs.String())
	}
}

// TestNewerStateIsNotTouched gives an older berth the state of a newer one.
func TestNewerStateIsNotTouched(t *testing.T) {
	h := newHouse(t)
	s := h.startSession("--name", "stays", "--", "sleep", "3000")
	h.must("down")
	db := filepath.Join(h.state(), berth.FileStore)
	if out, err := exec.CommandContext(t.Context(), "go", "run", "./testdata/newer", db).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	before, err := os.ReadFile(db)
	if err != nil {
		t.Fatal(err)
	}
	if p, code := h.problem("up"); p.Code != berth.CodeStoreNewer || code != berth.ExitFailed {
		t.Errorf("got %+v, exit %d", p, code)
	}
	if after, err := os.ReadFile(db); err != nil || string(after) != string(before) {
		t.Errorf("the database was touched: %v", err)
	}
	if !running(h.holderProgram(s.ID)) {
		t.Error("the session went")
	}
}

// TestNewerMachineStoreIsNotTouched: what daemons of several versions share may be
// a newer one's. An older one leaves it alone, and serves its sessions.
func TestNewerMachineStoreIsNotTouched(t *testing.T) {
	h := newHouse(t)
	s := h.startSession("--name", "stays", "--", "sleep", "3000")
	h.must("down")
	db := filepath.Join(h.dir, "m", berth.FileMachineStore)
	if out, err := exec.CommandContext(t.Context(), "go", "run", "./testdata/newer", db).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	before, err := os.ReadFile(db)
	if err != nil {
		t.Fatal(err)
	}
	h.must("up")
	if p, code := h.problem("op", "ls"); p.Code != berth.CodeStoreNewer || code == berth.ExitDone {
		t.Errorf("got %+v, exit %d", p, code)
	}
	if out := h.must("ps"); !strings.Contains(out, "stays") || !running(h.holderProgram(s.ID)) {
		t.Errorf("the session went: %s", out)
	}
	h.must("down")
	if after, err := os.ReadFile(db); err != nil || string(after) != string(before) {
		t.Errorf("the database was touched: %v", err)
	}
}

// TestFullDisk puts a house on a small file system and fills it.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a file system")
	}
	h := bareHouse(t)
	disk := filepath.Join(h.dir, "s")
	if err := os.MkdirAll(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(h.dir, "image")
	for _, args := range [][]string{
		{"truncate", "-s", "24M", image},
		{"mkfs.ext4", "-q", "-m", "0", image},
		{"mount", "-o", "loop", image, disk},
		{"chmod", "700", disk}, // the root of a new file system is open
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	t.Cleanup(func() {
		h.endAll() // before the file system goes from under them
		waitUntil(t, 10*time.Second, "the file system lets go", func() bool {
			return exec.Command("umount", disk).Run() == nil
		})
	})
	h.must("up")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := h.startSession("--name", "writer", "--log", "67108864", "--", self, childArg, "fill", "60")
	before := h.status().Daemon.PID
	// The store may be the one that meets the full disk: then the daemon stops
	// rather than go on with what it could not write, and what runs goes on.
	waitUntil(t, 60*time.Second, "the gap is told, or the daemon has stopped", func() bool {
		out, err := h.command("ps", "--json").Output()
		return !running(before) || err == nil && strings.Contains(string(out), `"gap":`)
	})
	if err := os.WriteFile(filepath.Join(disk, "rest"), make([]byte, 24<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	if p, code := h.problem("run", "-d", "--", "sleep", "3000"); code != berth.ExitFailed ||
		p.Code != berth.CodeDiskFull && p.Code != berth.CodeStoreFailed && p.Code != berth.CodeDaemonNotRunning {
		t.Errorf("a start on a full disk: %+v, exit %d", p, code)
	}
	if running(before) {
		t.Log("the daemon got through without a write")
	} else if p, _ := h.problem("up"); p.Code != berth.CodeDiskFull && p.Code != berth.CodeStoreFailed && p.Code != berth.CodeStateDir {
		t.Errorf("up on a full disk: %+v", p)
	}
	if err := os.Remove(filepath.Join(disk, "rest")); err != nil {
		t.Fatal(err)
	}
	h.freeOldest(s.ID) // what a person does: make room
	h.must("up")
	waitUntil(t, 60*time.Second, "the end is on the screen", func() bool {
		return strings.Contains(h.must("screen", "writer"), "FILLED")
	})
	waitUntil(t, 20*time.Second, "it runs, has written all and tells of the gap", func() bool {
		now := h.session(s.ID)
		return now.State == berth.SessionRunning && now.Log.Gap != "" && now.Offsets.End > 60_000_000
	})
	h.must("kill", "writer")
	h.must("rm", "writer")
	h.startSession("--name", "again", "--", "sleep", "3000")
}

// freeOldest removes the oldest half of a session's log.
func (h *house) freeOldest(id string) {
	h.t.Helper()
	files, err := filepath.Glob(filepath.Join(h.state(), berth.DirSessions, id, berth.DirOutput, "*"))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, f := range files[:len(files)/2] { // they sort by offset
		if err := os.Remove(f); err != nil {
			h.t.Fatal(err)
		}
	}
}

// TestReusedPID gives a session the PID of a stranger and kills it.
func TestReusedPID(t *testing.T) {
	h := newHouse(t)
	stranger := exec.CommandContext(t.Context(), "sleep", "3000")
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stranger.Process.Kill() // may be gone
		_ = stranger.Wait()         // its status is that of the kill
	})
	s := h.startSession("--name", "old", "--", "sleep", "3000")
	status := h.status()
	// The holder and its program die with everything above them, and the PIDs
	// in the records now belong to somebody else.
	h.kill9(status.Daemon.PID)
	h.kill9(status.Guest.PID)
	path := filepath.Join(h.state(), berth.DirSessions, s.ID, berth.FileIdentity)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var r struct{ Holder, Program berth.Identity }
	h.decode(string(data), &r)
	h.kill9(r.Holder.PID)
	h.kill9(r.Program.PID)
	text := strings.ReplaceAll(string(data), itoa(r.Holder.PID), itoa(stranger.Process.Pid))
	text = strings.ReplaceAll(text, itoa(r.Program.PID), itoa(stranger.Process.Pid))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	h.must("up")
	if now := h.session(s.ID); now.State != berth.SessionLost {
		t.Errorf("it is %s", now.State)
	}
	h.run("kill", "old")
	h.must("rm", "old")
	if !running(stranger.Process.Pid) {
		t.Error("a stranger was killed")
	}
	h.noTrace(s.ID)
}
