package guest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"berth"
	"berth/guestapi"
)

// stream is the two directions of one attach. On HTTP/2 they are the bodies of
// request and answer, which works over any byte stream. A viewer that reaches
// the guest's own socket asks for the connection itself instead: a byte of echo
// then passes neither the daemon nor a multiplexer.
type stream struct {
	ctx   context.Context // ends with the client
	in    io.ReadCloser
	out   io.Writer
	flush func() error
	close func()
}

const (
	// directBuffer gathers frames that wait together into one write.
	directBuffer = 64 << 10
	// stopPatience is how long a client may take to read what was written
	// before the guest stops.
	stopPatience = time.Second
)

// openStream begins the answer of an attach; the caller closes it.
func (s *server) openStream(w http.ResponseWriter, r *http.Request) (*stream, error) {
	control := http.NewResponseController(w)
	if r.ProtoMajor != 1 {
		w.Header().Set("Content-Type", guestapi.AttachContentType)
		w.WriteHeader(http.StatusOK)
		return &stream{ctx: r.Context(), in: r.Body, out: w, flush: control.Flush, close: func() {}}, nil
	}
	conn, buffered, err := control.Hijack()
	if err != nil {
		return nil, berth.Errorf(berth.CodeInternal, "take the connection over: %w", err)
	}
	ctx, cancel := context.WithCancel(r.Context())
	out := bufio.NewWriterSize(conn, directBuffer)
	// The server does not end connections that were taken over.
	stopped := make(chan struct{})
	s.g.spawn(func() {
		defer close(stopped)
		select {
		case <-s.g.stopping:
			_ = conn.SetDeadline(time.Now().Add(stopPatience)) // a closed one is what is wanted
		case <-ctx.Done():
		}
	})
	st := &stream{
		ctx: ctx, in: &directReader{Reader: buffered.Reader, conn: conn, gone: cancel}, out: out, flush: out.Flush,
		close: func() {
			_ = errors.Join(out.Flush(), conn.Close()) // a client that went away is no failure of ours
			cancel()
			<-stopped
		},
	}
	if _, err := io.WriteString(conn, berth.DirectAnswer); err != nil {
		st.close()
		return nil, berth.Errorf(berth.CodeInterrupted, "the client went away: %w", err)
	}
	return st, nil
}

// directReader ends the viewer when its client closes: a connection that is only
// half closed does not exist here.
type directReader struct {
	io.Reader
	conn net.Conn
	gone context.CancelFunc
}

// Read implements io.Reader.
func (d *directReader) Read(p []byte) (int, error) {
	n, err := d.Reader.Read(p)
	if err != nil {
		d.gone()
	}
	return n, err
}

// Close lets a blocked Read return; what was written still goes out.
func (d *directReader) Close() error { return d.conn.SetReadDeadline(time.Unix(1, 0)) }

// wantsDirect reports whether an HTTP/1.1 request asks for the connection.
func wantsDirect(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), berth.DirectUpgrade)
}
