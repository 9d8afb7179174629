package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/client"
)

func (h *house) client() *client.Client {
	h.t.Helper()
	c, err := client.New(client.Config{Socket: filepath.Join(h.runtime(), berth.SocketDaemon)})
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			h.t.Error(err)
		}
	})
	return c
}

// TestSlowViewer has two viewers of different sizes, one of which reads nothing
// while 120 MB go by. Neither the program nor the other one may wait for it, and
// what it costs is bounded.
func TestSlowViewer(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := newHouse(t)
	c := h.client()
	goFile := filepath.Join(h.dir, "go")
	s := h.startSession("--name", "flood", "--size", "80x24", "--",
		"sh", "-c", "while [ ! -e "+goFile+" ]; do sleep 0.02; done; exec "+self+" "+childArg+" fill 120")
	slow, err := c.View(t.Context(), s.ID, berth.AttachRequest{Size: berth.Size{Cols: 130, Rows: 45}})
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close() //nolint:errcheck // the test is over
	quick, err := c.View(t.Context(), s.ID, berth.AttachRequest{Size: berth.Size{Cols: 120, Rows: 40}})
	if err != nil {
		t.Fatal(err)
	}
	defer quick.Close() //nolint:errcheck // the test is over
	before := h.memory()
	if err := os.WriteFile(goFile, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	shown := make(chan error, 1)
	go func() { shown <- seesFilled(quick) }()
	peak := int64(0)
	waitUntil(t, 2*time.Minute, "the quick viewer sees the end", func() bool {
		peak = max(peak, h.memory())
		select {
		case err = <-shown:
			return true
		default:
			return false
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	// A queue of 1 MiB for each viewer, buffers of two connections, garbage:
	// an unbounded queue would show as 120 MB in the guest or the daemon.
	if grown := peak - before; grown > 64<<20 {
		t.Errorf("daemon and guest grew by %d MB while a viewer read nothing", grown>>20)
	}
	// The slow one reads at last. Its connection may have been given up on; then
	// it comes back. Either way it is told of what it missed, and gets the screen.
	var gap bool
	var text bytes.Buffer
	for !strings.Contains(text.String(), "FILLED") {
		u, err := slow.Next()
		if err != nil {
			t.Fatalf("after %d bytes: %v", text.Len(), err)
		}
		gap = gap || u.Kind == client.UpdateGap || u.Kind == client.UpdateHello && u.Hello.Gap != nil
		text.Write(u.Data)
	}
	if !gap {
		t.Error("the slow viewer was not told that it missed something")
	}
	if size := h.session(s.ID).Size; size != (berth.Size{Cols: 120, Rows: 40}) {
		t.Errorf("the size is %s, want that of the viewer that attached last", size)
	}
}

func seesFilled(v *client.Viewer) error {
	var tail []byte
	for {
		u, err := v.Next()
		if err != nil {
			return err
		}
		if tail = append(tail, u.Data...); bytes.Contains(tail, []byte("FILLED")) {
			return nil
		}
		if len(tail) > 4096 {
			tail = append(tail[:0], tail[len(tail)-64:]...)
		}
	}
}

// memory is the resident memory of daemon and guest, in bytes.
func (h *house) memory() (total int64) {
	h.t.Helper()
	s := h.status()
	for _, pid := range []int{s.Daemon.PID, s.Guest.PID} {
		data, err := os.ReadFile("/proc/" + itoa(pid) + "/statm")
		if err != nil {
			h.t.Fatal(err)
		}
		pages, err := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
		if err != nil {
			h.t.Fatal(err)
		}
		total += pages * int64(os.Getpagesize())
	}
	return total
}
