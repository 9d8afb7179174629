package server

import (
	"bufio"
	"net"
	"net/http"
	"sync"
)

// corkBytes is how much is gathered before it is written anyway. One write of
// 64 KiB costs as much as a few small ones, and the memory is a viewer's.
const corkBytes = 64 << 10

// corkedConn is a connection whose writes can be held back for a moment: the
// WebSocket library flushes after each message, and a system call for each
// frame is most of what a flood costs.
type corkedConn struct {
	net.Conn
	mu     sync.Mutex
	corked bool
	buf    []byte
}

// Write implements net.Conn. While corked it only gathers; what it gathered is
// written by uncork, or when it is too much.
func (c *corkedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.corked {
		return c.Conn.Write(p)
	}
	c.buf = append(c.buf, p...)
	if len(c.buf) < corkBytes {
		return len(p), nil
	}
	return len(p), c.flush()
}

// cork holds writes back until uncork.
func (c *corkedConn) cork() {
	c.mu.Lock()
	c.corked = true
	c.mu.Unlock()
}

// uncork writes what was held back.
func (c *corkedConn) uncork() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.corked = false
	return c.flush()
}

func (c *corkedConn) flush() error {
	if len(c.buf) == 0 {
		return nil
	}
	_, err := c.Conn.Write(c.buf)
	if c.buf = c.buf[:0]; cap(c.buf) > 4*corkBytes {
		c.buf = nil // one large frame must not pin its memory for hours
	}
	return err
}

// abort closes the connection and with it every read and write. It takes no
// lock: it is what frees a write that holds one.
func (c *corkedConn) abort() { _ = c.Conn.Close() }

// corkedWriter puts a corkedConn below the WebSocket library when it hijacks
// the connection.
type corkedWriter struct {
	http.ResponseWriter
	viewer *viewer
}

// Hijack implements http.Hijacker.
func (w *corkedWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.viewer.conn = &corkedConn{Conn: conn}
	return w.viewer.conn, bufio.NewReadWriter(rw.Reader, bufio.NewWriter(w.viewer.conn)), nil
}
