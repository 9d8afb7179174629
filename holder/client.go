package holder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth"
)

// ErrGone is the error of a call to a holder that is not there (any more): its
// records in the session's directory say what became of the program.
var ErrGone = errors.New("the holder is gone")

// connectRetry is how soon a connect is tried again while a holder's queue of
// connections is full.
const connectRetry = 2 * time.Millisecond

// clientConn is one connection of the client half. It is an os.File over a raw
// socket: package net would cost the holder, which shares this package, memory.
type clientConn struct {
	f    *os.File
	stop func() bool // ends the watch over the context
}

// dial connects, and lets every later call on the connection fail when ctx ends.
func dial(ctx context.Context, path string) (*clientConn, error) {
	if len(path) > berth.SocketPathMax {
		return nil, errPathTooLong(path)
	}
	for {
		fd, err := connect(path)
		switch {
		case err == nil:
			f := os.NewFile(uintptr(fd), path)
			stop := context.AfterFunc(ctx, func() { _ = f.SetDeadline(time.Unix(1, 0)) })
			return &clientConn{f, stop}, nil
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ECONNREFUSED):
			return nil, fmt.Errorf("%s: %w", path, ErrGone)
		case !errors.Is(err, unix.EAGAIN):
			return nil, fmt.Errorf("connect to the holder at %s: %w", path, err)
		}
		t := time.NewTimer(connectRetry)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		case <-t.C:
		}
	}
}

func connect(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	for {
		if err = unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		_ = unix.Close(fd) // it was never connected
		return -1, err
	}
	return fd, nil
}

func (c *clientConn) close() error {
	c.stop()
	return c.f.Close()
}

// request writes the hello and a request in one go, and reads the holder's hello.
func (c *clientConn) request(op byte, body []byte) error {
	b := endFrame(addInt(beginFrame(nil, opHello), tagVersion, wireVersion), 0)
	at := len(b)
	b = endFrame(append(beginFrame(b, op), body...), at)
	if _, err := c.f.Write(b); err != nil {
		return err
	}
	typ, _, err := readFrame(c.f, nil, maxRequest)
	if err == nil && typ != reHello {
		err = errFrame
	}
	return err
}

// call makes one request and gives the body of the answer.
func (c *Client) call(ctx context.Context, op byte, body []byte) ([]byte, error) {
	conn, err := dial(ctx, c.socket)
	if err != nil {
		return nil, err
	}
	defer conn.close() //nolint:errcheck // the answer is what counts
	if err := conn.request(op, body); err != nil {
		return nil, callError(ctx, err)
	}
	typ, answer, err := readFrame(conn.f, nil, maxBody)
	switch {
	case err != nil:
		return nil, callError(ctx, err)
	case typ == reError:
		return nil, decodeError(answer)
	case typ != reOK:
		return nil, errFrame
	}
	return answer, nil
}

// callError gives the reason of a connection that failed: the caller's context,
// or a holder that went.
func callError(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return fmt.Errorf("talk to the holder: %w", err)
}

// Info asks how it stands.
func (c *Client) Info(ctx context.Context) (Info, error) {
	answer, err := c.call(ctx, opInfo, nil)
	if err != nil {
		return Info{}, err
	}
	return decodeInfo(answer)
}

// Resize sets the terminal's size; an unchanged one does nothing.
func (c *Client) Resize(ctx context.Context, size berth.Size) error {
	if !size.Valid() {
		return berth.Errorf(berth.CodeInvalidArgument, "size %s is outside 1x1 to %dx%d", size, berth.MaxCols, berth.MaxRows)
	}
	b := addInt(nil, tagCols, uint64(size.Cols))
	_, err := c.call(ctx, opResize, addInt(b, tagRows, uint64(size.Rows)))
	return err
}

// Signal signals the foreground process group.
func (c *Client) Signal(ctx context.Context, signal int) error {
	_, err := c.call(ctx, opSignal, addInt(nil, tagSignal, uint64(signal)))
	return err
}

// Kill ends the program and returns when it is gone. A second call joins the first.
func (c *Client) Kill(ctx context.Context) (KillResult, error) {
	answer, err := c.call(ctx, opKill, nil)
	if err != nil {
		return KillResult{}, err
	}
	return decodeKill(answer)
}

// Deposit leaves a snapshot; an older one than the holder has is ignored.
func (c *Client) Deposit(ctx context.Context, s Snapshot) error {
	if len(s.Screen) > maxSnapshot || s.Generation < 0 {
		return berth.Errorf(berth.CodeTooLarge, "a snapshot of %d bytes is more than %d", len(s.Screen), maxSnapshot)
	}
	_, err := c.call(ctx, opDeposit, addSnapshot(nil, s))
	return err
}

// Snapshot gives the newest one; CodeNotFound where there is none.
func (c *Client) Snapshot(ctx context.Context) (Snapshot, error) {
	answer, err := c.call(ctx, opSnapshot, nil)
	if err != nil {
		return Snapshot{}, err
	}
	return snapshotFields(answer)
}

// ReadLog reads output from an offset, as much as is there, at most len(p).
// CodeOffsetGone with the fact "kept_from", CodeInvalidOffset past the end.
func (c *Client) ReadLog(ctx context.Context, from uint64, p []byte) (int, error) {
	conn, err := dial(ctx, c.socket)
	if err != nil {
		return 0, err
	}
	defer conn.close() //nolint:errcheck // the answer is what counts
	done := 0
	for done < len(p) {
		body := addInt(nil, tagOffset, from+uint64(done))
		body = addInt(body, tagLimit, uint64(min(len(p)-done, maxRead)))
		if err := conn.requestAgain(opReadLog, body, done == 0); err != nil {
			return done, callError(ctx, err)
		}
		typ, answer, err := readFrame(conn.f, nil, maxBody)
		switch {
		case err != nil:
			return done, callError(ctx, err)
		case typ == reError && done == 0:
			return 0, decodeError(answer)
		case typ != reOK:
			return done, nil // what was read so far is good; the next call tells
		case len(answer) == 0:
			return done, nil
		}
		done += copy(p[done:], answer)
	}
	return done, nil
}

// requestAgain makes a further request on a connection.
func (c *clientConn) requestAgain(op byte, body []byte, first bool) error {
	if first {
		return c.request(op, body)
	}
	_, err := c.f.Write(frame(op, body))
	return err
}

// Quit ends a holder whose program has ended.
func (c *Client) Quit(ctx context.Context) error {
	_, err := c.call(ctx, opQuit, nil)
	return err
}

func errPathTooLong(path string) error {
	return berth.Errorf(berth.CodeSocketPathTooLong, "%s has %d bytes; a socket's path may have %d", path, len(path), berth.SocketPathMax)
}

// notThere reports whether a file is missing.
func notThere(err error) bool { return errors.Is(err, fs.ErrNotExist) }
