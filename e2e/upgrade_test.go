package e2e

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth"
	"berth/client"
)

// TestUpgrade stops the daemon, puts another build in its place and starts
// that, while a viewer of the old one watches.
func TestUpgrade(t *testing.T) {
	newer, err := os.MkdirTemp("", "bn")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(newer) }) // binaries in the temporary directory
	if err := build(newer, "0.0.2-e2e"); err != nil {
		t.Fatal(err)
	}
	h := newHouse(t)
	s := h.startSession("--name", "shell", "--size", "80x24", "--", "sh", "-c", "while read line; do echo got:$line; done")
	view := newTerm(t, h.terminalEnv(), 80, 24, h.attachLine("shell"))
	view.keys("one", "Enter")
	view.waitFor("got:one")
	old := h.status()
	// A viewer that goes through the daemon is told to come back, and does; the
	// one above has the guest and is not even disturbed.
	through := watchThroughDaemon(t, h, s.ID)
	through.waitFor("got:one")

	h.must("down")
	if running(old.Daemon.PID) {
		t.Error("down returned while the daemon runs")
	}
	if !running(s.PID) && !running(h.holderProgram(s.ID)) {
		t.Error("the program went with the daemon")
	}
	h.bin = newer
	h.must("up")
	now := h.status()
	if now.Daemon.Version != "0.0.2-e2e" || now.Guest.Version != "0.0.1-e2e" || now.Guest.PID != old.Guest.PID {
		t.Errorf("after the upgrade: daemon %s, guest %s (pid %d, was %d)", now.Daemon.Version, now.Guest.Version, now.Guest.PID, old.Guest.PID)
	}
	if !hasProblem(now, berth.CodeGuestOutdated) {
		t.Errorf("nothing says that the guest is older: %+v", now.Problems)
	}
	view.keys("two", "Enter")
	view.waitFor("got:two")
	through.waitFor("got:two") // it found the new daemon by itself
	if told := through.breaks(); len(told) == 0 || !errors.Is(told[0], berth.CodeDaemonStopping) {
		t.Errorf("the old daemon told its viewer %v", told)
	}

	h.must("up", "--replace-guest")
	now = h.status()
	if now.Guest.Version != "0.0.2-e2e" || hasProblem(now, berth.CodeGuestOutdated) {
		t.Errorf("the guest is still %s: %+v", now.Guest.Version, now.Problems)
	}
	view.keys("three", "Enter")
	view.waitFor("got:three")
	shown := strings.Join(view.lines(), "\n")
	for _, want := range []string{"got:one", "got:two", "got:three"} {
		if strings.Count(shown, want) != 1 {
			t.Errorf("%q is not shown once:\n%s", want, shown)
		}
	}
}

// watcher collects what a viewer is shown.
type watcher struct {
	t    *testing.T
	mu   sync.Mutex
	text []byte
	told []error // why its connection ended, each time
}

func watchThroughDaemon(t *testing.T, h *house, id string) *watcher {
	t.Helper()
	c, err := client.New(client.Config{Socket: filepath.Join(h.runtime(), berth.SocketDaemon), ThroughDaemon: true})
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.View(t.Context(), id, berth.AttachRequest{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	w := &watcher{t: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			u, err := v.Next()
			if err != nil {
				return
			}
			w.mu.Lock()
			w.text = append(w.text, u.Data...)
			if u.Kind == client.UpdateDisconnected {
				w.told = append(w.told, u.Err)
			}
			w.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = errors.Join(v.Close(), c.Close()) // the test is over
		<-done
	})
	return w
}

func (w *watcher) waitFor(text string) {
	w.t.Helper()
	waitUntil(w.t, 20*time.Second, "the viewer is shown "+text, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return bytes.Contains(w.text, []byte(text))
	})
}

func (w *watcher) breaks() []error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.told
}

func hasProblem(s berth.Status, code berth.Code) bool {
	for _, p := range s.Problems {
		if p.Code == code {
			return true
		}
	}
	return false
}

// holderProgram reads the program's PID from the holder's record.
func (h *house) holderProgram(id string) int {
	h.t.Helper()
	var r struct {
		Program berth.Identity `json:"program"`
	}
	data, err := os.ReadFile(h.state() + "/" + berth.DirSessions + "/" + id + "/" + berth.FileIdentity)
	if err != nil {
		h.t.Fatal(err)
	}
	h.decode(string(data), &r)
	return r.Program.PID
}

// TestRestartOfMany kills the daemon of 200 sessions and waits for all of them.
func TestRestartOfMany(t *testing.T) {
	if testing.Short() {
		t.Skip("starts 200 sessions")
	}
	h := newHouse(t)
	const n = 200
	for range n {
		h.startSession("--", "sleep", "3000")
	}
	h.killDaemon()
	start := time.Now()
	h.must("up")
	waitUntil(t, 20*time.Second, "all sessions are back", func() bool { return h.status().Sessions.Running == n })
	t.Logf("200 sessions were back after %v", time.Since(start).Round(time.Millisecond))
	h.kill9(h.status().Guest.PID)
	start = time.Now()
	waitUntil(t, 20*time.Second, "all sessions are back after the guest was killed", func() bool {
		st := h.status()
		return st.Guest.Reachable && st.Sessions.Running == n
	})
	t.Logf("and after %v when the guest was killed", time.Since(start).Round(time.Millisecond))
}

// TestUpFromANewerLogin: a daemon and a guest keep the groups of the login that
// started them. `berth up` from one that has more puts others in their place,
// and what runs goes on.
func TestUpFromANewerLogin(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives a process other groups")
	}
	h := newHouse(t)
	s := h.startSession("--", "cat")
	before := h.status()
	up := func(groups ...uint32) (string, berth.Status) {
		t.Helper()
		cmd := h.command("up")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Groups: groups}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out), h.status()
	}
	out, after := up(54321)
	if after.Daemon.PID == before.Daemon.PID || after.Guest.PID == before.Guest.PID || !strings.Contains(out, "54321") {
		t.Fatalf("daemon %d → %d, guest %d → %d\n%s", before.Daemon.PID, after.Daemon.PID, before.Guest.PID, after.Guest.PID, out)
	}
	if got := h.session(s.ID); got.State != berth.SessionRunning || got.PID != s.PID && s.PID != 0 {
		t.Errorf("the session is %s", got.State)
	}
	if _, again := up(54321); again.Daemon.PID != after.Daemon.PID {
		t.Error("it was started again for nothing")
	}
	if _, again := up(); again.Daemon.PID != after.Daemon.PID {
		t.Error("a login with fewer groups started it again")
	}
}
