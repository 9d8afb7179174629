package guest

import (
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"berth/guestapi"
)

// The bars are 10 ms for an exec and 1 ms for a small file, from the caller
// through the guest and back.

func BenchmarkExec(b *testing.B) {
	l := newLab(b)
	l.start()
	in := guestapi.Exec{Argv: []string{"/bin/true"}}
	for b.Loop() {
		if _, err := l.client.Exec(b.Context(), in); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadFile(b *testing.B) {
	l := newLab(b)
	l.start()
	path := filepath.Join(l.dir, "file")
	write(b, path, strings.Repeat("x", 1<<10), 0o600)
	for b.Loop() {
		if _, _, err := l.client.ReadFile(b.Context(), path, 0); err != nil {
			b.Fatal(err)
		}
	}
}

// benchDial gives a connection to a far end that echoes.
func benchDial(b *testing.B) net.Conn {
	l := newLab(b)
	l.start()
	return l.dial(l.far("echo", func(c *net.UnixConn) { _, _ = io.Copy(c, c) }))
}

func BenchmarkDialEcho(b *testing.B) {
	conn, p := benchDial(b), []byte("x")
	for b.Loop() {
		if _, err := conn.Write(p); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(conn, p); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDialFlood(b *testing.B) {
	conn, p := benchDial(b), make([]byte, 1<<20)
	b.SetBytes(2 * int64(len(p))) // there and back
	done := make(chan error, 1)
	for b.Loop() {
		go func() { _, err := conn.Write(p); done <- err }()
		if _, err := io.CopyN(io.Discard, conn, int64(len(p))); err != nil {
			b.Fatal(err)
		}
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
}
