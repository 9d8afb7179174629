package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"pgregory.net/rapid"

	"berth"
)

func TestConfigIsChecked(t *testing.T) {
	for _, cfg := range []Config{{}, {Socket: "a", URL: "http://x"}, {URL: "unix:/x"}, {URL: "127.0.0.1:80"}} {
		if _, err := New(cfg); !errors.Is(err, berth.CodeInvalidArgument) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	if _, err := New(Config{Socket: strings.Repeat("x", 108)}); !errors.Is(err, berth.CodeSocketPathTooLong) {
		t.Errorf("%v", err)
	}
}

func TestNobodyListens(t *testing.T) {
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	stale := filepath.Join(dir, "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	for _, socket := range []string{filepath.Join(dir, "none"), filepath.Join(dir, "no", "dir"), stale} {
		c, err := New(Config{Socket: socket})
		if err != nil {
			t.Fatal(err)
		}
		ctx := within(t, 5*time.Second)
		_, err1 := c.Status(ctx)
		_, err2 := c.Attach(ctx, "a", berth.AttachRequest{})
		_, err3 := c.View(ctx, "a", berth.AttachRequest{})
		_, err4 := c.Wait(ctx, "a")
		err5 := c.Events(ctx, 0, nil)
		err6 := c.FollowLog(ctx, "a", berth.LogRequest{}, nil)
		for i, err := range []error{err1, err2, err3, err4, err5, err6} {
			if !errors.Is(err, berth.CodeDaemonNotRunning) || berth.AsError(err).Hint == "" {
				t.Errorf("%s, call %d: %v", socket, i+1, err)
			}
		}
	}
}

func TestDaemonThatDoesNotAnswer(t *testing.T) {
	release := make(chan struct{})
	c := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer close(release)
	c.timeout = 20 * time.Millisecond
	if _, err := c.Status(context.Background()); !errors.Is(err, berth.CodeDaemonUnreachable) {
		t.Errorf("status: %v", err)
	}
	if _, err := c.Attach(context.Background(), "a", berth.AttachRequest{}); !errors.Is(err, berth.CodeDaemonUnreachable) {
		t.Errorf("attach: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Status(ctx); !errors.Is(err, berth.CodeInterrupted) || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// Something else that listens on our path is not taken for a daemon.
func TestForeignAnswers(t *testing.T) {
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/version" {
			_, _ = io.WriteString(w, "<html>")
			return
		}
		http.Error(w, "nginx", http.StatusBadGateway)
	}))
	ctx := within(t, 5*time.Second)
	_, err1 := c.Status(ctx)
	_, err2 := c.Version(ctx)
	_, err3 := c.Attach(ctx, "a", berth.AttachRequest{})
	for i, err := range []error{err1, err2, err3} {
		if !errors.Is(err, berth.CodeDaemonUnreachable) {
			t.Errorf("%d: %v", i+1, err)
		}
	}
}

// logServer is the log of a program that is cut at random.
type logServer struct {
	mu     sync.Mutex
	out    []byte
	from   uint64 // first byte kept
	asked  int
	broken map[int]bool // answers that break half way, by number
	grow   int          // bytes that come with each answer
}

func (l *logServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.mu.Lock() // a broken answer is asked again before its handler is gone
	defer l.mu.Unlock()
	l.asked++
	q := r.URL.Query()
	from, _ := strconv.ParseUint(q.Get("from"), 10, 64)
	if q.Get("from_start") == "true" {
		from = l.from
	}
	if from < l.from {
		refuse(w, berth.Errorf(berth.CodeOffsetGone, "gone").WithFact("kept_from", strconv.FormatUint(l.from, 10)))
		return
	}
	have := uint64(min(len(l.out), l.asked*l.grow))
	to := max(from, min(have, from+uint64(l.grow)))
	h := w.Header()
	h.Set(berth.HeaderLogGeneration, "1")
	h.Set(berth.HeaderLogOffset, strconv.FormatUint(from, 10))
	h.Set(berth.HeaderLogKeptFrom, strconv.FormatUint(l.from, 10))
	h.Set(berth.HeaderLogEnd, strconv.FormatUint(have, 10))
	h.Set(berth.HeaderLogEnded, strconv.FormatBool(have == uint64(len(l.out))))
	if l.broken[l.asked] {
		h.Set("Content-Length", strconv.Itoa(int(to-from)+1))
		_, _ = w.Write(l.out[from : from+(to-from)/2])
		panic(http.ErrAbortHandler)
	}
	_, _ = w.Write(l.out[from:to])
}

func TestFollowLogProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := &logServer{
			out:    rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "out"),
			grow:   rapid.IntRange(1, 100).Draw(t, "grow"),
			broken: map[int]bool{},
		}
		for _, n := range rapid.SliceOfN(rapid.IntRange(1, 10), 0, 4).Draw(t, "broken") {
			l.broken[n] = true
		}
		c, stop := serveOn(t, l)
		defer stop()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var got []byte
		if err := c.FollowLog(ctx, "a", berth.LogRequest{}, func(chunk berth.LogChunk) error {
			if chunk.Offset != uint64(len(got)) {
				t.Fatalf("at %d, want %d", chunk.Offset, len(got))
			}
			got = append(got, chunk.Data...)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, l.out) {
			t.Fatalf("%d bytes of %d", len(got), len(l.out))
		}
	})
}

// Output that was dropped while we read is stepped over, visibly.
func TestFollowLogOverDroppedOutput(t *testing.T) {
	l := &logServer{out: []byte("0123456789"), grow: 4}
	c := serve(t, l)
	var at []uint64
	err := c.FollowLog(within(t, 5*time.Second), "a", berth.LogRequest{}, func(chunk berth.LogChunk) error {
		at = append(at, chunk.Offset)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.from = 6
		return nil
	})
	if err != nil || fmt.Sprint(at) != "[0 6]" {
		t.Errorf("%v %v", at, err)
	}
	if err := c.FollowLog(within(t, 5*time.Second), "a", berth.LogRequest{From: 1}, nil); !errors.Is(err, berth.CodeOffsetGone) {
		t.Errorf("asked for what is gone: %v", err)
	}
}

func TestWaitGoesOnOverBreaks(t *testing.T) {
	var n atomic.Int32
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch n.Add(1) {
		case 1:
			refuse(w, berth.Errorf(berth.CodeTimeout, "still runs"))
		case 2:
			panic(http.ErrAbortHandler)
		case 3:
			refuse(w, berth.Errorf(berth.CodeDaemonStopping, "not now"))
		default:
			_, _ = io.WriteString(w, `{"v":1,"id":"s-1","state":"exited"}`)
		}
	}))
	if s, err := c.Wait(within(t, 5*time.Second), "a"); err != nil || s.ID != "s-1" || n.Load() != 4 {
		t.Errorf("%+v %v after %d", s, err, n.Load())
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	c2 := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { refuse(w, berth.Errorf(berth.CodeTimeout, "runs")) }))
	if _, err := c2.Wait(ctx, "a"); !errors.Is(err, berth.CodeTimeout) {
		t.Errorf("%v", err)
	}
}

// The stream is cut behind every byte in turn; each event comes exactly once.
func TestEventsCutAtEveryByte(t *testing.T) {
	const all = ": hello\n\nid: 0\n\nid: 1\nevent: session.created\ndata: {\"seq\":1,\"kind\":\"session.created\"}\n\n" +
		"id: 2\nevent: session.exited\ndata: {\"seq\":2,\"kind\":\"session.exited\"}\n\n"
	for cut := range len(all) {
		var asked atomic.Int32
		c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			if asked.Add(1) == 1 {
				_, _ = io.WriteString(w, all[:cut])
				return
			}
			last, _ := strconv.Atoi(r.Header.Get("Last-Event-ID"))
			for i := last + 1; i <= 3; i++ {
				_, _ = fmt.Fprintf(w, "id: %d\nevent: session.changed\ndata: {\"seq\":%d}\n\n", i, i)
			}
			_, _ = io.WriteString(w, "event: end\ndata: {}\n\n")
		}))
		var got []int64
		if err := c.PastEvents(within(t, 5*time.Second), 1, func(e berth.Event) error { got = append(got, e.Seq); return nil }); err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		if fmt.Sprint(got) != "[1 2 3]" {
			t.Errorf("cut at %d: %v", cut, got)
		}
	}
}

func TestSSE(t *testing.T) {
	for _, c := range []struct{ name, in, want, id string }{
		{"line ends", "data: a\n\ndata: b\r\n\r\ndata: c\r\rdata: d\n\n", "message=a message=b message=c message=d", ""},
		{"byte order mark", "\xef\xbb\xbfdata: a\n\n", "message=a", ""},
		{"comment", ": x\n\n:\n\ndata: a\n\n", "message=a", ""},
		{"several lines", "data: a\ndata:b\ndata\n\n", "message=a\nb\n", ""},
		{"no data moves the id", "id: 7\n\nevent: x\n\ndata: a\n\n", "message=a", "7"},
		{"name", "event: n\ndata: a\n\ndata: b\n\n", "n=a message=b", ""},
		{"unfinished is dropped", "data: a\n\nid: 9\ndata: b\n", "message=a", ""},
		{"zero in id", "id: a\x00b\ndata: a\n\n", "message=a", ""},
		{"unknown field", "retry: 5\nfoo: x\ndata: a\n\n", "message=a", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSSEReader(iotest.OneByteReader(strings.NewReader(c.in)))
			var got []string
			for {
				e, err := s.next()
				if err != nil {
					break
				}
				got = append(got, e.name+"="+string(e.data))
			}
			if strings.Join(got, " ") != c.want || s.lastID != c.id {
				t.Errorf("%q id %q", got, s.lastID)
			}
		})
	}
	s := newSSEReader(strings.NewReader("data: " + strings.Repeat("x", maxEventLine)))
	if _, err := s.next(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a line without bound: %v", err)
	}
	s = newSSEReader(strings.NewReader(strings.Repeat("data: "+strings.Repeat("x", 60<<10)+"\n", 10)))
	if _, err := s.next(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("an event without bound: %v", err)
	}
}

// FuzzSSE compares any cut of any bytes with the whole, and bounds the memory.
func FuzzSSE(f *testing.F) {
	for _, seed := range []string{"id: 1\nevent: a\ndata: {}\n\n", "data: a\r\rdata\r\n\r\n", ":\n\n\n", "\xef\xbb\xbf\n", "id:\x00\ndata:\n\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		read := func(r io.Reader) string {
			var b strings.Builder
			s := newSSEReader(r)
			for {
				e, err := s.next()
				if err != nil {
					fmt.Fprintf(&b, "%v %q", err, s.lastID)
					return b.String()
				}
				if len(e.data) > maxEventData {
					t.Fatal("an event over its bound")
				}
				fmt.Fprintf(&b, "%q=%q ", e.name, e.data)
			}
		}
		if whole, cut := read(bytes.NewReader(in)), read(iotest.OneByteReader(bytes.NewReader(in))); whole != cut {
			t.Fatalf("%s\n%s", whole, cut)
		}
	})
}
