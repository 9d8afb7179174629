package screen

import "berth"

// Transcript turns a program's output into plain lines of text, as somebody who
// had watched the main screen would have read them: a line is given out when it
// scrolls off the top, or when the whole screen is cleared; rows that wrapped are
// one line. What is on the alternate screen is not given out. Memory is that of
// one screen and one line of at most 1 MiB, whatever the length of the output.
type Transcript struct {
	s    *Screen
	out  []byte
	line []byte // rows so far of a line that goes on
}

// maxTranscriptLine is where a line that never ends is cut.
const maxTranscriptLine = 1 << 20

// NewTranscript makes one for output that was written at the given size.
func NewTranscript(size berth.Size) *Transcript {
	t := &Transcript{s: New(size, Options{})}
	t.s.onScroll = t.row
	t.s.onClear = t.flush
	return t
}

// Append replays p and appends the lines that are complete by it, each with a
// newline.
func (t *Transcript) Append(dst, p []byte) []byte {
	t.out = dst
	t.s.Feed(p)
	t.s.replies = nil // nobody asks for them
	dst, t.out = t.out, nil
	return dst
}

// Resize is where the size changed in the output.
func (t *Transcript) Resize(dst []byte, size berth.Size) []byte {
	t.out = dst
	t.s.Resize(size)
	dst, t.out = t.out, nil
	return dst
}

// Finish appends what is left: the lines on the main screen, without the blank
// ones at its end.
func (t *Transcript) Finish(dst []byte) []byte {
	t.out = dst
	t.flush()
	dst, t.out = t.out, nil
	return dst
}

func (t *Transcript) row(l *line) {
	if l.wrapped && len(t.line) < maxTranscriptLine {
		// A row that wrapped was written to its end: blanks there are text.
		for x := range t.s.cols {
			t.line = t.s.appendGlyph(t.line, l.at(x).ch)
		}
		return
	}
	t.line = t.s.appendText(t.line, l)
	t.end()
}

func (t *Transcript) end() {
	t.out = append(t.out, t.line...)
	t.out = append(t.out, '\n')
	if t.line = t.line[:0]; cap(t.line) > 64<<10 {
		t.line = nil
	}
}

// flush gives out the rows of the main screen.
func (t *Transcript) flush() {
	n := t.s.rows
	for n > 0 && t.s.main.line(n-1).visible() == 0 {
		n--
	}
	for y := range n {
		t.row(t.s.main.line(y))
	}
	if len(t.line) > 0 {
		t.end()
	}
}
