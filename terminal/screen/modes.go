package screen

// The modes that are only on or off, as bits of Screen.modes.
const (
	modeInsert uint64 = 1 << iota // ANSI 4
	modeNewline
	modeAppCursor
	modeReverseVideo
	modeOrigin
	modeAutowrap
	modeBlink
	modeVisible
	modeReverseWrap
	modeKeypad
	modeFocus
	modeMouseUTF8
	modeMouseSGR
	modeAltScroll
	modeMouseURXVT
	modeMousePixels
	modePaste
	modeSync
	modeClusters
	modeColourScheme
	modeSizeReports
	modeEscapeKey
	modePasteEvents
	modeWin32Input

	// defaultModes is how a terminal starts.
	defaultModes = modeAutowrap | modeVisible
)

// privateModes lists the DEC private modes among them, in the order in which a
// repaint sets them: where a terminal lets the last mouse encoding win, that is
// the richest.
var privateModes = [...]struct {
	number uint16
	bit    uint64
}{
	{25, modeVisible}, {2026, modeSync}, {2004, modePaste}, {1, modeAppCursor}, {7, modeAutowrap}, {6, modeOrigin},
	{12, modeBlink}, {5, modeReverseVideo}, {45, modeReverseWrap}, {66, modeKeypad}, {1004, modeFocus}, {1007, modeAltScroll},
	{1005, modeMouseUTF8}, {1015, modeMouseURXVT}, {1006, modeMouseSGR}, {1016, modeMousePixels},
	{2027, modeClusters}, {2031, modeColourScheme}, {2048, modeSizeReports}, {7727, modeEscapeKey},
	{5522, modePasteEvents}, {9001, modeWin32Input},
}

func privateBit(n uint16) uint64 {
	for i := range privateModes {
		if privateModes[i].number == n {
			return privateModes[i].bit
		}
	}
	return 0
}

func (s *Screen) setPrivate(n uint16, on bool) {
	switch n {
	case 9, 1000, 1001, 1002, 1003:
		// One of them at most is on: setting one ends the others, and resetting
		// any ends all, as in xterm.
		s.mouse = 0
		if on && n != 1001 {
			s.mouse = n
		}
		return
	case 47, 1047, 1049:
		s.switchScreen(on, n == 1049)
		return
	case 1048:
		if on {
			s.saveCursor()
		} else {
			s.restoreCursor()
		}
		return
	}
	bit := privateBit(n)
	if on {
		s.modes |= bit
	} else {
		s.modes &^= bit
	}
	switch {
	case bit == modeOrigin:
		s.moveTo(0, 0)
	case bit == modeSizeReports && on:
		s.reportSize()
	}
}

func (s *Screen) setANSI(on bool) {
	for i := range s.nparam {
		bit := uint64(0)
		switch s.params[i] {
		case 4:
			bit = modeInsert
		case 20:
			bit = modeNewline
		}
		if on {
			s.modes |= bit
		} else {
			s.modes &^= bit
		}
	}
}

// mouseModes are the tracking modes.
var mouseModes = [...]uint16{9, 1000, 1002, 1003}

// keepPrivate is XTSAVE and XTRESTORE of one mode.
func (s *Screen) keepPrivate(n uint16, save bool) {
	for _, m := range mouseModes {
		if m != n {
			continue
		}
		if save {
			s.savedMouse, s.savedMouseSet = s.mouse, true
		} else if s.savedMouseSet {
			s.mouse = s.savedMouse
		}
		return
	}
	bit := privateBit(n)
	switch {
	case bit == 0:
	case save:
		s.savedMask |= bit
		s.savedModes = s.savedModes&^bit | s.modes&bit
	case s.savedMask&bit != 0:
		s.setPrivate(n, s.savedModes&bit != 0)
	}
}

// switchScreen shows the alternate screen or the main one. The alternate is
// blank each time it is entered and has no memory while it is not shown, as in
// tmux (xterm keeps it after mode 47, which no program is known to rely on).
func (s *Screen) switchScreen(alternate, saving bool) {
	if alternate == (s.g == s.alt && s.alt != nil) {
		if saving && !alternate {
			s.restoreCursor()
		}
		return
	}
	if alternate {
		if saving {
			s.saveCursor()
		}
		s.alt = newGrid(s.rows)
		s.g = s.alt
		s.saved[1], s.keyboard[1] = savedCursor{}, keyStack{}
		if s.pen.bg != 0 {
			for y := range s.rows {
				s.g.line(y).clear(s.blank(), s.cols)
			}
		}
		return
	}
	s.g, s.alt = s.main, nil
	s.saved[1], s.keyboard[1] = savedCursor{}, keyStack{}
	if saving {
		s.restoreCursor()
	}
}

// side is 1 while the alternate screen is shown.
func (s *Screen) side() int {
	if s.alt != nil {
		return 1
	}
	return 0
}

// savedCursor is what DECSC keeps.
type savedCursor struct {
	set      bool // never saved = restore goes home in the default state
	x, y     int
	wrap     bool
	origin   bool
	pen      cell
	charsets [4]byte
	gl       uint8
}

func (s *Screen) saveCursor() {
	pen := s.pen
	if e := s.extra(pen.attr); e.link != "" { // a link is not the cursor's
		keep := s.pen
		s.setExtra(extra{underline: e.underline})
		pen.attr = s.pen.attr
		s.pen = keep
	}
	s.saved[s.side()] = savedCursor{
		set: true, x: s.x, y: s.y, wrap: s.wrap, origin: s.modes&modeOrigin != 0,
		pen: pen, charsets: s.charsets, gl: s.gl,
	}
}

func (s *Screen) restoreCursor() {
	c := s.saved[s.side()]
	if !c.set {
		c = savedCursor{charsets: defaultCharsets}
	}
	link := s.extra(s.pen.attr).link
	s.pen, s.charsets, s.gl, s.shift = c.pen, c.charsets, c.gl, 0
	if link != "" {
		s.setExtra(extra{underline: s.extra(s.pen.attr).underline, link: link})
	}
	s.modes &^= modeOrigin
	s.x, s.y, s.wrap = min(c.x, s.cols-1), min(c.y, s.rows-1), c.wrap
	if c.origin {
		s.modes |= modeOrigin
		s.y = min(max(s.y, s.top), s.bottom)
	}
	if s.x < s.cols-1 {
		s.wrap = false
	}
}

var defaultCharsets = [4]byte{'B', 'B', 'B', 'B'}

// softReset is DECSTR.
func (s *Screen) softReset() {
	s.modes &^= modeOrigin | modeInsert | modeAppCursor | modeKeypad | modeReverseWrap
	s.modes |= modeVisible | modeAutowrap
	s.top, s.bottom = 0, s.rows-1
	s.pen = cell{}
	s.charsets, s.gl, s.shift = defaultCharsets, 0, 0
	s.saved[s.side()] = savedCursor{}
}

// reset is RIS. The title stays, as in xterm.
func (s *Screen) reset() {
	s.g, s.alt = s.main, nil
	if s.onClear != nil {
		s.onClear()
	}
	s.softReset()
	s.modes = defaultModes
	s.savedMask, s.savedModes, s.savedMouse, s.savedMouseSet = 0, 0, 0, false
	s.mouse, s.modifyKeys, s.cursorStyle = 0, 0, 0
	s.saved, s.keyboard = [2]savedCursor{}, [2]keyStack{}
	s.tabs = defaultTabs()
	s.palette, s.colours = nil, [len(s.colours)]string{}
	s.x, s.y, s.wrap = 0, 0, false
	for y := range s.rows {
		s.g.line(y).clear(cell{}, s.cols)
	}
	s.clearReport()
}

// keyStack is the kitty keyboard state of one screen.
type keyStack struct {
	flags int
	saved []uint8 // older flags, newest last
}

// maxKeyStack bounds it; when it is full the oldest entry goes, as kitty does.
const maxKeyStack = 16

func (k *keyStack) push(flags int) {
	if len(k.saved) == maxKeyStack {
		k.saved = append(k.saved[:0], k.saved[1:]...)
	}
	k.saved = append(k.saved, uint8(k.flags))
	k.flags = flags & 31
}

func (k *keyStack) pop(n int) {
	for ; n > 0; n-- {
		if len(k.saved) == 0 {
			k.flags = 0
			return
		}
		k.flags = int(k.saved[len(k.saved)-1])
		k.saved = k.saved[:len(k.saved)-1]
	}
}

func (k *keyStack) set(flags, how int) {
	switch flags &= 31; how {
	case 1:
		k.flags = flags
	case 2:
		k.flags |= flags
	case 3:
		k.flags &^= flags
	}
}

func (s *Screen) keys() *keyStack { return &s.keyboard[s.side()] }

// setModifyKeys is XTMODKEYS; only modifyOtherKeys (4) is followed.
func (s *Screen) setModifyKeys() {
	switch {
	case s.nparam == 0:
		s.modifyKeys = 0
	case s.params[0] == 4:
		s.modifyKeys = uint8(min(s.param(1, 0), 3))
	}
}

// tabStops is a set of columns.
type tabStops [(1000 + 63) / 64]uint64

func defaultTabs() (t tabStops) {
	for x := 8; x < len(t)*64; x += 8 {
		t.set(x)
	}
	return t
}

func (t *tabStops) has(x int) bool { return t[x/64]>>(x%64)&1 != 0 }
func (t *tabStops) set(x int)      { t[x/64] |= 1 << (x % 64) }
func (t *tabStops) clear(x int)    { t[x/64] &^= 1 << (x % 64) }
