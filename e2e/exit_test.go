package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth"
)

// TestExitIsKept ends programs while nobody listens and the daemon is dead.
func TestExitIsKept(t *testing.T) {
	h := newHouse(t)
	go1 := filepath.Join(h.dir, "go")
	code := h.startSession("--name", "code", "--", "sh", "-c", "while [ ! -e "+go1+" ]; do sleep 0.02; done; printf 'last words'; exit 7")
	signal := h.startSession("--name", "signal", "--", "sh", "-c", "while [ ! -e "+go1+" ]; do sleep 0.02; done; kill -USR1 $$")
	status := h.status()
	h.kill9(status.Daemon.PID)
	h.kill9(status.Guest.PID)
	if err := os.WriteFile(go1, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, s := range []berth.Session{code, signal} {
		waitUntil(t, 10*time.Second, "the exit record is written", func() bool {
			_, err := os.Stat(filepath.Join(h.state(), berth.DirSessions, s.ID, berth.FileExit))
			return err == nil
		})
	}
	h.must("up")
	if _, _, got := h.run("wait", "code"); got != 7 {
		t.Errorf("wait ends with %d, want the program's 7", got)
	}
	if got := h.must("logs", "code"); got != "last words" {
		t.Errorf("the last bytes are %q", got)
	}
	if s := h.session(code.ID); s.State != berth.SessionExited || s.Exit == nil || s.Exit.Code != 7 || s.Exit.Offset != uint64(len("last words")) {
		t.Errorf("the exit is %+v", s.Exit)
	}
	if s := h.session(signal.ID); s.Exit == nil || s.Exit.Signal != "SIGUSR1" {
		t.Errorf("the exit is %+v, want SIGUSR1", s.Exit)
	}
	if _, _, got := h.run("wait", "signal"); got != 128+10 {
		t.Errorf("wait ends with %d, want 138", got)
	}
	h.must("rm", "code", "signal")
	for _, s := range []berth.Session{code, signal} {
		h.noTrace(s.ID)
	}
}

// noTrace fails when a file of the session is left anywhere.
func (h *house) noTrace(id string) {
	h.t.Helper()
	err := filepath.WalkDir(h.dir, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // SQLite's files come and go
		}
		if err != nil {
			return err
		}
		if strings.Contains(filepath.Base(path), id) {
			h.t.Errorf("%s is left", path)
		}
		return nil
	})
	if err != nil {
		h.t.Error(err)
	}
}

// TestEscapee leaves a process behind that has its own process session and
// still holds the terminal. It must not keep the session open, and kill must
// end it where the session has a cgroup, and say so where it has none.
func TestEscapee(t *testing.T) {
	h := newHouse(t)
	pidFile := filepath.Join(h.dir, "pid")
	s := h.startSession("--name", "leaver", "--", "sh", "-c", "setsid sh -c 'echo $$ > "+pidFile+"; exec sleep 3000' & while [ ! -s "+pidFile+" ]; do sleep 0.02; done; exit 3")
	waitUntil(t, 10*time.Second, "the session ends though its terminal is held", func() bool {
		return h.session(s.ID).State == berth.SessionExited
	})
	if _, _, code := h.run("wait", "leaver"); code != 3 {
		t.Errorf("wait ends with %d", code)
	}
	text, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	pid := atoi(t, string(text))
	now := h.session(s.ID)
	if !now.Contained {
		if os.Getenv("CI") == "true" {
			t.Error("no cgroup could be made in CI, so nothing shows that an escapee is ended")
		}
		out, errs, _ := h.run("kill", "leaver")
		if !strings.Contains(out+errs, "cgroup") {
			t.Errorf("nothing says that escapees cannot be found: %s%s", out, errs)
		}
		return
	}
	if now.Exit.Survivors != 1 {
		t.Errorf("%d survivors are reported, want 1", now.Exit.Survivors)
	}
	h.must("kill", "leaver")
	waitUntil(t, 10*time.Second, "the escapee is ended", func() bool { return !running(pid) })

	// The same while the program still runs.
	if err := os.Remove(pidFile); err != nil {
		t.Fatal(err)
	}
	live := h.startSession("--name", "stayer", "--", "sh", "-c", "trap '' HUP TERM; setsid sh -c 'trap \"\" HUP TERM; echo $$ > "+pidFile+"; while :; do sleep 1; done' & while :; do sleep 1; done")
	waitUntil(t, 10*time.Second, "the escapee runs", func() bool {
		text, err = os.ReadFile(pidFile)
		return err == nil && strings.HasSuffix(string(text), "\n")
	})
	h.must("kill", "stayer")
	if running(atoi(t, string(text))) || running(live.PID) {
		t.Error("kill returned while something of the session runs")
	}
}
