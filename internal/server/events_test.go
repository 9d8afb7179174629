package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"berth"
)

// follow collects events until it has n of them.
func follow(t *testing.T, h *house, from int64, n int) <-chan []berth.Event {
	t.Helper()
	got := make(chan []berth.Event, 1)
	c, ctx := h.client(t), within(t, 10*time.Second)
	enough := errors.New("enough")
	go func() {
		var all []berth.Event
		err := c.Events(ctx, from, func(e berth.Event) error {
			if all = append(all, e); len(all) == n {
				return enough
			}
			return nil
		})
		if !errors.Is(err, enough) {
			t.Errorf("events: %v", err)
		}
		got <- all
	}()
	return got
}

// watched waits until somebody follows the events.
func (h *house) watched(t *testing.T, n int) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		h.events.mu.Lock()
		count := len(h.events.wakes)
		h.events.mu.Unlock()
		if count == n {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d follow, want %d", count, n)
		}
	}
}

func sequence(events []berth.Event) string {
	var b strings.Builder
	for _, e := range events {
		if e.Kind == berth.EventGap {
			fmt.Fprintf(&b, "gap(%d,%d) ", e.From, e.To)
			continue
		}
		fmt.Fprintf(&b, "%d ", e.Seq)
	}
	return strings.TrimSpace(b.String())
}

func TestEventsFromAnywhere(t *testing.T) {
	h := newHouse(t, func(h *house) { h.events.publish(5) })
	for from, want := range map[int64]string{1: "1 2 3", 4: "4 5 6", 6: "6 7 8"} {
		got := follow(t, h, from, 3)
		if from > 1 { // more than there is yet
			h.watched(t, 1)
			h.events.publish(3)
		}
		if s := sequence(<-got); s != want {
			t.Errorf("from %d: %s, want %s", from, s, want)
		}
		h.watched(t, 0)
		h.events.mu.Lock()
		h.events.events = h.events.events[:5]
		h.events.mu.Unlock()
	}
	// More than one batch, none lost at the seam.
	h.events.publish(3 * eventBatch)
	if got := <-follow(t, h, 1, 3*eventBatch+5); got[len(got)-1].Seq != 3*eventBatch+5 {
		t.Errorf("ends with %d", got[len(got)-1].Seq)
	}
}

func TestNewEventsOnly(t *testing.T) {
	h := newHouse(t, func(h *house) { h.events.publish(5) })
	got := follow(t, h, 0, 2)
	h.watched(t, 1)
	// The watch is there, the read that finds the end may not be: publish when
	// the stream has begun, which its metric tells.
	waitUntil(t, func() bool {
		return strings.Contains(string(h.ask(t, "GET", "/metrics", "").body), "berth_event_followers 1")
	})
	h.events.publish(2)
	if s := sequence(<-got); s != "6 7" {
		t.Errorf("%s", s)
	}
}

// waitUntil polls with a deadline.
func waitUntil(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("it did not happen")
		}
	}
}

func TestExpiredCursorAnswersGap(t *testing.T) {
	h := newHouse(t, func(h *house) { h.events.publish(9); h.events.kept = 6 })
	if s := sequence(<-follow(t, h, 2, 4)); s != "gap(2,6) 6 7 8" {
		t.Errorf("%s", s)
	}
}

func TestPastEventsEnd(t *testing.T) {
	h := newHouse(t, func(h *house) { h.events.publish(eventBatch) }) // a full batch ends, too
	var got []berth.Event
	err := h.client(t).PastEvents(within(t, 5*time.Second), 0, func(e berth.Event) error { got = append(got, e); return nil })
	if err != nil || len(got) != eventBatch {
		t.Errorf("%d %v", len(got), err)
	}
}

// A follower that is cut before its first event comes back to its place.
func TestFollowerResumesOverAStop(t *testing.T) {
	h := newHouse(t, func(h *house) { h.events.publish(2); h.times.heartbeat = 5 * time.Millisecond })
	raw := h.dialEvents(t, "Last-Event-ID: 1")
	if got := readUntil(t, raw, "id: 2\n"); !strings.Contains(got, "id: 1\n\n") || strings.Contains(got, "event: gap") {
		t.Errorf("%q", got)
	}
	readUntil(t, raw, ":\n\n") // a heartbeat
	if err := h.Shutdown(within(t, 5*time.Second)); err != nil {
		t.Error(err)
	}
	if got := readUntil(t, raw, "event: stopping\n"); strings.Contains(got, "event: session") {
		t.Errorf("%q", got)
	}
}

func (h *house) dialEvents(t *testing.T, header string) *bufio.Reader {
	t.Helper()
	conn, err := net.Dial("unix", h.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if header != "" {
		header += "\r\n"
	}
	if _, err := fmt.Fprintf(conn, "GET /v1/events?from=1 HTTP/1.1\r\nHost: x\r\n%s\r\n", header); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	return bufio.NewReader(conn)
}

func readUntil(t *testing.T, r *bufio.Reader, mark string) string {
	t.Helper()
	var b []byte
	for {
		line, err := r.ReadBytes('\n')
		b = append(b, line...)
		if tail := b[max(0, len(b)-len(line)-len(mark)):]; bytes.Contains(tail, []byte(mark)) {
			return string(b)
		}
		if err != nil {
			t.Fatalf("%v before %q, behind %q", err, mark, b[max(0, len(b)-200):])
		}
	}
}

// One that reads nothing is cut; the daemon's memory does not grow with it, and
// another follower is not slowed.
func TestSlowFollowerIsCut(t *testing.T) {
	h := newHouse(t, func(h *house) {
		h.times.slow, h.times.stuck = 20*time.Millisecond, 100*time.Millisecond
		h.events.publish(40_000) // megabytes: more than socket buffers take
	})
	_ = h.dialEvents(t, "") // reads nothing
	if got := <-follow(t, h, 1, 1000); len(got) != 1000 {
		t.Errorf("%d", len(got))
	}
	waitUntil(t, func() bool { // a busy machine may cut the other one, too; that one comes back
		metrics := string(h.ask(t, "GET", "/metrics", "").body)
		return strings.Contains(metrics, "berth_event_followers_cut_total ") && !strings.Contains(metrics, "berth_event_followers_cut_total 0")
	})
	h.watched(t, 0)
}

// One that is slow but reads is told why the stream ends, and loses nothing: it
// comes back with its last id.
func TestSlowFollowerIsTold(t *testing.T) {
	h := newHouse(t, func(h *house) {
		h.times.slow, h.times.stuck = 50*time.Millisecond, 30*time.Second
		h.events.publish(40_000)
	})
	raw := h.dialEvents(t, "")
	readUntil(t, raw, "id: 1\n")
	// It stands still until the daemon's write has been waiting for a while.
	timer := time.NewTimer(500 * time.Millisecond)
	<-timer.C
	got := readUntil(t, raw, "event: cut\n")
	data, err := raw.ReadString('\n')
	if err != nil || !strings.Contains(data, string(berth.CodeTimeout)) || strings.Contains(got, "id: 40000\n") {
		t.Errorf("%q %v", data, err)
	}
}

func TestEventsStopWithTheirReader(t *testing.T) {
	h := newHouse(t, nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	c := h.client(t)
	go func() { done <- c.Events(ctx, 0, func(berth.Event) error { return nil }) }()
	h.watched(t, 1)
	cancel()
	if err := <-done; !errors.Is(err, berth.CodeInterrupted) || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	h.watched(t, 0)
}
