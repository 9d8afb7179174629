package client

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"berth"
)

// UpdateKind says what an Update is.
type UpdateKind int

// The kinds of updates.
const (
	UpdateHello        UpdateKind = iota + 1 // attached: Hello; after each connection
	UpdateOutput                             // output: Offset, Covers, Data
	UpdateRepaint                            // Data rebuilds the screen; it has no offset
	UpdateGap                                // Gap: output that will not come; a repaint follows
	UpdateState                              // State: title, agent, size or viewers changed
	UpdateExit                               // Exit: the program ended; the last update
	UpdateDisconnected                       // Err: the connection broke; the next call connects again
	UpdateReconnected                        // connected again; a hello follows
)

// Update is what a Viewer has to tell. Only the fields of its kind are set.
// Data is valid until the next call of Next.
type Update struct {
	Kind   UpdateKind
	Hello  berth.AttachHello
	Offset uint64 // of the first byte that Data stands for
	Covers uint32 // how many bytes of output Data stands for; see berth.AppendOutput
	Data   []byte
	Gap    berth.OutputGap
	State  berth.ViewerState
	Exit   berth.Exit
	Err    error
}

// Viewer is a viewer that outlives its connection. Each break gives a
// Disconnected update; the next call of Next connects again, as often and as
// long as it takes, and goes on at the byte that would have come next.
//
// Next is for one goroutine and does all the work in it, so that a byte of echo
// passes no queue and wakes no second goroutine. The other methods may be
// called from any goroutine.
type Viewer struct {
	client *Client
	ref    string
	ctx    context.Context // ends the viewer; Close does too
	cancel context.CancelFunc

	mu    sync.Mutex  // guards the four below
	conn  *AttachConn // nil while disconnected
	req   berth.AttachRequest
	hide  bool // last Focus was hidden
	ended bool // the exit was told

	// Of Next alone.
	backoff    backoff
	generation int    // 0 = nothing to go on from
	offset     uint64 // next byte of output
	queued     []Update
	started    time.Time // when the connection was made
	base       uint64    // offset when the connection was made
	greeted    bool      // its hello has come
	lost       bool      // a break was told and not mended yet
	// repaint is owed when the screen is only right after a repaint that has
	// not come in full, so an exact continuation alone would leave it wrong.
	repaintOwed, repaintSeen bool
	violations               int // frames that contradict the protocol, since the last good connection
	done                     error
}

// maxViolations bounds attempts after frames that cannot be: a peer that breaks
// the protocol each time will not stop because it is asked a fourth time.
const maxViolations = 3

// View attaches to a session for as long as ctx lives. The first connection is
// made here, and its failure is returned; later ones are made by Next.
func (c *Client) View(ctx context.Context, ref string, r berth.AttachRequest) (*Viewer, error) {
	v := &Viewer{client: c, ref: ref, req: r, backoff: backoff{first: c.pause}}
	if r.Generation != 0 && r.Offset != nil { // goes on from an earlier viewer
		v.generation, v.offset = r.Generation, *r.Offset
	}
	v.ctx, v.cancel = context.WithCancel(ctx)
	if err := v.connect(); err != nil {
		v.cancel()
		return nil, err
	}
	return v, nil
}

// Next gives the next update. After the exit of the program it returns io.EOF,
// and after that an error that ends the viewer: a definite one of the daemon,
// or CodeInterrupted when Close was called or the context ended.
func (v *Viewer) Next() (Update, error) {
	for {
		if len(v.queued) > 0 {
			u := v.queued[0]
			v.queued = v.queued[1:]
			return u, nil
		}
		if v.done != nil {
			return Update{}, v.done
		}
		if v.lost {
			if err := v.reconnect(); err != nil {
				return Update{}, v.end(err)
			}
			return Update{Kind: UpdateReconnected}, nil
		}
		conn := v.current()
		if conn == nil { // Close came first
			return Update{}, v.end(contextError(v.ctx))
		}
		frame, err := conn.Read()
		if err == nil {
			var u Update
			if u, err = v.take(frame); err == nil {
				if u.Kind == 0 {
					continue // nothing to tell
				}
				return u, nil
			}
		}
		if u, err := v.broken(err); err != nil {
			return Update{}, v.end(err)
		} else {
			return u, nil
		}
	}
}

// Position is the generation and the offset of the next byte of output. It is
// for the goroutine that calls Next.
func (v *Viewer) Position() (generation int, offset uint64) { return v.generation, v.offset }

// finish ends the viewer in good order, behind the exit frame.
func (v *Viewer) finish() {
	v.done = io.EOF
	v.mu.Lock()
	v.ended = true
	v.mu.Unlock()
	v.drop()
	v.cancel()
}

// end makes err the last word.
func (v *Viewer) end(err error) error {
	v.done = err
	v.drop()
	v.cancel()
	return err
}

func (v *Viewer) current() *AttachConn {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.conn
}

// drop closes the connection. What is sent from now on is refused.
func (v *Viewer) drop() {
	v.mu.Lock()
	conn := v.conn
	v.conn = nil
	v.mu.Unlock()
	if conn != nil {
		_ = conn.Close() // it is broken or given up
	}
}

// broken decides what an end of the connection means: a definite error, or an
// update that says so and a new attempt.
func (v *Viewer) broken(err error) (Update, error) {
	if v.ctx.Err() != nil {
		return Update{}, contextError(v.ctx)
	}
	if errors.Is(err, io.EOF) { // closed in good order, but no exit came
		err = berth.Errorf(berth.CodeDaemonStopping, "the daemon closed the connection")
	}
	var violation *violationError
	switch {
	case errors.As(err, &violation):
		if v.violations++; v.violations > maxViolations {
			return Update{}, berth.Errorf(berth.CodeInternal, "the daemon sent frames that do not fit together: %w", err)
		}
		err = berth.Errorf(berth.CodeDaemonUnreachable, "%w", err)
	case !transient(err):
		return Update{}, err
	case v.offset > v.base || time.Since(v.started) > backoffLast:
		// It was a good connection. One that breaks at once does not count, so
		// that a daemon that fails on each attach is asked once a second.
		v.backoff.reset()
		v.violations = 0
	}
	v.drop()
	v.lost = true
	return Update{Kind: UpdateDisconnected, Err: err}, nil
}

// reconnect connects again, without a limit but the context.
func (v *Viewer) reconnect() error {
	for {
		if err := v.backoff.wait(v.ctx); err != nil {
			return err
		}
		err := v.connect()
		if err == nil {
			v.lost = false
			return nil
		}
		if v.ctx.Err() != nil {
			return contextError(v.ctx)
		}
		if !transient(err) {
			return err
		}
	}
}

// connect makes a connection that goes on where the last one ended.
func (v *Viewer) connect() error {
	v.mu.Lock()
	req := v.req
	v.mu.Unlock()
	if v.generation != 0 {
		offset := v.offset
		req.Generation, req.Offset = v.generation, &offset
	}
	conn, err := v.client.Attach(v.ctx, v.ref, req)
	if err != nil {
		return err
	}
	v.started, v.base, v.greeted = time.Now(), v.offset, false
	v.mu.Lock()
	again := v.req.Size != req.Size // changed while we connected
	size, hide := v.req.Size, v.hide
	v.conn = conn
	v.mu.Unlock()
	// A failure of these shows as a break at the first read.
	if again {
		_ = conn.Resize(size)
	}
	if hide {
		hidden := false
		_ = conn.Focus(berth.ViewerFocus{Focused: &hidden})
	}
	return nil
}

// Input sends bytes for the program. While the viewer is disconnected, and when
// the connection breaks under it, it returns CodeDaemonUnreachable and the bytes
// are dropped: a key that was meant for the screen as it was must not reach the
// program minutes later. After the end it returns CodeSessionEnded.
func (v *Viewer) Input(p []byte) error {
	return v.send(func(c *AttachConn) error { return c.Input(p) })
}

// Signal signals the foreground process group. Dropped like Input.
func (v *Viewer) Signal(signal string) error {
	return v.send(func(c *AttachConn) error { return c.Signal(signal) })
}

// Resize tells the size of the viewer's terminal. While the viewer is
// disconnected it is kept for the next connection.
func (v *Viewer) Resize(size berth.Size) error {
	v.mu.Lock()
	v.req.Size = size
	conn := v.conn
	v.mu.Unlock()
	if conn == nil {
		return nil
	}
	return conn.Resize(size)
}

// Focus tells of the viewer itself. Whether it is hidden is kept for the next
// connection; a refresh is not.
func (v *Viewer) Focus(f berth.ViewerFocus) error {
	v.mu.Lock()
	if f.Focused != nil {
		v.hide = !*f.Focused
	}
	conn := v.conn
	v.mu.Unlock()
	if conn == nil {
		return nil
	}
	return conn.Focus(f)
}

func (v *Viewer) send(f func(*AttachConn) error) error {
	v.mu.Lock()
	conn, ended := v.conn, v.ended
	v.mu.Unlock()
	if ended {
		return berth.Errorf(berth.CodeSessionEnded, "the session's program has ended")
	}
	if conn == nil {
		return berth.Errorf(berth.CodeDaemonUnreachable, "not connected to the session now: the input was dropped").
			WithHint("wait until the viewer is connected again")
	}
	return f(conn)
}

// Close ends the viewer; the session goes on. A Next in progress returns.
func (v *Viewer) Close() error {
	v.cancel()
	v.drop()
	return nil
}
