package screen

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"berth"

	"golang.org/x/sys/unix"
)

// flood is what a build prints: coloured log lines.
func flood() []byte {
	var b bytes.Buffer
	for i := range 2000 {
		fmt.Fprintf(&b, "\x1b[%dm%06d\x1b[0m \x1b[1;38;5;%dmINFO\x1b[0m compiling module \x1b[4%dmpkg/sub-%d/file_%d.go\x1b[0m in %d ms: ok\r\n",
			31+i%7, i, 16+i%200, 1+i%6, i%37, i, i%997)
	}
	return b.Bytes()
}

var size120 = berth.Size{Cols: 120, Rows: 40}

func benchFeed(b *testing.B, data []byte, feed func(*Screen, []byte)) {
	s := New(size120, Options{})
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	start := cpuTime()
	for b.Loop() {
		for p := data; len(p) > 0; {
			n := min(len(p), 32<<10)
			feed(s, p[:n])
			p = p[n:]
		}
	}
	b.ReportMetric(float64(b.N)*float64(len(data))/1e6/(cpuTime()-start).Seconds(), "cpuMB/s")
}

// cpuTime is what this process used: on a shared machine the clock tells little.
func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkFeedFlood(b *testing.B) { benchFeed(b, flood(), (*Screen).Feed) }
func BenchmarkSkimFlood(b *testing.B) { benchFeed(b, flood(), (*Screen).Skim) }

func BenchmarkFeedPlain(b *testing.B) {
	benchFeed(b, bytes.Repeat([]byte("the quick brown fox jumps over the lazy dog 0123456789\r\n"), 2000), (*Screen).Feed)
}

func BenchmarkFeedCJK(b *testing.B) {
	benchFeed(b, bytes.Repeat([]byte("漢字かな交じり文 — 한국어 텍스트 żółć\r\n"), 2000), (*Screen).Feed)
}

func BenchmarkFeedEmoji(b *testing.B) {
	benchFeed(b, bytes.Repeat([]byte("ok ✅ fail ❌ heart ❤️ family 👩‍👩‍👧 e\u0301\r\n"), 2000), (*Screen).Feed)
}

func BenchmarkFeedTUI(b *testing.B) { benchFeed(b, bytes.Repeat(painted(120, 40), 10), (*Screen).Feed) }

// painted is a full coloured screen as a program draws it.
func painted(cols, rows int) []byte {
	var b bytes.Buffer
	b.WriteString("\x1b[?1049h\x1b[2J")
	for y := range rows {
		fmt.Fprintf(&b, "\x1b[%d;1H", y+1)
		for x := 0; x < cols-8; x += 8 {
			fmt.Fprintf(&b, "\x1b[38;2;%d;%d;%dm%08d", x%256, y*5%256, (x*y)%256, x*y)
		}
		b.WriteString("\x1b[m")
	}
	return b.Bytes()
}

func BenchmarkRepaint(b *testing.B) {
	s := New(berth.Size{Cols: 200, Rows: 50}, Options{})
	s.Feed(painted(200, 50))
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = s.Repaint(dst[:0])
	}
	b.ReportMetric(float64(len(dst)), "bytes")
}

func BenchmarkRepaintText(b *testing.B) {
	s := New(size120, Options{})
	s.Feed(flood())
	var dst []byte
	for b.Loop() {
		dst = s.Repaint(dst[:0])
	}
	b.ReportMetric(float64(len(dst)), "bytes")
}

func BenchmarkSnapshot(b *testing.B) {
	s := New(size120, Options{})
	s.Feed(flood())
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n = len(s.Snapshot())
	}
	b.ReportMetric(float64(n), "bytes")
}

func BenchmarkFilterFlood(b *testing.B) {
	data := flood()
	f := NewFilter(false)
	dst := make([]byte, 0, 64<<10)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	start := cpuTime()
	for b.Loop() {
		for p := data; len(p) > 0; {
			n := min(len(p), 32<<10)
			dst, _ = f.Append(dst[:0], p[:n])
			p = p[n:]
		}
	}
	b.ReportMetric(float64(b.N)*float64(len(data))/1e6/(cpuTime()-start).Seconds(), "cpuMB/s")
}
