package guestapi

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"berth"
)

// Dial opens a byte stream to a unix or TCP socket of the guest's machine. ctx
// bounds the opening alone, as with a net.Dialer. A socket that is not there, or
// on which nobody listens, is CodeNotFound with the fact errno; one that may not
// be opened CodeForbidden; no answer within 10 seconds CodeTimeout.
//
// The connection has deadlines and CloseWrite. After Close what was written still
// reaches the far end. It is cut when the client closes. Read gives io.EOF when
// the far end has finished, and CodeHostUnreachable when the stream was cut: half
// an answer never looks like a whole one.
func (c *Client) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	what := "dial " + network + " " + address
	stream, done := c.call(context.WithoutCancel(ctx))
	undo := context.AfterFunc(ctx, done)
	upIn, upOut := net.Pipe()
	body := &dialBody{far: upOut, sent: make(chan struct{})}
	query := url.Values{"network": {network}, "address": {address}}
	resp, err := c.send(stream, http.MethodPost, "/v1/dial", query, body)
	inTime := undo()
	if err == nil && !inTime {
		_ = resp.Body.Close() // nobody reads it
		err = ctx.Err()
	}
	if err != nil {
		done()
		_ = errors.Join(upIn.Close(), body.Close()) // pipes
		if ctx.Err() != nil {
			return nil, transportError(ctx, what, err)
		}
		return nil, err
	}
	downIn, downOut := net.Pipe()
	d := &dialled{
		client: c, what: what, addr: dialAddr{network, address},
		stream: stream, done: done, answer: resp.Body, body: body,
		up: upIn, down: downIn, downOut: downOut,
	}
	context.AfterFunc(stream, d.cut)
	if !c.spawn(d.receive) {
		d.end()
		return nil, berth.Errorf(berth.CodeHostUnreachable, "the connection to the guest is closed")
	}
	return d, nil
}

// lingerMax is how long a connection that was closed may go on sending what was
// written to it.
const lingerMax = 5 * time.Second

// dialled is one dialled stream. Two pipes in memory give it the deadlines that
// the bodies of a request and its answer do not have.
type dialled struct {
	client *Client
	what   string
	addr   dialAddr
	stream context.Context // ends with Close, the client, and nothing else
	done   context.CancelFunc
	answer io.ReadCloser
	body   *dialBody

	up      net.Conn // written by Write, read as the body of the request
	down    net.Conn // read by Read
	downOut net.Conn // written by receive

	mu        sync.Mutex
	closed    bool
	upClosed  bool  // by CloseWrite
	receivErr error // why receive ended; io.EOF = the far end finished
}

// receive passes on what the far end sends, until its end.
func (d *dialled) receive() {
	err := d.pieces()
	d.mu.Lock()
	if d.receivErr == nil {
		d.receivErr = err
	}
	d.mu.Unlock()
	_ = d.downOut.Close() // a pipe; Read gives receivErr instead of its end
}

// pieces gives io.EOF after the last piece, and never nil.
func (d *dialled) pieces() error {
	r := bufio.NewReaderSize(d.answer, MaxDialPiece)
	buf := make([]byte, 32<<10)
	for {
		if _, err := io.ReadFull(r, buf[:4]); err != nil {
			return d.cutError(err)
		}
		left := int(binary.BigEndian.Uint32(buf))
		switch {
		case left == 0:
			return io.EOF
		case left > MaxDialPiece:
			return berth.Errorf(berth.CodeGuestFailed, "%s: a piece of %d bytes is more than %d", d.what, left, MaxDialPiece)
		}
		for left > 0 {
			n, err := r.Read(buf[:min(left, len(buf))])
			if n > 0 {
				if _, err := d.downOut.Write(buf[:n]); err != nil {
					return d.cutError(err)
				}
				left -= n
			}
			if err != nil {
				return d.cutError(err)
			}
		}
	}
}

// cutError never wraps io.EOF: to a reader that is a good end.
func (d *dialled) cutError(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return berth.Errorf(berth.CodeHostUnreachable, "%s: the stream was cut: %w", d.what, err)
}

// cut is called when the stream's context has ended.
func (d *dialled) cut() {
	d.mu.Lock()
	if d.receivErr == nil {
		d.receivErr = d.cutError(context.Canceled)
	}
	d.mu.Unlock()
	_ = errors.Join(d.downOut.Close(), d.body.Close()) // pipes
}

// Read implements net.Conn.
func (d *dialled) Read(p []byte) (int, error) {
	n, err := d.down.Read(p)
	if err == nil || !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
		return n, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return n, d.opError("read", net.ErrClosed)
	}
	return n, d.receivErr
}

// Write implements net.Conn. It returns when the bytes are on their way.
func (d *dialled) Write(p []byte) (int, error) {
	n, err := d.up.Write(p)
	if err == nil || !errors.Is(err, io.ErrClosedPipe) {
		return n, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.upClosed {
		return n, d.opError("write", net.ErrClosed)
	}
	return n, d.cutError(err)
}

func (d *dialled) opError(op string, err error) error {
	return &net.OpError{Op: op, Net: d.addr.network, Addr: d.addr, Err: err}
}

// CloseWrite tells the far end that nothing more comes; reading goes on.
func (d *dialled) CloseWrite() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return d.opError("close", net.ErrClosed)
	}
	d.upClosed = true
	return d.up.Close()
}

// Close implements net.Conn. It does not wait.
func (d *dialled) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return d.opError("close", net.ErrClosed)
	}
	d.closed = true
	d.mu.Unlock()
	_ = errors.Join(d.up.Close(), d.down.Close()) // pipes; receive lets go of what it holds
	if !d.client.spawn(d.linger) {
		d.end()
	}
	return nil
}

// linger ends the stream once what was written is on its way.
func (d *dialled) linger() {
	late := time.NewTimer(lingerMax)
	defer late.Stop()
	select {
	case <-d.body.sent:
	case <-d.stream.Done():
	case <-late.C: // the far end takes nothing
	}
	d.end()
}

func (d *dialled) end() {
	d.done()
	_ = d.answer.Close() // it was only read
}

// LocalAddr implements net.Conn. The near end has no address.
func (d *dialled) LocalAddr() net.Addr { return dialAddr{network: d.addr.network} }

// RemoteAddr implements net.Conn.
func (d *dialled) RemoteAddr() net.Addr { return d.addr }

// SetDeadline implements net.Conn.
func (d *dialled) SetDeadline(t time.Time) error {
	return errors.Join(d.down.SetReadDeadline(t), d.up.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (d *dialled) SetReadDeadline(t time.Time) error { return d.down.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (d *dialled) SetWriteDeadline(t time.Time) error { return d.up.SetWriteDeadline(t) }

type dialAddr struct{ network, address string }

func (a dialAddr) Network() string { return a.network }
func (a dialAddr) String() string  { return a.address }

// dialBody is the body of the request.
type dialBody struct {
	far  net.Conn
	once sync.Once
	// sent is closed when there is nothing more to send: the transport asks for
	// more only when it has written what it got before.
	sent chan struct{}
}

// Read implements io.Reader.
func (b *dialBody) Read(p []byte) (int, error) {
	n, err := b.far.Read(p)
	if err != nil {
		b.once.Do(func() { close(b.sent) })
	}
	return n, err
}

// Close implements io.Closer; the transport calls it when it stops sending.
func (b *dialBody) Close() error {
	b.once.Do(func() { close(b.sent) })
	return b.far.Close()
}
