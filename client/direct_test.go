package client

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
)

// directPeer is a daemon and a guest on one socket.
type directPeer struct {
	t      *testing.T
	socket string
	refuse error // answered in place of the upgrade; nil = none
	// talk is one attach: n counts them from 0. The connection closes after it.
	talk func(n int, query string, frames *berth.FrameReader, send func(berth.FrameType, any))

	mu       sync.Mutex
	attaches int
}

func (p *directPeer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasSuffix(r.URL.Path, "/direct"):
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(berth.DirectAttach{Session: "s-0000000000000000", Socket: p.socket})
	case r.URL.Path != "/v1/sessions/s-0000000000000000/attach" || r.Header.Get("Upgrade") != berth.DirectUpgrade:
		refuse(w, berth.Errorf(berth.CodeNotFound, "%s", r.URL.Path))
	case p.refuse != nil:
		refuse(w, p.refuse)
	default:
		p.attach(w, r)
	}
}

func (p *directPeer) attach(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	n := p.attaches
	p.attaches++
	p.mu.Unlock()
	conn, in, err := http.NewResponseController(w).Hijack()
	if err != nil {
		p.t.Error(err)
		return
	}
	defer conn.Close() //nolint:errcheck // the end of the test's connection
	if _, err := io.WriteString(conn, berth.DirectAnswer); err != nil {
		p.t.Error(err)
	}
	p.talk(n, r.URL.RawQuery, berth.NewFrameReader(in), func(typ berth.FrameType, v any) {
		f := berth.Frame{Type: typ}
		switch v := v.(type) {
		case []byte:
			f.Body = v
		default:
			f, _ = berth.JSONFrame(typ, v)
		}
		_, _ = conn.Write(f.AppendStream(nil)) // a client that went away shows at its end
	})
}

func (p *directPeer) serve() *Client {
	p.t.Helper()
	dir := shortDir(p.t)
	p.socket = filepath.Join(dir, "s")
	l, err := (&net.ListenConfig{}).Listen(p.t.Context(), "unix", p.socket)
	if err != nil {
		p.t.Fatal(err)
	}
	server := &http.Server{Handler: p, ReadHeaderTimeout: time.Second}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	c, err := New(Config{Socket: p.socket, Timeout: time.Minute})
	if err != nil {
		p.t.Fatal(err)
	}
	c.pause = time.Microsecond
	p.t.Cleanup(func() {
		_ = c.Close()
		_ = server.Close()
		serving.Wait()
	})
	return c
}

func hello(offset uint64, kind berth.ResumeKind) berth.AttachHello {
	return berth.AttachHello{Session: "s-0000000000000000", Viewer: "v", Generation: 1, Offset: offset, End: offset, Cols: 80, Rows: 24, Resume: kind}
}

// The guest goes away in the middle of the output, as in an upgrade, and once
// inside a frame, as by kill -9. The viewer comes back at the next byte.
func TestDirectAttachResumes(t *testing.T) {
	typed := make(chan string, 1)
	p := &directPeer{t: t, talk: func(n int, query string, frames *berth.FrameReader, send func(berth.FrameType, any)) {
		switch n {
		case 0:
			send(berth.FrameHello, hello(0, berth.ResumeFresh))
			send(berth.FrameRepaint, []byte("screen"))
			f, err := frames.Next()
			if err != nil || f.Type != berth.FrameInput {
				t.Errorf("%v, %v", f, err)
			}
			typed <- string(f.Body)
			send(berth.FrameOutput, berth.AppendOutput(nil, 0, 5, []byte("hello")))
		case 1:
			if !strings.Contains(query, "offset=5") {
				t.Errorf("it came back with %q", query)
			}
			send(berth.FrameHello, hello(5, berth.ResumeExact))
			send(berth.FrameOutput, berth.AppendOutput(nil, 5, 6, []byte(" world")))
			send(berth.FrameExit, berth.Exit{Code: 7, Reason: berth.ExitExited, Offset: 11})
		}
	}}
	v, err := p.serve().View(within(t, time.Minute), "a", berth.AttachRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close() //nolint:errcheck // the test is over
	var text []byte
	var code int
	for {
		u, err := v.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch u.Kind {
		case UpdateRepaint:
			if err := v.Input([]byte("key")); err != nil {
				t.Fatal(err)
			}
		case UpdateOutput:
			text = append(text, u.Data...)
		case UpdateExit:
			code = u.Exit.Code
		}
	}
	if string(text) != "hello world" || code != 7 || <-typed != "key" {
		t.Errorf("got %q, exit %d", text, code)
	}
}

// A cut in the middle of a frame is no end of the session.
func TestDirectAttachCutInsideAFrame(t *testing.T) {
	p := &directPeer{t: t}
	p.talk = func(_ int, _ string, _ *berth.FrameReader, send func(berth.FrameType, any)) {
		send(berth.FrameHello, hello(0, berth.ResumeFresh))
	}
	a, err := p.serve().Attach(within(t, time.Minute), "a", berth.AttachRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close() //nolint:errcheck // the test is over
	if f, err := a.Read(); err != nil || f.Type != berth.FrameHello {
		t.Fatalf("%v, %v", f, err)
	}
	if _, err := a.Read(); !errors.Is(err, berth.CodeDaemonStopping) {
		t.Errorf("the guest closed, and it is told as %v", err)
	}
}

func TestDirectAttachIsRefused(t *testing.T) {
	p := &directPeer{t: t, refuse: berth.Errorf(berth.CodeInvalidOffset, "offset 9 is past the end")}
	if _, err := p.serve().Attach(within(t, time.Minute), "a", berth.AttachRequest{}); !errors.Is(err, berth.CodeInvalidOffset) {
		t.Errorf("got %v", err)
	}
}
