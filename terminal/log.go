package terminal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth"
)

// LogConfig says how much output is kept.
type LogConfig struct {
	Dir  string // of the segments; made by OpenLog when Cap > 0
	Cap  int64  // most bytes on disk; 0 = no log on disk
	Ring int64  // most bytes in memory; rounded up to whole pages
	// Flushed is called after bytes went to disk, from the log's own goroutine;
	// nil = nobody waits.
	Flushed func()
}

// Bounds of the configuration.
const (
	minRing    = 16 << 10
	maxRing    = 64 << 20
	minSegment = 64 << 10
	maxSegment = 2 << 20
	minCap     = 16 << 10
	// flushNow is how much may wait before it is written at once: large writes
	// cost a third of small ones, and a ring must not fill up meanwhile.
	flushNow = 64 << 10
	// maxPiece bounds one read into the ring.
	maxPiece = 64 << 10
)

// Log keeps output: the newest bytes in a ring in memory, and, when it has a
// directory, the newest bytes on disk in segments of which the oldest are
// dropped so that the whole never exceeds its bound.
//
// Adding never fails. When the disk does (full, broken), the recording stops
// for good and says why, and the ring goes on. While the disk is merely slow,
// the ring holds what was not written yet, and when it is full Buffer gives
// nothing: the program waits, as it would for a slow terminal.
//
// One goroutine adds (Buffer, Commit, Append, Pieces); any may use the rest.
type Log struct {
	dir     string
	cap     int64
	segSize int64
	flushed func()

	wake chan struct{} // to the writer; capacity 1
	idle chan struct{} // from the writer, after each flush; capacity 1
	done chan struct{} // the writer ended

	mu        sync.Mutex
	ring      []byte // mapped, so that pages that were never used cost nothing
	start     uint64 // first byte in the ring
	end       uint64 // next byte to come
	written   uint64 // next byte to go to disk
	recording bool
	gap       string
	segments  []segment
	total     int64    // bytes of the segments
	marked    int64    // bytes of their marks; both together stay below cap
	active    *os.File // last segment, open for appending; nil = none yet
	marker    marker   // of the writer alone
	closing   bool
}

// OpenLog makes a log. The directory must be empty or missing: offsets begin at
// 0 in each generation.
func OpenLog(cfg LogConfig) (*Log, error) {
	if cfg.Cap < 0 || cfg.Ring < 0 || cfg.Ring > maxRing || cfg.Cap > 0 && cfg.Dir == "" {
		return nil, berth.Errorf(berth.CodeInvalidArgument, "a log of %d bytes with a ring of %d is not possible", cfg.Cap, cfg.Ring)
	}
	page := int64(os.Getpagesize())
	size := (max(cfg.Ring, minRing) + page - 1) / page * page
	ring, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("get memory for the output: %w", err)
	}
	// Huge pages would make a ring of which one page is used cost 2 MiB.
	_ = unix.Madvise(ring, unix.MADV_NOHUGEPAGE) // a kernel without them says EINVAL
	l := &Log{dir: cfg.Dir, flushed: cfg.Flushed, ring: ring, done: make(chan struct{})}
	if cfg.Cap == 0 {
		close(l.done)
		return l, nil
	}
	l.cap = max(cfg.Cap, minCap)
	l.segSize = min(max(l.cap/8, minSegment), maxSegment, l.cap/2)
	l.recording = true
	l.wake, l.idle = make(chan struct{}, 1), make(chan struct{}, 1)
	if err := os.Mkdir(cfg.Dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		l.stop(err)
	} else if kept, err := listSegments(cfg.Dir); err != nil || len(kept) > 0 {
		close(l.done)
		return nil, errors.Join(fmt.Errorf("the output log %s is not empty", cfg.Dir), err, l.Close())
	}
	go l.write()
	return l, nil
}

// Buffer gives a free piece of the ring to read the next output into, at most
// 64 KiB; empty while the disk has to catch up first. What it overwrites is
// gone from the ring. Commit must follow.
func (l *Log) Buffer() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	size := uint64(len(l.ring))
	pos := l.end % size
	n := min(size-pos, maxPiece)
	if l.recording {
		n = min(n, size-(l.end-l.written))
	}
	if keep := size - n; l.end-l.start > keep {
		l.start = l.end - keep
	}
	return l.ring[pos : pos+n : pos+n]
}

// Commit says how many bytes of the buffer were filled. It reports whether
// something waits to be written, so that the caller calls Flush in a while.
func (l *Log) Commit(n int) (pending bool) {
	l.mu.Lock()
	l.end += uint64(n)
	waiting := l.end - l.written
	recording := l.recording
	l.mu.Unlock()
	if !recording {
		return false
	}
	if waiting >= flushNow || waiting >= uint64(len(l.ring))/2 {
		l.Flush()
	}
	return waiting > 0
}

// Append adds a copy of p. It waits for the disk when the ring is full of bytes
// that are not written yet.
func (l *Log) Append(p []byte) {
	for len(p) > 0 {
		b := l.Buffer()
		if len(b) == 0 {
			l.Sync()
			continue
		}
		n := copy(b, p)
		l.Commit(n)
		p = p[n:]
	}
}

// Flush lets the writer write what waits.
func (l *Log) Flush() {
	if l.wake == nil {
		return
	}
	select {
	case l.wake <- struct{}{}:
	default: // it was told already
	}
}

// Sync waits until everything added so far is with the system, or the
// recording has stopped.
func (l *Log) Sync() {
	for {
		l.mu.Lock()
		settled := !l.recording || l.written == l.end
		l.mu.Unlock()
		if settled {
			return
		}
		l.Flush()
		select {
		case <-l.idle:
		case <-l.done:
			return
		}
	}
}

// Settle is Sync with a bound, followed by an fsync of the last segment, for
// the end of a program: a disk that hangs must not keep its exit from being told.
func (l *Log) Settle(bound time.Duration) {
	t := time.NewTimer(bound)
	defer t.Stop()
	for {
		l.mu.Lock()
		settled, f := !l.recording || l.written == l.end, l.active
		l.mu.Unlock()
		if settled {
			if f != nil {
				_ = f.Sync() // the bytes are with the system; more cannot be done for them
			}
			return
		}
		l.Flush()
		select {
		case <-l.idle:
		case <-l.done:
			return
		case <-t.C:
			return
		}
	}
}

// Close ends the writer after what waits was written, and gives the memory back.
func (l *Log) Close() error {
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	l.Flush()
	<-l.done
	l.marker.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ring == nil {
		return nil
	}
	var err error
	if l.active != nil {
		err = l.active.Close()
		l.active = nil
	}
	err = errors.Join(err, unix.Munmap(l.ring))
	l.ring, l.start = nil, l.end
	return err
}

// State is how the log stands.
type State struct {
	Start    uint64 // first byte that can be read, from ring or disk
	End      uint64 // next byte to come
	DiskFrom uint64 // first byte on disk
	DiskSize int64
	Gap      string // why the recording stopped, or ""
}

// State tells how it stands.
func (l *Log) State() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := State{Start: l.start, End: l.end, DiskSize: l.total, Gap: l.gap, DiskFrom: l.written}
	if len(l.segments) > 0 {
		s.DiskFrom = l.segments[0].first
		s.Start = min(s.Start, s.DiskFrom)
	}
	return s
}

// End is the offset of the next byte to come.
func (l *Log) End() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// Pieces gives the bytes from an offset out of the ring, without a copy, at
// most limit of them; both are empty when they are not in the ring. They are
// valid until the next Buffer.
func (l *Log) Pieces(off uint64, limit int) (a, b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pieces(off, limit)
}

func (l *Log) pieces(off uint64, limit int) (a, b []byte) {
	if off < l.start || off >= l.end || len(l.ring) == 0 {
		return nil, nil
	}
	size := uint64(len(l.ring))
	n := min(l.end-off, uint64(limit))
	pos := off % size
	first := min(n, size-pos)
	return l.ring[pos : pos+first], l.ring[:n-first]
}

// ReadAt reads output from an offset, from the ring or else from the disk, as
// much as there is in one piece, at most len(p). At the end it gives 0, nil,
// behind it ErrPastEnd, and where the bytes are not kept *GapError.
func (l *Log) ReadAt(p []byte, off uint64) (int, error) {
	l.mu.Lock()
	if off > l.end {
		l.mu.Unlock()
		return 0, ErrPastEnd
	}
	if off == l.end {
		l.mu.Unlock()
		return 0, nil
	}
	if a, b := l.pieces(off, len(p)); len(a) > 0 {
		n := copy(p, a)
		n += copy(p[n:], b)
		l.mu.Unlock()
		return n, nil
	}
	i, next, ok := find(l.segments, off)
	var s segment
	if ok {
		s = l.segments[i]
	}
	if next == 0 || next > l.start {
		next = l.start
	}
	l.mu.Unlock()
	if !ok {
		return 0, &GapError{From: off, To: next}
	}
	n, err := readSegment(l.dir, s, p, off)
	if n == 0 { // dropped, or cut by a foreign hand, since it was looked up
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !isEOF(err) {
			return 0, fmt.Errorf("read the output log: %w", err)
		}
		return 0, &GapError{From: off, To: s.end()}
	}
	return n, nil
}
