package berth_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"testing"
	"testing/iotest"

	"berth"
)

func TestFramesSurviveAStreamInAnyPieces(t *testing.T) {
	frames := []berth.Frame{
		{Type: berth.FrameInput, Body: []byte("ls\r")},
		{Type: berth.FrameOutput, Body: berth.AppendOutput(nil, 1<<40, 7, []byte("\x1b[1mhi"))},
		{Type: berth.FrameRepaint, Body: bytes.Repeat([]byte("x"), 300<<10)}, // larger than the reader's buffer
		{Type: berth.FrameExit, Body: nil},
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
		fr := berth.NewFrameReader(r)
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
	whole := berth.Frame{Type: berth.FrameInput, Body: []byte("abcdef")}.AppendStream(nil)
	for n := 1; n < len(whole); n++ {
		_, err := berth.NewFrameReader(bytes.NewReader(whole[:n])).Next()
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d of %d bytes: %v, want io.ErrUnexpectedEOF", n, len(whole), err)
		}
	}
}

func TestImpossibleLengthsAreRefused(t *testing.T) {
	for _, n := range []uint32{0, berth.MaxFrame + 1, math.MaxUint32} {
		head := binary.BigEndian.AppendUint32(nil, n)
		fr := berth.NewFrameReader(bytes.NewReader(head))
		if _, err := fr.Next(); !errors.Is(err, berth.CodeInvalidArgument) {
			t.Errorf("length %d: %v, want %v", n, err, berth.CodeInvalidArgument)
		}
	}
	if _, err := berth.ParseFrame(nil); !errors.Is(err, berth.CodeInvalidArgument) {
		t.Errorf("an empty message: %v", err)
	}
}

func TestReadyIsNeverWronglyTrue(t *testing.T) {
	first := berth.Frame{Type: berth.FrameInput, Body: []byte("one")}.AppendStream(nil)
	second := berth.Frame{Type: berth.FrameInput, Body: []byte("two")}.AppendStream(nil)
	for cut := range len(second) {
		fr := berth.NewFrameReader(bytes.NewReader(append(bytes.Clone(first), second[:cut]...)))
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
	fr := berth.NewFrameReader(bytes.NewReader(append(bytes.Clone(first), second...)))
	if _, err := fr.Next(); err != nil || !fr.Ready() {
		t.Errorf("a whole second frame is there: ready %v, %v", fr.Ready(), err)
	}
}

func TestSealOutputIsAppendOutput(t *testing.T) {
	data := []byte("hello \x1b[31mred")
	sealed := append(make([]byte, berth.OutputHead), data...)
	berth.SealOutput(sealed, 1<<50+3, 99)
	want := berth.Frame{Type: berth.FrameOutput, Body: berth.AppendOutput(nil, 1<<50+3, 99, data)}.AppendStream(nil)
	if !bytes.Equal(sealed, want) {
		t.Errorf("SealOutput = %x\nAppendStream = %x", sealed, want)
	}
}

func TestReadingFramesAllocatesNothing(t *testing.T) {
	one := berth.Frame{Type: berth.FrameOutput, Body: berth.AppendOutput(nil, 5, 5, []byte("hello"))}.AppendStream(nil)
	fr := berth.NewFrameReader(bytes.NewReader(bytes.Repeat(one, 2000)))
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
	f.Add(berth.Frame{Type: berth.FrameInput, Body: []byte("ls\r")}.AppendStream(nil))
	f.Add(berth.Frame{Type: berth.FrameOutput, Body: berth.AppendOutput(nil, 9, 3, []byte("abc"))}.AppendStream(nil))
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 'O'})
	f.Add([]byte{0, 0, 0, 9, 'R', '{', '"', 'c'})
	f.Fuzz(func(t *testing.T, stream []byte) {
		fr := berth.NewFrameReader(bytes.NewReader(stream))
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
			case berth.FrameResize:
				_ = frame.Decode(&berth.Size{})
			case berth.FrameFocus:
				_ = frame.Decode(&berth.ViewerFocus{})
			case berth.FrameSignal:
				_ = frame.Decode(&berth.SignalRequest{})
			}
		}
		if !bytes.HasPrefix(stream, again) {
			t.Fatalf("frames read are not the frames sent: %x of %x", again, stream)
		}
	})
}

func FuzzParseOutput(f *testing.F) {
	f.Add(berth.AppendOutput(nil, 0, 0, nil))
	f.Add(berth.AppendOutput(nil, math.MaxUint64, 1, []byte("x")))
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, body []byte) {
		offset, covers, data, err := berth.ParseOutput(body)
		if err != nil {
			return
		}
		if offset+uint64(covers) < offset {
			t.Fatalf("offset %d and covers %d run over", offset, covers)
		}
		if again := berth.AppendOutput(nil, offset, covers, data); !bytes.Equal(again, body) {
			t.Fatalf("%x became %x", body, again)
		}
	})
}

func TestProblemDocumentGivesTheErrorBack(t *testing.T) {
	in := berth.Errorf(berth.CodeNameTaken, "taken: %w", io.ErrClosedPipe).WithFact("holder", "x")
	doc := berth.NewProblem(in)
	if doc.Status != 409 || doc.Hint == "" || doc.Title == "" || doc.Type == "" {
		t.Errorf("%+v", doc)
	}
	if out := doc.Err(); !errors.Is(out, berth.CodeNameTaken) || out.Detail != in.Detail || out.Facts["holder"] != "x" || out.Err != nil {
		t.Errorf("%#v", out)
	}
	if out := (berth.ProblemDocument{Title: "t"}).Err(); out.Code != berth.CodeInternal || out.Detail != "t" {
		t.Errorf("%#v", out)
	}
	if doc := berth.NewProblem(io.EOF); doc.Status != 500 || doc.Code != berth.CodeInternal {
		t.Errorf("%+v", doc)
	}
	if doc := berth.NewProblem(berth.Errorf("of_a_newer_peer", "x")); doc.Status != 500 || doc.Code != "of_a_newer_peer" {
		t.Errorf("%+v", doc)
	}
}

// oneByte gives its bytes one at a time, and the last with the end.
type oneByte struct{ data []byte }

func (o *oneByte) Read(p []byte) (int, error) {
	if len(o.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:1], o.data)
	if o.data = o.data[n:]; len(o.data) == 0 {
		return n, io.EOF
	}
	return n, nil
}

func TestReadMessageUsesItsBufferAgain(t *testing.T) {
	var buf []byte
	for _, size := range []int{0, 1, 1023, 1024, 1025, 100_000, 3} {
		want := bytes.Repeat([]byte("x"), size)
		var err error
		if buf, err = berth.ReadMessage(buf[:0], &oneByte{want}); err != nil || !bytes.Equal(buf, want) {
			t.Errorf("a message of %d bytes: %d, %v", size, len(buf), err)
		}
	}
	if got, err := berth.ReadMessage([]byte("ab"), bytes.NewReader([]byte("cd"))); err != nil || string(got) != "abcd" {
		t.Errorf("behind what is there: %q, %v", got, err)
	}
	if _, err := berth.ReadMessage(nil, iotest.ErrReader(io.ErrNoProgress)); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a failure: %v", err)
	}
}
