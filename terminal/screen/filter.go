package screen

import (
	"bytes"
	"strconv"
	"strings"
)

// maxHeld bounds what a filter holds back. A string that is longer is judged by
// how it begins; what then comes of it is passed or dropped as it arrives.
const maxHeld = 64 << 10

// scanner finds where a sequence ends. It knows no meaning.
type scanner struct {
	state  parserState
	first  byte // of a string: [ is CSI, ] OSC, P DCS, X ^ _ the others
	c2     bool
	began8 bool // by an 8-bit control: two bytes, as ESC [ is
}

type scanned uint8

const (
	scanMore    scanned = iota
	scanEnd             // the sequence is whole with this byte
	scanVoid            // it is void with this byte
	scanBefore          // it was whole before this byte, which is an ESC's follower: the ESC begins a new one
	scanRestart         // it is void, and this byte, an ESC, begins a new one
	scanAbort           // it is void, and this byte is not part of it
)

// begin starts at an ESC.
func (c *scanner) begin() { *c = scanner{state: inEscape} }

// begin8 starts at an encoded 8-bit control; false = it begins nothing.
func (c *scanner) begin8(b rune) bool {
	switch b {
	case 0x9b:
		*c = scanner{state: inCSI, first: '['}
	case 0x9d:
		*c = scanner{state: inOSC, first: ']'}
	case 0x90:
		*c = scanner{state: inString, first: 'P'}
	case 0x98:
		*c = scanner{state: inString, first: 'X'}
	case 0x9e:
		*c = scanner{state: inString, first: '^'}
	case 0x9f:
		*c = scanner{state: inString, first: '_'}
	default:
		return false
	}
	c.began8 = true
	return true
}

// next takes one byte of a sequence.
func (c *scanner) next(b byte) scanned {
	switch c.state {
	case inOSC, inString:
		return c.nextString(b)
	case inStringStop:
		if b == '\\' {
			return scanEnd
		}
		return scanBefore
	}
	switch {
	case b >= 0x80:
		return scanAbort
	case b == 0x18 || b == 0x1a:
		return scanVoid
	case b == 0x1b:
		return scanRestart
	case b < 0x20 || b == 0x7f:
		return scanMore
	}
	switch c.state {
	case inEscape:
		switch {
		case b < 0x30:
			c.state = inEscapeIntermediate
		case b == '[':
			c.state, c.first = inCSI, b
		case b == ']':
			c.state, c.first = inOSC, b
		case b == 'P' || b == 'X' || b == '^' || b == '_':
			c.state, c.first = inString, b
		default:
			return scanEnd
		}
	case inEscapeIntermediate:
		if b >= 0x30 {
			return scanEnd
		}
	default:
		if b >= 0x40 {
			return scanEnd
		}
	}
	return scanMore
}

func (c *scanner) nextString(b byte) scanned {
	if b == 0x9c && c.c2 {
		return scanEnd
	}
	c.c2 = b == 0xc2
	switch {
	case b == 0x1b:
		c.state = inStringStop
	case b == 0x18 || b == 0x1a:
		return scanVoid
	case b == 0x07 && c.state == inOSC:
		return scanEnd
	}
	return scanMore
}

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
			n = f.start8(r, n, p[i:])
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
func (f *Filter) start8(r rune, n int, p []byte) int {
	switch {
	case n == 0:
		f.scan = scanner{}
		f.hold(p)
		return len(p)
	case f.scan.begin8(r):
		f.hold(p[:n])
	}
	// The others are given on as what they stand for by nobody: a viewer would
	// take them in its own way, U+009A as a query.
	return n
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
			// A string that is passed must not stay open when what follows is
			// dropped.
			dst = f.end(dst)
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
		dst = append(dst, f.held...)
	}
	f.held = f.held[:0]
	return dst
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
		f.start8(r, size, buf[:size])
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

type verdict uint8

const (
	pass verdict = iota
	drop
	replace
)

// body gives the sequence without its introducer.
func body(seq []byte) (first byte, rest []byte) {
	if len(seq) < 2 {
		return 0, nil
	}
	if seq[0] == 0x1b {
		i := 1
		for i < len(seq)-1 && (seq[i] < 0x20 || seq[i] == 0x7f) { // controls between
			i++
		}
		return seq[i], seq[i+1:]
	}
	switch seq[1] {
	case 0x9b:
		return '[', seq[2:]
	case 0x9d:
		return ']', seq[2:]
	case 0x90:
		return 'P', seq[2:]
	case 0x9f:
		return '_', seq[2:]
	}
	return 'X', seq[2:]
}

// trimST takes the end off a string.
func trimST(data []byte) []byte {
	for _, end := range []string{"\x1b\\", "\xc2\x9c", "\a", "\x1b"} {
		if rest, ok := bytes.CutSuffix(data, []byte(end)); ok {
			return rest
		}
	}
	return data
}

// judge appends what of a whole sequence goes on.
func (f *Filter) judge(dst, seq []byte) []byte {
	first, rest := body(seq)
	v, with := pass, ""
	text := false
	switch first {
	case '[':
		v, with = f.verdictCSI(rest)
	case ']':
		v, text = f.verdictOSC(trimST(rest)), true
	case 'P':
		v, text = verdictDCS(trimST(rest)), true
	case '_':
		v, text = verdictAPC(trimST(rest)), true
	case 'X', '^':
		text = true
	case 'Z', '%': // a query; another encoding
		v = drop
	}
	switch v {
	case pass:
		return append(dst, seq...)
	case replace:
		dst = append(dst, with...)
	}
	if !text {
		dst = f.controls(dst, seq)
	}
	return dst
}

// verdictLong judges a sequence that is over the bound by its beginning.
func (f *Filter) verdictLong() verdict {
	first, rest := body(f.held)
	switch first {
	case ']':
		number, _, _ := bytes.Cut(rest, []byte{';'})
		switch n, err := strconv.Atoi(string(number)); {
		case err != nil, asks(n), n == 7501:
			return drop
		}
		return f.verdictOSC(rest)
	case 'P':
		return verdictDCS(rest)
	case '_':
		return verdictAPC(rest)
	case 'X', '^':
		return pass
	}
	return drop
}

// verdictCSI judges a control sequence from its parameters on. With replace,
// with is what goes on instead.
func (f *Filter) verdictCSI(seq []byte) (v verdict, with string) {
	var plain [256]byte
	text := plain[:0]
	for _, c := range seq {
		if c >= 0x20 && c != 0x7f {
			text = append(text, c)
		}
	}
	if len(text) == 0 {
		return pass, ""
	}
	final := text[len(text)-1]
	text = text[:len(text)-1]
	prefix := byte(0)
	if len(text) > 0 && text[0] >= '<' && text[0] <= '?' {
		prefix, text = text[0], text[1:]
	}
	inter := byte(0)
	if n := len(text); n > 0 && text[n-1] < 0x30 {
		inter, text = text[n-1], text[:n-1]
	}
	if inter != 0 {
		return verdictIntermediate(inter, final), ""
	}
	switch final {
	case 'c', 'x', 'i':
		return drop, ""
	case 'n':
		if prefix != '>' {
			return drop, ""
		}
	case 'q':
		if prefix == '>' {
			return drop, ""
		}
	case 'u', 'm', 'S':
		if prefix == '?' {
			return drop, ""
		}
	case 't':
		number, _, _ := bytes.Cut(text, []byte{';'})
		if op := strings.TrimLeft(string(number), "0"); op != "22" && op != "23" {
			return drop, ""
		}
	case 'h', 'l':
		if prefix == '?' {
			return verdictModes(string(text), final)
		}
	}
	return pass, ""
}

// verdictIntermediate judges a control sequence by intermediate and final byte.
func verdictIntermediate(inter, final byte) verdict {
	switch string([]byte{inter, final}) {
	case "$p", // DECRQM
		"$w", "$u", "&u", "*y", "\"v", // reports of state, checksums, contents
		"'|", "'z", "'w", // locator
		"#R", "#|", "+r": // colours and attributes; the keyboard's type
		return drop
	}
	return pass
}

// notFollowed are the private modes that the model does not follow and that
// would change a viewer's screen or send reports.
var notFollowed = map[string]bool{"3": true, "40": true, "69": true, "1001": true, "2048": true}

func verdictModes(text string, final byte) (verdict, string) {
	found := false
	var keep []string
	for n := range strings.SplitSeq(text, ";") {
		if notFollowed[strings.TrimLeft(n, "0")] {
			found = true
		} else {
			keep = append(keep, n)
		}
	}
	switch {
	case !found:
		return pass, ""
	case len(keep) == 0:
		return drop, ""
	}
	return replace, "\x1b[?" + strings.Join(keep, ";") + string(final)
}

// asks reports whether OSC n has a form that asks for something.
func asks(n int) bool {
	return n == 4 || n == 5 || n >= 10 && n <= 19 || n == 21 || n == 22 || n == 50 || n == 60 || n == 61 || n == 5522
}

func (f *Filter) verdictOSC(data []byte) verdict {
	number, rest, _ := bytes.Cut(data, []byte{';'})
	n, err := strconv.Atoi(string(number))
	switch {
	case err != nil:
		return pass
	case n == 7501:
		return drop
	case asks(n):
		for part := range bytes.SplitSeq(rest, []byte{';'}) {
			if len(part) > 0 && part[len(part)-1] == '?' || n == 22 && part[0] == '?' || n >= 60 && n < 70 {
				return drop
			}
		}
	case n == 52:
		if _, what, _ := bytes.Cut(rest, []byte{';'}); f.replay || bytes.Equal(what, []byte{'?'}) {
			return drop
		}
	case n == 99 && bytes.Contains(rest, []byte("p=?")):
		return drop
	case n == 9, n == 99, n == 777:
		if f.replay {
			return drop
		}
	case n == 1337:
		for _, ask := range []string{"Report", "Capabilities", "RequestUpload"} {
			if bytes.HasPrefix(rest, []byte(ask)) {
				return drop
			}
		}
		if f.replay {
			return drop
		}
	}
	return pass
}

// verdictDCS drops DECRQSS, XTGETTCAP and what is wrapped for tmux, where a
// query could hide.
func verdictDCS(data []byte) verdict {
	head := bytes.TrimLeft(data, "0123456789;<=>?")
	for _, ask := range []string{"$q", "+q", "tmux;"} {
		if bytes.HasPrefix(head, []byte(ask)) {
			return drop
		}
	}
	return pass
}

// verdictAPC drops queries of the kitty graphics protocol.
func verdictAPC(data []byte) verdict {
	keys, _, _ := bytes.Cut(data, []byte{';'})
	if len(keys) > 0 && keys[0] == 'G' {
		for key := range bytes.SplitSeq(keys[1:], []byte{','}) {
			if string(key) == "a=q" {
				return drop
			}
		}
	}
	return pass
}
