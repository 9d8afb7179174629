package holder_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"berth/holder"
)

func raw(t *testing.T, s *session, b []byte) net.Conn {
	t.Helper()
	var c net.Conn
	waitFor(t, "a connection", func() (ok bool) { // the queue may be full for a moment
		var err error
		c, err = net.Dial("unix", s.socket)
		return err == nil
	})
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	return c
}

func rawFrame(typ byte, body ...byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(body)+1))
	return append(append(b, typ), body...)
}

func readRaw(t *testing.T, c net.Conn) (typ byte, body []byte) {
	t.Helper()
	var h [5]byte
	if _, err := io.ReadFull(c, h[:]); err != nil {
		t.Fatal(err)
	}
	body = make([]byte, binary.BigEndian.Uint32(h[:])-1)
	if _, err := io.ReadFull(c, body); err != nil {
		t.Fatal(err)
	}
	return h[4], body
}

// TestNewerGuest: a hello of a later version with fields that this build does
// not know is taken, and what this build cannot do is answered, not left hanging.
func TestNewerGuest(t *testing.T) {
	s := start(t, "cat")
	hello := rawFrame('H', 1, 1, 99, 200, 1, 3, 'n', 'e', 'w')
	c := raw(t, s, append(hello[:len(hello):len(hello)], rawFrame('?', 1, 1, 1)...))
	if typ, _ := readRaw(t, c); typ != 'H' {
		t.Fatalf("hello: %q", typ)
	}
	if typ, _ := readRaw(t, c); typ != 'e' {
		t.Fatalf("unknown op: %q", typ)
	}
	if _, err := c.Write(rawFrame('i')); err != nil {
		t.Fatal(err)
	}
	if typ, _ := readRaw(t, c); typ != 'a' {
		t.Fatalf("info on the same connection: %q", typ)
	}
}

// TestMalformed: a bad frame ends its connection and nothing else.
func TestMalformed(t *testing.T) {
	s := start(t, "cat")
	st, err := s.Stream(ctx(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close() //nolint:errcheck // only what comes through it counts
	hello := rawFrame('H', 1, 1, 1)
	for _, b := range [][]byte{
		{0, 0, 0, 0, 'i'},             // no type
		{0xff, 0xff, 0xff, 0xff, 'H'}, // too large
		rawFrame('i'),                 // no hello
		rawFrame('H', 1, 200),         // a field longer than the body
		append(hello[:len(hello):len(hello)], rawFrame('r', 0xff)...),      // a field that is cut
		append(hello[:len(hello):len(hello)], 0xff, 0xff, 0xff, 0xff, 'd'), // a deposit beyond its bound
		append(hello[:len(hello):len(hello)], 0, 1, 0, 0, 'I'),             // input where there is no stream, beyond the bound
	} {
		c := raw(t, s, b)
		if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, io.EOF) {
			var ne net.Error
			if errors.As(err, &ne) && ne.Timeout() {
				t.Errorf("%q left the connection open", b)
			}
		}
	}
	if err := st.Input([]byte("still here\n")); err != nil {
		t.Fatal(err)
	}
	if item, err := st.Next(); err != nil || item.Kind != holder.KindOutput {
		t.Errorf("%+v, %v", item, err)
	}
	s.waitOutput("still here")
}

// TestManyConnections: more connections than a holder takes at a time wait, and
// are served when others go.
func TestManyConnections(t *testing.T) {
	s := start(t, "cat")
	var open []net.Conn
	for range 150 {
		open = append(open, raw(t, s, rawFrame('H', 1, 1, 1)))
	}
	for _, c := range open {
		_ = c.Close()
	}
	if _, err := s.Info(ctx(t)); err != nil {
		t.Error(err)
	}
}
