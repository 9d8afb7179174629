package cli

import (
	"context"
	"io"
	"sync"
)

// ttyQueueMax bounds what waits for the user's terminal, in bytes. Beyond it the
// reader of the stream waits, the daemon's queue for this viewer fills, and this
// viewer, nobody else, gets a gap and a repaint.
const ttyQueueMax = 256 << 10

// ttyDirectMax is up to where a piece is written by whoever brings it, when
// nothing waits before it: an echo pays for no second goroutine. Larger pieces
// are output that flows, and reading goes on while they are written.
const ttyDirectMax = 4 << 10

// ttyQueue stands between the stream and the terminal. What arrives while a
// write runs goes out in one write after it.
type ttyQueue struct {
	out io.Writer

	mu      sync.Mutex
	changed *sync.Cond // of all below
	buf     []byte
	spare   []byte
	writing bool
	closed  bool
	err     error // the write that failed; the terminal is gone
	last    byte  // last byte that was put
	done    chan struct{}
}

// newTTYQueue starts the writer. close ends it.
func newTTYQueue(out io.Writer) *ttyQueue {
	q := &ttyQueue{out: out, done: make(chan struct{})}
	q.changed = sync.NewCond(&q.mu)
	go q.run()
	return q
}

func (q *ttyQueue) run() {
	defer close(q.done)
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		for (len(q.buf) == 0 || q.writing) && !q.closed {
			q.changed.Wait()
		}
		if q.closed {
			return
		}
		p := q.buf
		q.buf = q.spare[:0]
		q.write(p)
		q.spare = p
	}
}

// write writes p with the lock released. The caller holds the lock and has seen
// that nobody else writes.
func (q *ttyQueue) write(p []byte) {
	q.writing = true
	q.mu.Unlock()
	_, err := q.out.Write(p)
	q.mu.Lock()
	q.writing = false
	if err != nil {
		q.err, q.closed = err, true
	}
	q.changed.Broadcast()
}

// put writes p or lets it wait its turn, and itself waits while the queue is
// full. It fails when the terminal is gone or the queue was closed.
func (q *ttyQueue) put(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	// A piece larger than the bound goes in alone: it has been received already.
	for len(q.buf) > 0 && len(q.buf)+len(p) > ttyQueueMax && !q.closed {
		q.changed.Wait()
	}
	if q.closed {
		if q.err != nil {
			return q.err
		}
		return io.ErrClosedPipe
	}
	q.last = p[len(p)-1]
	if len(q.buf) == 0 && !q.writing && len(p) <= ttyDirectMax {
		q.write(p)
		return q.err
	}
	q.buf = append(q.buf, p...)
	q.changed.Broadcast()
	return nil
}

// flush waits until everything is written or ctx ends.
func (q *ttyQueue) flush(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.changed.Broadcast()
	})
	defer stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	for (len(q.buf) > 0 || q.writing) && !q.closed && ctx.Err() == nil {
		q.changed.Wait()
	}
}

// close drops what waits and lets blocked calls of put return. A write that the
// terminal does not take goes on: whoever needs to know waits for done, with a
// bound. It says whether the last byte ended a line.
func (q *ttyQueue) close() (lineEnded bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.buf = nil
	q.changed.Broadcast()
	return q.last == '\n'
}
