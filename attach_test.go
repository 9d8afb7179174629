package berth_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"testing"
	"testing/iotest"

	"berth"
)

func TestFramesSurviveAStream(t *testing.T) {
	frames := []berth.Frame{
		{Type: berth.FrameInput, Body: []byte("ls\r")},
		{Type: berth.FrameRepaint, Body: []byte{}},
		{Type: berth.FrameOutput, Body: berth.AppendOutput(nil, math.MaxUint64-1, 7, []byte("\x00\xff"))},
		{Type: berth.FrameOutput, Body: make([]byte, berth.MaxFrame-1)},
	}
	var stream []byte
	for _, f := range frames {
		stream = f.AppendStream(stream)
		if again, err := berth.ParseFrame(f.AppendMessage(nil)); err != nil || again.Type != f.Type || !bytes.Equal(again.Body, f.Body) {
			t.Errorf("message %c: %v", f.Type, err)
		}
	}
	r := berth.NewFrameReader(iotest.HalfReader(bytes.NewReader(stream)))
	for _, want := range frames {
		got, err := r.Next()
		if err != nil || got.Type != want.Type || !bytes.Equal(got.Body, want.Body) {
			t.Fatalf("%c of %d bytes: %v", want.Type, len(want.Body), err)
		}
	}
	if _, err := r.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v", err)
	}
	offset, covers, data, err := berth.ParseOutput(frames[2].Body)
	if err != nil || offset != math.MaxUint64-1 || covers != 7 || string(data) != "\x00\xff" {
		t.Errorf("%d %d %q %v", offset, covers, data, err)
	}
	for cut := 1; cut < 8; cut++ { // the first frame has eight bytes
		r := berth.NewFrameReader(bytes.NewReader(stream[:cut]))
		if _, err := r.Next(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut at %d: %v", cut, err)
		}
	}
}

// FuzzFrameReader reads any bytes: frames within their bound, or an error.
func FuzzFrameReader(f *testing.F) {
	f.Add([]byte{0, 0, 0, 1, 'P'})
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 'O'})
	f.Add(berth.Frame{Type: berth.FrameOutput, Body: berth.AppendOutput(nil, 1, 2, []byte("x"))}.AppendStream(nil))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := berth.NewFrameReader(bytes.NewReader(in))
		var again []byte
		for {
			frame, err := r.Next()
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, berth.CodeInvalidArgument) {
					t.Fatalf("%v", err)
				}
				break
			}
			if len(frame.Body)+1 > berth.MaxFrame {
				t.Fatalf("a frame of %d bytes", len(frame.Body)+1)
			}
			again = frame.AppendStream(again)
			if frame.Type == berth.FrameOutput {
				if _, _, data, err := berth.ParseOutput(frame.Body); err == nil && len(data) != len(frame.Body)-12 {
					t.Fatal("output and body differ")
				}
			}
			var hello berth.AttachHello
			_ = frame.Decode(&hello)
		}
		if !bytes.HasPrefix(in, again) {
			t.Fatal("written again, the frames differ")
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
