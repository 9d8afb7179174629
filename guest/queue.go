package guest

// Bounds of what one viewer may have waiting.
const (
	// queueLimit is how many bytes of frames may wait for a viewer. More, and
	// it is behind: it gets the screen as it then is instead of the bytes.
	queueLimit = 1 << 20
	// batchLimit is how many bytes its writer takes at once. They are in
	// flight beside the queue, so a viewer holds at most the sum of both.
	batchLimit = 256 << 10
)

// frameCost is what a frame costs beside its bytes. It is counted, so that a
// program that prints one byte at a time cannot queue a million of them.
const frameCost = 64

// frame is one output frame as it goes on the stream. All viewers share buf:
// nobody may change it.
type frame struct {
	buf  []byte
	from uint64 // offset of the first byte that it stands for
	to   uint64 // offset after the last
}

func (f frame) cost() int { return len(f.buf) + frameCost }

// outQueue is the bounded queue of one viewer. It has no lock: the session's
// guards it. It never blocks whoever pushes.
type outQueue struct {
	frames []frame
	head   int // frames before it have been taken
	bytes  int
	// behind is set when the queue overflowed: its frames were dropped, and
	// nothing is queued until the viewer has been given the whole screen.
	behind  bool
	gapFrom uint64 // with behind: offset of the first byte that was not sent
}

// push queues a frame, or drops everything where it does not fit.
func (q *outQueue) push(f frame) {
	if q.behind {
		return
	}
	if q.bytes+f.cost() > queueLimit {
		from := f.from
		if q.head < len(q.frames) {
			from = q.frames[q.head].from
		}
		q.drop(from)
		return
	}
	if q.head > 0 && len(q.frames) == cap(q.frames) {
		n := copy(q.frames, q.frames[q.head:])
		clear(q.frames[n:])
		q.frames, q.head = q.frames[:n], 0
	}
	q.frames = append(q.frames, f)
	q.bytes += f.cost()
}

// drop empties the queue and marks the viewer as behind since offset from.
func (q *outQueue) drop(from uint64) {
	*q = outQueue{behind: true, gapFrom: from}
}

// take appends at most batchLimit bytes of frames to dst, but at least one
// frame where there is one.
func (q *outQueue) take(dst []frame) []frame {
	n := 0
	for q.head < len(q.frames) {
		f := q.frames[q.head]
		if n > 0 && n+f.cost() > batchLimit {
			break
		}
		n += f.cost()
		dst = append(dst, f)
		q.frames[q.head] = frame{} // let go of the buffer
		q.head++
	}
	q.bytes -= n
	if q.head == len(q.frames) {
		q.frames, q.head = q.frames[:0], 0
	}
	return dst
}

func (q *outQueue) empty() bool { return q.head == len(q.frames) }
