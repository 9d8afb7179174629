package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/client"
)

var update = flag.Bool("update", false, "rewrite docs/openapi.json")

// unixHTTP speaks plain HTTP over the socket.
func (h *house) unixHTTP(t *testing.T) *http.Client {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", h.socket)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

type reply struct {
	status int
	header http.Header
	body   []byte
}

func (r reply) problem(t *testing.T) berth.ProblemDocument {
	t.Helper()
	var p berth.ProblemDocument
	if err := json.Unmarshal(r.body, &p); err != nil {
		t.Fatalf("status %d, body %q: %v", r.status, r.body, err)
	}
	if ct := r.header.Get("Content-Type"); ct != berth.ProblemType {
		t.Errorf("content type %q", ct)
	}
	if p.Status != r.status {
		t.Errorf("the document says status %d, the answer %d", p.Status, r.status)
	}
	return p
}

func (h *house) ask(t *testing.T, method, path, body string, header ...string) reply {
	t.Helper()
	req, err := http.NewRequestWithContext(within(t, 10*time.Second), method, "http://x"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body == "" {
		req.Body = nil
	} else {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := h.unixHTTP(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply{resp.StatusCode, resp.Header, data}
}

// The description is committed, so that a change of the API shows in review.
func TestOpenAPIIsTheCommittedOne(t *testing.T) {
	h := newHouse(t, nil)
	path := filepath.Join("..", "..", "docs", "openapi.json")
	if *update {
		if err := berth.WriteFile(path, h.openapi, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(want, h.openapi) {
		t.Errorf("docs/openapi.json is not what the handlers say; run: go test ./internal/server -update")
	}
	got, err := h.client(t).OpenAPI(within(t, 5*time.Second))
	if err != nil || !bytes.Equal(got, h.openapi) {
		t.Errorf("served: %v, %d bytes of %d", err, len(got), len(h.openapi))
	}
}

func TestDocumentsCarryTheVersion(t *testing.T) {
	h := newHouse(t, func(h *house) { h.sessions.list = []berth.Session{testSession(1)} })
	for _, path := range []string{
		"/v1/status", "/v1/version", "/v1/sessions", "/v1/sessions/" + testSession(1).ID,
		"/v1/sessions/x/screen",
	} {
		r := h.ask(t, "GET", path, "")
		var doc struct{ V int }
		if err := json.Unmarshal(r.body, &doc); err != nil || doc.V != 1 || r.status != 200 {
			t.Errorf("%s: %d %s (%v)", path, r.status, r.body, err)
		}
		if bytes.Contains(r.body, []byte("$schema")) {
			t.Errorf("%s has a member that is not ours: %s", path, r.body)
		}
	}
}

func TestErrorsAreProblems(t *testing.T) {
	h := newHouse(t, nil)
	big := `{"argv":["` + strings.Repeat("x", berth.MaxRequest) + `"]}`
	for _, c := range []struct {
		name, method, path, body string
		header                   []string
		status                   int
		code                     berth.Code
	}{
		{"unknown path", "GET", "/nothing", "", nil, 404, berth.CodeNotFound},
		{"root", "GET", "/", "", nil, 404, berth.CodeNotFound},
		{"wrong method", "PUT", "/v1/sessions", "{}", nil, 405, berth.CodeMethodNotAllowed},
		{"unknown session", "GET", "/v1/sessions/none", "", nil, 404, berth.CodeNotFound},
		{"bad JSON", "POST", "/v1/sessions", "{", nil, 400, berth.CodeInvalidArgument},
		{"no body", "POST", "/v1/sessions", "", nil, 400, berth.CodeInvalidArgument},
		{"wrong type", "POST", "/v1/sessions", `{"argv":"x"}`, nil, 400, berth.CodeInvalidArgument},
		{"unknown member", "POST", "/v1/sessions", `{"argv":["x"],"colour":1}`, nil, 400, berth.CodeInvalidArgument},
		{"bad value", "POST", "/v1/sessions", `{"argv":["x"],"name":"NOT A NAME"}`, nil, 400, berth.CodeInvalidArgument},
		{"form", "POST", "/v1/sessions", `a=b`, []string{"Content-Type", "application/x-www-form-urlencoded"}, 400, berth.CodeInvalidArgument},
		{"too large", "POST", "/v1/sessions", big, nil, 413, berth.CodeTooLarge},
		{"bad number", "GET", "/v1/sessions?limit=many", "", nil, 400, berth.CodeInvalidArgument},
		{"limit", "GET", "/v1/sessions?limit=0", "", nil, 400, berth.CodeInvalidArgument},
		{"state", "GET", "/v1/sessions?state=dead", "", nil, 400, berth.CodeInvalidArgument},
		{"cursor", "GET", "/v1/sessions?cursor=e30", "", nil, 400, berth.CodeInvalidArgument},
		{"match", "DELETE", "/v1/sessions/a", "", []string{"If-Match", `"zero"`}, 400, berth.CodeInvalidArgument},
		{"match 0 is not any", "DELETE", "/v1/sessions/a", "", []string{"If-Match", `"0"`}, 400, berth.CodeInvalidArgument},
		{"size", "POST", "/v1/sessions/a/resize", `{"size":{"cols":0,"rows":5}}`, nil, 400, berth.CodeInvalidArgument},
		{"no upgrade", "GET", "/v1/sessions/a/attach", "", nil, 400, berth.CodeInvalidArgument},
		{"event cursor", "GET", "/v1/events?from=x", "", nil, 400, berth.CodeInvalidArgument},
		{"event cursor beyond", "GET", "/v1/events?from=99", "", nil, 400, berth.CodeInvalidArgument},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := h.ask(t, c.method, c.path, c.body, c.header...)
			if p := r.problem(t); r.status != c.status || p.Code != c.code || p.Detail == "" || p.Type == "" {
				t.Errorf("%d %s", r.status, r.body)
			}
		})
	}
	if r := h.ask(t, "PUT", "/v1/sessions", "{}"); !strings.Contains(r.header.Get("Allow"), "POST") {
		t.Errorf("Allow is %q", r.header.Get("Allow"))
	}
	if r := h.ask(t, "HEAD", "/nothing", ""); r.status != 404 || len(r.body) != 0 {
		t.Errorf("HEAD: %d %q", r.status, r.body)
	}
}

// A value from the body may be a secret and must not come back in an error.
func TestErrorsLeaveValuesOut(t *testing.T) {
	h := newHouse(t, nil)
	for _, body := range []string{`{"argv":["x"],"env":{"KEY":["hunter2"]}}`, `{"argv":["x"],"env":{"KEY":"hunter2"},"x":"hunter2"}`, `{"env":{"KEY":"hunter2"`} {
		if r := h.ask(t, "POST", "/v1/sessions", body); r.status != 400 || bytes.Contains(r.body, []byte("hunter2")) {
			t.Errorf("%d %s", r.status, r.body)
		}
	}
}

func TestTypedErrorSurvivesTheWire(t *testing.T) {
	h := newHouse(t, func(h *house) {
		h.sessions.err = berth.Errorf(berth.CodeNameTaken, "the name %q is taken", "x").WithFact("holder", "s-1").WithHint("do that")
	})
	_, _, err := h.client(t).Create(within(t, 5*time.Second), berth.SessionSpec{Argv: []string{"x"}}, "")
	var e *berth.Error
	if !errors.Is(err, berth.CodeNameTaken) || !errors.As(err, &e) || e.Facts["holder"] != "s-1" || e.Hint != "do that" || e.Detail != `the name "x" is taken` {
		t.Errorf("%#v", err)
	}
}

func TestPanicIsAnInternalProblemWithoutItsStack(t *testing.T) {
	h := newHouse(t, func(h *house) { h.sessions.panics = true })
	r := h.ask(t, "GET", "/v1/sessions/a", "")
	if p := r.problem(t); p.Code != berth.CodeInternal || bytes.Contains(r.body, []byte("goroutine")) || bytes.Contains(r.body, []byte("fault of a test")) {
		t.Errorf("%s", r.body)
	}
	if _, err := h.client(t).Version(within(t, 5*time.Second)); err != nil {
		t.Errorf("after a panic: %v", err)
	}
}

func TestSessionCalls(t *testing.T) {
	h := newHouse(t, func(h *house) {
		h.sessions.list = []berth.Session{testSession(4)}
		h.sessions.logChunk = berth.LogChunk{Generation: 2, Offset: 5, KeptFrom: 1, End: 9, Ended: true, Data: []byte("\x00\xff\r\n")}
	})
	c, ctx := h.client(t), within(t, 10*time.Second)
	id := testSession(4).ID
	expect := func(want ...any) {
		t.Helper()
		if got := h.sessions.last(); !reflect.DeepEqual(got, want) {
			t.Errorf("asked %v, want %v", got, want)
		}
	}
	spec := berth.SessionSpec{Name: "n", Argv: []string{"a", "ü\x01"}, Env: map[string]string{"K": "v=1"}, Size: berth.Size{Cols: 10, Rows: 5}}
	s, created, err := c.Create(ctx, spec, "key")
	if err != nil || !created || s.Name != "n" {
		t.Fatalf("create: %+v %v %v", s, created, err)
	}
	expect("create", spec, "key")
	if again, created, err := c.Create(ctx, spec, "key"); err != nil || created || again.ID != s.ID {
		t.Errorf("create again: %v %v", created, err)
	}
	if err := c.Remove(ctx, id, true, 7); err != nil {
		t.Error(err)
	}
	expect("remove", id, true, int64(7))
	if err := c.Signal(ctx, id, "INT"); err != nil {
		t.Error(err)
	}
	expect("signal", id, "INT")
	if k, err := c.Kill(ctx, id, 0); err != nil || !k.Contained || k.Survivors == nil {
		t.Errorf("kill: %+v %v", k, err)
	}
	expect("kill", id, int64(0))
	if err := c.Input(ctx, id, berth.InputRequest{Data: []byte{0, 255}, Enter: true}); err != nil {
		t.Error(err)
	}
	expect("input", id, berth.InputRequest{Data: []byte{0, 255}, Enter: true})
	if err := c.Input(ctx, id, berth.InputRequest{Data: make([]byte, berth.MaxInput+1)}); !errors.Is(err, berth.CodeTooLarge) {
		t.Errorf("too much input: %v", err)
	}
	if sc, err := c.Screen(ctx, id, true); err != nil || sc.Title != "t" {
		t.Errorf("screen: %+v %v", sc, err)
	}
	expect("screen", id, true)
	chunk, err := c.Log(ctx, id, berth.LogRequest{Generation: 2, From: 5, Limit: 10, Wait: time.Second})
	if want := (berth.LogChunk{Generation: 2, Offset: 5, KeptFrom: 1, End: 9, Ended: true, Data: []byte("\x00\xff\r\n")}); err != nil || !reflect.DeepEqual(chunk, want) {
		t.Errorf("log: %+v %v", chunk, err)
	}
	expect("log", id, berth.LogRequest{Generation: 2, From: 5, Limit: 10, Wait: time.Second})
	if _, err := c.Resize(ctx, id, berth.Size{Cols: 3, Rows: 4}, 9); err != nil {
		t.Error(err)
	}
	if r := h.ask(t, "GET", "/v1/sessions/"+id, ""); r.header.Get("ETag") != `"4"` {
		t.Errorf("ETag %q", r.header.Get("ETag"))
	}
	if st, err := c.Status(ctx); err != nil || st.Daemon.PID != 7 || st.Problems == nil {
		t.Errorf("status: %+v %v", st, err)
	}
	if m, err := c.Metrics(ctx); err != nil || !bytes.Contains(m, []byte(`berth_sessions{state="running"} 2`)) ||
		!bytes.Contains(m, []byte(`route="/v1/sessions/{ref}/kill"`)) {
		t.Errorf("metrics: %v\n%s", err, m)
	}
}

// Sessions that come and go between two pages neither shift nor repeat a row.
func TestPagesAreStable(t *testing.T) {
	h := newHouse(t, func(h *house) {
		for n := range 5 {
			h.sessions.list = append(h.sessions.list, testSession(n))
		}
	})
	c, ctx := h.client(t), within(t, 10*time.Second)
	first, err := c.SessionPage(ctx, berth.SessionFilter{}, "", 2)
	if err != nil || len(first.Sessions) != 2 || first.Next == "" || first.Sessions[0].ID != testSession(4).ID {
		t.Fatalf("%+v %v", first, err)
	}
	h.sessions.mu.Lock()
	h.sessions.list = append(h.sessions.list[:3:3], h.sessions.list[4], testSession(9)) // 3 goes, 9 comes
	h.sessions.mu.Unlock()
	var ids []string
	for cursor := first.Next; cursor != ""; {
		p, err := c.SessionPage(ctx, berth.SessionFilter{}, cursor, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range p.Sessions {
			ids = append(ids, s.ID)
		}
		cursor = p.Next
	}
	if want := []string{testSession(2).ID, testSession(1).ID, testSession(0).ID}; !reflect.DeepEqual(ids, want) {
		t.Errorf("%v, want %v", ids, want)
	}
	filter := berth.SessionFilter{Host: "h", Name: "n", Parent: "p", States: []berth.SessionState{berth.SessionExited, berth.SessionLost}}
	if _, err := c.Sessions(ctx, filter); err != nil || !reflect.DeepEqual(h.sessions.last(), filter) {
		t.Errorf("filter %+v %v", h.sessions.last(), err)
	}
}

func TestWait(t *testing.T) {
	h := newHouse(t, func(h *house) { h.sessions.list = []berth.Session{testSession(1)} })
	id := testSession(1).ID
	if r := h.ask(t, "GET", "/v1/sessions/"+id+"/wait?timeout_ms=1", ""); r.status != 504 || r.problem(t).Code != berth.CodeTimeout {
		t.Errorf("%d %s", r.status, r.body)
	}
	<-h.sessions.waiting
	done := make(chan error, 1)
	c, ctx := h.client(t), within(t, 10*time.Second)
	go func() {
		s, err := c.Wait(ctx, id)
		if err == nil && s.ID != id {
			err = errors.New("another session")
		}
		done <- err
	}()
	<-h.sessions.waiting
	close(h.sessions.ended)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A stop must not wait for who waits: they are told, and come again.
func TestStopAnswersWaiters(t *testing.T) {
	h := newHouse(t, nil)
	got := make(chan reply, 1)
	go func() { got <- h.ask(t, "GET", "/v1/sessions/x/wait", "") }()
	<-h.sessions.waiting
	ctx := within(t, 5*time.Second)
	if err := h.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if r := <-got; r.problem(t).Code != berth.CodeDaemonStopping {
		t.Errorf("%s", r.body)
	}
	if _, err := h.client(t).Status(ctx); !errors.Is(err, berth.CodeDaemonNotRunning) {
		t.Errorf("after the stop: %v", err)
	}
}

func TestShutdownIsAskedOnTheUnixSocketOnly(t *testing.T) {
	h := newHouse(t, nil)
	remote, err := client.New(client.Config{URL: h.url, Token: testToken})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = remote.Close() })
	ctx := within(t, 5*time.Second)
	if err := remote.Shutdown(ctx); !errors.Is(err, berth.CodeForbidden) {
		t.Errorf("over TCP: %v", err)
	}
	select {
	case <-h.stopped:
		t.Fatal("it was stopped over TCP")
	default:
	}
	if err := h.client(t).Shutdown(ctx); err != nil {
		t.Error(err)
	}
	<-h.stopped
}

// A body that comes slowly is bounded, and the bound does not cancel a handler
// that takes longer than the body may.
func TestBodyDeadlineEndsWithTheBody(t *testing.T) {
	h := newHouse(t, func(h *house) {
		h.times.body = 50 * time.Millisecond
		h.sessions.list = []berth.Session{testSession(1)}
	})
	conn, err := net.Dial("unix", h.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{")
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	answer := make([]byte, 12)
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "HTTP/1.1 504" {
		t.Errorf("%q %v", answer, err)
	}
	// GET with a body whose handler outlives the bound.
	done := make(chan reply, 1)
	go func() { done <- h.ask(t, "GET", "/v1/sessions/"+testSession(1).ID+"/wait?timeout_ms=300", "{}") }()
	if r := <-done; r.problem(t).Code != berth.CodeTimeout {
		t.Errorf("%s", r.body)
	}
}

func TestExport(t *testing.T) {
	h := newHouse(t, func(h *house) {
		h.cfg.Export = func(_ context.Context, ref, format string, w io.Writer) error {
			switch ref {
			case "none":
				return berth.Errorf(berth.CodeNotFound, "no session")
			case "empty":
				return nil
			}
			if _, err := io.WriteString(w, format+" of "+ref); err != nil {
				return err
			}
			if ref == "broken" {
				return berth.Errorf(berth.CodeHostUnreachable, "gone")
			}
			return nil
		}
	})
	c, ctx := h.client(t), within(t, 5*time.Second)
	for _, x := range []struct {
		ref, want string
		code      error
	}{{"a", "cast of a", nil}, {"empty", "", nil}, {"none", "", berth.CodeNotFound}, {"broken", "", berth.CodeDaemonUnreachable}} {
		var out bytes.Buffer
		if err := c.Export(ctx, x.ref, "cast", &out); !errors.Is(err, x.code) || err == nil && out.String() != x.want {
			t.Errorf("%s: %q %v", x.ref, out.String(), err)
		}
	}
	a, b := io.Pipe()
	_ = a.Close()
	if err := c.Export(ctx, "a", "text", b); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a writer that fails: %v", err)
	}
}

func TestReplaceGuest(t *testing.T) {
	called := make(chan struct{}, 1)
	h := newHouse(t, func(h *house) {
		h.cfg.ReplaceGuest = func(context.Context) error { called <- struct{}{}; return nil }
	})
	if err := h.client(t).ReplaceGuest(within(t, 5*time.Second)); err != nil {
		t.Error(err)
	}
	<-called
	without := newHouse(t, nil)
	if err := without.client(t).ReplaceGuest(within(t, 5*time.Second)); !errors.Is(err, berth.CodeNotFound) {
		t.Errorf("%v", err)
	}
}
