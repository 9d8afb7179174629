package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth"
)

// binaries is where TestMain built berth, berth-guest and berth-holder.
var binaries string

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == childArg {
		child(os.Args[2:])
		return
	}
	os.Exit(func() int { //nolint:forbidigo // a test binary's main
		dir, err := os.MkdirTemp("", "bb")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir) //nolint:errcheck // a leftover in the temporary directory harms nothing
		if err := build(dir, "0.0.1-e2e"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		binaries = dir
		return m.Run()
	}())
}

// build makes the three static binaries with a version of their own.
func build(dir, version string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X berth.version="+version, "-o", dir+"/", "../cmd/...")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	return nil
}

// house is one berth: a state directory, a runtime directory, what runs there.
type house struct {
	t    *testing.T
	dir  string // short, since sockets live below it
	bin  string
	env  []string // added to the environment of every command
	ctx  context.Context
	stop context.CancelFunc
}

// newHouse makes the directories and starts a daemon. At the end of the test
// everything that runs there is ended, whatever the test did.
func newHouse(t *testing.T) *house {
	t.Helper()
	h := bareHouse(t)
	h.must("up")
	return h
}

func bareHouse(t *testing.T) *house {
	t.Helper()
	dir, err := os.MkdirTemp("", "be")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), 4*time.Minute)
	h := &house{t: t, dir: dir, bin: binaries, ctx: ctx, stop: stop}
	t.Cleanup(h.clear)
	return h
}

func (h *house) state() string   { return filepath.Join(h.dir, "s") }
func (h *house) runtime() string { return filepath.Join(h.dir, "r") }

// command makes a command of berth with this house's directories.
func (h *house) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(h.ctx, filepath.Join(h.bin, "berth"), args...)
	cmd.Env = append(cleanEnv(), "BERTH_STATE_DIR="+h.state(), "BERTH_RUNTIME_DIR="+h.runtime(), "BERTH_CONFIG="+filepath.Join(h.dir, "config.toml"), "BERTH_MACHINE_DIR="+filepath.Join(h.dir, "m"))
	cmd.Env = append(cmd.Env, h.env...)
	return cmd
}

// cleanEnv is this process's environment without what would leak in from an
// enclosing session.
func cleanEnv() []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "BERTH_") && !strings.HasPrefix(kv, "TERM=") {
			env = append(env, kv)
		}
	}
	return append(env, "TERM=xterm-256color", "LANG=C.UTF-8", "LC_ALL=C.UTF-8")
}

// run gives what a command printed and its exit status.
func (h *house) run(args ...string) (stdout, stderr string, code int) {
	h.t.Helper()
	cmd := h.command(args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		h.t.Fatalf("berth %v: %v", args, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// must is run for a command that has to succeed.
func (h *house) must(args ...string) string {
	h.t.Helper()
	out, errs, code := h.run(args...)
	if code != 0 {
		h.t.Fatalf("berth %s: exit %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

// startSession runs `berth run -d` and gives the session.
func (h *house) startSession(args ...string) berth.Session {
	h.t.Helper()
	var s berth.Session
	h.decode(h.must(append([]string{"run", "-d", "--json"}, args...)...), &s)
	return s
}

func (h *house) decode(text string, v any) {
	h.t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		h.t.Fatalf("not one JSON document: %v\n%s", err, text)
	}
}

// session looks one up through ps.
func (h *house) session(id string) berth.Session {
	h.t.Helper()
	var list struct{ Sessions []berth.Session }
	h.decode(h.must("ps", "--all", "--json"), &list)
	for _, s := range list.Sessions {
		if s.ID == id {
			return s
		}
	}
	h.t.Fatalf("session %s is not listed", id)
	return berth.Session{}
}

func (h *house) status() berth.Status {
	h.t.Helper()
	var s berth.Status
	h.decode(h.must("status", "--json"), &s)
	return s
}

// killDaemon and killGuest end a process as the kernel's memory killer would.
func (h *house) killDaemon() { h.t.Helper(); h.kill9(h.status().Daemon.PID) }
func (h *house) killGuest()  { h.t.Helper(); h.kill9(h.status().Guest.PID) }

func (h *house) kill9(pid int) {
	h.t.Helper()
	if pid <= 1 {
		h.t.Fatalf("refusing to kill process %d", pid)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		h.t.Fatal(err)
	}
	waitUntil(h.t, 5*time.Second, fmt.Sprintf("process %d is gone", pid), func() bool { return !running(pid) })
}

// running reports whether a process is there and no zombie.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	i := bytes.LastIndexByte(stat, ')')
	return i < 0 || len(stat) < i+3 || stat[i+2] != 'Z' && stat[i+2] != 'X'
}

// waitUntil polls a condition: the file system and other processes give no
// channel to wait on.
func waitUntil(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("waited %v in vain until %s", limit, what)
		case <-tick.C:
		}
	}
}

// clear ends everything that this house started, by identity, and removes it.
func (h *house) clear() {
	defer h.stop()
	if h.t.Failed() {
		h.dump()
	}
	h.endAll()
	h.removeCgroups()
	if err := os.RemoveAll(h.dir); err != nil {
		h.t.Errorf("clean up: %v", err)
	}
}

// removeCgroups removes those of holders that were killed before they could.
func (h *house) removeCgroups() {
	files, _ := filepath.Glob(filepath.Join(h.state(), berth.DirSessions, "*", berth.FileIdentity)) // the pattern is constant
	for _, f := range files {
		var r struct{ Cgroup string }
		if data, err := os.ReadFile(f); err != nil || json.Unmarshal(data, &r) != nil || r.Cgroup == "" {
			continue
		}
		waitUntil(h.t, 5*time.Second, r.Cgroup+" is empty", func() bool {
			err := os.Remove(r.Cgroup)
			return err == nil || errors.Is(err, fs.ErrNotExist)
		})
	}
}

func (h *house) endAll() {
	waitUntil(h.t, 10*time.Second, "nothing of this berth runs", func() bool {
		left := h.processes()
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by itself
		}
		return len(left) == 0
	})
}

// processes finds what belongs to this house: berth's own processes carry its
// directory on their command line, programs carry its socket in BERTH_SOCKET.
func (h *house) processes() []int {
	var pids []int
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is constant
	for _, d := range dirs {
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(d), "%d", &pid); err != nil || pid == os.Getpid() {
			continue
		}
		cmdline, err1 := os.ReadFile(d + "/cmdline")
		environ, err2 := os.ReadFile(d + "/environ")
		if err1 != nil && err2 != nil || !running(pid) {
			continue
		}
		if bytes.Contains(cmdline, []byte(h.dir+"/")) || bytes.Contains(environ, []byte("="+h.dir+"/")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// dump shows the logs of a failed test.
func (h *house) dump() {
	_ = filepath.WalkDir(h.state(), func(path string, d fs.DirEntry, err error) error { // best effort: the test has failed already
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".log") {
			return nil
		}
		if text, err := os.ReadFile(path); err == nil && len(text) > 0 {
			if len(text) > 8<<10 {
				text = text[len(text)-8<<10:]
			}
			h.t.Logf("%s:\n%s", path, text)
		}
		return nil
	})
}

func itoa(n int) string { return strconv.Itoa(n) }

func atoi(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
