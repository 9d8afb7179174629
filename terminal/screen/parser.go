package screen

import (
	"encoding/binary"
	"math/bits"
)

// The parser is the state machine for DEC's ANSI terminals that Paul Williams
// described, over UTF-8: a byte from 0x80 up is part of a character and never a
// control; U+0080 to U+009F, encoded, are the 8-bit controls, as in xterm.
// Inside a string only U+009C (ST) is one.
type parserState uint8

const (
	inGround parserState = iota
	inEscape
	inEscapeIntermediate
	inCSI
	inCSIIgnore
	inOSC
	inDCS        // before the final byte
	inDCSIgnore  // a malformed or unneeded one, up to ST
	inDCSData    // after the final byte
	inString     // SOS, PM, APC: passed over
	inStringStop // ESC within any of the strings
	numStates
)

const (
	maxParams = 32       // xterm.js has 32, xterm 30
	maxOSC    = 12 << 10 // OSC 7501 has 4 KiB, a link 2 KiB; OSC 52 is not kept
	maxDCS    = 4 << 10  // DECRQSS and XTGETTCAP only
	maxC0     = 16       // controls inside one sequence
)

type parser struct {
	state    parserState
	back     parserState // inStringStop: the string's state
	prefix   byte        // one of < = > ? or 0
	inter    byte        // intermediate byte, 0 = none, 0xff = more than one
	nparam   int
	digits   bool   // the parameter at nparam has a digit or separator before it
	colon    uint32 // bit i: parameter i came after a colon
	params   [maxParams]uint16
	buf      []byte // string data
	overflow bool   // the string was longer than its bound
	c2       bool   // the last byte of the string was 0xC2
	bell     bool   // the OSC ended with BEL
	final    byte   // of a DCS
	c0       [maxC0]byte
	nc0      int
	partial  [4]byte // of a character
	npartial int
	pending  int // bytes of what is not complete
}

func (p *parser) begin(st parserState) {
	p.state = st
	p.prefix, p.inter, p.nparam, p.digits, p.colon = 0, 0, 0, false, 0
	p.params[0] = 0
	p.overflow, p.c2, p.bell = false, false, false
	p.buf = p.buf[:0]
}

func (p *parser) ground() {
	p.state, p.pending = inGround, 0
	if p.buf = p.buf[:0]; cap(p.buf) > 1024 { // an idle screen keeps no big buffer
		p.buf = nil
	}
}

// param gives parameter i, or def when it is absent or 0.
func (p *parser) param(i int, def int) int {
	if i >= p.nparam || p.params[i] == 0 {
		return def
	}
	return int(p.params[i])
}

// Classes of bytes in a run of text.
var plain = func() (t [256]bool) {
	for c := 0x20; c < 0x7f; c++ {
		t[c] = true
	}
	return
}()

// run is the length of the printable ASCII at the start of p.
func run(p []byte) int {
	i := 0
	for i+8 <= len(p) {
		// A byte is out when it is below 0x20, 0x7f, or has the top bit.
		w := binary.LittleEndian.Uint64(p[i:])
		const ones, tops = 0x0101010101010101, 0x8080808080808080
		low := (w - 0x20*ones) &^ w                        // top bit: below 0x20 (exact for the lowest such byte)
		del := ((w ^ 0x7f*ones) - ones) &^ (w ^ 0x7f*ones) // top bit: is 0x7f
		if m := (low | del | w) & tops; m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
		i += 8
	}
	for i < len(p) && plain[p[i]] {
		i++
	}
	return i
}

// Feed draws p.
func (s *Screen) Feed(p []byte) { s.feed(p, false) }

// Skim passes over p without drawing: modes, alternate screen, scroll region,
// SGR, charsets, titles, palette, reports and queries are followed exactly;
// cells are not written (except that clearing the whole screen and switching to
// the alternate one clear it). The cursor is exact again after the next
// absolute move or, for plain lines, after a carriage return at the bottom of
// the screen: until then its column can differ where a line wrapped or has wide
// characters, and its row where lines wrapped. Give the tail that is to be seen,
// at least one screenful, to Feed.
func (s *Screen) Skim(p []byte) { s.feed(p, true) }

func (s *Screen) feed(p []byte, skim bool) {
	s.skim = skim
	for len(p) > 0 {
		if s.pending > 0 {
			if s.state != inGround {
				p = s.feedSequence(p)
			} else {
				p = s.feedPartial(p)
			}
			continue
		}
		c := p[0]
		if c == 0x1b {
			if n := s.fastCSI(p); n > 0 {
				p = p[n:]
				continue
			}
			s.begin(inEscape)
			s.pending = 1
			p = p[1:]
			continue
		}
		n := 1
		switch {
		case c >= 0x80:
			n = s.feedRune(p)
		case c >= 0x20 && c < 0x7f:
			n = run(p)
			s.printRun(p[:n])
		case c < 0x20:
			s.control(c)
		}
		p = p[n:]
	}
}

// fastCSI handles "ESC [ digits and ; final" that is whole in p, which is
// nearly every sequence there is. 0 = it is something else.
func (s *Screen) fastCSI(p []byte) int {
	if len(p) < 3 || p[1] != '[' {
		return 0
	}
	n, v := 0, uint32(0)
	for i := 2; i < len(p); i++ {
		c := p[i]
		switch {
		case c-'0' <= 9:
			if v = v*10 + uint32(c-'0'); v > 0xffff {
				v = 0xffff
			}
		case c == ';':
			if n == maxParams-1 {
				return 0
			}
			s.params[n] = uint16(v)
			n++
			v = 0
		case c >= 0x40 && c < 0x7f:
			s.params[n] = uint16(v)
			if i > 2 {
				n++
			}
			s.nparam, s.prefix, s.inter, s.colon = n, 0, 0, 0
			if c == 'm' {
				s.last = 0
				s.sgr()
			} else {
				s.dispatchCSI(c)
			}
			return i + 1
		default:
			return 0
		}
	}
	return 0
}

// feedSequence goes on inside a sequence and gives what of p is left.
func (s *Screen) feedSequence(p []byte) []byte {
	c := p[0]
	if s.state == inDCS && (c < 0x20 || c >= 0x80) {
		s.state = inDCSIgnore // not a request
	}
	switch s.state {
	case inOSC, inDCSData, inDCSIgnore, inString:
		return s.feedString(p)
	}
	if c >= 0x80 {
		// A character ends a sequence that is not complete; the sequence is void.
		if s.state == inStringStop {
			s.endString()
		}
		s.runC0()
		s.ground()
		return p
	}
	s.pending++
	s.step(c)
	return p[1:]
}

// step handles one 7-bit byte inside a sequence that is not string data.
func (s *Screen) step(c byte) {
	switch {
	case s.state == inStringStop:
		s.endString()
		if c == '\\' {
			s.ground()
			return
		}
		s.begin(inEscape) // the ESC began something new
		s.pending = 2
	case c == 0x18 || c == 0x1a:
		s.runC0()
		s.ground()
		return
	case c == 0x1b:
		s.runC0()
		s.begin(inEscape)
		s.pending = 1
		return
	}
	if c < 0x20 {
		s.stashC0(c)
		return
	}
	switch s.state {
	case inEscape, inEscapeIntermediate:
		s.stepEscape(c)
	case inCSI, inCSIIgnore:
		s.stepCSI(c)
	case inDCS:
		s.stepDCS(c)
	}
}

// stashC0 keeps a control inside a sequence until the sequence ends. xterm runs
// it at once, which comes to the same; but so a repaint in the middle and the
// sequence from its start never run it twice.
func (s *Screen) stashC0(c byte) {
	if c == 0x1b || c == 0x18 || c == 0x1a {
		s.step(c)
		return
	}
	if s.nc0 == maxC0 {
		return
	}
	s.c0[s.nc0] = c
	s.nc0++
}

func (s *Screen) runC0() {
	n := s.nc0
	s.nc0 = 0
	for _, c := range s.c0[:n] {
		s.control(c)
	}
}

func (s *Screen) stepEscape(c byte) {
	switch {
	case c == 0x7f:
	case c < 0x30:
		if s.inter == 0 {
			s.inter = c
		} else {
			s.inter = 0xff
		}
		s.state = inEscapeIntermediate
	case s.state == inEscapeIntermediate:
		s.runC0()
		s.ground()
		s.escapeIntermediate(c)
	case c == '[':
		s.state = inCSI
	case c == ']':
		s.begin(inOSC)
	case c == 'P':
		s.begin(inDCS)
	case c == 'X' || c == '^' || c == '_':
		s.begin(inString)
	default:
		s.runC0()
		s.ground()
		s.escape(c)
	}
}

// c1 handles an 8-bit control.
func (s *Screen) c1(c byte) {
	switch c {
	case 0x9b:
		s.begin(inCSI)
	case 0x9d:
		s.begin(inOSC)
	case 0x90:
		s.begin(inDCS)
	case 0x98, 0x9e, 0x9f:
		s.begin(inString)
	default:
		s.escape(c - 0x40)
		return
	}
	s.pending = 2
}

func (s *Screen) stepCSI(c byte) {
	switch {
	case c == 0x7f:
	case c >= 0x40:
		s.runC0()
		ignored := s.state == inCSIIgnore
		s.ground()
		if !ignored {
			if s.digits {
				s.nparam++
			}
			s.dispatchCSI(c)
		}
	case s.state == inCSIIgnore:
	case c < 0x30:
		if s.inter == 0 {
			s.inter = c
		} else {
			s.inter = 0xff
		}
	default:
		s.stepParam(c)
	}
}

// stepParam handles 0x30 to 0x3f.
func (s *Screen) stepParam(c byte) {
	switch {
	case s.inter != 0:
		s.state = inCSIIgnore
	case c >= '<':
		if s.nparam > 0 || s.digits || s.prefix != 0 {
			s.state = inCSIIgnore
		}
		s.prefix = c
	case c == ';' || c == ':':
		if s.nparam == maxParams {
			return
		}
		s.digits = true
		if s.nparam++; s.nparam == maxParams {
			s.digits = false
			return
		}
		s.params[s.nparam] = 0
		if c == ':' {
			s.colon |= 1 << s.nparam
		}
	default:
		if s.nparam == maxParams {
			return
		}
		s.digits = true
		s.params[s.nparam] = uint16(min(uint32(s.params[s.nparam])*10+uint32(c-'0'), 0xffff))
	}
}

func (s *Screen) stepDCS(c byte) {
	switch {
	case c == 0x7f:
	case c >= 0x40:
		s.final = c
		// Only requests are wanted of the data; a picture is passed over.
		if s.prefix == 0 && c == 'q' && (s.inter == '$' || s.inter == '+') {
			s.state = inDCSData
		} else {
			s.state = inDCSIgnore
		}
	case c < 0x30:
		if s.inter == 0 {
			s.inter = c
		} else {
			s.inter = 0xff
		}
	case c >= '<':
		s.prefix = c
	}
}

// feedString takes string data up to its end.
func (s *Screen) feedString(p []byte) []byte {
	for i, c := range p {
		switch {
		case c >= 0x20 && (c != 0x9c || !s.c2):
			s.c2 = c == 0xc2
			continue
		case c == 0x9c:
			s.keep(p[:i])
			if n := len(s.buf); n > 0 && !s.overflow {
				s.buf = s.buf[:n-1] // the 0xC2
			}
			s.endString()
			s.ground()
		case c == 0x1b:
			s.keep(p[:i])
			s.back, s.state = s.state, inStringStop
			s.pending += i + 1
		case c == 0x18 || c == 0x1a:
			s.ground()
		case c == 0x07 && s.state == inOSC:
			s.bell = true
			s.keep(p[:i])
			s.endString()
			s.ground()
		default:
			s.c2 = false
			continue
		}
		return p[i+1:]
	}
	s.keep(p)
	s.pending += len(p)
	return nil
}

// keep stores string data where it is wanted.
func (s *Screen) keep(p []byte) {
	limit := 0
	switch s.state {
	case inOSC:
		limit = maxOSC
	case inDCSData:
		limit = maxDCS
	}
	if s.overflow || len(p) == 0 || limit == 0 {
		return
	}
	if len(s.buf)+len(p) > limit {
		s.overflow = true
		s.buf = s.buf[:0]
		return
	}
	s.buf = append(s.buf, p...)
}

// endString acts on a whole string. One that was too long is dropped: half a
// title or colour list is worse than none.
func (s *Screen) endString() {
	st := s.state
	if st == inStringStop {
		st = s.back
	}
	s.last = 0
	s.runC0()
	if s.overflow {
		return
	}
	switch st {
	case inOSC:
		s.osc(s.buf)
	case inDCSData:
		s.dcs(s.buf)
	}
}
