package terminal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// GapError says that the output asked for is not kept: it was dropped because
// of a bound, was never recorded, or its segment is gone.
type GapError struct {
	From, To uint64 // what is missing; reading can go on at To
}

func (e *GapError) Error() string {
	return fmt.Sprintf("the output from %d to %d is not kept", e.From, e.To)
}

// ErrPastEnd is the error of a read behind the end of the output.
var ErrPastEnd = errors.New("the offset is past the end of the output")

// segment is one file of the log. Its name is the offset of its first byte, so
// that the directory alone says what is kept.
type segment struct {
	first uint64
	size  int64
	marks int64 // bytes of its marks; known to the log that writes it only
}

func (s segment) end() uint64 { return s.first + uint64(s.size) }

const segmentSuffix = ".out"

func (s segment) path(dir string) string {
	return filepath.Join(dir, fmt.Sprintf("%020d%s", s.first, segmentSuffix))
}

// listSegments gives the segments in a directory by offset. Files with other
// names are not ours and are passed over; where two segments overlap, which
// only a foreign hand can bring about, the later one wins from its first byte.
func listSegments(dir string) ([]segment, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []segment
	for _, e := range entries {
		digits, ok := strings.CutSuffix(e.Name(), segmentSuffix)
		if !ok || len(digits) != 20 || !e.Type().IsRegular() {
			continue
		}
		first, err := strconv.ParseUint(digits, 10, 64)
		if err != nil {
			continue
		}
		info, err := e.Info()
		if err != nil || info.Size() == 0 {
			continue // dropped meanwhile, or nothing in it yet
		}
		s := segment{first: first, size: info.Size()}
		if s.end() < s.first {
			continue // no output has so many bytes
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b segment) int {
		if a.first < b.first {
			return -1
		}
		return 1
	})
	for i := range out[:max(0, len(out)-1)] {
		if next := out[i+1].first; out[i].end() > next {
			out[i].size = int64(next - out[i].first)
		}
	}
	return out, nil
}

// find gives the index of the segment that has the offset, or else where the
// next kept byte is (ok false, next 0 = nowhere).
func find(segments []segment, off uint64) (i int, next uint64, ok bool) {
	for i, s := range segments {
		if off < s.first {
			return 0, s.first, false
		}
		if off < s.end() {
			return i, 0, true
		}
	}
	return 0, 0, false
}

// readSegment reads from one segment, at most to its known end.
func readSegment(dir string, s segment, p []byte, off uint64) (int, error) {
	f, err := os.Open(s.path(dir))
	if err != nil {
		return 0, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	if left := s.end() - off; uint64(len(p)) > left {
		p = p[:left]
	}
	n, err := f.ReadAt(p, int64(off-s.first))
	if errors.Is(err, io.EOF) && n > 0 {
		err = nil
	}
	return n, err
}

// Output reads the log of a program that has ended.
type Output struct {
	dir      string
	segments []segment
}

// OpenOutput opens a log directory for reading. A missing one is an empty log.
func OpenOutput(dir string) (*Output, error) {
	segments, err := listSegments(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open the output log: %w", err)
	}
	return &Output{dir: dir, segments: segments}, nil
}

// Start is the offset of the first byte kept.
func (o *Output) Start() uint64 {
	if len(o.segments) == 0 {
		return 0
	}
	return o.segments[0].first
}

// End is the offset behind the last byte kept. The program may have put out
// more, when the recording stopped: the exit record has the true end.
func (o *Output) End() uint64 {
	if len(o.segments) == 0 {
		return 0
	}
	return o.segments[len(o.segments)-1].end()
}

// Bytes is the size of what is kept.
func (o *Output) Bytes() int64 {
	var n int64
	for _, s := range o.segments {
		n += s.size
	}
	return n
}

// ReadAt reads output from an offset, as much as there is in one piece, at most
// len(p). At the end it gives 0 and io.EOF, behind it ErrPastEnd, and where the
// bytes are missing *GapError.
func (o *Output) ReadAt(p []byte, off uint64) (int, error) {
	switch {
	case off == o.End():
		return 0, io.EOF
	case off > o.End():
		return 0, ErrPastEnd
	}
	done := 0
	for done < len(p) && off < o.End() {
		i, next, ok := find(o.segments, off)
		if !ok {
			if done > 0 {
				return done, nil
			}
			return 0, &GapError{From: off, To: next}
		}
		n, err := readSegment(o.dir, o.segments[i], p[done:], off)
		done, off = done+n, off+uint64(n)
		if err != nil || n == 0 {
			return o.lost(done, off, i, err)
		}
	}
	return done, nil
}

// lost settles a read that failed in segment i: a segment that is gone or
// shorter than it was is a gap up to the next one.
func (o *Output) lost(done int, off uint64, i int, err error) (int, error) {
	switch {
	case done > 0:
		return done, nil
	case err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, io.EOF):
		return 0, &GapError{From: off, To: o.segments[i].end()}
	}
	return 0, fmt.Errorf("read the output log: %w", err)
}
