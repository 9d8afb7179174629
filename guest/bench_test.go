package guest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/holder"
)

// flood writes a file of coloured lines for 120×40, about size bytes.
func flood(t *testing.T, dir string, size int) string {
	var b bytes.Buffer
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "\x1b[3%dm%08d\x1b[0m the quick brown fox jumps over the lazy dog \x1b[1;4%dmand again\x1b[0m %d\n", i%8, i, i%8, i*7)
	}
	p := filepath.Join(dir, "flood")
	if err := os.WriteFile(p, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// TestSpeed prints figures; it fails only when they are absurd.
func TestSpeed(t *testing.T) {
	if os.Getenv("BERTH_SPEED") == "" {
		t.Skip("set BERTH_SPEED=1: it is a measurement")
	}
	l := newLab(t)
	l.spawn()
	file := flood(t, l.dir, 60<<20)
	for _, viewers := range []int{0, 1, 2} {
		r := l.request("sh", "-c", "read x; cat "+file+"; echo; echo DONE; read x")
		r.Size = berth.Size{Cols: 120, Rows: 40}
		id := l.create(r)
		var ws []*watcher
		for range viewers {
			ws = append(ws, l.attach(id, berth.AttachRequest{Size: r.Size}))
		}
		running, err := holder.ReadRunning(filepath.Join(l.sessions(), id))
		if err != nil {
			t.Fatal(err)
		}
		info, err := l.client.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		guestCPU, holderCPU := cpu(t, info.Identity.PID), cpu(t, running.Holder.PID)
		began := time.Now()
		l.type_(id, "\r")
		for _, w := range ws {
			w.await("the end", func() bool {
				return bytes.Contains(w.output, []byte("DONE")) || bytes.Contains(w.repaint, []byte("DONE"))
			})
			w.see(func() bool { t.Logf("a viewer has it after %v, gaps %d", time.Since(began), len(w.gaps)); return true })
		}
		l.awaitScreen(id, "DONE")
		s := l.session(id)
		t.Logf("%d viewers: 60 MiB on the screen after %v, skipped %d; processor: guest %v, holder %v", viewers, time.Since(began), s.Skipped,
			cpu(t, info.Identity.PID)-guestCPU, cpu(t, running.Holder.PID)-holderCPU)
	}
	l.echo(t)
	id := l.run("sh", "-c", "seq 1 5000; read x")
	l.awaitScreen(id, "5000")
	var laps []time.Duration
	for range 200 {
		began := time.Now()
		w := l.attach(id, berth.AttachRequest{Size: berth.Size{Cols: 80, Rows: 24}})
		w.await("a repaint", func() bool { return w.repaint != nil })
		laps = append(laps, time.Since(began))
		w.close()
	}
	slices.Sort(laps)
	t.Logf("attach p50 %v p99 %v (a tick of 5 ms included)", laps[len(laps)/2], laps[len(laps)*99/100])
}

// TestMemory prints what idle sessions cost the guest.
func TestMemory(t *testing.T) {
	if os.Getenv("BERTH_SPEED") == "" {
		t.Skip("set BERTH_SPEED=1: it is a measurement")
	}
	l := newLab(t)
	l.spawn()
	info, err := l.client.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pss := func(pid int) string {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for line := range strings.Lines(string(data)) {
			if strings.HasPrefix(line, "Pss:") || strings.HasPrefix(line, "Rss:") || strings.HasPrefix(line, "Private_Dirty:") {
				out = append(out, strings.Join(strings.Fields(line), " "))
			}
		}
		return strings.Join(out, ", ")
	}
	t.Logf("no session: %s", pss(info.Identity.PID))
	for n := range 200 {
		id := l.run("sh", "-c", "seq 1 100; read x")
		if n == 49 || n == 199 {
			l.awaitOutput(id, "100")
			<-time.After(4 * time.Second)
			t.Logf("%d sessions: %s", n+1, pss(info.Identity.PID))
		}
	}
	l.kill()
	began := time.Now()
	l.spawn()
	list, err := l.client.List(t.Context())
	t.Logf("%d sessions again after %v, %v", len(list), time.Since(began), err)
	for _, s := range list {
		if _, err := l.client.Screen(t.Context(), s.ID, false); err != nil {
			t.Error(err)
		}
	}
	t.Logf("and their screens after %v", time.Since(began))
	info, err = l.client.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	<-time.After(4 * time.Second)
	t.Logf("%d sessions: %s", len(list), pss(info.Identity.PID))
	var wg sync.WaitGroup
	for _, s := range list {
		wg.Go(func() {
			if _, err := l.client.Kill(t.Context(), s.ID); err != nil {
				t.Errorf("kill: %v", err)
			}
		})
	}
	wg.Wait()
}

// echo measures a key from the viewer through the program and back.
func (l *lab) echo(t *testing.T) {
	id := l.run("sh", "-c", "stty raw -echo; cat")
	stream, err := l.client.Attach(t.Context(), id, berth.AttachRequest{Size: berth.Size{Cols: 80, Rows: 24}})
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close() //nolint:errcheck // the measurement is over
	<-time.After(300 * time.Millisecond)
	var laps []time.Duration
	for i := range 3000 {
		began := time.Now()
		if err := stream.Write(berth.Frame{Type: berth.FrameInput, Body: []byte{byte('a' + i%26)}}); err != nil {
			t.Fatal(err)
		}
		for {
			f, err := stream.Read()
			if err != nil {
				t.Fatal(err)
			}
			if f.Type == berth.FrameOutput {
				break
			}
		}
		laps = append(laps, time.Since(began))
	}
	slices.Sort(laps)
	t.Logf("echo p50 %v p99 %v", laps[len(laps)/2], laps[len(laps)*99/100])
}

// cpu is how much processor time a process has used.
func cpu(t *testing.T, pid int) time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+2:]))
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
