package terminal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Mark says when output was there: everything before Offset had been put out at
// At. Beside each segment of the log lies a file of marks, so that a recording
// can be played at the speed at which it was made. They are a convenience: where
// they cannot be written or read, the output has no times, and that is all.
type Mark struct {
	Offset uint64
	At     time.Time // of the wall clock, in milliseconds
}

const (
	markSuffix = ".at"
	markBytes  = 16 // offset and Unix milliseconds, both u64 big-endian
	// markEvery is the finest distance of marks. A player shows no difference
	// below it, and the log is written at most that often.
	markEvery = 100 * time.Millisecond
	// markShare bounds the marks of a segment: one for so many bytes of it, which
	// makes them 6 % of the log at most.
	markShare = 256
	// maxMarks bounds what ReadMarks gives: more than the largest log can have.
	maxMarks = 1 << 20
)

// marker writes the marks of one segment. It is of the log's writer alone.
type marker struct {
	f    *os.File // nil = none
	n    int
	last time.Time
}

func markPath(dir string, first uint64) string {
	return strings.TrimSuffix(segment{first: first}.path(dir), segmentSuffix) + markSuffix
}

// next begins the marks of another segment.
func (m *marker) next(dir string, first uint64) {
	m.close()
	f, err := os.OpenFile(markPath(dir, first), os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		f = nil // see Mark
	}
	*m = marker{f: f}
}

// add notes that the output before off is there now, and reports whether that
// took a mark. A segment that fills slowly
// gets its marks further and further apart, so that they last to its end.
func (m *marker) add(off uint64, segSize int64, now time.Time) bool {
	limit := int(segSize / markShare)
	if m.f == nil || m.n >= limit || now.Sub(m.last) < markEvery<<(4*m.n/limit) {
		return false
	}
	var b [markBytes]byte
	binary.BigEndian.PutUint64(b[:], off)
	binary.BigEndian.PutUint64(b[8:], uint64(now.UnixMilli()))
	if _, err := m.f.Write(b[:]); err != nil {
		m.close() // the disk is full, say: no more times
		return false
	}
	m.n++
	m.last = now
	return true
}

func (m *marker) close() {
	if m.f != nil {
		_ = m.f.Close() // it was written without a buffer
	}
	m.f = nil
}

// ReadMarks reads the marks of a log directory by offset. Whatever does not fit
// into that order (a torn end, a foreign hand) is left out. A missing directory
// has none.
func ReadMarks(dir string) ([]Mark, error) {
	entries, err := os.ReadDir(dir) // sorted by name, which is the first offset
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the times of the output: %w", err)
	}
	var out []Mark
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), markSuffix) || !e.Type().IsRegular() {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // dropped with its segment since
		}
		out = appendMarks(out, data)
	}
	return out, nil
}

func appendMarks(out []Mark, data []byte) []Mark {
	for ; len(data) >= markBytes && len(out) < maxMarks; data = data[markBytes:] {
		m := Mark{
			Offset: binary.BigEndian.Uint64(data),
			At:     time.UnixMilli(int64(binary.BigEndian.Uint64(data[8:]))).UTC(),
		}
		if n := len(out); n > 0 && (m.Offset <= out[n-1].Offset || m.At.Before(out[n-1].At)) {
			continue
		}
		out = append(out, m)
	}
	return out
}
