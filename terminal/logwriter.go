package terminal

import (
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// write is the log's goroutine: it brings the ring's bytes to disk, so that a
// slow disk holds up neither input nor signals. Close ends it.
func (l *Log) write() {
	defer close(l.done)
	for range l.wake {
		for l.writeNext() {
		}
		select {
		case l.idle <- struct{}{}:
		default: // nobody waits
		}
		if l.flushed != nil {
			l.flushed()
		}
		l.mu.Lock()
		ended := l.closing && (!l.recording || l.written == l.end)
		l.mu.Unlock()
		if ended {
			return
		}
	}
}

// writeNext writes one piece; false when nothing waits.
func (l *Log) writeNext() bool {
	l.mu.Lock()
	if !l.recording || l.written == l.end {
		l.mu.Unlock()
		return false
	}
	size := uint64(len(l.ring))
	pos := l.written % size
	n := min(l.end-l.written, size-pos)
	b := l.ring[pos : pos+n] // not overwritten before written moves on
	off := l.written
	l.mu.Unlock()

	n2, err := l.writePiece(b, off)
	l.mu.Lock()
	l.written += uint64(n2)
	l.mu.Unlock()
	if err != nil {
		l.stop(err)
		return false
	}
	return true
}

// writePiece appends to the active segment, after having made room for it.
func (l *Log) writePiece(b []byte, off uint64) (int, error) {
	l.mu.Lock()
	f := l.active
	var used int64
	if f != nil {
		used = l.segments[len(l.segments)-1].size
	}
	l.mu.Unlock()
	if f == nil || used >= l.segSize {
		var err error
		if f, err = l.nextSegment(off); err != nil {
			return 0, err
		}
		used = 0
	}
	if room := l.segSize - used; int64(len(b)) > room {
		b = b[:room]
	}
	l.drop(int64(len(b)))
	n, err := f.Write(b)
	l.mu.Lock()
	l.segments[len(l.segments)-1].size += int64(n)
	l.total += int64(n)
	l.mu.Unlock()
	if l.marker.add(off+uint64(n), l.segSize, time.Now()) {
		l.mu.Lock()
		l.segments[len(l.segments)-1].marks += markBytes
		l.marked += markBytes
		l.mu.Unlock()
	}
	return n, err
}

// nextSegment begins a segment at an offset.
func (l *Log) nextSegment(off uint64) (*os.File, error) {
	s := segment{first: off}
	f, err := os.OpenFile(s.path(l.dir), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	l.marker.next(l.dir, off)
	l.mu.Lock()
	old := l.active
	l.active = f
	l.segments = append(l.segments, s)
	l.mu.Unlock()
	if old != nil {
		return f, old.Close()
	}
	return f, nil
}

// drop removes the oldest segments until n more bytes fit. The bound is kept
// before the write and not after it, so that it holds at every moment.
func (l *Log) drop(n int64) {
	for {
		l.mu.Lock()
		if l.total+l.marked+n+markBytes <= l.cap || len(l.segments) < 2 {
			l.mu.Unlock()
			return
		}
		s := l.segments[0]
		l.segments = append(l.segments[:0], l.segments[1:]...)
		l.total -= s.size
		l.marked -= s.marks
		l.mu.Unlock()
		// A file that cannot be removed now will go with the session.
		_ = os.Remove(s.path(l.dir))
		_ = os.Remove(markPath(l.dir, s.first))
	}
}

// stop ends the recording for good: what comes later would lie behind a hole,
// and a log with holes would have to be read with care everywhere. The ring,
// and so every viewer, goes on.
func (l *Log) stop(err error) {
	reason := err.Error()
	var errno unix.Errno
	if errors.As(err, &errno) {
		reason = errno.Error()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recording = false
	l.gap = reason
	if n := len(l.segments); n > 0 && l.segments[n-1].size == 0 {
		l.segments = l.segments[:n-1]
	}
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }
