package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"
)

// gatedWriter takes a write when the test lets it.
type gatedWriter struct {
	began chan int   // size of a write that waits
	gate  chan error // its result

	mu  sync.Mutex
	got bytes.Buffer
}

func newGatedWriter() *gatedWriter {
	return &gatedWriter{began: make(chan int), gate: make(chan error)}
}

func (w *gatedWriter) Write(p []byte) (int, error) {
	w.began <- len(p)
	if err := <-w.gate; err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.got.Write(p)
}

const testWait = 10 * time.Second

func TestTTYQueueJoinsWhatWaits(t *testing.T) {
	w := newGatedWriter()
	q := newTTYQueue(w)
	big := bytes.Repeat([]byte("a"), ttyDirectMax+1) // goes to the writer, so put returns
	must(t, q.put(big))
	<-w.began
	must(t, q.put([]byte("bb")))
	must(t, q.put([]byte("ccc")))
	w.gate <- nil
	if n := <-w.began; n != 5 {
		t.Errorf("the second write has %d bytes, not 5", n)
	}
	w.gate <- nil
	q.flush(t.Context())
	if q.close() {
		t.Error("no line was ended")
	}
	<-q.done
	if got := w.got.String(); got != string(big)+"bbccc" {
		t.Errorf("%d bytes are not in order", len(got))
	}
}

// A terminal that takes nothing stops the reader of the stream at a bound, and
// whoever closes is not stopped by it.
func TestTTYQueueIsBounded(t *testing.T) {
	w := newGatedWriter()
	q := newTTYQueue(w)
	must(t, q.put(make([]byte, ttyDirectMax+1)))
	<-w.began // the terminal is stuck
	result := make(chan error)
	total := 0
	go func() {
		for {
			if err := q.put(make([]byte, 32<<10)); err != nil {
				result <- err
				return
			}
			q.mu.Lock()
			total = max(total, len(q.buf))
			q.mu.Unlock()
		}
	}()
	full := time.NewTicker(time.Millisecond)
	defer full.Stop()
	deadline := time.After(testWait)
	for waiting := 0; waiting < ttyQueueMax; {
		select {
		case <-full.C:
			q.mu.Lock()
			waiting = len(q.buf)
			q.mu.Unlock()
		case <-deadline:
			t.Fatalf("only %d bytes wait", waiting)
		}
	}
	q.close()
	if err := <-result; !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v", err)
	}
	if total > ttyQueueMax {
		t.Errorf("%d bytes waited, above %d", total, ttyQueueMax)
	}
	w.gate <- nil
	<-q.done
}

func TestTTYQueueTellsOfAGoneTerminal(t *testing.T) {
	w := newGatedWriter()
	q := newTTYQueue(w)
	gone := errors.New("gone")
	result := make(chan error)
	go func() { result <- q.put([]byte("echo")) }() // small: written at once
	<-w.began
	w.gate <- gone
	if err := <-result; !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
	if err := q.put([]byte("more")); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
	q.close()
	<-q.done
}

func TestTTYQueueFlushIsGivenUp(t *testing.T) {
	w := newGatedWriter()
	q := newTTYQueue(w)
	must(t, q.put(make([]byte, ttyDirectMax+1)))
	<-w.began
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	q.flush(ctx) // returns although the terminal is stuck
	q.close()
	w.gate <- nil
	<-q.done
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
