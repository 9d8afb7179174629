package screen

import "unicode/utf8"

// decodeRune reads the character at the start of p. n = 0: p ends within it.
// What is not UTF-8 is one U+FFFD for each longest prefix of a character, as
// the Unicode standard advises and browsers do.
func decodeRune(p []byte) (r rune, n int) {
	r, n = utf8.DecodeRune(p)
	if r != utf8.RuneError || n != 1 {
		return r, n
	}
	c := p[0]
	var want int
	lo, hi := byte(0x80), byte(0xbf)
	switch {
	case c >= 0xc2 && c <= 0xdf:
		want = 2
	case c >= 0xe0 && c <= 0xef:
		want = 3
		switch c {
		case 0xe0:
			lo = 0xa0
		case 0xed:
			hi = 0x9f
		}
	case c >= 0xf0 && c <= 0xf4:
		want = 4
		switch c {
		case 0xf0:
			lo = 0x90
		case 0xf4:
			hi = 0x8f
		}
	default:
		return utf8.RuneError, 1
	}
	for i := 1; i < want; i++ {
		if i == len(p) {
			return 0, 0
		}
		if p[i] < lo || p[i] > hi {
			return utf8.RuneError, i
		}
		lo, hi = 0x80, 0xbf
	}
	return utf8.RuneError, 1 // not reached: that would have been a character
}

// feedRune takes the character that p starts with and gives its length.
func (s *Screen) feedRune(p []byte) int {
	r, n := decodeRune(p)
	if n == 0 {
		s.npartial = copy(s.partial[:], p)
		s.pending = s.npartial
		return len(p)
	}
	s.printOrC1(r)
	return n
}

// feedPartial goes on with a character that an earlier chunk began.
func (s *Screen) feedPartial(p []byte) []byte {
	had := s.npartial
	n := copy(s.partial[had:], p)
	r, size := decodeRune(s.partial[:had+n])
	if size == 0 {
		s.npartial += n
		s.pending = s.npartial
		return p[n:]
	}
	s.npartial, s.pending = 0, 0
	// A broken character can end before the new bytes, but not before what an
	// earlier chunk left: that was a prefix of some character.
	s.printOrC1(r)
	return p[max(size-had, 0):]
}

func (s *Screen) printOrC1(r rune) {
	if r >= 0x80 && r < 0xa0 {
		s.c1(byte(r))
		return
	}
	s.printRune(r)
}

// printRun writes printable ASCII.
func (s *Screen) printRun(p []byte) {
	if s.skim {
		s.skimRun(len(p), p[len(p)-1])
		return
	}
	if s.charsets[s.gl] != 'B' || s.shift != 0 || s.modes&modeInsert != 0 {
		for _, c := range p {
			s.printRune(rune(c))
		}
		return
	}
	for len(p) > 0 {
		if s.wrap {
			s.wrapLine()
		}
		x := s.x
		n := min(len(p), s.cols-x)
		l := s.g.line(s.y)
		if x+n > l.used || len(l.cells) == 0 {
			if x > l.used || len(l.cells) == 0 {
				l.grow(x, s.cols)
			}
			l.split(x)
			l.used = max(l.used, x+n)
		} else {
			l.split(x)
			l.split(x + n)
		}
		dst := l.cells[x : x+n]
		fg, bg, attr := s.pen.fg, s.pen.bg, s.pen.attr
		for i, c := range p[:len(dst)] {
			ch := uint32(c)
			if c == ' ' {
				ch = 0
			}
			dst[i] = cell{ch, fg, bg, attr}
		}
		if x += n; x >= s.cols {
			x, s.wrap = s.cols-1, true
			if s.modes&modeAutowrap == 0 && n < len(p) {
				// Without autowrap the rest of the run all lands in the last column.
				p = p[len(p)-1:]
				l.cells[x] = cell{glyphOf(p[0]), fg, bg, attr}
				s.x, s.last = x, uint32(p[0])
				return
			}
		}
		s.x = x
		s.last = uint32(p[n-1])
		p = p[n:]
	}
}

func glyphOf(c byte) uint32 {
	if c == ' ' {
		return 0
	}
	return uint32(c)
}

// skimRun moves the cursor as n columns of text would, roughly.
func (s *Screen) skimRun(n int, last byte) {
	s.last, s.shift = uint32(last), 0
	if x := s.x + n; x < s.cols && !s.wrap {
		s.x = x
		return
	}
	s.skimWrap(n)
}

func (s *Screen) skimWrap(n int) {
	x := s.x + n
	if s.wrap {
		x++
	}
	s.wrap = false
	if x >= s.cols {
		if s.modes&modeAutowrap != 0 {
			s.y = min(s.y+(x-1)/s.cols, max(s.bottom, s.y))
			x = (x-1)%s.cols + 1
		}
		if x >= s.cols {
			x, s.wrap = s.cols-1, true
		}
	}
	s.x = x
}

// wrapLine acts on the "last column" flag before the next character: it goes
// to the next row, or, without autowrap, into the last column again.
func (s *Screen) wrapLine() {
	s.wrap = false
	if s.modes&modeAutowrap == 0 {
		return
	}
	s.g.line(s.y).wrapped = true
	s.x = 0
	s.index()
}

// translate maps r through the character set that is in use.
func (s *Screen) translate(r rune) rune {
	set := s.charsets[s.gl]
	if s.shift != 0 {
		set = s.charsets[s.shift]
		s.shift = 0
	}
	return translated(set, r)
}

func translated(set byte, r rune) rune {
	switch {
	case set == '0' && r >= 0x5f && r <= 0x7e:
		return decGraphics[r-0x5f]
	case set == 'A' && r == '#':
		return '£'
	}
	return r
}

// The DEC special graphics set from 0x5f on.
var decGraphics = [...]rune{
	' ', '◆', '▒', '␉', '␌', '␍', '␊', '°', '±', '␤', '␋', '┘', '┐', '┌', '└', '┼',
	'⎺', '⎻', '─', '⎼', '⎽', '├', '┤', '┴', '┬', '│', '≤', '≥', 'π', '≠', '£', '·',
}

// printRune writes one character of any kind.
func (s *Screen) printRune(r rune) {
	if r < 0x80 {
		r = s.translate(r)
	} else {
		s.shift = 0
	}
	w := runeWidth(r)
	if s.skim {
		if w > 0 {
			s.skimRun(w, ' ')
			s.last = uint32(r)
		}
		return
	}
	if r >= 0x80 && s.combine(r, w) {
		return
	}
	if w == 0 {
		return // nothing stands before it
	}
	ch := uint32(r)
	if r == ' ' {
		ch = 0
	}
	if s.put(ch, w) {
		s.last = uint32(r)
	}
}

// put writes a character of width w at the cursor. It reports whether there was
// room: a wide one needs two columns and, without autowrap, is not drawn in the
// last one, as in xterm.js.
func (s *Screen) put(ch uint32, w int) bool {
	if w > s.cols || w == 2 && s.x == s.cols-1 && s.modes&modeAutowrap == 0 {
		return false
	}
	if s.wrap {
		s.wrapLine()
	}
	if w == 2 && s.x == s.cols-1 {
		s.g.line(s.y).fill(s.x, s.cols, s.blank(), s.cols)
		s.wrapLine()
	}
	l := s.g.line(s.y)
	if s.modes&modeInsert != 0 {
		l.insert(s.x, w, s.blank(), s.cols)
	}
	l.grow(s.x+w, s.cols)
	l.split(s.x)
	l.split(s.x + w)
	c := s.pen
	c.ch = ch
	if w == 2 {
		c.attr |= attrWide
		l.cells[s.x+1] = cell{tailCh, c.fg, c.bg, s.pen.attr}
	}
	l.cells[s.x] = c
	if s.x += w; s.x >= s.cols {
		s.x, s.wrap = s.cols-1, true
	}
	return true
}

// combine puts r into the cell before the cursor when it belongs there. It
// looks at nothing but that cell, so that a repainted screen goes on alike.
func (s *Screen) combine(r rune, w int) bool {
	clusters := s.modes&modeClusters != 0
	if w > 0 && !clusters {
		return false
	}
	x := s.x - 1
	if s.wrap {
		x = s.x
	}
	l := s.g.line(s.y)
	if x > 0 && l.at(x).ch == tailCh {
		x--
	}
	if x < 0 {
		return false
	}
	base := l.at(x)
	var scratch [maxCluster + 8]byte
	text := s.appendGlyph(scratch[:0], base.ch)
	if clusters && !joins(string(text), r) {
		return false
	}
	if len(text)+utf8.RuneLen(r) > maxCluster {
		return true // dropped: the cell is full
	}
	text = utf8.AppendRune(text, r)
	ch, ok := s.cluster(text)
	if !ok {
		return true
	}
	l.grow(x+1, s.cols)
	l.cells[x].ch = ch
	if s.last != 0 {
		s.last = ch
	}
	if clusters && base.attr&attrWide == 0 && clusterWidth(string(text)) == 2 {
		s.widen(l, x)
	}
	return true
}

// widen makes the cell at x, which is before the cursor, a wide one.
func (s *Screen) widen(l *line, x int) {
	if x+1 >= s.cols {
		return // no room: it stays narrow in the last column
	}
	l.grow(x+2, s.cols)
	l.split(x + 2)
	l.cells[x].attr |= attrWide
	c := l.cells[x]
	l.cells[x+1] = cell{tailCh, c.fg, c.bg, c.attr &^ attrWide}
	if s.x == x+1 {
		if s.x++; s.x >= s.cols {
			s.x, s.wrap = s.cols-1, true
		}
	}
}
