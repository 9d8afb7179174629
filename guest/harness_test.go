package guest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"berth"
	"berth/guestapi"
)

// binaries is where TestMain built the real berth-holder and berth-guest.
var binaries string

func TestMain(m *testing.M) {
	if name := os.Getenv("BERTH_TEST_PROGRAM"); name != "" {
		os.Exit(testProgram(name)) //nolint:forbidigo // this is the main of the program in a session
	}
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code) //nolint:forbidigo // this is the main of the test
}

func runTests(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "bg")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	build := exec.CommandContext(context.Background(), "go", "build", "-o", dir+"/", "berth/cmd/berth-holder", "berth/cmd/berth-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("build the programs: %w\n%s", err, out)
	}
	binaries = dir
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(); err != nil {
			return 1, err
		}
	}
	return code, nil
}

// patience bounds every wait of the tests: far more than any of them needs.
const patience = 60 * time.Second

// eventually waits until f is true.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("%s did not come about", what)
		}
	}
}

// lab is one state and runtime directory with the guests that serve it.
type lab struct {
	t       testing.TB
	dir     string
	client  *guestapi.Client
	logs    *syncBuffer
	running *guestRun
}

// guestRun is one guest, in this process or a real one.
type guestRun struct {
	stop func() // as SIGTERM does; returns when it is gone
	kill func() // as kill -9 does; only for a real one
}

type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// newLab makes an empty lab; its sessions are killed and removed at the end.
func newLab(t testing.TB) *lab {
	t.Helper()
	dir, err := os.MkdirTemp("", "b") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, dir: dir, logs: &syncBuffer{}}
	l.reconnect()
	t.Cleanup(l.close)
	return l
}

// reconnect makes a new client in the place of one that was closed.
func (l *lab) reconnect() {
	l.client = guestapi.NewClient(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", filepath.Join(l.runtime(), berth.SocketGuest))
	})
}

func (l *lab) sessions() string { return filepath.Join(l.dir, "s") }
func (l *lab) runtime() string  { return filepath.Join(l.dir, "r") }

func (l *lab) config() Config {
	return Config{
		Sessions: l.sessions(), Runtime: l.runtime(), Holder: filepath.Join(binaries, "berth-holder"),
		Log: slog.New(slog.NewTextHandler(l.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
}

// start serves in this process.
func (l *lab) start() {
	l.t.Helper()
	l.startWith(l.config())
}

func (l *lab) startWith(cfg Config) {
	l.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, cfg) }()
	l.running = &guestRun{stop: func() {
		cancel()
		if err := <-done; err != nil {
			l.t.Errorf("the guest ended with %v", err)
		}
	}}
	l.awaitUp()
}

// spawn starts a real guest, for kill -9.
func (l *lab) spawn() {
	l.t.Helper()
	cmd := exec.CommandContext(context.Background(), filepath.Join(binaries, "berth-guest"), "serve",
		"--sessions", l.sessions(), "--runtime", l.runtime(), "--holder", filepath.Join(binaries, "berth-holder"))
	cmd.Stderr = l.logs
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	end := func(sig os.Signal) func() {
		return func() {
			_ = cmd.Process.Signal(sig)
			_ = cmd.Wait()
		}
	}
	l.running = &guestRun{stop: end(os.Interrupt), kill: end(os.Kill)}
	l.awaitUp()
}

func (l *lab) awaitUp() {
	l.t.Helper()
	eventually(l.t, "a guest that answers", func() bool {
		_, err := l.client.Info(context.Background())
		return err == nil
	})
}

func (l *lab) stop() {
	l.t.Helper()
	if l.running != nil {
		l.running.stop()
		l.running = nil
	}
}

func (l *lab) kill() {
	l.running.kill()
	l.running = nil
}

func (l *lab) close() {
	if l.running == nil {
		l.start()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	list, err := l.client.List(ctx)
	if err != nil {
		l.t.Errorf("list at the end: %v", err)
	}
	for _, s := range list {
		if s.State.Live() {
			if _, err := l.client.Kill(ctx, s.ID); err != nil {
				l.t.Errorf("kill at the end: %v", err)
			}
		}
		if err := l.client.Remove(ctx, s.ID); err != nil && !errors.Is(err, berth.CodeNotFound) {
			l.t.Errorf("remove at the end: %v", err)
		}
	}
	l.stop()
	_ = l.client.Close()
	if l.t.Failed() {
		l.t.Logf("the guests said:\n%s", l.logs)
	}
	if err := os.RemoveAll(l.dir); err != nil {
		l.t.Error(err)
	}
}

// request asks for a session that runs argv.
func (l *lab) request(argv ...string) guestapi.CreateSession {
	l.t.Helper()
	id, err := berth.NewID(berth.SessionID, time.Now(), rand.Reader)
	if err != nil {
		l.t.Fatal(err)
	}
	return guestapi.CreateSession{
		ID: id, Name: "test", Argv: argv, Cwd: l.dir,
		Env:  []string{"PATH=" + os.Getenv("PATH"), "HOME=" + l.dir},
		Size: berth.Size{Cols: 80, Rows: 24}, LogBytes: 16 << 20, RingBytes: 256 << 10, CreatedAt: time.Now(),
	}
}

// run starts a session.
func (l *lab) run(argv ...string) string {
	l.t.Helper()
	return l.create(l.request(argv...))
}

// program starts a session with one of the programs of testProgram.
func (l *lab) program(name string, args ...string) string {
	l.t.Helper()
	self, err := os.Executable()
	if err != nil {
		l.t.Fatal(err)
	}
	r := l.request(append([]string{self}, args...)...)
	r.Env = append(r.Env, "BERTH_TEST_PROGRAM="+name)
	return l.create(r)
}

func (l *lab) create(r guestapi.CreateSession) string {
	l.t.Helper()
	s, err := l.client.Create(l.t.Context(), r)
	if err != nil {
		l.t.Fatalf("create: %v", err)
	}
	if s.ID != r.ID {
		l.t.Fatalf("created %s, asked for %s", s.ID, r.ID)
	}
	return s.ID
}

func (l *lab) session(id string) guestapi.Session {
	l.t.Helper()
	s, err := l.client.Session(l.t.Context(), id)
	if err != nil {
		l.t.Fatalf("session: %v", err)
	}
	return s
}

func (l *lab) awaitState(id string, want berth.SessionState) guestapi.Session {
	l.t.Helper()
	var s guestapi.Session
	eventually(l.t, "state "+string(want), func() bool {
		s = l.session(id)
		return s.State == want
	})
	return s
}

func (l *lab) type_(id, text string) {
	l.t.Helper()
	if err := l.client.Input(l.t.Context(), id, berth.InputRequest{Data: []byte(text)}); err != nil {
		l.t.Fatalf("input: %v", err)
	}
}

// output reads everything kept of a session.
func (l *lab) output(id string) []byte {
	l.t.Helper()
	var all []byte
	r := berth.LogRequest{FromStart: true}
	for {
		c, err := l.client.Log(l.t.Context(), id, r)
		if err != nil {
			l.t.Fatalf("log: %v", err)
		}
		all = append(all, c.Data...)
		if c.Offset+uint64(len(c.Data)) >= c.End {
			return all
		}
		if len(c.Data) == 0 {
			l.t.Fatalf("the log gives nothing at %d and says that it ends at %d", c.Offset, c.End)
		}
		r = berth.LogRequest{From: c.Offset + uint64(len(c.Data))}
	}
}

// awaitOutput waits until the output contains text.
func (l *lab) awaitOutput(id, text string) []byte {
	l.t.Helper()
	var out []byte
	eventually(l.t, fmt.Sprintf("output %q", text), func() bool {
		out = l.output(id)
		return bytes.Contains(out, []byte(text))
	})
	return out
}

func (l *lab) awaitScreen(id, text string) berth.Screen {
	l.t.Helper()
	var scr berth.Screen
	eventually(l.t, fmt.Sprintf("screen with %q", text), func() bool {
		var err error
		if scr, err = l.client.Screen(l.t.Context(), id, true); err != nil {
			l.t.Fatalf("screen: %v", err)
		}
		return strings.Contains(strings.Join(scr.Lines, "\n"), text)
	})
	return scr
}

// watcher collects what one viewer is sent.
type watcher struct {
	t      testing.TB
	stream *guestapi.AttachStream
	Hello  berth.AttachHello

	mu      sync.Mutex
	output  []byte
	next    uint64
	repaint []byte // of the newest picture
	gaps    []berth.OutputGap
	states  []berth.ViewerState
	exit    *berth.Exit
	bad     string
	err     error
	done    chan struct{}
}

func (l *lab) attach(id string, r berth.AttachRequest) *watcher {
	l.t.Helper()
	stream, err := l.client.Attach(l.t.Context(), id, r)
	if err != nil {
		l.t.Fatalf("attach: %v", err)
	}
	w := &watcher{t: l.t, stream: stream, done: make(chan struct{})}
	f, err := stream.Read()
	if err != nil || f.Type != berth.FrameHello {
		l.t.Fatalf("the first frame: %c, %v", f.Type, err)
	}
	if err := f.Decode(&w.Hello); err != nil {
		l.t.Fatal(err)
	}
	w.next = w.Hello.Offset
	go w.read()
	l.t.Cleanup(w.close)
	return w
}

func (w *watcher) close() {
	_ = w.stream.Close()
	<-w.done
}

func (w *watcher) read() {
	defer close(w.done)
	painting := false
	for {
		f, err := w.stream.Read()
		w.mu.Lock()
		if err != nil {
			w.err = err
			w.mu.Unlock()
			return
		}
		if f.Type == berth.FrameRepaint && !painting {
			w.repaint = nil
		}
		painting = f.Type == berth.FrameRepaint
		w.take(f)
		w.mu.Unlock()
	}
}

func (w *watcher) take(f berth.Frame) {
	switch f.Type {
	case berth.FrameOutput:
		offset, covers, data, err := berth.ParseOutput(f.Body)
		if err != nil || offset != w.next {
			w.bad = fmt.Sprintf("a frame at %d, the last one ended at %d; %v", offset, w.next, err)
		}
		w.next = offset + uint64(covers)
		w.output = append(w.output, data...)
	case berth.FrameRepaint:
		w.repaint = append(w.repaint, f.Body...)
	case berth.FrameGap:
		var g berth.OutputGap
		if err := f.Decode(&g); err != nil || g.From != w.next {
			w.bad = fmt.Sprintf("a gap %+v, the last frame ended at %d; %v", g, w.next, err)
		}
		w.gaps = append(w.gaps, g)
		w.next = g.To
	case berth.FrameState:
		var s berth.ViewerState
		if err := f.Decode(&s); err != nil {
			w.bad = err.Error()
		}
		w.states = append(w.states, s)
	case berth.FrameExit:
		w.exit = &berth.Exit{}
		if err := f.Decode(w.exit); err != nil {
			w.bad = err.Error()
		}
	}
}

// see looks at what came so far.
func (w *watcher) see(f func() bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.bad != "" {
		w.t.Fatalf("the stream is wrong: %s", w.bad)
	}
	return f()
}

func (w *watcher) await(what string, f func() bool) {
	w.t.Helper()
	eventually(w.t, what, func() bool { return w.see(f) })
}

func (w *watcher) awaitOutput(text string) {
	w.t.Helper()
	w.await(fmt.Sprintf("output %q", text), func() bool { return bytes.Contains(w.output, []byte(text)) })
}

// awaitEnd waits for the clean end of the stream.
func (w *watcher) awaitEnd() {
	w.t.Helper()
	select {
	case <-w.done:
	case <-time.After(patience):
		w.t.Fatal("the stream did not end")
	}
	w.see(func() bool {
		if !errors.Is(w.err, io.EOF) {
			w.t.Errorf("the stream ended with %v, want io.EOF", w.err)
		}
		return true
	})
}

func (w *watcher) send(t berth.FrameType, body []byte) {
	w.t.Helper()
	if err := w.stream.Write(berth.Frame{Type: t, Body: body}); err != nil {
		w.t.Fatalf("send %c: %v", t, err)
	}
}

func (w *watcher) sendJSON(t berth.FrameType, v any) {
	w.t.Helper()
	f, err := berth.JSONFrame(t, v)
	if err != nil {
		w.t.Fatal(err)
	}
	w.send(f.Type, f.Body)
}
