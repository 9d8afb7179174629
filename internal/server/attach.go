package server

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"berth"
)

// attach answers GET /v1/sessions/{ref}/attach. Whatever fails before the
// upgrade is a problem document; afterwards the close code says how to go on.
func (a api) attach(w http.ResponseWriter, r *http.Request) {
	if !isUpgrade(r) {
		writeProblem(w, r, berth.Errorf(berth.CodeInvalidArgument, "an attach is a WebSocket").
			WithHint("send Upgrade: websocket, or use /log and /screen"))
		return
	}
	q, err := parseAttach(r.URL.Query())
	if err != nil {
		writeProblem(w, r, err)
		return
	}
	if !a.enter() {
		writeProblem(w, r, berth.Errorf(berth.CodeDaemonStopping, "the daemon is stopping"))
		return
	}
	defer a.streams.Done()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	// The context bounds the whole stream, so a timer bounds its opening.
	late := time.AfterFunc(a.times.attachOpen, cancel)
	stream, err := a.cfg.Attach(ctx, r.PathValue("ref"), q)
	inTime := late.Stop()
	if err != nil {
		if !inTime && r.Context().Err() == nil {
			err = berth.Errorf(berth.CodeHostUnreachable, "the host did not answer the attach within %s", a.times.attachOpen)
		}
		writeProblem(w, r, err)
		return
	}
	v := &viewer{server: a.Server, stream: stream}
	// An origin was checked at the door, also the absence of one.
	v.ws, err = websocket.Accept(&corkedWriter{ResponseWriter: w, viewer: v}, r, &websocket.AcceptOptions{
		Subprotocols: []string{protocolAttach}, InsecureSkipVerify: true,
		CompressionMode: websocket.CompressionDisabled, // costs time and memory; the way is short
	})
	if err != nil {
		_ = stream.Close() // the handshake failed and was answered
		a.cfg.Log.Info("a viewer's handshake failed", "error", err)
		return
	}
	if rec, ok := w.(*recorder); ok {
		rec.hijacked = true
	}
	a.metrics.viewers.Inc()
	defer a.metrics.viewers.Dec()
	v.run(ctx)
}

// parseAttach reads the query of an attach.
func parseAttach(q url.Values) (berth.AttachRequest, error) {
	var r berth.AttachRequest
	var failed error
	number := func(name string, bits int) (n uint64, ok bool) {
		text := q.Get(name)
		if text == "" || failed != nil {
			return 0, false
		}
		n, err := strconv.ParseUint(text, 10, bits)
		if err != nil {
			failed = berth.Errorf(berth.CodeInvalidArgument, "%s %q is not a number", name, text)
		}
		return n, err == nil
	}
	if n, ok := number("generation", 31); ok {
		r.Generation = int(n)
	}
	if n, ok := number("offset", 64); ok {
		r.Offset = &n
	}
	cols, _ := number("cols", 31)
	rows, _ := number("rows", 31)
	r.Size = berth.Size{Cols: int(cols), Rows: int(rows)} //nolint:gosec // 31 bits
	if text := q.Get("read_only"); text != "" && failed == nil {
		var err error
		if r.ReadOnly, err = strconv.ParseBool(text); err != nil {
			failed = berth.Errorf(berth.CodeInvalidArgument, "read_only %q is neither true nor false", text)
		}
	}
	r.SizePolicy = berth.SizePolicy(q.Get("size_policy"))
	r.SSHAuthSock = q.Get("ssh_auth_sock")
	switch {
	case failed != nil:
	case r.Size != berth.Size{} && !r.Size.Valid():
		failed = berth.Errorf(berth.CodeInvalidArgument, "size %s is outside 1x1 to %dx%d", r.Size, berth.MaxCols, berth.MaxRows)
	case r.SizePolicy != "" && !r.SizePolicy.Valid():
		failed = berth.Errorf(berth.CodeInvalidArgument, "size policy %q is not latest, smallest or fixed", r.SizePolicy)
	case r.SSHAuthSock != "" && (!strings.HasPrefix(r.SSHAuthSock, "/") || len(r.SSHAuthSock) > berth.SocketPathMax || strings.ContainsRune(r.SSHAuthSock, 0)):
		failed = berth.Errorf(berth.CodeInvalidArgument, "ssh_auth_sock is not the absolute path of a socket")
	}
	return r, failed
}

// viewer carries frames between one WebSocket and one guest stream: a
// goroutine for each direction and no queue between them. What the viewer does
// not read stays in the guest, which skips and repaints; what the program does
// not read stays in the viewer.
type viewer struct {
	server *Server
	stream AttachStream
	ws     *websocket.Conn
	conn   *corkedConn // below ws
	inBuf  []byte
	outBuf []byte
}

// verdict is how one direction ended; code 0 = there is nobody to tell.
type verdict struct {
	code   websocket.StatusCode
	reason string // reaches the client
}

// The ends that a viewer is told of. Behind all but the first and the last it
// should connect again with its generation and offset.
func ended() verdict   { return verdict{websocket.StatusNormalClosure, "session ended"} }
func restart() verdict { return verdict{websocket.StatusServiceRestart, "service restart"} }
func guestGone() verdict {
	return verdict{websocket.StatusServiceRestart, "the session's host went away"}
}
func badFrame() verdict {
	return verdict{websocket.StatusPolicyViolation, "not a frame that a viewer sends"}
}

// run carries frames until either side ends, and closes both.
func (v *viewer) run(ctx context.Context) {
	v.ws.SetReadLimit(berth.MaxFrame)
	over := make(chan verdict, 2) // room for both, so that none waits for watch
	var pumps sync.WaitGroup
	pumps.Go(func() { over <- v.output() })
	pumps.Go(func() { over <- v.input() })
	v.watch(ctx, over)
	_ = v.stream.Close() // it ended already, or is cut here
	v.conn.abort()
	pumps.Wait()
	_ = v.ws.CloseNow() // frees what the library holds; the connection is closed
}

// watch pings the viewer until one direction is over or the server stops. Then
// it says goodbye, within its bound, and returns.
func (v *viewer) watch(ctx context.Context, over <-chan verdict) {
	ctx, cancel := context.WithCancel(ctx)
	var pings sync.WaitGroup
	defer pings.Wait()
	defer cancel()
	pinging := make(chan struct{}, 1)
	tick := time.NewTicker(v.server.times.ping)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case end := <-over:
			v.goodbye(ctx, end)
			return
		case <-v.server.stop:
			v.goodbye(ctx, restart())
			return
		case <-tick.C:
			select {
			case pinging <- struct{}{}:
				pings.Go(func() { v.ping(ctx); <-pinging })
			default: // the last one is not answered yet; its own bound decides
			}
		}
	}
}

// ping cuts a viewer that does not answer. One that only stands still, since
// its terminal does, comes back and gets what it missed.
func (v *viewer) ping(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, v.server.times.pong)
	defer cancel()
	if err := v.ws.Ping(bounded); err != nil && ctx.Err() == nil {
		v.conn.abort()
	}
}

// goodbye closes the WebSocket in good order, or not at all within its bound.
func (v *viewer) goodbye(ctx context.Context, end verdict) {
	if end.code == 0 {
		return
	}
	bound := time.AfterFunc(v.server.times.closing, v.conn.abort)
	defer bound.Stop()
	defer context.AfterFunc(ctx, v.conn.abort)()
	_ = v.ws.Close(end.code, end.reason) // a viewer that is gone hears nothing
}

// keptBuffer is how large a buffer may be that an idle viewer holds.
const keptBuffer = 128 << 10

// output carries frames to the viewer. While the stream has more in memory,
// frames are gathered and go out in one write.
func (v *viewer) output() verdict {
	sent := v.server.metrics.toViewers
	for {
		f, err := v.stream.Read()
		if err != nil {
			if v.conn.uncork() != nil {
				return verdict{}
			}
			return guestGone()
		}
		v.outBuf = f.AppendMessage(v.outBuf[:0])
		v.conn.cork()
		// The background context is on purpose: one that can end costs more than
		// the write itself. abort ends a write as well.
		err = v.ws.Write(context.Background(), websocket.MessageBinary, v.outBuf)
		sent.Add(float64(len(v.outBuf)))
		exit := f.Type == berth.FrameExit
		if err == nil && (exit || !v.stream.Buffered()) {
			err = v.conn.uncork()
		}
		switch {
		case err != nil:
			return verdict{}
		case exit:
			return ended()
		case cap(v.outBuf) > keptBuffer:
			v.outBuf = nil
		}
	}
}

// input carries frames to the program.
func (v *viewer) input() verdict {
	received := v.server.metrics.toProgram
	for {
		typ, r, err := v.ws.Reader(context.Background())
		if err != nil {
			return verdict{}
		}
		if v.inBuf, err = berth.ReadMessage(v.inBuf[:0], r); err != nil {
			return verdict{}
		}
		received.Add(float64(len(v.inBuf)))
		f, err := berth.ParseFrame(v.inBuf)
		if err != nil || typ != websocket.MessageBinary || !fromViewer(f.Type) {
			return badFrame()
		}
		if err := v.stream.Write(f); err != nil {
			return guestGone()
		}
		if cap(v.inBuf) > keptBuffer {
			v.inBuf = nil
		}
	}
}

func fromViewer(t berth.FrameType) bool {
	return t == berth.FrameInput || t == berth.FrameResize || t == berth.FrameSignal || t == berth.FrameFocus
}
