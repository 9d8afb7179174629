package guest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
)

// far is a server at the far end of dialled connections.
func (l *lab) far(name string, serve func(*net.UnixConn)) string {
	l.t.Helper()
	path := filepath.Join(l.dir, name)
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		l.t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			work.Go(func() {
				defer conn.Close() //nolint:errcheck // the test looks at the other end
				serve(conn)
			})
		}
	})
	l.t.Cleanup(func() {
		_ = listener.Close()
		work.Wait()
	})
	return path
}

func (l *lab) dial(path string) net.Conn {
	l.t.Helper()
	conn, err := l.client.Dial(l.t.Context(), "unix", path)
	if err != nil {
		l.t.Fatalf("dial: %v", err)
	}
	l.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func closeWrite(t *testing.T, conn net.Conn) {
	t.Helper()
	half, ok := conn.(interface{ CloseWrite() error })
	if !ok {
		t.Fatal("the connection cannot be half closed")
	}
	if err := half.CloseWrite(); err != nil {
		t.Fatal(err)
	}
}

func TestDialCarriesBothDirectionsAndTheirEnds(t *testing.T) {
	l := newLab(t)
	l.start()
	// The client ends first: the answer comes after it.
	path := l.far("first", func(c *net.UnixConn) {
		data, err := io.ReadAll(c)
		fmt.Fprintf(c, "%d %v", len(data), err) //nolint:errcheck // the client looks
	})
	conn := l.dial(path)
	sent := make([]byte, 5<<20)
	_, _ = rand.Read(sent)
	if n, err := conn.Write(sent); n != len(sent) || err != nil {
		t.Fatalf("write: %d, %v", n, err)
	}
	closeWrite(t, conn)
	if got, err := io.ReadAll(conn); err != nil || string(got) != fmt.Sprintf("%d <nil>", len(sent)) {
		t.Errorf("the answer is %q, %v", got, err)
	}
	if _, err := conn.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write after the end: %v", err)
	}

	// The far end ends first: what is written afterwards still reaches it.
	got := make(chan []byte, 1)
	path = l.far("second", func(c *net.UnixConn) {
		_, _ = io.WriteString(c, "bye")
		_ = c.CloseWrite()
		data, _ := io.ReadAll(c)
		got <- data
	})
	conn = l.dial(path)
	if end, err := io.ReadAll(conn); err != nil || string(end) != "bye" {
		t.Errorf("read %q, %v", end, err)
	}
	if _, err := conn.Write(sent); err != nil {
		t.Errorf("write after the far end's end: %v", err)
	}
	closeWrite(t, conn)
	if data := <-got; !bytes.Equal(data, sent) {
		t.Errorf("%d bytes came of %d", len(data), len(sent))
	}

	// Close alone: nothing that was written is lost.
	path = l.far("third", func(c *net.UnixConn) {
		data, _ := io.ReadAll(c)
		got <- data
	})
	for range 200 {
		conn = l.dial(path)
		if _, err := conn.Write(sent[:100_000]); err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		if data := <-got; len(data) != 100_000 {
			t.Fatalf("%d bytes came before the close", len(data))
		}
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
}

// A stream that breaks must not look like one that has ended.
func TestACutIsNoEnd(t *testing.T) {
	l := newLab(t)
	l.start()
	hold := make(chan struct{})
	defer close(hold)
	path := l.far("far", func(c *net.UnixConn) {
		_, _ = io.WriteString(c, "half")
		<-hold
	})
	half := func(c net.Conn) {
		t.Helper()
		if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
	}
	// A TCP peer that resets the connection.
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close() //nolint:errcheck // nobody waits
	reset := make(chan struct{})
	go func() {
		c, err := tcp.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, "half")
		<-reset
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}()
	conn, err := l.client.Dial(t.Context(), "tcp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // it was cut
	half(conn)
	close(reset)
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("after a reset: %v", err)
	}
	eventually(t, "a write that fails", func() bool {
		_, err := conn.Write([]byte("x"))
		return err != nil
	})
	// A guest that stops.
	conn = l.dial(path)
	half(conn)
	l.stop()
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, berth.CodeHostUnreachable) || errors.Is(err, io.EOF) {
		t.Errorf("after the guest stopped: %v", err)
	}
	// A client that closes.
	l.start()
	conn = l.dial(path)
	half(conn)
	if err := l.client.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, berth.CodeHostUnreachable) {
		t.Errorf("after the client closed: %v", err)
	}
	if _, err := conn.Write([]byte("x")); err == nil {
		t.Error("a closed client's stream still writes")
	}
	if _, err := l.client.Dial(t.Context(), "unix", path); !errors.Is(err, berth.CodeHostUnreachable) {
		t.Errorf("dial with a closed client: %v", err)
	}
	l.reconnect()
}

func TestDialFollowsTheRulesOfAConnection(t *testing.T) {
	l := newLab(t)
	l.start()
	closed := make(chan struct{}, 1)
	path := l.far("far", func(c *net.UnixConn) {
		buf := make([]byte, 1)
		_, _ = io.ReadFull(c, buf)
		_, _ = c.Write(buf)
		<-time.After(200 * time.Millisecond) // a far end that takes nothing for a while
		_, _ = io.Copy(io.Discard, c)
		closed <- struct{}{}
	})
	ctx, cancel := context.WithCancel(t.Context())
	conn, err := l.client.Dial(ctx, "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	cancel() // it bounds the opening, and not the connection
	if conn.RemoteAddr().String() != path || conn.RemoteAddr().Network() != "unix" || conn.LocalAddr() == nil {
		t.Errorf("the far end is at %v", conn.RemoteAddr())
	}
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read past its deadline: %v", err)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		t.Errorf("read after a deadline: %v", err)
	}
	if err := conn.SetWriteDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Write(make([]byte, 64<<20)); !errors.Is(err, os.ErrDeadlineExceeded) || n >= 64<<20 {
		t.Errorf("write past its deadline: %d, %v", n, err)
	}
	// Close lets a blocked read return.
	read := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		read <- err
	}()
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if err := <-read; !errors.Is(err, net.ErrClosed) {
		t.Errorf("the read that was blocked: %v", err)
	}
	if err := conn.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed twice: %v", err)
	}
	<-closed
}

func TestDialTellsWhyThereIsNoConnection(t *testing.T) {
	l := newLab(t)
	l.start()
	stale, file := filepath.Join(l.dir, "stale"), filepath.Join(l.dir, "file")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	write(t, file, "", 0o600)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := taken.Addr().String()
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		network, address string
		want             berth.Code
		errno            string
	}{
		{"unix", l.dir + "/none", berth.CodeNotFound, "ENOENT"},
		{"unix", stale, berth.CodeNotFound, "ECONNREFUSED"},
		{"unix", file, berth.CodeNotFound, "ECONNREFUSED"},
		{"unix", file + "/x", berth.CodeNotFound, "ENOTDIR"},
		{"tcp", free, berth.CodeNotFound, "ECONNREFUSED"},
		{"unix", "relative", berth.CodeInvalidArgument, ""},
		{"unix", "@abstract", berth.CodeInvalidArgument, ""},
		{"unix", "/" + strings.Repeat("x", berth.SocketPathMax), berth.CodeInvalidArgument, ""},
		{"tcp", "127.0.0.1", berth.CodeInvalidArgument, ""},
		{"tcp", ":80", berth.CodeInvalidArgument, ""},
		{"tcp", "127.0.0.1:no-such-port", berth.CodeInvalidArgument, ""},
		{"udp", "127.0.0.1:1", berth.CodeInvalidArgument, ""},
		{"", "", berth.CodeInvalidArgument, ""},
	} {
		_, err := l.client.Dial(t.Context(), c.network, c.address)
		var e *berth.Error
		if !errors.As(err, &e) || e.Code != c.want || e.Facts["errno"] != c.errno {
			t.Errorf("dial %s %.30s: %v, %+v", c.network, c.address, err, e)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.client.Dial(ctx, "unix", stale); !errors.Is(err, berth.CodeInterrupted) {
		t.Errorf("a caller that has gone: %v", err)
	}
}

// An HTTP client over dialled connections is what the Docker API is reached by.
func TestAnHTTPClientRunsOverDials(t *testing.T) {
	l := newLab(t)
	l.start()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /echo", func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		_, _ = w.Write(data)
	})
	mux.HandleFunc("POST /hijack", func(w http.ResponseWriter, _ *http.Request) {
		conn, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close() //nolint:errcheck // the client looks at the end
		_, _ = io.WriteString(conn, "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
		data, _ := io.ReadAll(buffered) // the client's end of stdin
		_, _ = fmt.Fprintf(conn, "got %s", data)
	})
	path := filepath.Join(l.dir, "http")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: patience}
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }()
	defer func() { _ = server.Close(); <-served }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return l.client.Dial(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	body := strings.Repeat("0123456789abcdef", 1<<14)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			text := fmt.Sprint(i, body)
			resp, err := client.Post("http://far/echo", "text/plain", strings.NewReader(text))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close() //nolint:errcheck // it was only read
			if got, err := io.ReadAll(resp.Body); err != nil || string(got) != text {
				t.Errorf("request %d: %d bytes, %v", i, len(got), err)
			}
		})
	}
	wg.Wait()
	conn := l.dial(path)
	_, _ = io.WriteString(conn, "POST /hijack HTTP/1.1\r\nHost: far\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nstdin")
	closeWrite(t, conn)
	if got, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(got), "\r\n\r\ngot stdin") {
		t.Errorf("a connection that was taken over: %q, %v", got, err)
	}
}

func TestManyDialsAtATime(t *testing.T) {
	l := newLab(t)
	l.start()
	path := l.far("echo", func(c *net.UnixConn) { _, _ = io.Copy(c, c) })
	const n = 200
	conns := make([]net.Conn, n)
	for i := range n {
		conns[i] = l.dial(path)
	}
	var wg sync.WaitGroup
	for i, conn := range conns {
		wg.Go(func() {
			want := bytes.Repeat(fmt.Append(nil, i, " "), 20_000)
			go func() { _, _ = conn.Write(want); _ = conn.(interface{ CloseWrite() error }).CloseWrite() }()
			if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, want) {
				t.Errorf("connection %d: %d bytes of %d, %v", i, len(got), len(want), err)
			}
		})
	}
	wg.Wait()
}
