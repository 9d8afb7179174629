package terminal

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestMarksSayWhenOutputCame(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	l, err := OpenLog(LogConfig{Dir: dir, Cap: 1 << 20, Ring: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	before := time.Now().Add(-time.Millisecond)
	l.Append([]byte("first"))
	l.Sync()
	// The second comes a mark's distance later: that is what is being measured.
	<-time.After(2 * markEvery)
	l.Append([]byte("second"))
	l.Sync()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	marks, err := ReadMarks(dir)
	if err != nil || len(marks) != 2 {
		t.Fatalf("%v, %v", marks, err)
	}
	if marks[0].Offset != 5 || marks[1].Offset != 11 || marks[0].At.Before(before) || marks[1].At.Sub(marks[0].At) < markEvery {
		t.Errorf("got %v", marks)
	}
	out, err := OpenOutput(dir)
	if err != nil || out.Bytes() != 11 {
		t.Errorf("the marks are taken for output: %d bytes, %v", out.Bytes(), err)
	}
}

// Marks are dropped with their segment, and however slowly a segment fills they
// stay a small part of it.
func TestMarksAreBounded(t *testing.T) {
	var m marker
	dir := t.TempDir()
	m.next(dir, 0)
	now := time.Unix(1000, 0)
	const size = 64 << 10
	for off := range uint64(200_000) {
		now = now.Add(150 * time.Millisecond)
		m.add(off+1, size, now)
	}
	m.close()
	info, err := os.Stat(markPath(dir, 0))
	if err != nil || info.Size() > size/markShare*markBytes {
		t.Fatalf("%v, %v", info, err)
	}
	marks, err := ReadMarks(dir)
	if err != nil || len(marks) != int(size/markShare) {
		t.Fatalf("%d marks, %v", len(marks), err)
	}

	logDir := filepath.Join(dir, "out")
	l, err := OpenLog(LogConfig{Dir: logDir, Cap: 256 << 10, Ring: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	for range 40 {
		l.Append(bytes.Repeat([]byte("x"), 32<<10))
		l.Sync()
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(logDir, "*"))
	if err != nil || len(files) > 2*(256/64+1) {
		t.Errorf("marks of dropped segments are left: %v, %v", files, err)
	}
}

func FuzzMarks(f *testing.F) {
	f.Add([]byte{}, []byte("0123456789abcdef"))
	f.Add(make([]byte, 33), make([]byte, 16))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		marks := appendMarks(appendMarks(nil, a), b)
		for i := 1; i < len(marks); i++ {
			if marks[i].Offset <= marks[i-1].Offset || marks[i].At.Before(marks[i-1].At) {
				t.Fatal("the marks are not in order")
			}
		}
	})
}
