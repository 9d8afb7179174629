package guestapi

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"math"
	"testing"
	"testing/iotest"

	"berth"
)

func TestFramesSurviveAStreamInAnyPieces(t *testing.T) {
	frames := []Frame{
		{FrameInput, []byte("ls\r")},
		{FrameOutput, AppendOutput(nil, 1<<40, 7, []byte("\x1b[1mhi"))},
		{FrameRepaint, bytes.Repeat([]byte("x"), 300<<10)}, // larger than the reader's buffer
		{FrameExit, nil},
	}
	var stream []byte
	for _, f := range frames {
		stream = f.AppendStream(stream)
	}
	for name, r := range map[string]io.Reader{
		"at once":  bytes.NewReader(stream),
		"by bytes": iotest.OneByteReader(bytes.NewReader(stream)),
		"halves":   iotest.HalfReader(bytes.NewReader(stream)),
	} {
		fr := NewFrameReader(r)
		for i, want := range frames {
			got, err := fr.Next()
			if err != nil || got.Type != want.Type || !bytes.Equal(got.Body, want.Body) {
				t.Fatalf("%s: frame %d = %c %d bytes, %v; want %c %d bytes", name, i, got.Type, len(got.Body), err, want.Type, len(want.Body))
			}
		}
		if _, err := fr.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: after the last frame: %v, want io.EOF", name, err)
		}
	}
}

func TestACutFrameIsNoCleanEnd(t *testing.T) {
	whole := Frame{FrameInput, []byte("abcdef")}.AppendStream(nil)
	for n := 1; n < len(whole); n++ {
		_, err := NewFrameReader(bytes.NewReader(whole[:n])).Next()
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d of %d bytes: %v, want io.ErrUnexpectedEOF", n, len(whole), err)
		}
	}
}

func TestImpossibleLengthsAreRefused(t *testing.T) {
	for _, n := range []uint32{0, MaxFrame + 1, math.MaxUint32} {
		head := binary.BigEndian.AppendUint32(nil, n)
		fr := NewFrameReader(bytes.NewReader(head))
		if _, err := fr.Next(); !errors.Is(err, berth.CodeInvalidArgument) {
			t.Errorf("length %d: %v, want %v", n, err, berth.CodeInvalidArgument)
		}
	}
	if _, err := ParseMessage(nil); !errors.Is(err, berth.CodeInvalidArgument) {
		t.Errorf("an empty message: %v", err)
	}
}

func TestReadyIsNeverWronglyTrue(t *testing.T) {
	first := Frame{FrameInput, []byte("one")}.AppendStream(nil)
	second := Frame{FrameInput, []byte("two")}.AppendStream(nil)
	for cut := range len(second) {
		fr := NewFrameReader(bytes.NewReader(append(bytes.Clone(first), second[:cut]...)))
		if fr.Ready() {
			t.Fatal("ready before anything was read")
		}
		if _, err := fr.Next(); err != nil {
			t.Fatal(err)
		}
		if fr.Ready() {
			t.Errorf("ready with %d of %d bytes", cut, len(second))
		}
	}
	fr := NewFrameReader(bytes.NewReader(append(bytes.Clone(first), second...)))
	if _, err := fr.Next(); err != nil || !fr.Ready() {
		t.Errorf("a whole second frame is there: ready %v, %v", fr.Ready(), err)
	}
}

func TestSealOutputIsAppendOutput(t *testing.T) {
	data := []byte("hello \x1b[31mred")
	sealed := append(make([]byte, OutputHead), data...)
	SealOutput(sealed, 1<<50+3, 99)
	want := Frame{FrameOutput, AppendOutput(nil, 1<<50+3, 99, data)}.AppendStream(nil)
	if !bytes.Equal(sealed, want) {
		t.Errorf("SealOutput = %x\nAppendStream = %x", sealed, want)
	}
}

func TestReadingFramesAllocatesNothing(t *testing.T) {
	one := Frame{FrameOutput, AppendOutput(nil, 5, 5, []byte("hello"))}.AppendStream(nil)
	fr := NewFrameReader(bytes.NewReader(bytes.Repeat(one, 2000)))
	if _, err := fr.Next(); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(1000, func() {
		if _, err := fr.Next(); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations a frame, want 0", n)
	}
}

func FuzzFrameReader(f *testing.F) {
	f.Add(Frame{FrameInput, []byte("ls\r")}.AppendStream(nil))
	f.Add(Frame{FrameOutput, AppendOutput(nil, 9, 3, []byte("abc"))}.AppendStream(nil))
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 'O'})
	f.Add([]byte{0, 0, 0, 9, 'R', '{', '"', 'c'})
	f.Fuzz(func(t *testing.T, stream []byte) {
		fr := NewFrameReader(bytes.NewReader(stream))
		var again []byte
		for {
			frame, err := fr.Next()
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, berth.CodeInvalidArgument) {
					t.Fatalf("an error that is not documented: %v", err)
				}
				break
			}
			again = frame.AppendStream(again)
			switch frame.Type {
			case FrameResize:
				_ = frame.Decode(&berth.Size{})
			case FrameFocus:
				_ = frame.Decode(&Focus{})
			case FrameSignal:
				_ = frame.Decode(&SignalRequest{})
			}
		}
		if !bytes.HasPrefix(stream, again) {
			t.Fatalf("frames read are not the frames sent: %x of %x", again, stream)
		}
	})
}

func FuzzParseOutput(f *testing.F) {
	f.Add(AppendOutput(nil, 0, 0, nil))
	f.Add(AppendOutput(nil, math.MaxUint64, 1, []byte("x")))
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, body []byte) {
		offset, covers, data, err := ParseOutput(body)
		if err != nil {
			return
		}
		if offset+uint64(covers) < offset {
			t.Fatalf("offset %d and covers %d run over", offset, covers)
		}
		if again := AppendOutput(nil, offset, covers, data); !bytes.Equal(again, body) {
			t.Fatalf("%x became %x", body, again)
		}
	})
}

func FuzzCreateRequest(f *testing.F) {
	f.Add([]byte(`{"id":"s-0123456789abcdef","name":"a","argv":["sh"],"cwd":"/","env":["A=b"],"size":{"cols":80,"rows":24}}`))
	f.Add([]byte(`{"argv":[""],"size":{"cols":-1}}`))
	f.Add([]byte(`{"log_bytes":1e99}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		var r CreateSession
		if json.Unmarshal(body, &r) != nil {
			return
		}
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		var again CreateSession
		if err := json.Unmarshal(data, &again); err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
	})
}
