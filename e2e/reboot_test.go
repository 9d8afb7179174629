package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth"
)

// TestAfterAReboot is the state directory as a restart of the machine leaves it:
// no process, no runtime directory, records of another boot.
func TestAfterAReboot(t *testing.T) {
	h := newHouse(t)
	s := h.startSession("--name", "night", "--", "sh", "-c", "echo before the reboot; exec sleep 3000")
	// A holder gathers output for 20 ms before it writes; what a machine that goes
	// down takes along is what was said in the last of them.
	waitUntil(t, 10*time.Second, "what it has said is on disk", func() bool {
		return diskUse(t, filepath.Join(h.state(), berth.DirSessions, s.ID, berth.DirOutput)) >= int64(len("before the reboot\r\n"))
	})
	h.endAll()
	if err := os.RemoveAll(h.runtime()); err != nil {
		t.Fatal(err)
	}
	boot := h.bootID()
	for _, path := range []string{
		filepath.Join(h.state(), berth.FileDaemonJSON),
		filepath.Join(h.state(), berth.DirSessions, s.ID, berth.FileIdentity),
		filepath.Join(h.state(), berth.DirSessions, s.ID, berth.FileSpec),
	} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(data), boot, "11111111-2222-3333-4444-555555555555")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h.must("up")
	now := h.session(s.ID)
	if now.State != berth.SessionLost || now.Exit == nil || now.Exit.Reason != berth.ExitEnded || !strings.Contains(now.Exit.Detail, "restarted") {
		t.Errorf("after the reboot it is %s, %+v", now.State, now.Exit)
	}
	if got := h.must("logs", "night"); got != "before the reboot\r\n" {
		t.Errorf("the output that was kept is %q", got)
	}
	if p, _ := h.problem("send", "night", "x"); p.Code != berth.CodeSessionLost {
		t.Errorf("typing into it: %+v", p)
	}
	h.startSession("--name", "night", "--", "sleep", "3000") // its name is free again
	h.must("rm", s.ID)
	h.noTrace(s.ID)
}

func (h *house) bootID() string {
	h.t.Helper()
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		h.t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}
