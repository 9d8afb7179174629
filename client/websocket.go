package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"berth"
)

// attachSilence is how long an attach may be silent while somebody waits for
// its next frame. The daemon pings every 20 seconds; two pings may be lost
// before the way to the daemon is taken for dead. Behind a forwarder (ssh -L)
// nothing else tells that the machine at the other end has gone.
const attachSilence = 65 * time.Second

// daemonLink is a WebSocket to the daemon, which passes frames on.
type daemonLink struct {
	ws    *websocket.Conn
	buf   []byte
	start time.Time
	heard atomic.Int64 // time since start of the last sign of life
	// reading is set while read waits: a caller that does not read hears no
	// pings either, and that is not the daemon's silence.
	reading atomic.Bool
	silence *time.Timer
	closed  atomic.Bool
}

func (c *Client) dialDaemon(ctx, dialCtx context.Context, ref string, r berth.AttachRequest) (link, error) {
	header := http.Header{}
	c.authorize(header)
	l := &daemonLink{start: time.Now()}
	target := c.base + sessionPath(ref, "/attach") + "?" + r.Query().Encode()
	refused := &refusal{next: c.tr}
	ws, _, err := websocket.Dial(dialCtx, target, &websocket.DialOptions{ //nolint:bodyclose // the library owns the body
		HTTPClient:      &http.Client{Transport: refused, CheckRedirect: c.http.CheckRedirect},
		HTTPHeader:      header,
		CompressionMode: websocket.CompressionDisabled, // costs time and memory; the way is short
		OnPingReceived:  func(context.Context, []byte) bool { l.alive(); return true },
	})
	if err != nil {
		if refused.err != nil {
			return nil, refused.err
		}
		return nil, c.transportError(ctx, err)
	}
	ws.SetReadLimit(berth.MaxFrame)
	l.ws = ws
	l.silence = time.AfterFunc(attachSilence, l.checkSilence)
	return l, nil
}

// refusal keeps the problem document of a refused upgrade: the WebSocket
// library gives its first kilobyte only, and half a document has no code.
type refusal struct {
	next http.RoundTripper
	err  error
}

// RoundTrip implements http.RoundTripper.
func (r *refusal) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.next.RoundTrip(req)
	if err == nil && resp.StatusCode >= 300 {
		r.err = readProblem(resp)
	}
	return resp, err
}

func (l *daemonLink) alive() { l.heard.Store(int64(time.Since(l.start))) }

// checkSilence closes a connection that has been silent for too long. The
// clock stops while the machine sleeps, so waking up is no silence.
func (l *daemonLink) checkSilence() {
	if l.closed.Load() {
		return // cut stopped the timer while it was about to fire
	}
	age := time.Since(l.start) - time.Duration(l.heard.Load())
	if !l.reading.Load() {
		age = 0
	}
	if age >= attachSilence {
		_ = l.ws.CloseNow() // the peer cannot be asked
		return
	}
	l.silence.Reset(max(attachSilence-age, time.Second))
}

func (l *daemonLink) read() (berth.Frame, error) {
	l.alive()
	l.reading.Store(true)
	defer l.reading.Store(false)
	// The background context is on purpose: one that can end costs a goroutine's
	// worth of bookkeeping for each frame. CloseNow ends a read as well.
	typ, r, err := l.ws.Reader(context.Background())
	if err != nil {
		return berth.Frame{}, readError(err)
	}
	if l.buf, err = berth.ReadMessage(l.buf[:0], r); err != nil {
		return berth.Frame{}, readError(err)
	}
	if typ != websocket.MessageBinary {
		return berth.Frame{}, berth.Errorf(berth.CodeDaemonUnreachable, "the daemon sent a text message on an attach")
	}
	return berth.ParseFrame(l.buf)
}

// readError says what the end of a connection means.
func readError(err error) error {
	var closed websocket.CloseError
	isClose := errors.As(err, &closed)
	switch {
	case isClose && closed.Code == websocket.StatusNormalClosure:
		return io.EOF
	case isClose && (closed.Code == websocket.StatusServiceRestart || closed.Code == websocket.StatusGoingAway):
		return berth.Errorf(berth.CodeDaemonStopping, "the daemon closed the connection: %s", closed.Reason)
	case isClose && closed.Code == websocket.StatusPolicyViolation, isClose && closed.Code == websocket.StatusMessageTooBig:
		return berth.Errorf(berth.CodeInvalidArgument, "the daemon refused a frame: %s", closed.Reason)
	}
	// Not wrapped: a cut shows as io.EOF below, and here io.EOF is a good end.
	return berth.Errorf(berth.CodeDaemonUnreachable, "the connection broke: %s", err.Error())
}

func (l *daemonLink) write(f berth.Frame) error {
	msg := f.AppendMessage(make([]byte, 0, len(f.Body)+1))
	if err := l.ws.Write(context.Background(), websocket.MessageBinary, msg); err != nil {
		return readError(err)
	}
	return nil
}

func (l *daemonLink) cut() {
	l.closed.Store(true)
	l.silence.Stop()
	// No handshake: over a stuck connection it would hold the caller, who wants
	// to have the terminal back, for five seconds.
	_ = l.ws.CloseNow()
}
