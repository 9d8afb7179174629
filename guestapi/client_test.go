package guestapi

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"go.uber.org/goleak"

	"berth"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve answers with h over HTTP/2 cleartext, as a guest does.
func serve(t *testing.T, h http.Handler) *Client {
	t.Helper()
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	srv := httptest.NewUnstartedServer(h)
	srv.Config.Protocols = &p
	srv.Start()
	c := NewClient(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", srv.Listener.Addr().String())
	})
	t.Cleanup(func() {
		_ = c.Close()
		srv.CloseClientConnections()
		srv.Close()
	})
	return c
}

const someID = "s-0123456789abcdef"

func TestErrorsSurviveTheWire(t *testing.T) {
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(410)
		_, _ = io.WriteString(w, `{"code":"offset_gone","detail":"gone","hint":"do this","facts":{"kept_from":"7"}}`)
	}))
	_, err := c.Log(t.Context(), someID, berth.LogRequest{From: 1})
	var e *berth.Error
	if !errors.As(err, &e) || e.Code != berth.CodeOffsetGone || e.Detail != "gone" || e.Hint != "do this" || e.Facts["kept_from"] != "7" {
		t.Errorf("got %#v", err)
	}
}

func TestAnOlderGuestIsTold(t *testing.T) {
	c := serve(t, http.NotFoundHandler())
	if err := c.Retire(t.Context()); !errors.Is(err, berth.CodeGuestOutdated) {
		t.Errorf("an unknown path: %v, want %v", err, berth.CodeGuestOutdated)
	}
}

func TestTheDriversErrorIsKept(t *testing.T) {
	c := NewClient(func(context.Context) (net.Conn, error) {
		return nil, berth.Errorf(berth.CodeGuestFailed, "no guest here")
	})
	defer c.Close() //nolint:errcheck // never fails
	if _, err := c.Info(t.Context()); !errors.Is(err, berth.CodeGuestFailed) {
		t.Errorf("got %v", err)
	}
	plain := NewClient(func(context.Context) (net.Conn, error) { return nil, io.ErrClosedPipe })
	defer plain.Close() //nolint:errcheck // never fails
	if _, err := plain.Info(t.Context()); !errors.Is(err, berth.CodeHostUnreachable) {
		t.Errorf("got %v", err)
	}
}

func TestContextsSayWhichEndItWas(t *testing.T) {
	block := make(chan struct{})
	c := serve(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-block:
		case <-r.Context().Done():
		}
	}))
	defer close(block)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Info(ctx); !errors.Is(err, berth.CodeTimeout) {
		t.Errorf("deadline: %v", err)
	}
	ctx2, cancel2 := context.WithCancel(t.Context())
	cancel2()
	if _, err := c.Info(ctx2); !errors.Is(err, berth.CodeInterrupted) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestABadIDNeverBecomesAPath(t *testing.T) {
	c := NewClient(func(context.Context) (net.Conn, error) {
		t.Error("dialled")
		return nil, io.EOF
	})
	defer c.Close() //nolint:errcheck // never fails
	for _, id := range []string{"", "../..", "s-", "s-0123456789abcdeu", "v-0123456789abcdef"} {
		if _, err := c.Session(t.Context(), id); !errors.Is(err, berth.CodeInvalidArgument) {
			t.Errorf("id %q: %v", id, err)
		}
	}
}

func TestAttachGoesBothWaysAtOnce(t *testing.T) {
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		w.WriteHeader(200)
		_ = control.Flush()
		in := berth.NewFrameReader(r.Body)
		for {
			f, err := in.Next()
			if err != nil {
				return
			}
			_, _ = w.Write(f.AppendStream(nil))
			_ = control.Flush()
		}
	}))
	s, err := c.Attach(t.Context(), someID, berth.AttachRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := s.Write(berth.Frame{Type: berth.FrameInput, Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		f, err := s.Read()
		if err != nil || f.Type != berth.FrameInput || string(f.Body) != "x" {
			t.Fatalf("echo: %c %q %v", f.Type, f.Body, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if _, err := s.Read(); err == nil {
		t.Error("a closed stream still reads")
	}
	if err := s.Write(berth.Frame{Type: berth.FrameInput, Body: []byte("x")}); err == nil {
		t.Error("a closed stream still writes")
	}
}

func TestQueriesSurviveTheWire(t *testing.T) {
	offset := uint64(1 << 60)
	want := berth.AttachRequest{Generation: 3, Offset: &offset, Size: berth.Size{Cols: 100, Rows: 30}, ReadOnly: true, SizePolicy: berth.SizeSmallest, SSHAuthSock: "/run/a b&c"}
	got, err := ParseAttachQuery(want.Query())
	if err != nil || *got.Offset != offset {
		t.Fatalf("%+v, %v", got, err)
	}
	got.Offset, want.Offset = nil, nil
	if got != want {
		t.Errorf("%+v became %+v", want, got)
	}
	for _, r := range []berth.LogRequest{{Generation: 2, From: 5, Limit: 10, Wait: time.Second}, {FromStart: true}} {
		got, err := ParseLogQuery(r.Query())
		if err != nil || got != r {
			t.Errorf("%+v became %+v, %v", r, got, err)
		}
	}
	// What a daemon of before from_start wrote, and a query by hand.
	for _, old := range []string{"from=start", ""} {
		if got, err := ParseLogQuery(mustQuery(t, old)); err != nil || !got.FromStart {
			t.Errorf("%q is not the start of the log: %+v, %v", old, got, err)
		}
	}
	for _, bad := range []string{"cols=0&rows=5", "cols=-1", "offset=x", "offset=-1", "generation=99999999999", "size_policy=mine"} {
		q := mustQuery(t, bad)
		if _, err := ParseAttachQuery(q); !errors.Is(err, berth.CodeInvalidArgument) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func mustQuery(t *testing.T, s string) url.Values {
	t.Helper()
	q, err := url.ParseQuery(s)
	if err != nil {
		t.Fatal(err)
	}
	return q
}
