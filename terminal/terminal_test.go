package terminal

import (
	"bytes"
	"errors"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"berth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pattern makes output in which each offset can be told from its neighbours.
func pattern(off uint64, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		o := off + uint64(i)
		b[i] = byte(o ^ o>>8 ^ o>>16*7)
	}
	return b
}

func openLog(t *testing.T, logCap, ring int64) *Log {
	t.Helper()
	l, err := OpenLog(LogConfig{Dir: filepath.Join(t.TempDir(), "out"), Cap: logCap, Ring: ring})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// check reads everything that is kept and compares it.
func check(t *testing.T, readAt func([]byte, uint64) (int, error), from, to uint64) {
	t.Helper()
	p := make([]byte, 100_000)
	for off := from; off < to; {
		n, err := readAt(p, off)
		if n == 0 || err != nil {
			t.Fatalf("at %d of %d..%d: %d, %v", off, from, to, n, err)
		}
		if !bytes.Equal(p[:n], pattern(off, n)) {
			t.Fatalf("wrong bytes in %d..%d", off, off+uint64(n))
		}
		off += uint64(n)
	}
}

func TestLogBounds(t *testing.T) {
	for _, c := range []struct{ logCap, ring int64 }{{1 << 20, 64 << 10}, {100 << 10, 16 << 10}, {16 << 10, 256 << 10}, {0, 64 << 10}, {32 << 20, 16 << 10}} {
		l := openLog(t, c.logCap, c.ring)
		rnd := rand.New(rand.NewSource(1))
		end := uint64(0)
		for end < 5<<20 {
			n := 1 + rnd.Intn(10_000)
			l.Append(pattern(end, n))
			end += uint64(n)
			if s := l.State(); s.End != end || s.DiskSize > c.logCap {
				t.Fatalf("%+v: %+v", c, s)
			}
		}
		l.Sync()
		s := l.State()
		if s.Gap != "" || s.End != end {
			t.Fatalf("%+v: %+v", c, s)
		}
		kept := int64(s.End - s.Start)
		if want := max(c.ring-64<<10, min(c.logCap*3/8, 5<<20)); kept < want || kept > max(c.logCap, c.ring) {
			t.Errorf("%+v: %d bytes kept, want at least %d", c, kept, want)
		}
		check(t, l.ReadAt, s.Start, s.End)
		var gap *GapError
		if s.Start > 0 {
			if _, err := l.ReadAt(make([]byte, 1), s.Start-1); !errors.As(err, &gap) || gap.To != s.Start {
				t.Errorf("before the kept range: %v", err)
			}
		}
		if n, err := l.ReadAt(make([]byte, 1), end); n != 0 || err != nil {
			t.Errorf("at the end: %d, %v", n, err)
		}
		if _, err := l.ReadAt(make([]byte, 1), end+1); !errors.Is(err, ErrPastEnd) {
			t.Errorf("past the end: %v", err)
		}
		if c.logCap == 0 {
			continue
		}
		out, err := OpenOutput(l.dir)
		if err != nil || out.End() != end || out.Start() != s.DiskFrom || out.Bytes() != s.DiskSize {
			t.Fatalf("%+v: %d..%d, %d bytes, %v", c, out.Start(), out.End(), out.Bytes(), err)
		}
		check(t, out.ReadAt, out.Start(), out.End())
		if _, err := out.ReadAt(make([]byte, 1), end); !errors.Is(err, io.EOF) {
			t.Errorf("at the end: %v", err)
		}
		if _, err := out.ReadAt(make([]byte, 1), end+1); !errors.Is(err, ErrPastEnd) {
			t.Errorf("past the end: %v", err)
		}
	}
}

// TestLogReaders: readers in other goroutines, while it is written.
func TestLogReaders(t *testing.T) {
	l := openLog(t, 256<<10, 32<<10)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			p := make([]byte, 5000)
			for {
				select {
				case <-stop:
					return
				default:
				}
				s := l.State()
				off := s.Start + (s.End-s.Start)/2
				n, err := l.ReadAt(p, off)
				var gap *GapError
				if err != nil && !errors.As(err, &gap) {
					t.Error(err)
					return
				}
				if !bytes.Equal(p[:n], pattern(off, n)) {
					t.Errorf("wrong bytes at %d", off)
					return
				}
			}
		})
	}
	for off := uint64(0); off < 4<<20; off += 4096 {
		l.Append(pattern(off, 4096))
	}
	close(stop)
	wg.Wait()
}

func TestPieces(t *testing.T) {
	l := openLog(t, 0, 16<<10)
	for off := uint64(0); off < 100_000; off += 1000 {
		l.Append(pattern(off, 1000))
		s := l.State()
		a, b := l.Pieces(s.Start, 1<<20)
		if got := append(append([]byte(nil), a...), b...); !bytes.Equal(got, pattern(s.Start, int(s.End-s.Start))) {
			t.Fatalf("at %d: %d bytes", off, len(got))
		}
	}
	if a, b := l.Pieces(0, 10); a != nil || b != nil {
		t.Error("what has left the ring is there")
	}
}

// TestFullDisk: the recording stops with the reason; the ring goes on; what was
// recorded can be read, and the hole is said.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("mounting a file system needs root")
		}
		t.Skip("mounting a file system needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("no file system can be mounted here:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	l, err := OpenLog(LogConfig{Dir: filepath.Join(dir, "out"), Cap: 16 << 20, Ring: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the disk is full
	for off := uint64(0); off < 4<<20; off += 1000 {
		l.Append(pattern(off, 1000))
	}
	l.Sync()
	s := l.State()
	if s.Gap != "no space left on device" || s.DiskSize == 0 || s.DiskSize > 1<<20 || s.DiskFrom != 0 || s.Start != 0 {
		t.Fatalf("%+v", s)
	}
	check(t, l.ReadAt, 0, uint64(s.DiskSize))
	var gap *GapError
	if _, err := l.ReadAt(make([]byte, 1), uint64(s.DiskSize)); !errors.As(err, &gap) || gap.To <= uint64(s.DiskSize) || gap.To >= s.End {
		t.Fatalf("in the hole: %v", err)
	}
	check(t, l.ReadAt, gap.To, s.End)
}

func TestNoDirectory(t *testing.T) {
	l, err := OpenLog(LogConfig{Dir: filepath.Join(t.TempDir(), "no", "such"), Cap: 1 << 20, Ring: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	l.Append(pattern(0, 1000))
	l.Sync()
	if s := l.State(); s.Gap == "" || s.End != 1000 || s.DiskSize != 0 {
		t.Errorf("%+v", s)
	}
	check(t, l.ReadAt, 0, 1000)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	for _, bad := range []LogConfig{{Cap: -1}, {Cap: 1}, {Ring: -1}, {Ring: 1 << 40}} {
		if _, err := OpenLog(bad); !errors.Is(err, berth.CodeInvalidArgument) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestDamage: a torn last segment, a missing one, and files that are not ours.
func TestDamage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	l, err := OpenLog(LogConfig{Dir: dir, Cap: 1 << 20, Ring: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	for off := uint64(0); off < 600_000; off += 1000 {
		l.Append(pattern(off, 1000))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	segments, err := listSegments(dir)
	if err != nil || len(segments) != 5 {
		t.Fatalf("%v, %v", segments, err)
	}
	last := segments[4]
	if err := os.Truncate(last.path(dir), 100); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(segments[2].path(dir)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README", "123.out", "99999999999999999999.out", "0000000000000000000x.out", ".00000000000000000000.out"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("foreign"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "00000000000000000007.out"), 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := OpenOutput(dir)
	if err != nil || out.Start() != 0 || out.End() != last.first+100 {
		t.Fatalf("%d..%d, %v", out.Start(), out.End(), err)
	}
	check(t, out.ReadAt, 0, segments[2].first)
	var gap *GapError
	if _, err := out.ReadAt(make([]byte, 9), segments[2].first); !errors.As(err, &gap) || gap.To != segments[3].first {
		t.Fatalf("in the hole: %v", err)
	}
	check(t, out.ReadAt, gap.To, out.End())
	// A piece never goes over a hole.
	if n, err := out.ReadAt(make([]byte, 10), segments[2].first-4); n != 4 || err != nil {
		t.Errorf("up to the hole: %d, %v", n, err)
	}
	// A segment that goes while it is open for reading is a gap too.
	if err := os.Remove(segments[0].path(dir)); err != nil {
		t.Fatal(err)
	}
	if _, err := out.ReadAt(make([]byte, 9), 5); !errors.As(err, &gap) || gap.To != segments[1].first {
		t.Errorf("a segment that went: %v", err)
	}
	if _, err := OpenLog(LogConfig{Dir: dir, Cap: 1 << 20, Ring: 64 << 10}); err == nil {
		t.Error("a log was begun over another one")
	}
	if out, err := OpenOutput(filepath.Join(dir, "none")); err != nil || out.End() != 0 {
		t.Errorf("no log: %v", err)
	}
}

func TestPTY(t *testing.T) {
	p, err := OpenPTY(berth.Size{Cols: 100, Rows: 30})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ws, err := unix.IoctlGetWinsize(p.Slave, unix.TIOCGWINSZ)
	if err != nil || ws.Col != 100 || ws.Row != 30 {
		t.Errorf("%+v, %v", ws, err)
	}
	b := make([]byte, 100)
	if n, err := p.Read(b); n != 0 || err != nil {
		t.Errorf("nothing to read: %d, %v", n, err)
	}
	if n, err := p.Write([]byte("hi\n")); n != 3 || err != nil {
		t.Errorf("write: %d, %v", n, err)
	}
	deadline := time.Now().Add(10 * time.Second)
	got := ""
	for got != "hi\r\n" && time.Now().Before(deadline) {
		n, err := p.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		got += string(b[:n])
	}
	if got != "hi\r\n" {
		t.Errorf("echo: %q", got)
	}
	if p.Foreground() != 0 {
		t.Errorf("foreground %d", p.Foreground())
	}
	if err := p.SetSize(berth.Size{Cols: 5000, Rows: 1}); !errors.Is(err, berth.CodeInvalidArgument) {
		t.Errorf("too large: %v", err)
	}
	p.CloseSlave()
	if _, err := p.Read(b); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

func FuzzSegments(f *testing.F) {
	f.Add("00000000000000000000.out", "00000000000000000003.out", uint64(2))
	f.Add("18446744073709551615.out", "00000000000000000003.out", uint64(2))
	f.Add("00000000000000000000.out", "00000000000000000009.out", uint64(7))
	f.Fuzz(func(t *testing.T, a, b string, off uint64) {
		dir := t.TempDir()
		for _, name := range []string{a, b} {
			if filepath.Base(name) == name && len(name) < 100 {
				_ = os.WriteFile(filepath.Join(dir, name), []byte("12345"), 0o600) // a name that cannot be is no file
			}
		}
		out, err := OpenOutput(dir)
		if err != nil {
			t.Fatal(err)
		}
		n, err := out.ReadAt(make([]byte, 20), off)
		var gap *GapError
		if errors.As(err, &gap) && gap.To <= off {
			t.Errorf("a gap that goes back: %v at %d", err, off)
		}
		if n == 0 && err == nil {
			t.Error("nothing, and no reason")
		}
	})
}
