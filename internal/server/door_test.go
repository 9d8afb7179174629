package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"berth"
	"berth/client"
)

// Any web page can make a browser connect to 127.0.0.1 and, where nothing
// checks, type into an agent's terminal (awslabs/cli-agent-orchestrator PR 533).
func TestDoorOfTCP(t *testing.T) {
	h := newHouse(t, func(h *house) { h.attach = berth.Errorf(berth.CodeNotFound, "no session") })
	u, err := url.Parse(h.url)
	if err != nil {
		t.Fatal(err)
	}
	port := u.Port()
	auth := "Bearer " + testToken
	upgrade := map[string]string{
		"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
	}
	for _, c := range []struct {
		name   string
		host   string // "" = as dialled
		header map[string]string
		ws     bool // ask for an attach
		want   int  // 404 on an attach: it came through the door, and there is no such session
	}{
		{name: "token", header: map[string]string{"Authorization": auth}, want: 200},
		{name: "localhost", host: "localhost:" + port, header: map[string]string{"Authorization": auth}, want: 200},
		{name: "LOCALHOST", host: "LOCALHOST:" + port, header: map[string]string{"Authorization": auth}, want: 200},
		{name: "IPv6", host: "[::1]:" + port, header: map[string]string{"Authorization": auth}, want: 200},
		{name: "no token", want: 401},
		{name: "empty token", header: map[string]string{"Authorization": "Bearer "}, want: 401},
		{name: "wrong token", header: map[string]string{"Authorization": auth + "x"}, want: 401},
		{name: "basic", header: map[string]string{"Authorization": "Basic " + testToken}, want: 401},
		{name: "token in a cookie", header: map[string]string{"Cookie": "token=" + testToken}, want: 401},
		{name: "token in a subprotocol without an upgrade", header: map[string]string{"Sec-WebSocket-Protocol": "berth.bearer." + testToken}, want: 401},
		{name: "rebinding", host: "evil.example:" + port, header: map[string]string{"Authorization": auth}, want: 403},
		{name: "other port", host: "127.0.0.1:1", header: map[string]string{"Authorization": auth}, want: 403},
		{name: "no port", host: "127.0.0.1", header: map[string]string{"Authorization": auth}, want: 403},
		{name: "suffix", host: "127.0.0.1.evil.example:" + port, header: map[string]string{"Authorization": auth}, want: 403},
		{name: "cross-site", header: map[string]string{"Authorization": auth, "Sec-Fetch-Site": "cross-site"}, want: 403},
		{name: "another port of localhost is the same site", header: map[string]string{"Authorization": auth, "Sec-Fetch-Site": "same-site"}, want: 403},
		{name: "same-origin", header: map[string]string{"Authorization": auth, "Sec-Fetch-Site": "same-origin"}, want: 200},
		{name: "own origin", header: map[string]string{"Authorization": auth, "Origin": "http://127.0.0.1:" + port}, want: 200},
		{name: "other origin", header: map[string]string{"Authorization": auth, "Origin": "http://evil.example"}, want: 403},
		{name: "origin of another port", header: map[string]string{"Authorization": auth, "Origin": "http://127.0.0.1:1"}, want: 403},
		{name: "origin with another scheme", header: map[string]string{"Authorization": auth, "Origin": "https://127.0.0.1:" + port}, want: 403},
		{name: "null origin", header: map[string]string{"Authorization": auth, "Origin": "null"}, want: 403},
		{name: "ws with token", ws: true, header: map[string]string{"Authorization": auth}, want: 404},
		{name: "ws without token", ws: true, want: 401},
		{name: "ws with token in a subprotocol", ws: true, header: map[string]string{"Sec-WebSocket-Protocol": "berth.v1, berth.bearer." + testToken, "Origin": "http://127.0.0.1:" + port}, want: 404},
		{name: "ws with wrong token in a subprotocol", ws: true, header: map[string]string{"Sec-WebSocket-Protocol": "berth.bearer.x"}, want: 401},
		{name: "ws of a browser that hides its origin", ws: true, header: map[string]string{"Authorization": auth, "Sec-Fetch-Mode": "websocket"}, want: 403},
		{name: "ws of another page", ws: true, header: map[string]string{"Authorization": auth, "Origin": "http://evil.example"}, want: 403},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := "/v1/version"
			if c.ws {
				path = "/v1/sessions/a/attach"
			}
			req, err := http.NewRequestWithContext(within(t, 5*time.Second), "GET", h.url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			for k, v := range c.header {
				req.Header.Set(k, v)
			}
			if c.ws {
				for k, v := range upgrade {
					req.Header.Set(k, v)
				}
			}
			if c.host != "" {
				req.Host = c.host
			}
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			if resp.StatusCode != c.want {
				body, _ := io.ReadAll(resp.Body)
				t.Errorf("%d, want %d: %s", resp.StatusCode, c.want, body)
			}
			for name := range resp.Header {
				if strings.HasPrefix(name, "Access-Control-") || name == "Set-Cookie" {
					t.Errorf("answers with %s", name)
				}
			}
		})
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

func TestPreflightIsNotAnswered(t *testing.T) {
	h := newHouse(t, nil)
	req, err := http.NewRequestWithContext(within(t, 5*time.Second), "OPTIONS", h.url+"/v1/sessions", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Origin", "http://evil.example")
	req.Header.Set("Access-Control-Request-Method", "POST")
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 403 || resp.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
}

func TestDoorOfTheSocket(t *testing.T) {
	h := newHouse(t, func(h *house) { h.uid++ }) // as if another user's daemon ran it
	r := h.ask(t, "GET", "/v1/version", "")
	if peerIsRoot := h.uid == 1; peerIsRoot { // the test runs as root, who may
		if r.status != 200 {
			t.Errorf("root: %d %s", r.status, r.body)
		}
	} else if r.problem(t).Code != berth.CodeForbidden {
		t.Errorf("another user: %d %s", r.status, r.body)
	}
	for _, header := range [][]string{{"Origin", "http://127.0.0.1:9"}, {"Sec-Fetch-Site", "none"}, {"Sec-Fetch-Mode", "cors"}} {
		if r := h.ask(t, "GET", "/v1/version", "", header...); r.problem(t).Code != berth.CodeForbidden {
			t.Errorf("a browser through a forwarder, %v: %d", header, r.status)
		}
	}
}

// The check itself, for a peer that is neither: the kernel names only real ones.
func TestDoorOfTheSocketByUser(t *testing.T) {
	h := newHouse(t, nil)
	passed := 0
	door := h.unixDoor(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed++ }))
	for _, c := range []struct {
		peer any
		pass bool
	}{
		{peer{uid: h.uid}, true}, {peer{uid: 0}, true}, {peer{uid: h.uid + 1}, false},
		{peer{uid: h.uid, err: io.EOF}, false}, {nil, false},
	} {
		req, err := http.NewRequestWithContext(context.WithValue(context.Background(), peerKey{}, c.peer), "GET", "/v1/version", nil)
		if err != nil {
			t.Fatal(err)
		}
		before := passed
		door.ServeHTTP(&headerProbe{}, req)
		if (passed > before) != c.pass {
			t.Errorf("peer %+v: passed %v", c.peer, passed > before)
		}
	}
}

// SO_PEERCRED names the process at the other end, not what it claims.
func TestPeerIsAskedOfTheKernel(t *testing.T) {
	h := newHouse(t, nil)
	conn, err := net.Dial("unix", h.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if p := peerOf(conn); p.err != nil || p.uid != h.uid {
		t.Errorf("%+v", p)
	}
	a, b := net.Pipe()
	defer func() { _, _ = a.Close(), b.Close() }()
	if p := peerOf(a); p.err == nil {
		t.Error("a pipe has a peer")
	}
}

func TestTCPNeedsLoopbackAndToken(t *testing.T) {
	h := newHouse(t, nil)
	all, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.ServeTCP(all); !errors.Is(err, berth.CodeConfigInvalid) {
		t.Errorf("on all addresses: %v", err)
	}
	cfg := h.cfg
	cfg.TokenHash = [32]byte{}
	bare, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	loop, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := bare.ServeTCP(loop); !errors.Is(err, berth.CodeConfigInvalid) {
		t.Errorf("without a token: %v", err)
	}
	if bare.tokenFits(&http.Request{Header: http.Header{"Authorization": {"Bearer "}}}) {
		t.Error("no token fits no hash")
	}
}

// The token of a subprotocol is never echoed, and the attach works with it.
func TestAttachOfABrowser(t *testing.T) {
	h := newHouse(t, nil)
	stream := newFakeStream()
	h.streams <- stream
	ctx := within(t, 5*time.Second)
	ws, resp, err := websocket.Dial(ctx, h.url+"/v1/sessions/a/attach", &websocket.DialOptions{ //nolint:bodyclose // the library owns the body
		Subprotocols: []string{"berth.bearer." + testToken, "berth.v1"},
		HTTPHeader:   http.Header{"Origin": {h.url}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ws.CloseNow() }()
	if p := resp.Header.Get("Sec-WebSocket-Protocol"); p != "berth.v1" {
		t.Errorf("subprotocol %q", p)
	}
	stream.frames <- berth.Frame{Type: berth.FrameOutput, Body: berth.AppendOutput(nil, 0, 1, []byte("x"))}
	if typ, msg, err := ws.Read(ctx); err != nil || typ != websocket.MessageBinary || msg[0] != 'O' {
		t.Errorf("%v %q %v", typ, msg, err)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

func TestClientOverTCP(t *testing.T) {
	h := newHouse(t, nil)
	for token, want := range map[string]error{testToken: nil, "wrong": berth.CodeUnauthorized} {
		c, err := client.New(client.Config{URL: h.url, Token: token})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Version(within(t, 5*time.Second)); !errors.Is(err, want) {
			t.Errorf("%s: %v", token, err)
		}
		_ = c.Close()
	}
}
