package holder_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"berth"
	"berth/holder"
	"berth/terminal"
)

var holderBinary string

// TestMain builds the real program, and looks for goroutines of the client half
// that nobody waits for.
func TestMain(m *testing.M) {
	if size, err := strconv.Atoi(os.Getenv("BERTH_TEST_FLOOD")); err == nil {
		flood(size, os.Getenv("BERTH_TEST_REPORT"))
		return
	}
	dir, err := os.MkdirTemp("", "bh")
	if err != nil {
		panic(err)
	}
	holderBinary = filepath.Join(dir, "berth-holder")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", holderBinary, "berth/cmd/berth-holder")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("build the holder: %v\n%s", err, out))
	}
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	_ = os.RemoveAll(dir)
	os.Exit(code) //nolint:forbidigo // this is the main of the tests
}

type session struct {
	*holder.Client
	t      testing.TB
	dir    string
	socket string
	run    holder.Running
}

type option func(*holder.StartConfig)

func noLog(c *holder.StartConfig) { c.Spec.LogBytes = 0 }

func grace(d time.Duration) option {
	return func(c *holder.StartConfig) { c.Spec.KillGrace = d }
}

func config(t testing.TB, argv ...string) holder.StartConfig {
	t.Helper()
	dir, err := os.MkdirTemp("", "b") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return holder.StartConfig{
		Binary: holderBinary, Dir: dir, Socket: filepath.Join(dir, "s"),
		Spec: holder.Spec{
			ID: "s-test" + strings.ToLower(strings.TrimPrefix(filepath.Base(dir), "b")), Generation: 1, Argv: argv,
			Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin", "TERM=xterm-256color", "SECRET=hunter2"},
			Cwd: "/tmp", Size: berth.Size{Cols: 100, Rows: 30}, LogBytes: 16 << 20, RingBytes: 256 << 10,
			KillGrace: 300 * time.Millisecond, DrainQuiet: 200 * time.Millisecond,
		},
	}
}

func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return c
}

func start(t testing.TB, options ...any) *session {
	t.Helper()
	var argv []string
	var opts []option
	for _, o := range options {
		switch o := o.(type) {
		case string:
			argv = append(argv, o)
		case option:
			opts = append(opts, o)
		case func(*holder.StartConfig):
			opts = append(opts, o)
		}
	}
	cfg := config(t, argv...)
	for _, o := range opts {
		o(&cfg)
	}
	return startWith(t, cfg)
}

func startWith(t testing.TB, cfg holder.StartConfig) *session {
	t.Helper()
	run, err := holder.Start(ctx(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{holder.NewClient(cfg.Socket), t, cfg.Dir, cfg.Socket, run}
	t.Cleanup(s.end)
	return s
}

// end leaves no process behind, however the test ended.
func (s *session) end() {
	c, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err := s.Kill(c); err != nil && !errors.Is(err, holder.ErrGone) {
		s.t.Log("kill:", err)
	}
	_ = s.Quit(c)
	s.waitGone()
	if _, err := holder.KillRemains(s.dir); err != nil {
		s.t.Log("remains:", err)
	}
}

// waitFor waits until a condition holds.
func waitFor(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(45 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
		<-tick.C
	}
}

func (s *session) waitGone() {
	waitFor(s.t, "the holder ends", func() bool {
		alive, err := holder.Alive(s.dir)
		return err == nil && !alive
	})
}

func (s *session) waitExit() berth.Exit {
	s.t.Helper()
	waitFor(s.t, "exit.json", func() bool {
		_, err := os.Stat(filepath.Join(s.dir, berth.FileExit))
		return err == nil
	})
	e, err := holder.ReadExit(s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	return e
}

// collect follows a stream until the exit and gives the output from its start.
func (s *session) collect(from uint64) (data []byte, gaps int, exit berth.Exit) {
	s.t.Helper()
	st, err := s.Stream(ctx(s.t), from)
	if err != nil {
		s.t.Fatal(err)
	}
	defer st.Close() //nolint:errcheck // the output is what counts
	next := from
	for {
		item, err := st.Next()
		if err != nil {
			s.t.Fatalf("after %d bytes: %v", len(data), err)
		}
		switch item.Kind {
		case holder.KindOutput:
			if item.Offset != next {
				s.t.Fatalf("output at %d, expected %d", item.Offset, next)
			}
			data = append(data, item.Data...)
			next += uint64(len(item.Data))
		case holder.KindGap:
			gaps++
			if item.From != next || item.To <= item.From {
				s.t.Fatalf("gap %d..%d at %d", item.From, item.To, next)
			}
			data, next = nil, item.To
		case holder.KindExit:
			if item.Exit.Offset != next {
				s.t.Fatalf("exit at %d, read up to %d", item.Exit.Offset, next)
			}
			if _, err := st.Next(); !errors.Is(err, io.EOF) {
				s.t.Fatalf("after the exit: %v", err)
			}
			return data, gaps, item.Exit
		}
	}
}

// lastOutput gives the last bytes that the log on disk has.
func lastOutput(t testing.TB, s *session) string {
	t.Helper()
	out, err := terminal.OpenOutput(filepath.Join(s.dir, berth.DirOutput))
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, 64)
	n, err := out.ReadAt(p, out.End()-min(out.End(), 64))
	if err != nil {
		t.Fatal(err)
	}
	return string(p[:n])
}

func (s *session) input(text string) {
	s.t.Helper()
	st, err := s.Stream(ctx(s.t), 0)
	if err != nil {
		s.t.Fatal(err)
	}
	defer st.Close() //nolint:errcheck // what was sent arrives
	if err := st.Input([]byte(text)); err != nil {
		s.t.Fatal(err)
	}
	// A connection that is closed with unread output takes nothing along: the
	// holder reads what was sent first.
}

// waitOutput waits until the output has a text and gives all of it.
func (s *session) waitOutput(text string) (got string) {
	s.t.Helper()
	p := make([]byte, 1<<20)
	waitFor(s.t, "output "+text, func() bool {
		n, err := s.ReadLog(ctx(s.t), 0, p)
		if err != nil {
			s.t.Fatal(err)
		}
		got = string(p[:n])
		return strings.Contains(got, text)
	})
	return got
}

func (s *session) waitFlood(bytes uint64) {
	s.t.Helper()
	waitFor(s.t, "a flood", func() bool {
		info, err := s.Info(ctx(s.t))
		return err == nil && info.End > bytes
	})
}
