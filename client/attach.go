package client

import (
	"context"

	"berth"
)

// AttachConn is one viewer on one connection. Read is for one goroutine; the
// other methods may be called from any.
type AttachConn struct {
	link link
	stop func() bool     // ends the watch on the context
	ctx  context.Context // bounds the connection; kept for the reason of its end
}

// link carries frames one way or the other: through the daemon over a
// WebSocket, or straight to the guest over a connection of its own.
type link interface {
	read() (berth.Frame, error) // valid until the next call; errors as Read's, but for the context's
	write(f berth.Frame) error
	cut() // lets every blocked call return; more than once is fine
}

// Attach opens one connection to a session. It ends with ctx, when the session
// ends, when Close is called or when its other end goes; see View for a viewer
// that outlives all but the first two.
//
// Where the session's guest is on this machine the connection goes straight to
// it: an echo passes two processes less, and a daemon that stops disturbs
// nobody. Config.ThroughDaemon turns that off.
func (c *Client) Attach(ctx context.Context, ref string, r berth.AttachRequest) (*AttachConn, error) {
	if err := ctx.Err(); err != nil {
		return nil, contextError(ctx)
	}
	dialCtx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	l, err := c.dialDirect(dialCtx, ref, r)
	if err != nil {
		return nil, err
	}
	if l == nil {
		if l, err = c.dialDaemon(ctx, dialCtx, ref, r); err != nil {
			return nil, err
		}
	}
	a := &AttachConn{link: l, ctx: ctx}
	a.stop = context.AfterFunc(ctx, l.cut)
	return a, nil
}

// Read gives the next frame, valid until the next call. The error is io.EOF
// when the connection was closed because the session has ended (its exit
// frame came before), CodeDaemonStopping when the viewer should come back in a
// moment, CodeInvalidArgument when a frame of this viewer was refused,
// CodeInterrupted after Close or the end of the context, and otherwise
// CodeDaemonUnreachable.
func (a *AttachConn) Read() (berth.Frame, error) {
	f, err := a.link.read()
	if err != nil && a.ctx.Err() != nil {
		return berth.Frame{}, contextError(a.ctx)
	}
	return f, err
}

// Write sends a frame. It blocks while the program does not read its input.
func (a *AttachConn) Write(f berth.Frame) error {
	if len(f.Body) >= berth.MaxFrame {
		return berth.Errorf(berth.CodeTooLarge, "a frame of %d bytes is over %d", len(f.Body)+1, berth.MaxFrame)
	}
	err := a.link.write(f)
	if err != nil && a.ctx.Err() != nil {
		return contextError(a.ctx)
	}
	return err
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
	a.link.cut()
	return nil
}
