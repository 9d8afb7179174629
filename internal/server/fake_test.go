package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"berth"
	"berth/client"
	"berth/durable"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testToken = "a-token-of-a-test"

// fakeSessions answers from memory and remembers what it was asked.
type fakeSessions struct {
	mu       sync.Mutex
	list     []berth.Session
	calls    []any
	keys     map[string]berth.Session
	err      error // of every call, when set
	ended    chan struct{}
	panics   bool
	waiting  chan struct{} // receives when Wait has begun
	logChunk berth.LogChunk
}

func newFakeSessions() *fakeSessions {
	return &fakeSessions{keys: map[string]berth.Session{}, ended: make(chan struct{}), waiting: make(chan struct{}, 16)}
}

func (f *fakeSessions) note(call any) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, call)
	if f.panics {
		panic("a fault of a test")
	}
	return f.err
}

func (f *fakeSessions) last() any {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.calls) == 0 {
		return nil
	}
	return f.calls[len(f.calls)-1]
}

func (f *fakeSessions) Create(_ context.Context, spec berth.SessionSpec, key string) (berth.Session, bool, error) {
	if err := f.note([]any{"create", spec, key}); err != nil {
		return berth.Session{}, false, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if s, ok := f.keys[key]; ok && key != "" {
		return s, false, nil
	}
	s := testSession(len(f.list) + 1)
	s.Name, s.Argv = spec.Name, spec.Argv
	f.list = append(f.list, s)
	f.keys[key] = s
	return s, true, nil
}

func (f *fakeSessions) Get(_ context.Context, ref string) (berth.Session, error) {
	if err := f.note([]any{"get", ref}); err != nil {
		return berth.Session{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.list {
		if s.ID == ref || s.Name == ref {
			return s, nil
		}
	}
	return berth.Session{}, berth.Errorf(berth.CodeNotFound, "no session %q", ref).WithFact("ref", ref)
}

func (f *fakeSessions) List(_ context.Context, filter berth.SessionFilter) ([]berth.Session, error) {
	if err := f.note(filter); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.list), func(s berth.Session) bool { return !filter.Match(s) }), nil
}

func (f *fakeSessions) Resize(ctx context.Context, ref string, size berth.Size, m int64) (berth.Session, error) {
	if err := f.note([]any{"resize", ref, size, m}); err != nil {
		return berth.Session{}, err
	}
	return f.Get(ctx, ref)
}

func (f *fakeSessions) Signal(_ context.Context, ref, sig string) error {
	return f.note([]any{"signal", ref, sig})
}

func (f *fakeSessions) Kill(_ context.Context, ref string, m int64) (berth.KillResult, error) {
	return berth.KillResult{Contained: true}, f.note([]any{"kill", ref, m})
}

func (f *fakeSessions) Remove(_ context.Context, ref string, force bool, m int64) error {
	return f.note([]any{"remove", ref, force, m})
}

func (f *fakeSessions) Input(_ context.Context, ref string, in berth.InputRequest) error {
	return f.note([]any{"input", ref, in})
}

func (f *fakeSessions) Screen(_ context.Context, ref string, ansi bool) (berth.Screen, error) {
	return berth.Screen{Generation: 1, Title: "t"}, f.note([]any{"screen", ref, ansi})
}

func (f *fakeSessions) Log(_ context.Context, ref string, q berth.LogRequest) (berth.LogChunk, error) {
	return f.logChunk, f.note([]any{"log", ref, q})
}

func (f *fakeSessions) Wait(ctx context.Context, ref string) (berth.Session, error) {
	f.waiting <- struct{}{}
	select {
	case <-f.ended:
		return f.Get(ctx, ref)
	case <-ctx.Done():
		return berth.Session{}, ctx.Err()
	}
}

func (f *fakeSessions) Counts() berth.SessionCounts { return berth.SessionCounts{Running: 2, Lost: 1} }

// testSession makes a session whose id sorts by n.
func testSession(n int) berth.Session {
	id, err := berth.NewID(berth.SessionID, time.UnixMilli(int64(1_000_000+n)), zeros{})
	if err != nil {
		panic(err)
	}
	return berth.Session{ID: id, Name: "name-" + id[2:6], Host: berth.LocalHost, Argv: []string{"true"}, State: berth.SessionRunning, Revision: int64(n)}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// fakeStream is a guest's stream, driven by a test.
type fakeStream struct {
	frames chan berth.Frame // closed = the guest went away
	got    chan berth.Frame
	closed chan struct{}
	once   sync.Once
}

func newFakeStream() *fakeStream {
	return &fakeStream{frames: make(chan berth.Frame, 1024), got: make(chan berth.Frame, 1024), closed: make(chan struct{})}
}

func (f *fakeStream) Read() (berth.Frame, error) {
	select {
	case frame, ok := <-f.frames:
		if !ok {
			return berth.Frame{}, io.EOF
		}
		return frame, nil
	case <-f.closed:
		return berth.Frame{}, net.ErrClosed
	}
}

func (f *fakeStream) Buffered() bool { return len(f.frames) > 0 }

func (f *fakeStream) Write(frame berth.Frame) error {
	select {
	case f.got <- berth.Frame{Type: frame.Type, Body: slices.Clone(frame.Body)}:
		return nil
	case <-f.closed:
		return net.ErrClosed
	}
}

func (f *fakeStream) Close() error { f.once.Do(func() { close(f.closed) }); return nil }

// fakeEvents is an event sequence in memory.
type fakeEvents struct {
	mu     sync.Mutex
	events []berth.Event
	kept   int64 // first sequence number kept
	wakes  map[chan struct{}]bool
}

func (f *fakeEvents) publish(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for range n {
		f.events = append(f.events, berth.Event{Seq: int64(len(f.events) + 1), Kind: berth.EventSessionChanged, Subject: "s-1", At: time.Unix(1, 0).UTC()})
	}
	for ch := range f.wakes {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

func (f *fakeEvents) Events(_ context.Context, after int64, limit int) (durable.EventPage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := int64(len(f.events))
	p := durable.EventPage{Last: last}
	if after > last {
		return p, berth.Errorf(berth.CodeInvalidArgument, "cursor %d is beyond %d", after, last)
	}
	if after+1 < f.kept {
		p.Gap = &berth.Event{Kind: berth.EventGap, From: after + 1, To: f.kept}
		after = f.kept - 1
	}
	p.Events = slices.Clone(f.events[after:min(last, after+int64(limit))])
	return p, nil
}

func (f *fakeEvents) Watch(ctx context.Context) <-chan struct{} {
	ch := make(chan struct{}, 1)
	f.mu.Lock()
	if f.wakes == nil {
		f.wakes = map[chan struct{}]bool{}
	}
	f.wakes[ch] = true
	f.mu.Unlock()
	context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.wakes, ch)
		close(ch)
	})
	return ch
}

type fakeStatus struct{ err error }

func (f fakeStatus) Status(context.Context) (berth.Status, error) {
	return berth.Status{Daemon: berth.Daemon{PID: 7}}, f.err
}

// house is a server on a real unix socket and, when asked, on a TCP port.
type house struct {
	*Server
	sessions *fakeSessions
	events   *fakeEvents
	streams  chan *fakeStream // the next attach takes one
	asked    chan berth.AttachRequest
	attach   error
	stopped  chan struct{}
	socket   string
	url      string // of the TCP listener
}

func newHouse(t testing.TB, change func(*house)) *house {
	t.Helper()
	h := &house{
		sessions: newFakeSessions(), events: &fakeEvents{}, streams: make(chan *fakeStream, 64),
		asked: make(chan berth.AttachRequest, 64), stopped: make(chan struct{}),
	}
	var once sync.Once
	var err error
	h.Server, err = New(Config{
		Sessions: h.sessions, Events: h.events, Status: fakeStatus{},
		Attach: func(_ context.Context, _ string, q berth.AttachRequest) (AttachStream, error) {
			if h.attach != nil {
				return nil, h.attach
			}
			h.asked <- q
			return <-h.streams, nil
		},
		Stop: func() { once.Do(func() { close(h.stopped) }) }, TokenHash: sha256.Sum256([]byte(testToken)),
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(h)
	}
	// t.TempDir can be too long for a socket.
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h.socket = filepath.Join(dir, "s")
	unix, err := net.Listen("unix", h.socket)
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.url = "http://" + tcp.Addr().String()
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := h.ServeUnix(unix); err != nil {
			t.Errorf("serve the unix socket: %v", err)
		}
	})
	serving.Go(func() {
		if err := h.ServeTCP(tcp); err != nil {
			t.Errorf("serve TCP: %v", err)
		}
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := h.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("shut down: %v", err)
		}
		serving.Wait()
	})
	return h
}

func (h *house) client(t testing.TB) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{Socket: h.socket, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), max(d, time.Minute)) // only a hang reaches it, also on a busy machine
	t.Cleanup(cancel)
	return ctx
}
