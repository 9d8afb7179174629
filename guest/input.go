package guest

import (
	"bytes"
	"context"
	"sync"
	"time"

	"berth"
)

// Bounds of the bytes that wait for a program that does not read its terminal.
const (
	// inputLimit is for what people and agents type. When it is full, whoever
	// types waits: nothing is dropped, and nobody else is held up.
	inputLimit = 64 << 10
	// replyLimit is what answers to queries may take beyond it. A program that
	// asks and never reads loses answers; the screen is never held up by it.
	replyLimit = 16 << 10
	// enterGap stands between pasted text and the Enter after it, so that a
	// program that tells a paste from typing by time sees a key of its own.
	enterGap = 30 * time.Millisecond
)

// inputQueue orders what is written to one program. Its writer is a goroutine
// that lives only while something waits.
type inputQueue struct {
	mu      sync.Mutex
	pieces  []inputPiece
	bytes   int
	room    chan struct{} // closed when bytes fell; nil = nobody waits
	writing bool
	ended   bool
	sink    func([]byte) error          // writes to the holder; nil = not connected now
	spawn   func(func()) bool           // starts the writer; false = the guest stops
	pause   func(time.Duration) bool    // waits; false = the guest stops
	lost    func(pieces int, err error) // told when a write failed
}

type inputPiece struct {
	data  []byte
	alone bool // a write of its own, enterGap after the one before
}

// errInputEnded is what input to a program that has ended gets.
func errInputEnded() error {
	return berth.Errorf(berth.CodeSessionEnded, "the session's program has ended")
}

// push queues a copy of p and returns when it is queued, ctx ends or the
// program has ended. Pieces keep their order among one caller's calls.
func (q *inputQueue) push(ctx context.Context, p []byte, alone bool) error {
	for len(p) > 0 {
		n := min(len(p), inputLimit/4)
		if err := q.pushPiece(ctx, p[:n], alone); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

func (q *inputQueue) pushPiece(ctx context.Context, p []byte, alone bool) error {
	q.mu.Lock()
	for !q.ended && q.bytes+len(p) > inputLimit {
		if q.room == nil {
			q.room = make(chan struct{})
		}
		room := q.room
		q.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
		q.mu.Lock()
	}
	defer q.mu.Unlock()
	if q.ended {
		return errInputEnded()
	}
	q.add(p, alone)
	return nil
}

// reply queues an answer to a query, or drops it where the program has let too
// much wait already. It never blocks. It reports whether it was queued.
func (q *inputQueue) reply(p []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended || q.bytes+len(p) > inputLimit+replyLimit {
		return false
	}
	q.add(p, false)
	return true
}

// add is called with mu held.
func (q *inputQueue) add(p []byte, alone bool) {
	last := len(q.pieces) - 1
	if !alone && last >= 0 && !q.pieces[last].alone && len(q.pieces[last].data) < inputLimit/4 {
		q.pieces[last].data = append(q.pieces[last].data, p...)
	} else {
		q.pieces = append(q.pieces, inputPiece{bytes.Clone(p), alone})
	}
	q.bytes += len(p)
	q.start()
}

func (q *inputQueue) start() {
	if q.writing || q.sink == nil || len(q.pieces) == 0 {
		return
	}
	q.writing = q.spawn(q.write)
}

// write writes until nothing waits. A piece is taken before it is written: one
// that failed half-way is not tried again, since a key that arrives twice is
// worse than one that does not.
func (q *inputQueue) write() {
	for {
		q.mu.Lock()
		if len(q.pieces) == 0 || q.sink == nil {
			q.writing = false
			if len(q.pieces) == 0 {
				q.pieces = nil
			}
			q.mu.Unlock()
			return
		}
		piece, sink := q.pieces[0], q.sink
		q.pieces[0] = inputPiece{}
		q.pieces = q.pieces[1:]
		q.mu.Unlock()

		ok := !piece.alone || q.pause(enterGap)
		var err error
		if ok {
			err = sink(piece.data)
		}

		q.mu.Lock()
		q.bytes -= len(piece.data)
		if q.room != nil {
			close(q.room)
			q.room = nil
		}
		if err != nil || !ok {
			q.writing = false
			q.sink = nil // the next connection sets it again
			left := len(q.pieces)
			q.mu.Unlock()
			if err != nil {
				q.lost(left, err)
			}
			return
		}
		q.mu.Unlock()
	}
}

// connect gives the queue a way to the program; nil takes it away.
func (q *inputQueue) connect(sink func([]byte) error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.sink = sink
	q.start()
}

// end drops what waits: the program has ended.
func (q *inputQueue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended, q.pieces, q.bytes, q.sink = true, nil, 0, nil
	if q.room != nil {
		close(q.room)
		q.room = nil
	}
}

// Marks of a bracketed paste.
var (
	pasteStart = []byte("\x1b[200~")
	pasteEnd   = []byte("\x1b[201~")
)

// cleanPaste takes the paste marks out of text that is to be pasted. It repeats
// until none is left: taking one out may join the halves of another.
func cleanPaste(text []byte) []byte {
	for bytes.Contains(text, pasteStart) || bytes.Contains(text, pasteEnd) {
		text = bytes.ReplaceAll(text, pasteStart, nil)
		text = bytes.ReplaceAll(text, pasteEnd, nil)
	}
	return text
}

// pasted is what goes to the program for a text: between marks where it asked
// for them, and then without marks inside.
func pasted(text []byte, bracketed bool) []byte {
	if len(text) == 0 {
		return nil
	}
	text = cleanPaste(text)
	if !bracketed {
		return text
	}
	out := make([]byte, 0, len(pasteStart)+len(text)+len(pasteEnd))
	out = append(out, pasteStart...)
	out = append(out, text...)
	return append(out, pasteEnd...)
}
