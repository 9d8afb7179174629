package guest

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth"
	"berth/guestapi"
)

const (
	// dialMax bounds the opening of a connection.
	dialMax = 10 * time.Second
	// lastWrites is how long what a client had written before it closed may take
	// to reach the far end.
	lastWrites = 5 * time.Second
)

// halfConn is a connection of which one direction can end before the other.
type halfConn interface {
	net.Conn
	CloseWrite() error
}

// dial answers with a stream to a socket of this machine.
func (s *server) dial(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 { // its answer does not begin before the request is over
		problem(w, r, berth.Errorf(berth.CodeInvalidArgument, "a dial needs HTTP/2"))
		return
	}
	q := r.URL.Query()
	conn, err := dialHost(r.Context(), guestapi.Network(q.Get("network")), q.Get("address"))
	if err != nil {
		problem(w, r, err)
		return
	}
	defer conn.Close() //nolint:errcheck // both directions are over
	w.Header().Set("Content-Type", guestapi.DialContentType)
	w.WriteHeader(http.StatusOK)
	b := bridge{conn: conn, in: r.Body, out: w, flush: http.NewResponseController(w).Flush}
	if !b.run(r.Context(), s.g.stopping) {
		panic(http.ErrAbortHandler) // the client must not take a cut for an end
	}
}

// dialHost opens the connection.
func dialHost(ctx context.Context, network guestapi.Network, address string) (halfConn, error) {
	if err := checkAddress(network, address); err != nil {
		return nil, err
	}
	bound, cancel := context.WithTimeout(ctx, dialMax)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		conn, err := (&net.Dialer{}).DialContext(bound, string(network), address)
		if half, ok := conn.(halfConn); ok && err == nil {
			return half, nil
		}
		// A unix socket whose queue is full says so at once instead of waiting.
		if errors.Is(err, unix.EAGAIN) {
			select {
			case <-again.C:
				continue
			case <-bound.Done():
			}
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, dialError(network, address, err)
	}
}

func checkAddress(network guestapi.Network, address string) error {
	switch network {
	case guestapi.NetworkUnix:
		if !filepath.IsAbs(address) || strings.ContainsRune(address, 0) {
			return berth.Errorf(berth.CodeInvalidArgument, "%q is not the absolute path of a socket", address)
		}
		if len(address) > berth.SocketPathMax {
			return berth.Errorf(berth.CodeInvalidArgument, "the path of a socket has at most %d bytes, this one has %d", berth.SocketPathMax, len(address))
		}
	case guestapi.NetworkTCP:
		host, port, err := net.SplitHostPort(address)
		if _, bad := strconv.ParseUint(port, 10, 16); err != nil || host == "" || bad != nil {
			return berth.Errorf(berth.CodeInvalidArgument, "%q is not HOST:PORT", address)
		}
	default:
		return berth.Errorf(berth.CodeInvalidArgument, "network %q is neither unix nor tcp", network)
	}
	return nil
}

// dialError says why there is no connection. Where nobody listens is nothing,
// whether the file of a socket was left there or not: the fact errno tells.
func dialError(network guestapi.Network, address string, err error) error {
	var errno syscall.Errno
	var dns *net.DNSError
	var addr *net.AddrError
	isErrno := errors.As(err, &errno)
	code := berth.CodeInternal
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errno == unix.EAGAIN, errno == unix.ETIMEDOUT:
		code = berth.CodeTimeout
	case errors.As(err, &dns) && dns.IsNotFound:
		code = berth.CodeNotFound
	case errors.As(err, &addr), errors.As(err, new(net.InvalidAddrError)), errors.As(err, new(net.UnknownNetworkError)), errno == unix.EPROTOTYPE:
		code = berth.CodeInvalidArgument
	case errno == unix.ECONNREFUSED, errno == unix.EHOSTUNREACH, errno == unix.ENETUNREACH, errno == unix.ECONNRESET:
		code = berth.CodeNotFound
	case isErrno:
		code = fileCode(errno)
	}
	e := berth.Errorf(code, "dial %s %s: %w", network, address, err)
	if isErrno {
		e = e.WithFact("errno", errnoName(errno))
	}
	if code == berth.CodeNotFound {
		e = e.WithHint("nobody listens there") // the catalogue speaks of sessions
	}
	return e
}

// bridge carries bytes between a stream of a client and a connection.
type bridge struct {
	conn  halfConn
	in    io.ReadCloser // from the client
	out   io.Writer     // to the client, in pieces
	flush func() error
}

// run returns when both directions are over. false = at least one was cut.
func (b *bridge) run(ctx context.Context, stopping <-chan struct{}) bool {
	over := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() { b.watch(ctx, stopping, over) })
	up := make(chan error, 1)
	work.Go(func() { up <- b.upward() })
	down := b.downward()
	if down != nil && ctx.Err() == nil {
		_ = b.in.Close() // lets upward return; of a client that is gone it reads what was sent, and returns by itself
	}
	err := errors.Join(down, <-up)
	close(over)
	work.Wait()
	return err == nil
}

// watch lets go of a connection that nobody is at the other end of.
func (b *bridge) watch(ctx context.Context, stopping, over <-chan struct{}) {
	past := time.Unix(1, 0)
	select {
	case <-over:
	case <-ctx.Done():
		_ = b.conn.SetReadDeadline(past)                        // of a closed one nothing is wanted
		_ = b.conn.SetWriteDeadline(time.Now().Add(lastWrites)) // likewise
	case <-stopping:
		_ = b.conn.SetDeadline(past) // likewise
		_ = b.in.Close()             // ends a read of it
	}
}

// upward carries what the client sends. Its end is half a close.
func (b *bridge) upward() error {
	if _, err := io.Copy(b.conn, b.in); err != nil {
		return err
	}
	err := b.conn.CloseWrite()
	if errors.Is(err, unix.ENOTCONN) { // the far end has closed altogether
		return nil
	}
	return err
}

// downward carries what the far end sends, and tells of its end.
func (b *bridge) downward() error {
	const head = 4
	if err := b.flush(); err != nil { // the client may have sent all that it wanted and be gone
		return err
	}
	buf := make([]byte, head+guestapi.MaxDialPiece/2)
	for {
		n, err := b.conn.Read(buf[head:])
		if n > 0 || errors.Is(err, io.EOF) {
			binary.BigEndian.PutUint32(buf, uint32(n)) //nolint:gosec // the size of buf
			if _, err := b.out.Write(buf[:head+n]); err != nil {
				return err
			}
			if err := b.flush(); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF) && n == 0:
			return nil
		case err != nil && !errors.Is(err, io.EOF):
			return err
		}
	}
}
