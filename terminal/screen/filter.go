package screen

import (
	"bytes"
)

// maxHeld bounds what a filter holds back. A string that is longer is judged by
// how it begins; what then comes of it is passed or dropped as it arrives.
const maxHeld = 64 << 10

// Filter takes out of a program's output what a viewer's terminal must not get:
// queries, which the model answers; OSC 7501, which is the guest's; window
// operations, printing and the few modes that would make a viewer's screen
// another than the model's (132 columns, left and right margins, size reports).
type Filter struct {
	replay bool
	held   []byte
	scan   scanner
	inside bool // of a sequence, or of a character when scan is in ground state
	stream int8 // of a string over its bound: 1 = passed, -1 = dropped
}

// NewFilter makes a filter that stands between two sequences. A live filter
// removes queries (the guest answers them). A replay filter also removes side
// effects: bells, notifications, clipboard writes.
func NewFilter(replay bool) *Filter { return &Filter{replay: replay} }

// Pending is how many bytes are held back.
func (f *Filter) Pending() int { return len(f.held) }

// Append appends to dst what may go on of p, and says how many bytes of the
// output so far that completes: a sequence or character that is not complete is
// held back and counted when it is. covers sums up to what was fed, less Pending.
// A string longer than 64 KiB is passed or dropped from there on as it comes.
func (f *Filter) Append(dst, p []byte) (out []byte, covers int) {
	before := len(f.held) + len(p)
	from := 0 // p[from:i] goes on unchanged
	for i := 0; i < len(p); {
		if f.inside || f.stream != 0 {
			dst = append(dst, p[from:i]...)
			var n int
			dst, n = f.resume(dst, p[i:])
			i += n
			from = i
			continue
		}
		i += run(p[i:])
		if i == len(p) {
			break
		}
		switch c := p[i]; {
		case c == 0x1b:
			n, verdict := f.whole(p[i:])
			switch {
			case n == 0:
				dst = append(dst, p[from:i]...)
				f.scan.begin()
				f.hold(p[i : i+1])
				i++
				from = i
			case verdict:
				i += n
			default:
				dst = append(dst, p[from:i]...)
				dst = f.judge(dst, p[i:i+n])
				i += n
				from = i
			}
		case c == 0x05, c == 0x07 && f.replay:
			dst = append(dst, p[from:i]...)
			i++
			from = i
		case c < 0x80:
			i++
		default:
			r, n := decodeRune(p[i:])
			if n > 0 && (r < 0x80 || r >= 0xa0) {
				i += n
				break
			}
			dst = append(dst, p[from:i]...)
			dst, n = f.start8(dst, r, n, p[i:])
			i += n
			from = i
		}
	}
	if from < len(p) {
		dst = append(dst, p[from:]...)
	}
	return dst, before - len(f.held)
}

func (f *Filter) hold(p []byte) {
	f.inside = true
	f.held = append(f.held, p...)
}

// start8 handles an incomplete character (n = 0) or an encoded 8-bit control.
// The model takes the latter for what it is; viewers do not agree, so that it
// goes on as its 7-bit twin.
func (f *Filter) start8(dst []byte, r rune, n int, p []byte) ([]byte, int) {
	switch {
	case n == 0:
		f.scan = scanner{}
		f.hold(p)
		return dst, len(p)
	case f.scan.begin8(r):
		f.hold(p[:n])
	case r == 0x84 || r == 0x85 || r == 0x88 || r == 0x8d || r == 0x8e || r == 0x8f:
		dst = append(dst, 0x1b, byte(r-0x40))
	}
	return dst, n
}

// whole looks for a control sequence that is whole in p. n = 0: it is not, or it
// is no plain control sequence. pass: it goes on.
func (f *Filter) whole(p []byte) (n int, pass bool) {
	if len(p) < 3 || p[1] != '[' {
		return 0, false
	}
	for i := 2; i < len(p); i++ {
		c := p[i]
		if c >= 0x40 && c < 0x7f {
			if c == 'm' && p[2] != '?' {
				return i + 1, true
			}
			return i + 1, f.passes(p[:i+1])
		}
		if c < 0x20 || c >= 0x7f {
			return 0, false
		}
	}
	return 0, false
}

func (f *Filter) passes(seq []byte) bool {
	verdict, _ := f.verdictCSI(seq[2:])
	return verdict == pass
}

// resume goes on in a sequence or character and says how much of p it took.
func (f *Filter) resume(dst, p []byte) ([]byte, int) {
	if f.stream == 0 && f.scan.state == inGround {
		return f.resumeRune(dst, p)
	}
	for i, c := range p {
		result := f.scan.next(c)
		if result == scanMore {
			dst = f.more(dst, c)
			continue
		}
		switch result {
		case scanEnd:
			dst = f.more(dst, c)
			dst = f.end(dst)
		case scanVoid:
			dst = f.void(dst)
		case scanRestart:
			dst = f.void(dst)
			f.scan.begin()
			f.hold(p[i : i+1])
		case scanAbort:
			return f.void(dst), i
		case scanBefore:
			if n := len(f.held); n > 0 {
				f.held = f.held[:n-1]
			}
			// A string that is passed gets an end of its own: it must not stay open
			// in the viewer when what the ESC begins is dropped.
			was, stream := len(dst), f.stream
			if dst = f.end(dst); len(dst) > was || stream > 0 {
				dst = append(dst, 0x1b, '\\')
			}
			f.scan.begin()
			f.hold([]byte{0x1b})
			return dst, i // c comes again, after the ESC
		}
		return dst, i + 1
	}
	return dst, len(p)
}

// more takes a byte of a sequence that goes on.
func (f *Filter) more(dst []byte, c byte) []byte {
	switch {
	case f.stream > 0:
		return append(dst, c)
	case f.stream < 0:
		return dst
	}
	f.held = append(f.held, c)
	if len(f.held) < maxHeld || f.scan.state == inStringStop {
		return dst
	}
	f.stream = -1
	if f.verdictLong() == pass {
		f.stream = 1
		dst = append7(dst, f.held)
	}
	f.held = f.held[:0]
	return dst
}

// append7 appends a sequence with its 7-bit introducer and end.
func append7(dst, seq []byte) []byte {
	if len(seq) < 2 || seq[0] == 0x1b && !bytes.HasSuffix(seq, []byte("\xc2\x9c")) {
		return append(dst, seq...)
	}
	first, rest := body(seq)
	if seq[0] != 0x1b {
		first = seq[1] - 0x40
	}
	dst = append(dst, 0x1b, first)
	if text, ok := bytes.CutSuffix(rest, []byte("\xc2\x9c")); ok && first != '[' {
		return append(append(dst, text...), 0x1b, '\\')
	}
	return append(dst, rest...)
}

// end judges the whole sequence that is held.
func (f *Filter) end(dst []byte) []byte {
	if f.stream == 0 {
		dst = f.judge(dst, f.held)
	}
	f.idle()
	return dst
}

// void drops a sequence that came to nothing; the controls inside were real.
func (f *Filter) void(dst []byte) []byte {
	if f.stream > 0 {
		dst = append(dst, 0x18) // so that the viewer's is void, too
	} else if f.scan.state != inOSC && f.scan.state != inString {
		dst = f.controls(dst, f.held)
	}
	f.idle()
	return dst
}

func (f *Filter) idle() {
	f.inside, f.stream = false, 0
	f.scan = scanner{}
	if f.held = f.held[:0]; cap(f.held) > 4096 {
		f.held = nil
	}
}

func (f *Filter) resumeRune(dst, p []byte) ([]byte, int) {
	had := len(f.held)
	var buf [4]byte
	copy(buf[:], f.held)
	n := had + copy(buf[had:], p)
	r, size := decodeRune(buf[:n])
	if size == 0 {
		f.held = append(f.held, p[:n-had]...)
		return dst, n - had
	}
	f.idle()
	if r >= 0x80 && r < 0xa0 {
		dst, _ = f.start8(dst, r, size, buf[:size])
	} else {
		dst = append(dst, buf[:max(size, had)]...)
	}
	return dst, max(size-had, 0)
}

// controls appends the C0 controls inside a sequence that is dropped.
func (f *Filter) controls(dst, seq []byte) []byte {
	for _, c := range seq {
		if c < 0x20 && c != 0x1b && c != 0x18 && c != 0x1a && c != 0x05 && (c != 0x07 || !f.replay) {
			dst = append(dst, c)
		}
	}
	return dst
}
