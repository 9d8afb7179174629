package guestapi

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"

	"berth"
)

func TestAGuestWithoutTheMachineCallsIsOutdated(t *testing.T) {
	c := serve(t, http.NotFoundHandler())
	_, exec := c.Exec(t.Context(), Exec{Argv: []string{"true"}})
	_, _, read := c.ReadFile(t.Context(), "/x", 0)
	_, dial := c.Dial(t.Context(), "unix", "/x")
	for name, err := range map[string]error{"exec": exec, "read": read, "dial": dial, "write": c.WriteFile(t.Context(), "/x", nil, 0o600)} {
		if !errors.Is(err, berth.CodeGuestOutdated) {
			t.Errorf("%s: %v, want %v", name, err, berth.CodeGuestOutdated)
		}
	}
}

func TestAPathSurvivesTheWire(t *testing.T) {
	const path = "/a b&c=d/\xff%2e/ü\n"
	c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil || q.Get("path") != path {
			t.Errorf("the guest was asked for %q, %v", q.Get("path"), err)
		}
		_, _ = io.WriteString(w, `{}`)
	}))
	if _, err := c.Stat(t.Context(), path, true); err != nil {
		t.Error(err)
	}
}

// A guest that is gone in the middle, or talks nonsense, never looks like the
// end of the far end's output.
func TestPiecesThatAreNotWholeAreNoEnd(t *testing.T) {
	for name, answer := range map[string]string{
		"nothing":       "",
		"half a length": "\x00\x00",
		"half a piece":  "\x00\x00\x00\x05abc",
		"no end":        "\x00\x00\x00\x03abc",
		"too long":      "\x7f\xff\xff\xffabc",
	} {
		c := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }))
		conn, err := c.Dial(t.Context(), "unix", "/x")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, err := io.ReadAll(conn); err == nil || errors.Is(err, io.EOF) || len(got) > 3 {
			t.Errorf("%s: read %q, %v", name, got, err)
		}
		if err := conn.Close(); err != nil {
			t.Errorf("%s: close: %v", name, err)
		}
	}
}

func FuzzDialPieces(f *testing.F) {
	for _, seed := range []string{"", "\x00", "\x00\x00\x00\x00", "\x00\x00\x00\x02ab\x00\x00\x00\x00", "\x00\x00\x00\x02a", "\x00\x01\x00\x00", "\x00\x01\x00\x01x", "\xff\xff\xff\xffx"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		in, out := net.Pipe()
		d := &dialled{what: "fuzz", answer: io.NopCloser(bytes.NewReader(wire)), down: in, downOut: out}
		ended := make(chan struct{})
		go func() { defer close(ended); d.receive() }()
		got, err := io.ReadAll(d)
		<-ended
		_ = in.Close()
		want, whole := pieces(wire)
		if whole != (err == nil) || whole && !bytes.Equal(got, want) || !bytes.HasPrefix(want, got) {
			t.Errorf("%q gave %q, %v; want %q, whole %v", wire, got, err, want, whole)
		}
	})
}

// pieces is what is in them, also of the last that is cut; whole = an end came.
func pieces(wire []byte) (out []byte, whole bool) {
	for len(wire) >= 4 {
		n := binary.BigEndian.Uint32(wire)
		wire = wire[4:]
		if n == 0 {
			return out, true
		}
		if n > MaxDialPiece {
			return out, false
		}
		k := min(int(n), len(wire))
		out, wire = append(out, wire[:k]...), wire[k:]
	}
	return out, false
}
