package screen

import (
	"bytes"
	"strconv"
)

// InputFilter takes replies of a viewer's own terminal out of its input, so
// that an answer nobody waits for is never typed into the program.
//
// Taken out: device attributes, device status and cursor reports, mode and
// keyboard-flag reports, size reports (CSI … t), and every OSC, DCS and APC
// string: no key sends one. Kept: keys, mouse and focus reports, the report of a
// changed colour scheme, and everything inside a bracketed paste. A cursor
// report of row 1 and a column up to 16 looks like F3 with modifiers
// (CSI 1;2R) and is kept: a lost key is worse, and viewers get no query.
type InputFilter struct {
	scan    scanner
	held    []byte
	inside  bool
	escSent bool // the ESC of what is held, or may come, went on already
	paste   bool
	match   int // how much of the end of a paste was seen
	swallow int // bytes that may still be dropped of a long reply; 0 = none
}

const (
	// maxReplyHeld is how much is held back while it is not known whether it is a reply.
	maxReplyHeld = 256
	// maxSwallow is how much of a reply is dropped at most: a reply that never
	// ends must not take the keyboard away.
	maxSwallow = 64 << 10
	pasteEnd   = "\x1b[201~"
)

// NewInputFilter makes one for one viewer.
func NewInputFilter() *InputFilter { return &InputFilter{} }

// Pending is how many bytes are held back, at most 256. When it is not 0 and
// nothing has come for about 50 ms, call Flush.
func (f *InputFilter) Pending() int { return len(f.held) }

// Flush appends what is held back: nothing more came, so it was keys. It also
// forgets a lone ESC that went on and a reply that was cut short.
func (f *InputFilter) Flush(dst []byte) []byte {
	dst = append(dst, f.held...)
	f.rest()
	return dst
}

func (f *InputFilter) rest() {
	f.held = f.held[:0]
	f.inside, f.escSent, f.swallow = false, false, 0
	f.scan = scanner{}
}

// Append appends to dst what is really input. A lone ESC at the end of p is
// input at once: a key is never held back for a sequence that may follow. The
// start of a possible reply is held back, see Pending.
func (f *InputFilter) Append(dst, p []byte) []byte {
	for i := 0; i < len(p); {
		switch {
		case f.paste:
			n := f.skipPaste(p[i:])
			dst = append(dst, p[i:i+n]...)
			i += n
		case f.swallow > 0:
			i += f.drop(p[i:])
		case f.inside:
			var n int
			dst, n = f.resume(dst, p[i:])
			i += n
		default:
			n := bytes.IndexByte(p[i:], 0x1b)
			if n < 0 {
				return append(dst, p[i:]...)
			}
			dst = append(dst, p[i:i+n]...)
			i += n + 1
			f.scan.begin()
			f.inside = true
			if i == len(p) {
				f.escSent = true
				return append(dst, 0x1b)
			}
			f.held = append(f.held, 0x1b)
		}
	}
	return dst
}

// skipPaste gives how much of p still belongs to the paste, its end included.
func (f *InputFilter) skipPaste(p []byte) int {
	for i, c := range p {
		switch c {
		case pasteEnd[f.match]:
			f.match++
		case 0x1b:
			f.match = 1
		default:
			f.match = 0
		}
		if f.match == len(pasteEnd) {
			f.paste, f.match = false, 0
			return i + 1
		}
	}
	return len(p)
}

// drop passes over the rest of a long reply.
func (f *InputFilter) drop(p []byte) int {
	for i, c := range p {
		f.swallow--
		if f.scan.next(c) != scanMore || f.swallow == 0 {
			f.rest()
			return i + 1
		}
	}
	return len(p)
}

// resume goes on with what may be a reply.
func (f *InputFilter) resume(dst, p []byte) ([]byte, int) {
	for i, c := range p {
		before := f.scan.state
		result := f.scan.next(c)
		if result == scanMore && (c < 0x20 || c == 0x7f) && before != inOSC && before != inString {
			result = scanAbort // a key in the middle: what is held was keys, too
		}
		if before == inEscape && (f.scan.state == inEscapeIntermediate || result == scanVoid) {
			result = scanEnd // Alt and a key
		}
		switch result {
		case scanMore:
			f.held = append(f.held, c)
			if len(f.held) < maxReplyHeld {
				continue
			}
			if f.isString() && f.looksLikeReply() {
				f.held, f.swallow = f.held[:0], maxSwallow
				return dst, i + 1
			}
			return f.Flush(dst), i + 1
		case scanEnd:
			f.held = append(f.held, c)
			return f.judge(dst), i + 1
		case scanVoid, scanAbort:
			return f.Flush(dst), i // c is a key of its own
		case scanRestart:
			dst = f.Flush(dst)
			return dst, i // the ESC begins anew
		case scanBefore: // ESC and another key ended the string
			f.held = f.held[:len(f.held)-1]
			dst = f.judge(dst)
			f.scan.begin()
			f.inside = true
			f.held = append(f.held, 0x1b)
			return dst, i
		}
	}
	return dst, len(p)
}

func (f *InputFilter) isString() bool { return f.scan.first != 0 && f.scan.first != '[' }

// looksLikeReply reports whether a long string begins as a reply does, not as
// Alt with a key and then text.
func (f *InputFilter) looksLikeReply() bool {
	rest := f.held
	if len(rest) > 0 && rest[0] == 0x1b {
		rest = rest[1:]
	}
	if len(rest) < 3 {
		return false
	}
	switch f.scan.first {
	case ']':
		return rest[1] >= '0' && rest[1] <= '9'
	case 'P':
		return bytes.IndexByte([]byte("01>!"), rest[1]) >= 0
	}
	return f.scan.first == '_' && rest[1] == 'G'
}

// judge passes or drops the whole sequence that is held.
func (f *InputFilter) judge(dst []byte) []byte {
	reply := f.isString()
	if f.scan.first == '[' {
		seq := f.held
		if seq[0] == 0x1b {
			seq = seq[1:]
		}
		reply = isReplyCSI(seq[1:])
		if string(seq) == "[200~" {
			f.paste, f.match = true, 0
		}
	}
	if !reply {
		dst = append(dst, f.held...)
	}
	f.rest()
	return dst
}

// isReplyCSI reports whether a control sequence, from its parameters on, is the
// answer to a query and cannot be a key.
func isReplyCSI(seq []byte) bool {
	final, text := seq[len(seq)-1], seq[:len(seq)-1]
	prefix := byte(0)
	if len(text) > 0 && text[0] >= '<' && text[0] <= '?' {
		prefix, text = text[0], text[1:]
	}
	first, second, two := bytes.Cut(text, []byte{';'})
	switch final {
	case 'c':
		return prefix != 0 && prefix != '<' // bare, it is Shift-Right of rxvt
	case 'y':
		return len(text) > 0 && text[len(text)-1] == '$'
	case 'n':
		return prefix == '?' && string(first) != "997" || prefix == 0 && (string(text) == "0" || string(text) == "3")
	case 'u', 'S':
		return prefix == '?'
	case 'm':
		return prefix == '>'
	case 't', 'x':
		return prefix == 0 && len(text) > 0
	case 'R':
		if prefix == '?' {
			return true
		}
		row, err1 := strconv.Atoi(string(first))
		col, err2 := strconv.Atoi(string(second))
		return prefix == 0 && two && err1 == nil && err2 == nil && (row != 1 || col > 16)
	}
	return false
}
