package screen

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
