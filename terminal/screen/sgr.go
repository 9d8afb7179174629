package screen

import "strconv"

// sgr applies the parameters to the pen.
func (s *Screen) sgr() {
	if s.nparam == 0 {
		s.resetPen()
		return
	}
	for i := 0; i < s.nparam; {
		n := 1
		for i+n < s.nparam && s.colon>>(i+n)&1 != 0 {
			n++
		}
		switch p := s.params[i]; p {
		case 38, 48, 58:
			c, used, ok := s.colour(i, n)
			if ok {
				s.paint(p, c)
			}
			i += used
		default:
			s.sgrOne(p, i, n)
			i += n
		}
	}
}

func (s *Screen) resetPen() {
	link := uint32(0)
	if s.pen.attr&extraMask != 0 { // a hyperlink is not an attribute: it stays
		if e := s.extra(s.pen.attr); e.link != "" {
			s.setExtra(extra{link: e.link})
			link = s.pen.attr & extraMask
		}
	}
	s.pen = cell{attr: link}
}

var sgrOn = [10]uint32{1: attrBold, 2: attrFaint, 3: attrItalic, 5: attrBlink, 6: attrBlink, 7: attrInverse, 8: attrConceal, 9: attrStrike}

// sgrOne applies one parameter, with n-1 sub-parameters after it at i.
func (s *Screen) sgrOne(p uint16, i, n int) {
	a := &s.pen.attr
	switch {
	case p >= 30 && p <= 37:
		s.pen.fg = colourIndexed | uint32(p-30)
	case p == 39:
		s.pen.fg = 0
	case p >= 40 && p <= 47:
		s.pen.bg = colourIndexed | uint32(p-40)
	case p == 49:
		s.pen.bg = 0
	case p >= 90 && p <= 97:
		s.pen.fg = colourIndexed | uint32(p-90+8)
	case p >= 100 && p <= 107:
		s.pen.bg = colourIndexed | uint32(p-100+8)
	case p == 0:
		s.resetPen()
	case p == 4:
		style := uint16(1)
		if n > 1 {
			style = s.params[i+1]
		}
		if style <= 5 {
			*a = *a&^underlineMask | uint32(style)<<underlineShift
		}
	case p < 10:
		*a |= sgrOn[p]
	case p == 21:
		*a = *a&^underlineMask | 2<<underlineShift
	case p == 22:
		*a &^= attrBold | attrFaint
	case p == 23:
		*a &^= attrItalic
	case p == 24:
		*a &^= underlineMask
	case p == 25:
		*a &^= attrBlink
	case p == 27:
		*a &^= attrInverse
	case p == 28:
		*a &^= attrConceal
	case p == 29:
		*a &^= attrStrike
	case p == 53:
		*a |= attrOverline
	case p == 55:
		*a &^= attrOverline
	case p == 59:
		s.paint(58, 0)
	}
}

// paint sets a colour of the pen: 38 text, 48 background, 58 underline.
func (s *Screen) paint(what uint16, c uint32) {
	switch what {
	case 38:
		s.pen.fg = c
	case 48:
		s.pen.bg = c
	case 58:
		if e := s.extra(s.pen.attr); e.underline != c {
			e.underline = c
			s.setExtra(e)
		}
	}
}

// colour reads the colour that starts at parameter i, which has n-1
// sub-parameters, in all the forms that are in use: 38;5;n 38;2;r;g;b 38:5:n
// 38:2:r:g:b 38:2:space:r:g:b and 38;2:r:g:b. It says how many parameters it took.
func (s *Screen) colour(i, n int) (c uint32, used int, ok bool) {
	if n > 1 {
		p := s.params[i+1 : i+n]
		switch {
		case p[0] == 5 && len(p) >= 2:
			c, ok = indexed(p[1])
		case p[0] == 2 && len(p) == 4:
			c, ok = rgb(p[1], p[2], p[3])
		case p[0] == 2 && len(p) >= 5:
			c, ok = rgb(p[2], p[3], p[4])
		}
		return c, n, ok
	}
	p := s.params[i+1 : s.nparam]
	switch {
	case len(p) >= 2 && p[0] == 5:
		c, ok = indexed(p[1])
		return c, 3, ok
	case len(p) >= 4 && p[0] == 2:
		c, ok = rgb(p[1], p[2], p[3])
		return c, 5, ok
	}
	// Cut short or of an unknown kind: what follows cannot be told from it.
	return 0, s.nparam - i, false
}

func indexed(n uint16) (uint32, bool) { return colourIndexed | uint32(n), n < 256 }

func rgb(r, g, b uint16) (uint32, bool) {
	return colourRGB | uint32(r)<<16 | uint32(g)<<8 | uint32(b), r < 256 && g < 256 && b < 256
}

// The codes that set and take away each attribute.
var attrCodes = [...]struct {
	bit     uint32
	on, off string
}{
	{attrBold, "1", "22"}, {attrFaint, "2", "22"}, {attrItalic, "3", "23"}, {attrBlink, "5", "25"},
	{attrInverse, "7", "27"}, {attrConceal, "8", "28"}, {attrStrike, "9", "29"}, {attrOverline, "53", "55"},
}

// appendSGR appends what makes of pen from the pen to. whole = say all of it.
func (s *Screen) appendSGR(dst []byte, from, to cell, whole bool) []byte {
	uFrom, uTo := s.extra(from.attr).underline, s.extra(to.attr).underline
	const shown = 0xff | underlineMask
	if from.fg == to.fg && from.bg == to.bg && from.attr&shown == to.attr&shown && uFrom == uTo {
		return dst
	}
	if to.fg == 0 && to.bg == 0 && to.attr&shown == 0 && uTo == 0 {
		return append(dst, "\x1b[m"...)
	}
	dst = append(dst, "\x1b["...)
	start := len(dst)
	gone := from.attr &^ to.attr
	if gone&(attrBold|attrFaint) != 0 || gone&shown&^underlineMask != 0 && gone&(gone-1) != 0 || whole {
		dst = append(dst, "0;"...)
		from, uFrom = cell{}, 0
		gone = 0
	}
	for i := range attrCodes {
		if c := &attrCodes[i]; gone&c.bit != 0 {
			dst = append(append(dst, c.off...), ';')
		} else if (to.attr&^from.attr)&c.bit != 0 {
			dst = append(append(dst, c.on...), ';')
		}
	}
	if u := to.attr & underlineMask; u != from.attr&underlineMask {
		switch n := u >> underlineShift; n {
		case 0:
			dst = append(dst, "24;"...)
		case 1:
			dst = append(dst, "4;"...)
		default:
			dst = append(dst, '4', ':', byte('0'+n), ';')
		}
	}
	if from.fg != to.fg {
		dst = appendColour(dst, to.fg, 30)
	}
	if from.bg != to.bg {
		dst = appendColour(dst, to.bg, 40)
	}
	if uFrom != uTo {
		dst = appendColour(dst, uTo, 50)
	}
	if len(dst) > start {
		dst = dst[:len(dst)-1]
	}
	return append(dst, 'm')
}

// appendColour appends the code of a colour and a semicolon. base is 30 for
// text, 40 for background, 50 for underline, which has no short codes and of
// which the colon form alone is understood by all that know it.
func appendColour(dst []byte, c uint32, base int) []byte {
	n := int(c & 0xff)
	switch {
	case c == 0:
		dst = strconv.AppendInt(dst, int64(base+9), 10)
	case base == 50 && c&colourKind == colourIndexed:
		dst = strconv.AppendInt(append(dst, "58:5:"...), int64(n), 10)
	case base == 50:
		dst = append(dst, "58:2::"...)
		dst = appendTriple(dst, c, ':')
	case c&colourKind == colourIndexed && n < 8:
		dst = strconv.AppendInt(dst, int64(base+n), 10)
	case c&colourKind == colourIndexed && n < 16:
		dst = strconv.AppendInt(dst, int64(base+60+n-8), 10)
	case c&colourKind == colourIndexed:
		dst = strconv.AppendInt(dst, int64(base+8), 10)
		dst = append(dst, ";5;"...)
		dst = strconv.AppendInt(dst, int64(n), 10)
	default:
		dst = strconv.AppendInt(dst, int64(base+8), 10)
		dst = append(dst, ";2;"...)
		dst = appendTriple(dst, c, ';')
	}
	return append(dst, ';')
}

func appendTriple(dst []byte, c uint32, sep byte) []byte {
	dst = strconv.AppendInt(dst, int64(c>>16&0xff), 10)
	dst = strconv.AppendInt(append(dst, sep), int64(c>>8&0xff), 10)
	return strconv.AppendInt(append(dst, sep), int64(c&0xff), 10)
}
