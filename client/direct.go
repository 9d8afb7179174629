package client

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"berth"
)

// directLink is a connection to a guest on this machine that carries frames.
type directLink struct {
	conn   net.Conn
	frames *berth.FrameReader
	exited bool // the exit frame has come: what follows is the end

	mu  sync.Mutex // one writer at a time
	out []byte
}

// dialDirect goes straight to the guest where the daemon says that there is a
// way. nil, nil = take the one through the daemon: it has the better words for
// a session that is not there or a guest that does not answer.
func (c *Client) dialDirect(ctx context.Context, ref string, r berth.AttachRequest) (link, error) {
	if c.socket == "" || c.throughDaemon {
		return nil, nil
	}
	var where berth.DirectAttach
	if _, err := c.do(ctx, call{method: http.MethodGet, path: sessionPath(ref, "/direct"), out: &where}); err != nil {
		return nil, nil //nolint:nilerr // see above
	}
	conn, err := dialOwn(ctx, &net.Dialer{}, where.Socket)
	if err != nil {
		return nil, nil //nolint:nilerr // see above
	}
	l, err := upgrade(ctx, conn, where.Session, r)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return l, nil
}

// upgrade asks the guest for the connection.
func upgrade(ctx context.Context, conn net.Conn, id string, r berth.AttachRequest) (link, error) {
	broken := func(err error) error {
		if ctx.Err() != nil {
			return contextError(ctx)
		}
		return berth.Errorf(berth.CodeDaemonUnreachable, "ask the guest for an attach: %s", err.Error())
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // a closed one is what is wanted
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+socketHost+"/v1/sessions/"+id+"/attach?"+r.Query().Encode(), http.NoBody)
	if err != nil {
		return nil, berth.Errorf(berth.CodeInternal, "make a request: %w", err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", berth.DirectUpgrade)
	if err := req.Write(conn); err != nil {
		return nil, broken(err)
	}
	in := bufio.NewReaderSize(conn, 64<<10)
	resp, err := http.ReadResponse(in, req)
	if err != nil {
		return nil, broken(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, errors.Join(readProblem(resp), resp.Body.Close())
	}
	return &directLink{conn: conn, frames: berth.NewFrameReader(in)}, nil
}

func (l *directLink) read() (berth.Frame, error) {
	f, err := l.frames.Next()
	switch {
	case err == nil:
		l.exited = l.exited || f.Type == berth.FrameExit
		return f, nil
	case l.exited:
		return berth.Frame{}, io.EOF
	case errors.Is(err, io.EOF):
		return berth.Frame{}, berth.Errorf(berth.CodeDaemonStopping, "the guest closed the connection")
	}
	// Not wrapped: io.EOF is a good end here.
	return berth.Frame{}, berth.Errorf(berth.CodeDaemonUnreachable, "the connection broke: %s", err.Error())
}

func (l *directLink) write(f berth.Frame) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.out = f.AppendStream(l.out[:0])
	if _, err := l.conn.Write(l.out); err != nil {
		return berth.Errorf(berth.CodeDaemonUnreachable, "the connection broke: %s", err.Error())
	}
	return nil
}

func (l *directLink) cut() { _ = l.conn.Close() } // what it says is that it was closed before
