package e2e

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth"
)

// TestInterruptUnderFlood stops `yes` with Ctrl-C from a viewer. Input that
// queues behind output would make the key useless for as long as it floods.
func TestInterruptUnderFlood(t *testing.T) {
	h := newHouse(t)
	s := h.startSession("--name", "flood", "--size", "80x24", "--", "sh", "-c", "trap : INT; yes; echo stopped by $?; exec sleep 3000")
	view := newTerm(t, h.terminalEnv(), 80, 24, h.attachLine("flood"))
	view.waitFor("y")
	waitUntil(t, 20*time.Second, "10 MB have been written", func() bool { return h.session(s.ID).Offsets.End > 10_000_000 })
	start := time.Now()
	view.keys("C-c")
	view.waitFor("stopped by 130")
	// The 100 ms are a figure of the benchmark; here a slow machine only has to
	// show that the key does not wait for the flood's end, which never comes.
	t.Logf("Ctrl-C to the shell's answer on the screen: %v", time.Since(start).Round(time.Millisecond))
}

// TestLogStaysWithinItsCap writes 1 GB with nobody watching.
func TestLogStaysWithinItsCap(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 1 GB")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := newHouse(t)
	const megabytes, limit = 1000, 4 << 20
	s := h.startSession("--name", "big", "--log", "4194304", "--", self, childArg, "fill", itoa(megabytes))
	waitUntil(t, 3*time.Minute, "1 GB is written", func() bool {
		at := h.session(s.ID)
		if size := diskUse(t, filepath.Join(h.state(), berth.DirSessions, s.ID, berth.DirOutput)); size > limit+limit/8 {
			t.Fatalf("the log has %d bytes on disk, its cap is %d", size, limit)
		}
		return at.Offsets.End > megabytes*1_000_000
	})
	now := h.session(s.ID)
	if now.Offsets.End-now.Offsets.Start < limit/2 || now.Log.Bytes > limit || now.Log.Cap != limit {
		t.Errorf("kept: %+v, log %+v", now.Offsets, now.Log)
	}
	waitUntil(t, 10*time.Second, "the screen shows the end", func() bool {
		return strings.Contains(h.must("screen", "big"), "FILLED")
	})
	if out := h.must("logs", "big"); !strings.HasSuffix(strings.TrimSpace(out), "FILLED") {
		t.Errorf("the log ends with %q", out[max(0, len(out)-40):])
	}
}

func diskUse(t *testing.T, dir string) (total int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // a segment that was just dropped
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			total += info.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return total
}
