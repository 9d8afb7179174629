package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
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

// AttachConn is one viewer on one connection. Read is for one goroutine; the
// other methods may be called from any.
type AttachConn struct {
	ws    *websocket.Conn
	buf   []byte
	stop  func() bool // ends the watch on the context
	start time.Time
	heard atomic.Int64 // time since start of the last sign of life
	// reading is set while Read waits: a caller that does not read hears no
	// pings either, and that is not the daemon's silence.
	reading atomic.Bool
	silence *time.Timer
	closed  atomic.Bool
	ctx     context.Context // bounds the connection; kept for the reason of its end
}

// Attach opens one connection to a session. It ends with ctx, when the session
// ends, when Close is called or when the daemon goes; see View for a viewer
// that outlives all but the first two.
func (c *Client) Attach(ctx context.Context, ref string, r berth.AttachRequest) (*AttachConn, error) {
	if err := ctx.Err(); err != nil {
		return nil, contextError(ctx)
	}
	header := http.Header{}
	c.authorize(header)
	a := &AttachConn{start: time.Now(), ctx: ctx}
	dialCtx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	target := c.base + sessionPath(ref, "/attach") + "?" + attachQuery(r).Encode()
	refused := &refusal{next: c.tr}
	ws, _, err := websocket.Dial(dialCtx, target, &websocket.DialOptions{ //nolint:bodyclose // the library owns the body
		HTTPClient:      &http.Client{Transport: refused, CheckRedirect: c.http.CheckRedirect},
		HTTPHeader:      header,
		CompressionMode: websocket.CompressionDisabled, // costs time and memory; the way is short
		OnPingReceived:  func(context.Context, []byte) bool { a.alive(); return true },
	})
	if err != nil {
		if refused.err != nil {
			return nil, refused.err
		}
		return nil, c.transportError(ctx, err)
	}
	ws.SetReadLimit(berth.MaxFrame)
	a.ws = ws
	a.silence = time.AfterFunc(attachSilence, a.checkSilence)
	a.stop = context.AfterFunc(ctx, a.abort)
	return a, nil
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

// attachQuery writes a request as query parameters.
func attachQuery(r berth.AttachRequest) url.Values {
	q := url.Values{}
	if r.Generation != 0 {
		q.Set("generation", strconv.Itoa(r.Generation))
	}
	if r.Offset != nil {
		q.Set("offset", strconv.FormatUint(*r.Offset, 10))
	}
	if r.Size != (berth.Size{}) {
		q.Set("cols", strconv.Itoa(r.Size.Cols))
		q.Set("rows", strconv.Itoa(r.Size.Rows))
	}
	if r.ReadOnly {
		q.Set("read_only", "true")
	}
	if r.SizePolicy != "" {
		q.Set("size_policy", string(r.SizePolicy))
	}
	if r.SSHAuthSock != "" {
		q.Set("ssh_auth_sock", r.SSHAuthSock)
	}
	return q
}

func (a *AttachConn) alive() { a.heard.Store(int64(time.Since(a.start))) }

// checkSilence closes a connection that has been silent for too long. The
// clock stops while the machine sleeps, so waking up is no silence.
func (a *AttachConn) checkSilence() {
	if a.closed.Load() {
		return // Close stopped the timer while it was about to fire
	}
	age := time.Since(a.start) - time.Duration(a.heard.Load())
	if !a.reading.Load() {
		age = 0
	}
	if age >= attachSilence {
		_ = a.ws.CloseNow() // the peer cannot be asked
		return
	}
	a.silence.Reset(max(attachSilence-age, time.Second))
}

// Read gives the next frame, valid until the next call. The error is io.EOF
// when the daemon closed the connection because the session has ended (its exit
// frame came before), CodeDaemonStopping when the viewer should come back in a
// moment, CodeInvalidArgument when the daemon refused a frame of this viewer,
// CodeInterrupted after Close or the end of the context, and otherwise
// CodeDaemonUnreachable.
func (a *AttachConn) Read() (berth.Frame, error) {
	a.alive()
	a.reading.Store(true)
	defer a.reading.Store(false)
	// The background context is on purpose: one that can end costs a goroutine's
	// worth of bookkeeping for each frame. CloseNow ends a read as well.
	typ, r, err := a.ws.Reader(context.Background())
	if err != nil {
		return berth.Frame{}, a.readError(err)
	}
	if a.buf, err = readInto(a.buf[:0], r); err != nil {
		return berth.Frame{}, a.readError(err)
	}
	if typ != websocket.MessageBinary {
		return berth.Frame{}, berth.Errorf(berth.CodeDaemonUnreachable, "the daemon sent a text message on an attach")
	}
	return berth.ParseFrame(a.buf)
}

// readInto reads r to its end behind what is in buf, and grows buf as needed.
func readInto(buf []byte, r io.Reader) ([]byte, error) {
	if cap(buf) == 0 {
		buf = make([]byte, 0, 4<<10)
	}
	for {
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if errors.Is(err, io.EOF) {
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
	}
}

// readError says what the end of a connection means.
func (a *AttachConn) readError(err error) error {
	var closed websocket.CloseError
	isClose := errors.As(err, &closed)
	switch {
	case a.ctx.Err() != nil:
		return contextError(a.ctx)
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

// Write sends a frame. It blocks while the program does not read its input.
func (a *AttachConn) Write(f berth.Frame) error {
	if len(f.Body) >= berth.MaxFrame {
		return berth.Errorf(berth.CodeTooLarge, "a frame of %d bytes is over %d", len(f.Body)+1, berth.MaxFrame)
	}
	msg := f.AppendMessage(make([]byte, 0, len(f.Body)+1))
	if err := a.ws.Write(context.Background(), websocket.MessageBinary, msg); err != nil {
		return a.readError(err)
	}
	return nil
}

// Input sends bytes for the program, in as many frames as they need.
func (a *AttachConn) Input(p []byte) error {
	const most = 64 << 10 // a paste in pieces lets a resize or a signal pass between
	for len(p) > 0 {
		n := min(len(p), most)
		if err := a.Write(berth.Frame{Type: berth.FrameInput, Body: p[:n]}); err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

// Resize tells the size of the viewer's terminal.
func (a *AttachConn) Resize(size berth.Size) error { return a.writeJSON(berth.FrameResize, size) }

// Signal signals the foreground process group.
func (a *AttachConn) Signal(signal string) error {
	return a.writeJSON(berth.FrameSignal, berth.SignalRequest{Signal: signal})
}

// Focus tells of the viewer itself.
func (a *AttachConn) Focus(f berth.ViewerFocus) error { return a.writeJSON(berth.FrameFocus, f) }

func (a *AttachConn) writeJSON(t berth.FrameType, v any) error {
	f, err := berth.JSONFrame(t, v)
	if err != nil {
		return err
	}
	return a.Write(f)
}

// Close ends the connection and with it the viewer; the session goes on. A
// Read in progress returns.
func (a *AttachConn) Close() error {
	a.stop()
	a.abort()
	return nil
}

func (a *AttachConn) abort() {
	a.closed.Store(true)
	a.silence.Stop()
	// No handshake: over a stuck connection it would hold the caller, who wants
	// to have the terminal back, for five seconds.
	_ = a.ws.CloseNow()
}
