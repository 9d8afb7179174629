package server

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"reflect"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/client"
)

func jsonFrame(t testing.TB, typ berth.FrameType, v any) berth.Frame {
	t.Helper()
	f, err := berth.JSONFrame(typ, v)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func output(offset uint64, data string) berth.Frame {
	return berth.Frame{Type: berth.FrameOutput, Body: berth.AppendOutput(nil, offset, uint32(len(data)), []byte(data))}
}

func (h *house) attachTo(t *testing.T, ctx context.Context, r berth.AttachRequest) (*client.AttachConn, *fakeStream) {
	t.Helper()
	stream := newFakeStream()
	h.streams <- stream
	conn, err := h.client(t).Attach(ctx, "a", r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn, stream
}

func TestAttachCarriesFrames(t *testing.T) {
	h := newHouse(t, nil)
	ctx := within(t, 10*time.Second)
	offset := uint64(1<<63 + 5)
	ask := berth.AttachRequest{
		Generation: 3, Offset: &offset, Size: berth.Size{Cols: 100, Rows: 50}, ReadOnly: true,
		SizePolicy: berth.SizeSmallest, SSHAuthSock: "/tmp/agent",
	}
	conn, stream := h.attachTo(t, ctx, ask)
	if got := <-h.asked; !reflect.DeepEqual(got, berth.AttachRequest{
		Generation: 3, Offset: &offset, Size: ask.Size, ReadOnly: true, SizePolicy: berth.SizeSmallest, SSHAuthSock: "/tmp/agent",
	}) {
		t.Errorf("asked %+v", got)
	}
	large := strings.Repeat("z", berth.MaxFrame-13)
	sent := []berth.Frame{
		jsonFrame(t, berth.FrameHello, berth.AttachHello{Generation: 3, Resume: berth.ResumeExact}),
		{Type: berth.FrameRepaint, Body: []byte("\x1b[H")}, {Type: berth.FrameRepaint}, output(5, large), output(9, "\xff\x00"),
	}
	for _, f := range sent {
		stream.frames <- f
	}
	for i, want := range sent {
		got, err := conn.Read()
		if err != nil || byte(got.Type) != byte(want.Type) || !bytes.Equal(got.Body, want.Body) {
			t.Fatalf("frame %d: %c of %d bytes, %v", i, got.Type, len(got.Body), err)
		}
	}
	if err := errors.Join(conn.Input([]byte("ls\r")), conn.Resize(berth.Size{Cols: 1, Rows: 2}), conn.Signal("INT")); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Ils\r", `R{"cols":1,"rows":2}`, `S{"signal":"INT"}`} {
		if f := <-stream.got; string(f.AppendMessage(nil)) != want {
			t.Errorf("the guest got %q, want %q", f.AppendMessage(nil), want)
		}
	}
	stream.frames <- jsonFrame(t, berth.FrameExit, berth.Exit{Code: 3})
	if f, err := conn.Read(); err != nil || f.Type != berth.FrameExit {
		t.Fatalf("%v %v", f, err)
	}
	if _, err := conn.Read(); !errors.Is(err, io.EOF) {
		t.Errorf("behind the exit: %v", err)
	}
	<-stream.closed
}

// What fails before the upgrade comes as the typed error, also when its
// document is longer than what the WebSocket library shows of it.
func TestAttachIsRefusedWithAProblem(t *testing.T) {
	h := newHouse(t, func(h *house) {
		h.attach = berth.Errorf(berth.CodeOffsetGone, "%s", strings.Repeat("long ", 1000)).WithFact("kept_from", "77")
	})
	_, err := h.client(t).Attach(within(t, 5*time.Second), "a", berth.AttachRequest{})
	var e *berth.Error
	if !errors.Is(err, berth.CodeOffsetGone) || !errors.As(err, &e) || e.Facts["kept_from"] != "77" {
		t.Errorf("%v", err)
	}
	for _, query := range []string{"cols=0&rows=1", "cols=9", "offset=-1", "generation=x", "read_only=maybe", "size_policy=big", "ssh_auth_sock=rel", "cols=99999999999&rows=1"} {
		if r := h.ask(t, "GET", "/v1/sessions/a/attach?"+query, "", "Upgrade", "websocket", "Connection", "Upgrade"); r.problem(t).Code != berth.CodeInvalidArgument {
			t.Errorf("%s: %d", query, r.status)
		}
	}
}

func TestEndsOfAnAttach(t *testing.T) {
	t.Run("guest goes away", func(t *testing.T) {
		h := newHouse(t, nil)
		conn, stream := h.attachTo(t, within(t, 5*time.Second), berth.AttachRequest{})
		stream.frames <- output(0, "last words")
		close(stream.frames)
		if f, err := conn.Read(); err != nil || f.Type != berth.FrameOutput {
			t.Errorf("what came before must arrive: %v", err)
		}
		if _, err := conn.Read(); !errors.Is(err, berth.CodeDaemonStopping) { // come again
			t.Errorf("%v", err)
		}
		<-stream.closed
	})
	t.Run("viewer goes away", func(t *testing.T) {
		h := newHouse(t, nil)
		conn, stream := h.attachTo(t, within(t, 5*time.Second), berth.AttachRequest{})
		_ = conn.Close()
		<-stream.closed
	})
	t.Run("viewer sends what no viewer sends", func(t *testing.T) {
		h := newHouse(t, nil)
		conn, stream := h.attachTo(t, within(t, 5*time.Second), berth.AttachRequest{})
		if err := conn.Write(berth.Frame{Type: berth.FrameExit}); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(); !errors.Is(err, berth.CodeInvalidArgument) {
			t.Errorf("%v", err)
		}
		<-stream.closed
		if len(stream.got) != 0 {
			t.Error("the guest got it")
		}
	})
	t.Run("daemon stops", func(t *testing.T) {
		h := newHouse(t, nil)
		conn, stream := h.attachTo(t, within(t, 5*time.Second), berth.AttachRequest{})
		stopped := make(chan error, 1)
		go func() { stopped <- h.Shutdown(within(t, 5*time.Second)) }()
		if _, err := conn.Read(); !errors.Is(err, berth.CodeDaemonStopping) {
			t.Errorf("%v", err)
		}
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		<-stream.closed
	})
	t.Run("daemon stops while the viewer reads nothing", func(t *testing.T) {
		h := newHouse(t, func(h *house) { h.times.closing = 50 * time.Millisecond })
		_, stream := h.attachTo(t, within(t, 10*time.Second), berth.AttachRequest{})
		for range 64 { // more than any socket buffer takes
			stream.frames <- output(0, strings.Repeat("x", 200<<10))
		}
		began := time.Now()
		if err := h.Shutdown(within(t, 8*time.Second)); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("a viewer that reads nothing held the stop for %s", took)
		}
		<-stream.closed
	})
	t.Run("viewer answers no ping", func(t *testing.T) {
		h := newHouse(t, func(h *house) { h.times.ping, h.times.pong = 10*time.Millisecond, 50*time.Millisecond })
		_, stream := h.attachTo(t, within(t, 10*time.Second), berth.AttachRequest{}) // nobody calls Read
		select {
		case <-stream.closed:
		case <-time.After(time.Minute):
			t.Error("it was not cut")
		}
	})
	t.Run("pings keep a quiet viewer", func(t *testing.T) {
		h := newHouse(t, func(h *house) { h.times.ping, h.times.pong = 5*time.Millisecond, 2*time.Second })
		conn, stream := h.attachTo(t, within(t, 10*time.Second), berth.AttachRequest{})
		time.AfterFunc(100*time.Millisecond, func() { stream.frames <- output(0, "later") })
		if f, err := conn.Read(); err != nil || f.Type != berth.FrameOutput {
			t.Errorf("%v", err)
		}
	})
}

func TestHostThatDoesNotAnswerAnAttach(t *testing.T) {
	h := newHouse(t, func(h *house) {
		h.times.attachOpen = 20 * time.Millisecond
		h.cfg.Attach = func(ctx context.Context, _ string, _ berth.AttachRequest) (AttachStream, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	if _, err := h.client(t).Attach(within(t, 5*time.Second), "a", berth.AttachRequest{}); !errors.Is(err, berth.CodeHostUnreachable) {
		t.Errorf("%v", err)
	}
}

// Frames gathered into one write arrive whole and in order, whatever their sizes.
func TestManyFramesInOrder(t *testing.T) {
	h := newHouse(t, nil)
	conn, stream := h.attachTo(t, within(t, 30*time.Second), berth.AttachRequest{})
	random := rand.New(rand.NewPCG(1, 2))
	const count = 5000
	go func() {
		offset := uint64(0)
		for range count {
			size := random.IntN(40)
			if random.IntN(100) == 0 {
				size = random.IntN(200 << 10)
			}
			data := make([]byte, size)
			for i := range data {
				data[i] = byte(offset + uint64(i))
			}
			stream.frames <- berth.Frame{Type: berth.FrameOutput, Body: berth.AppendOutput(nil, offset, uint32(size), data)}
			offset += uint64(size)
		}
	}()
	next := uint64(0)
	for i := range count {
		f, err := conn.Read()
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		offset, covers, data, err := berth.ParseOutput(f.Body)
		if err != nil || offset != next || int(covers) != len(data) {
			t.Fatalf("frame %d at %d, want %d: %v", i, offset, next, err)
		}
		for j, b := range data {
			if b != byte(offset+uint64(j)) {
				t.Fatalf("frame %d is damaged at byte %d", i, j)
			}
		}
		next += uint64(covers)
	}
}

// FuzzViewerBytes throws bytes behind a handshake: nothing that a viewer sends
// may do more than end its own connection.
func FuzzViewerBytes(f *testing.F) {
	for _, seed := range []string{"", "\x82\x81\x00\x00\x00\x00I", "\x81\x85\x01\x02\x03\x04hello", "\x88\x80\x00\x00\x00\x00", "\x82\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00", "\x89\x80\x00\x00\x00\x00\x0a"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		h := newHouse(t, nil)
		stream := newFakeStream()
		h.streams <- stream
		conn, err := net.Dial("unix", h.socket)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, "GET /v1/sessions/a/attach HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
		_, _ = conn.Write(data)
		_ = conn.Close()
		select {
		case <-stream.closed:
		case <-time.After(time.Minute):
			t.Fatal("the stream is still open")
		}
		for len(stream.got) > 0 {
			if frame := <-stream.got; !fromViewer(frame.Type) {
				t.Fatalf("the guest got a frame %q", byte(frame.Type))
			}
		}
		if _, err := h.client(t).Version(within(t, 5*time.Second)); err != nil {
			t.Fatal(err)
		}
	})
}

// BenchmarkEcho is one key from the viewer to the guest and back through
// WebSocket and unix socket: the daemon's part of an echo.
func BenchmarkEcho(b *testing.B) {
	h := newHouse(b, nil)
	stream := newFakeStream()
	h.streams <- stream
	conn, err := h.client(b).Attach(context.Background(), "a", berth.AttachRequest{})
	if err != nil {
		b.Fatal(err)
	}
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			var f berth.Frame
			select {
			case f = <-stream.got:
			case <-stop:
				return
			}
			stream.frames <- berth.Frame{Type: berth.FrameOutput, Body: berth.AppendOutput(nil, 0, 1, f.Body)}
		}
	}()
	for b.Loop() {
		if err := conn.Input([]byte("k")); err != nil {
			b.Fatal(err)
		}
		if _, err := conn.Read(); err != nil {
			b.Fatal(err)
		}
	}
	_ = conn.Close()
}

// BenchmarkFlood is output to one viewer in the frames of a busy program.
func BenchmarkFlood(b *testing.B) {
	h := newHouse(b, nil)
	stream := newFakeStream()
	h.streams <- stream
	conn, err := h.client(b).Attach(context.Background(), "a", berth.AttachRequest{})
	if err != nil {
		b.Fatal(err)
	}
	const size = 16 << 10
	frame := berth.Frame{Type: berth.FrameOutput, Body: berth.AppendOutput(nil, 0, size, make([]byte, size))}
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case stream.frames <- frame:
			case <-stop:
				return
			}
		}
	}()
	b.SetBytes(size)
	for b.Loop() {
		if f, err := conn.Read(); err != nil || binary.BigEndian.Uint32(f.Body[8:]) != size {
			b.Fatal(err)
		}
	}
	close(stop)
	_ = conn.Close()
}
