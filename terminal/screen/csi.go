package screen

// control acts on a C0 control.
func (s *Screen) control(c byte) {
	s.last = 0
	switch c {
	case '\b':
		s.backspace()
	case '\t':
		s.tab(1)
	case '\n', '\v', '\f':
		s.wrap = false
		s.index()
		if s.modes&modeNewline != 0 {
			s.x = 0
		}
	case '\r':
		s.x, s.wrap = 0, false
	case 0x0e:
		s.gl = 1
	case 0x0f:
		s.gl = 0
	}
}

// backspace goes left. With the "last column" flag set and reverse wrap on it
// only takes the flag away, else it also moves, as xterm does. Reverse wrap goes
// up whether or not the row above ran on into this one.
func (s *Screen) backspace() {
	reverse := s.modes&modeReverseWrap != 0 && s.modes&modeAutowrap != 0
	switch {
	case s.wrap && reverse:
		s.wrap = false
	case s.x > 0:
		s.x, s.wrap = s.x-1, false
	case reverse && s.y > s.upper():
		s.x, s.y = s.cols-1, s.y-1
	}
}

func (s *Screen) tab(n int) {
	for ; n > 0 && s.x < s.cols-1; n-- {
		s.x++
		for s.x < s.cols-1 && !s.tabs.has(s.x) {
			s.x++
		}
	}
}

func (s *Screen) backTab(n int) {
	s.wrap = false
	for ; n > 0 && s.x > 0; n-- {
		s.x--
		for s.x > 0 && !s.tabs.has(s.x) {
			s.x--
		}
	}
}

// index goes one row down and scrolls at the bottom of the region.
func (s *Screen) index() {
	switch {
	case s.y == s.bottom:
		s.scrollUp(s.top, 1)
	case s.y < s.rows-1:
		s.y++
	}
}

func (s *Screen) reverseIndex() {
	s.wrap = false
	switch {
	case s.y == s.top:
		s.scrollDown(s.top, 1)
	case s.y > 0:
		s.y--
	}
}

// scrollUp scrolls from row top to the bottom of the region.
func (s *Screen) scrollUp(top, n int) {
	if s.skim {
		return
	}
	if s.onScroll != nil && top == 0 && s.g == s.main {
		for y := range min(n, s.bottom+1) {
			s.onScroll(s.g.line(y))
		}
	}
	s.g.scrollUp(top, s.bottom, n, s.blank(), s.cols)
}

func (s *Screen) scrollDown(top, n int) {
	if !s.skim {
		s.g.scrollDown(top, s.bottom, n, s.blank(), s.cols)
	}
}

// blank is what erasing leaves: the background of the pen, nothing else.
func (s *Screen) blank() cell { return cell{bg: s.pen.bg} }

// escape acts on ESC c.
func (s *Screen) escape(c byte) {
	s.last = 0
	switch c {
	case '7':
		s.saveCursor()
	case '8':
		s.restoreCursor()
	case 'D':
		s.wrap = false
		s.index()
	case 'E':
		s.x, s.wrap = 0, false
		s.index()
	case 'H':
		s.tabs.set(s.x)
	case 'M':
		s.reverseIndex()
	case 'N':
		s.shift = 2
	case 'O':
		s.shift = 3
	case 'Z':
		s.reply(answerDA1)
	case 'c':
		s.reset()
	case 'n':
		s.gl = 2
	case 'o':
		s.gl = 3
	case '=':
		s.modes |= modeKeypad
	case '>':
		s.modes &^= modeKeypad
	}
}

// escapeIntermediate acts on ESC intermediate c.
func (s *Screen) escapeIntermediate(c byte) {
	s.last = 0
	switch s.inter {
	case '(', ')', '*', '+':
		set := byte('B')
		if c == '0' || c == 'A' {
			set = c
		}
		s.charsets[s.inter-'('] = set
	case '#':
		if c == '8' {
			s.alignment()
		}
	}
}

// alignment is DECALN.
func (s *Screen) alignment() {
	s.top, s.bottom = 0, s.rows-1
	s.x, s.y, s.wrap = 0, 0, false
	for y := range s.rows {
		s.g.line(y).clear(cell{ch: 'E'}, s.cols)
	}
}

// upper and lower are the rows that a relative move stops at.
func (s *Screen) upper() int {
	if s.y >= s.top {
		return s.top
	}
	return 0
}

func (s *Screen) lower() int {
	if s.y <= s.bottom {
		return s.bottom
	}
	return s.rows - 1
}

// moveTo is an absolute move, from 0; with origin mode from the region's corner.
func (s *Screen) moveTo(x, y int) {
	s.wrap = false
	lo, hi := 0, s.rows-1
	if s.modes&modeOrigin != 0 {
		lo, hi = s.top, s.bottom
		y += lo
	}
	s.x = min(max(x, 0), s.cols-1)
	s.y = min(max(y, lo), hi)
}

// row is the cursor's row as moveTo counts it.
func (s *Screen) row() int {
	if s.modes&modeOrigin != 0 {
		return s.y - s.top
	}
	return s.y
}

// dispatchCSI acts on a whole control sequence.
func (s *Screen) dispatchCSI(final byte) {
	if final != 'b' {
		s.last = 0
	}
	switch {
	case s.inter != 0:
		s.csiIntermediate(final)
	case s.prefix == '?':
		s.csiPrivate(final)
	case s.prefix != 0:
		s.csiOther(final)
	case final >= '@' && final <= 'I', final >= '`' && final <= 'f', final == 'Z', final == 'j', final == 'k':
		s.csiMove(final)
	default:
		s.csiPlain(final)
	}
}

// csiMove has the sequences that move the cursor.
func (s *Screen) csiMove(final byte) {
	n := s.param(0, 1)
	switch final {
	case '@':
		if !s.skim {
			s.g.line(s.y).insert(s.x, n, s.blank(), s.cols)
		}
		s.wrap = false
	case 'A', 'k':
		s.y, s.wrap = max(s.y-n, s.upper()), false
	case 'B', 'e':
		s.y, s.wrap = min(s.y+n, s.lower()), false
	case 'C', 'a':
		s.x, s.wrap = min(s.x+n, s.cols-1), false
	case 'D', 'j':
		s.x, s.wrap = max(s.x-n, 0), false
	case 'E':
		s.x, s.y, s.wrap = 0, min(s.y+n, s.lower()), false
	case 'F':
		s.x, s.y, s.wrap = 0, max(s.y-n, s.upper()), false
	case 'G', '`':
		s.moveTo(n-1, s.row())
	case 'H', 'f':
		s.moveTo(s.param(1, 1)-1, n-1)
	case 'I':
		s.tab(min(n, s.cols))
	case 'Z':
		s.backTab(min(n, s.cols))
	case 'b':
		s.repeat(n)
	case 'c':
		if s.param(0, 0) == 0 {
			s.reply(answerDA1)
		}
	case 'd':
		s.moveTo(s.x, n-1)
	}
}

// repeat is REP: the last character again.
func (s *Screen) repeat(n int) {
	ch := s.last
	if ch == 0 || s.skim {
		return
	}
	w := 1
	if ch&clusterBit == 0 {
		w = runeWidth(rune(ch))
	} else if s.modes&modeClusters != 0 {
		w = clusterWidth(s.clusters.get(ch &^ clusterBit))
	} else {
		for _, r := range s.clusters.get(ch &^ clusterBit) {
			w = runeWidth(r)
			break
		}
	}
	if ch == ' ' {
		ch = 0
	}
	if w == 0 {
		return
	}
	// When the screen is full, each further row of it looks the same: a count
	// beyond that costs nothing, whatever the program asks for.
	if full, a := s.cols*(s.rows+1), max(s.cols/w, 1); n > full {
		n = full + (n-full)%a
	}
	for range n {
		s.put(ch, w)
	}
}

// csiPlain has the rest of the sequences without a prefix.
func (s *Screen) csiPlain(final byte) {
	n := s.param(0, 1)
	switch final {
	case 'J':
		s.eraseDisplay(s.param(0, 0))
	case 'K':
		s.eraseLine(s.param(0, 0))
	case 'L', 'M', 'P', 'S', 'T', '^', 'X':
		if !s.skim {
			s.csiEdit(final, n)
		}
	case 'g':
		switch s.param(0, 0) {
		case 0:
			s.tabs.clear(s.x)
		case 3:
			s.tabs = tabStops{}
		}
	case 'h', 'l':
		s.setANSI(final == 'h')
	case 'm':
		s.sgr()
	case 'n':
		s.deviceStatus(s.param(0, 0))
	case 'r':
		s.setRegion()
	case 's':
		s.saveCursor()
	case 't':
		s.window()
	case 'u':
		s.restoreCursor()
	case 'x':
		s.reportParameters(s.param(0, 0))
	}
}

// csiEdit has the sequences that move cells.
func (s *Screen) csiEdit(final byte, n int) {
	l := s.g.line(s.y)
	inside := s.y >= s.top && s.y <= s.bottom
	switch final {
	case 'L':
		if inside {
			s.scrollDown(s.y, n)
			s.x, s.wrap = 0, false
		}
	case 'M':
		if inside {
			s.g.scrollUp(s.y, s.bottom, n, s.blank(), s.cols)
			s.x, s.wrap = 0, false
		}
	case 'P':
		l.remove(s.x, n, s.blank(), s.cols)
		s.wrap = false
	case 'S':
		s.scrollUp(s.top, n)
	case 'T', '^':
		if s.nparam <= 1 { // with five, T starts highlight mouse tracking
			s.scrollDown(s.top, n)
		}
	case 'X':
		l.fill(s.x, min(s.x+n, s.cols), s.blank(), s.cols)
		s.wrap = false
	}
}

func (s *Screen) setRegion() {
	top, bottom := s.param(0, 1)-1, min(s.param(1, s.rows), s.rows)-1
	if top >= bottom {
		return
	}
	s.top, s.bottom = top, bottom
	s.moveTo(0, 0)
}

func (s *Screen) eraseLine(how int) {
	if s.skim {
		return
	}
	l := s.g.line(s.y)
	switch how {
	case 0:
		// With the "last column" flag the cursor is past the last column: nothing
		// is right of it. So do tmux and xterm.js; xterm erases the last character,
		// of which grep and ls, which erase after each colour, are the victims.
		if !s.wrap {
			l.fill(s.x, s.cols, s.blank(), s.cols)
		}
	case 1:
		l.fill(0, s.x+1, s.blank(), s.cols)
	case 2:
		l.fill(0, s.cols, s.blank(), s.cols)
	}
}

func (s *Screen) eraseDisplay(how int) {
	from, to := 0, s.rows
	switch how {
	case 0:
		if s.onClear != nil && s.x == 0 && s.y == 0 && s.g == s.main {
			s.onClear()
		}
		s.eraseLine(0)
		from = s.y + 1
	case 1:
		s.eraseLine(1)
		to = s.y
	case 2:
		if s.onClear != nil && s.g == s.main {
			s.onClear()
		}
	default:
		return // 3 is the scrollback, which a screen does not have
	}
	if s.skim && how != 2 {
		return
	}
	for y := from; y < to; y++ {
		s.g.line(y).clear(s.blank(), s.cols)
	}
}

// csiIntermediate has the sequences with an intermediate byte.
func (s *Screen) csiIntermediate(final byte) {
	switch uint32(s.prefix)<<16 | uint32(s.inter)<<8 | uint32(final) {
	case ' '<<8 | 'q':
		if n := s.param(0, 0); n <= 6 {
			s.cursorStyle = uint8(n)
		}
	case '!'<<8 | 'p':
		s.softReset()
	case '$'<<8 | 'p':
		s.requestMode(false)
	case '?'<<16 | '$'<<8 | 'p':
		s.requestMode(true)
	}
}

// csiPrivate has the sequences with a question mark.
func (s *Screen) csiPrivate(final byte) {
	switch final {
	case 'h', 'l':
		for i := range s.nparam {
			s.setPrivate(s.params[i], final == 'h')
		}
	case 's', 'r':
		for i := range s.nparam {
			s.keepPrivate(s.params[i], final == 's')
		}
	case 'J':
		s.eraseDisplay(s.param(0, 0))
	case 'K':
		s.eraseLine(s.param(0, 0))
	case 'W':
		if s.param(0, 0) == 5 {
			s.tabs = defaultTabs()
		}
	case 'm':
		s.reportModifyKeys(s.param(0, 0))
	case 'n':
		s.privateStatus(s.param(0, 0))
	case 'u':
		s.replyCSI("?%du", s.keys().flags)
	case 'S':
		s.replyCSI("?%d;3;0S", s.param(0, 0))
	}
}

// csiOther has the sequences with one of < = >.
func (s *Screen) csiOther(final byte) {
	switch uint32(s.prefix)<<8 | uint32(final) {
	case '>'<<8 | 'c':
		if s.param(0, 0) == 0 {
			s.reply(answerDA2)
		}
	case '='<<8 | 'c':
		if s.param(0, 0) == 0 {
			s.reply(answerDA3)
		}
	case '>'<<8 | 'q':
		if s.param(0, 0) == 0 {
			s.replyVersion()
		}
	case '>'<<8 | 'm':
		s.setModifyKeys()
	case '>'<<8 | 'n':
		if s.nparam == 0 || s.param(0, 0) == 4 {
			s.modifyKeys = 0
		}
	case '>'<<8 | 'u':
		s.keys().push(s.param(0, 0))
	case '<'<<8 | 'u':
		s.keys().pop(s.param(0, 1))
	case '='<<8 | 'u':
		s.keys().set(s.param(0, 0), s.param(1, 1))
	}
}
