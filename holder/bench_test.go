package holder_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/holder"
)

// floodBytes is the size of the flood: the figure that other session keepers
// are measured with.
const floodBytes = 60_000_000

// flood is the program of the flood benchmark: coloured lines written 64 KiB at
// a time, then how long it took, in microseconds, into a file.
func flood(size int, report string) {
	var lines bytes.Buffer
	for i := range 2000 {
		fmt.Fprintf(&lines, "\x1b[%dm%06d\x1b[0m \x1b[1;38;5;%dmINFO\x1b[0m compiling module \x1b[4%dmpkg/sub-%d/file_%d.go\x1b[0m in %d ms: ok\n",
			31+i%7, i, 16+i%200, 1+i%6, i%37, i, i%997)
	}
	buf := lines.Bytes()
	begin := time.Now()
	for size > 0 {
		chunk := buf[:min(size, len(buf))]
		chunk = chunk[:bytes.LastIndexByte(chunk, '\n')+1]
		if len(chunk) == 0 {
			break
		}
		for b := chunk; len(b) > 0; {
			n, err := os.Stdout.Write(b[:min(len(b), 64<<10)])
			if err != nil {
				return
			}
			b = b[n:]
		}
		size -= len(chunk)
	}
	us := time.Since(begin).Microseconds()
	_ = berth.WriteFileNoSync(report, []byte(strconv.FormatInt(us, 10)), 0o600)
}

// BenchmarkFlood compares the holder, without and with a viewer, with dtach in
// turn, so that what else the machine does hits all alike. It gives the median.
func BenchmarkFlood(b *testing.B) {
	dtach, _ := exec.LookPath("dtach")
	var alone, viewed, peer []float64
	for b.Loop() {
		alone = append(alone, floodHolder(b, false))
		viewed = append(viewed, floodHolder(b, true))
		if dtach != "" {
			peer = append(peer, floodDtach(b, dtach))
		}
	}
	for name, times := range map[string][]float64{"alone-s": alone, "viewer-s": viewed, "dtach-s": peer} {
		if len(times) > 0 {
			slices.Sort(times)
			b.ReportMetric(times[len(times)/2], name)
		}
	}
}

func floodHolder(b *testing.B, viewer bool) float64 {
	cfg := config(b, os.Args[0])
	report := filepath.Join(cfg.Dir, "report")
	cfg.Spec.Env = append(cfg.Spec.Env, "BERTH_TEST_FLOOD="+strconv.Itoa(floodBytes), "BERTH_TEST_REPORT="+report)
	s := startWith(b, cfg)
	if viewer {
		st, err := s.Stream(ctx(b), 0)
		if err != nil {
			b.Fatal(err)
		}
		for item := (holder.Item{}); item.Kind != holder.KindExit; {
			if item, err = st.Next(); err != nil {
				b.Fatal(err)
			}
		}
		_ = st.Close()
	}
	s.waitExit()
	s.end()
	return floodTime(b, report)
}

func floodDtach(b *testing.B, dtach string) float64 {
	dir := b.TempDir()
	report := filepath.Join(dir, "report")
	cmd := exec.Command(dtach, "-n", filepath.Join(dir, "s"), "-r", "winch", os.Args[0])
	cmd.Env = append(os.Environ(), "BERTH_TEST_FLOOD="+strconv.Itoa(floodBytes), "BERTH_TEST_REPORT="+report)
	if out, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	return floodTime(b, report)
}

func floodTime(b *testing.B, report string) float64 {
	waitFor(b, "the flood ends", func() bool {
		_, err := os.Stat(report)
		return err == nil
	})
	text, err := os.ReadFile(report)
	if err != nil {
		b.Fatal(err)
	}
	us, err := strconv.ParseFloat(string(text), 64)
	if err != nil {
		b.Fatal(err)
	}
	return us / 1e6
}

func BenchmarkEcho(b *testing.B) {
	s := start(b, "sh", "-c", "stty raw -echo; echo READY; exec cat")
	st, err := s.Stream(ctx(b), 0)
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close() //nolint:errcheck // the times are what counts
	var got []byte
	for !bytes.Contains(got, []byte("READY")) {
		item, err := st.Next()
		if err != nil {
			b.Fatal(err)
		}
		got = append(got, item.Data...)
	}
	var times []time.Duration
	for b.Loop() {
		t := time.Now()
		if err := st.Input([]byte("x")); err != nil {
			b.Fatal(err)
		}
		for {
			item, err := st.Next()
			if err != nil {
				b.Fatal(err)
			}
			if bytes.IndexByte(item.Data, 'x') >= 0 {
				break
			}
		}
		times = append(times, time.Since(t))
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(times[len(times)*99/100].Microseconds()), "p99-us")
}

// BenchmarkInterrupt: Ctrl-C while the program floods and a viewer reads nothing.
func BenchmarkInterrupt(b *testing.B) {
	for b.Loop() {
		s := start(b, "yes")
		st, err := s.Stream(ctx(b), 0)
		if err != nil {
			b.Fatal(err)
		}
		waitFor(b, "a flood", func() bool {
			info, err := s.Info(context.Background())
			return err == nil && info.End > 4<<20
		})
		t := time.Now()
		if err := st.Input([]byte{3}); err != nil {
			b.Fatal(err)
		}
		s.waitExit()
		b.ReportMetric(float64(time.Since(t).Microseconds())/1e3, "ms")
		_ = st.Close()
		s.end()
	}
}

// BenchmarkIdleMemory reports what one more idle session costs: private memory
// as the kernel counts it. Two run, so that the program's text counts as shared.
func BenchmarkIdleMemory(b *testing.B) {
	for b.Loop() {
		one, two := start(b, "sh", "-c", "read x"), start(b, "sh", "-c", "read x")
		if _, err := one.Info(ctx(b)); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(privateKB(b, one.run.Holder.PID)), "private-KiB")
		tasks, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(one.run.Holder.PID), "task"))
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(len(tasks)), "threads")
		one.end()
		two.end()
	}
	st, err := os.Stat(holderBinary)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(st.Size())/1024, "binary-KiB")
}

func privateKB(t testing.TB, pid int) int {
	t.Helper()
	rollup, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "smaps_rollup"))
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for line := range strings.Lines(string(rollup)) {
		if f := strings.Fields(line); f[0] == "Private_Dirty:" || f[0] == "Private_Clean:" {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			total += n
		}
	}
	return total
}
