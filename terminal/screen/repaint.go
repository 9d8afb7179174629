package screen

import (
	"slices"
	"strconv"
	"unicode/utf8"

	"berth"
)

// Repaint appends the sequences that rebuild both screens, modes, cursor, title
// and palette on a terminal in any state, also one that is inside a sequence.
// They have no side effect: no bell, query, notification or clipboard write.
// They never touch the scrollback and leave the main screen only to paint the
// alternate one. A terminal of another size shows what of the screen fits; what
// it has beyond is blank.
func (s *Screen) Repaint(dst []byte) []byte { return s.RepaintFor(dst, s.Size()) }

// RepaintFor is Repaint for a viewer of which the size is known: nothing is
// drawn beyond it.
func (s *Screen) RepaintFor(dst []byte, viewer berth.Size) []byte {
	r := repainter{s: s, dst: dst, cols: min(s.cols, max(viewer.Cols, 1)), rows: min(s.rows, max(viewer.Rows, 1))}
	r.begin()
	r.grid(s.main)
	r.savedCursor(s.main, s.saved[0])
	if s.alt == nil {
		r.str("\x1b7")
		r.keyboard(&s.keyboard[0])
	} else {
		r.keyboard(&s.keyboard[0])
		// 1049 saves the cursor, which stands as the program's saved one does, and
		// makes the alternate screen blank.
		r.str("\x1b[?1049h")
		r.plain()
		r.grid(s.alt)
		r.savedCursor(s.alt, s.saved[1])
		r.str("\x1b7")
		r.keyboard(&s.keyboard[1])
	}
	r.settings()
	r.finish()
	return r.dst
}

type repainter struct {
	s          *Screen
	dst        []byte
	cols, rows int  // what is drawn
	pen        cell // of the viewer
}

func (r *repainter) str(text string) { r.dst = append(r.dst, text...) }
func (r *repainter) num(n int)       { r.dst = strconv.AppendInt(r.dst, int64(n), 10) }

// begin puts the viewer into a known state. CAN ends whatever sequence it is in
// without acting on it; ST ends a string in terminals that pass CAN over. Left
// and right margins, and the modes that a paint depends on, come first.
func (r *repainter) begin() {
	r.str("\x18\x1b\\\x1b[?2026h\x1b[?1049l\x1b[?5;45;69;2027l")
	r.plain()
	r.str("\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\\x1b]112\x1b\\")
	r.colours()
}

// plain sets what a paint depends on: no region, no origin, no insert, no
// automatic wrap, the usual character sets, the default pen, no link.
func (r *repainter) plain() {
	r.str("\x1b[m\x1b]8;;\x1b\\\x1b[r\x1b[?6;7l\x1b[4;20l\x0f\x1b(B\x1b)B\x1b*B\x1b+B")
	r.pen = cell{}
}

func (r *repainter) colours() {
	keys := make([]int, 0, len(r.s.palette))
	for k := range r.s.palette {
		keys = append(keys, int(k))
	}
	slices.Sort(keys)
	for _, k := range keys {
		r.str("\x1b]4;")
		r.num(k)
		r.str(";" + r.s.palette[uint8(k)] + "\x1b\\")
	}
	for i, spec := range r.s.colours {
		if spec != "" {
			r.str("\x1b]")
			r.num(10 + i)
			r.str(";" + spec + "\x1b\\")
		}
	}
}

func (r *repainter) moveTo(x, y int) {
	r.str("\x1b[")
	if y > 0 || x > 0 {
		r.num(y + 1)
	}
	if x > 0 {
		r.str(";")
		r.num(x + 1)
	}
	r.str("H")
}

// grid paints one screen. It is cleared with "erase below" from the corner, not
// with "erase all": terminals move what the latter erases into the scrollback.
func (r *repainter) grid(g *grid) {
	r.str("\x1b[H\x1b[J")
	for y := range r.rows {
		r.row(g.line(y), y)
	}
	r.setPen(cell{})
}

func (r *repainter) row(l *line, y int) {
	n := min(l.visible(), r.cols)
	if n == 0 {
		return
	}
	special := r.special(l, y, n)
	at := -1 // the viewer's column in this row; -1 = it is elsewhere
	for x := 0; x < n; {
		c := l.cells[x]
		w := 1
		if c.attr&attrWide != 0 {
			w = 2
		}
		if c == (cell{}) {
			x++
			continue
		}
		if special && r.joined(c) {
			x += w
			at = -1 // what stands there is not to be written over
			continue
		}
		if x+w > r.cols { // a wide character that does not fit the viewer
			return
		}
		r.reach(&at, x, y)
		if c.ch == 0 && r.eraseTail(l, x, n) {
			return
		}
		r.setPen(c)
		r.dst = r.s.appendGlyph(r.dst, c.ch)
		x += w
		at = x
		if c.ch&clusterBit != 0 || c.ch >= 0x1f000 {
			at = -1 // viewers do not agree on the width: go to the next column by name
		}
	}
}

// joined reports whether cell c is a cluster that takes mode 2027 to write.
func (r *repainter) joined(c cell) bool {
	if c.ch&clusterBit == 0 {
		return false
	}
	w, first := 0, true
	for _, u := range r.s.clusters.get(c.ch &^ clusterBit) {
		if n := runeWidth(u); first {
			w, first = n, false
		} else if n != 0 {
			return true
		}
	}
	return (w == 2) != (c.attr&attrWide != 0)
}

// special writes such clusters before anything else of the row and from the
// right, so that what stands left of one is blank and cannot join it.
func (r *repainter) special(l *line, y, n int) bool {
	found := false
	if len(r.s.clusters.values) == 0 {
		return false
	}
	for x := n - 1; x >= 0; x-- {
		if c := l.cells[x]; r.joined(c) && (c.attr&attrWide == 0 || x+2 <= r.cols) {
			r.moveTo(x, y)
			r.setPen(c)
			r.glyph(c)
			found = true
		}
	}
	return found
}

func (r *repainter) glyph(c cell) {
	if r.joined(c) {
		r.str("\x1b[?2027h")
		r.dst = r.s.appendGlyph(r.dst, c.ch)
		r.str("\x1b[?2027l")
		return
	}
	r.dst = r.s.appendGlyph(r.dst, c.ch)
}

// reach brings the viewer to column x: over blanks by writing them when they are
// few and the pen is right, else by a jump; the row is blank already.
func (r *repainter) reach(at *int, x, y int) {
	switch gap := x - *at; {
	case *at < 0:
		r.moveTo(x, y)
	case gap == 0:
	case gap <= 4 && r.pen == (cell{}):
		for range gap {
			r.dst = append(r.dst, ' ')
		}
	default:
		r.str("\x1b[")
		if gap > 1 {
			r.num(gap)
		}
		r.str("C")
	}
	*at = x
}

// eraseTail paints the rest of a row that is nothing but one background with one
// sequence. It does so only when the row is as wide as the model's screen.
func (r *repainter) eraseTail(l *line, x, n int) bool {
	c := l.cells[x]
	if n != r.s.cols || c != (cell{bg: c.bg}) || n-x < 4 {
		return false
	}
	for i := x; i < n; i++ {
		if l.cells[i] != c {
			return false
		}
	}
	r.setPen(c)
	r.str("\x1b[K")
	return true
}

// setPen makes the viewer's pen that of cell c.
func (r *repainter) setPen(c cell) {
	c.ch = 0
	c.attr &^= attrWide
	if c == r.pen {
		return
	}
	if c.attr>>extraShift != r.pen.attr>>extraShift {
		was, is := r.s.extra(r.pen.attr).link, r.s.extra(c.attr).link
		if was != is {
			if is == "" {
				is = ";"
			}
			r.str("\x1b]8;" + is + "\x1b\\")
		}
	}
	r.dst = r.s.appendSGR(r.dst, r.pen, c, false)
	r.pen = c
}

// savedCursor puts the viewer's cursor into the state that was saved.
func (r *repainter) savedCursor(g *grid, c savedCursor) {
	if !c.set {
		c = savedCursor{charsets: defaultCharsets}
	}
	r.charsets(c.charsets, c.gl)
	if c.origin {
		r.str("\x1b[?6h")
	}
	r.cursor(g, c.x, c.y, 0, c.wrap)
	r.setPen(c.pen)
}

func (r *repainter) charsets(sets [4]byte, gl uint8) {
	for i, set := range sets {
		if set != 'B' {
			r.dst = append(r.dst, 0x1b, "()*+"[i], set)
		}
	}
	switch gl {
	case 1:
		r.str("\x0e")
	case 2:
		r.str("\x1bn")
	case 3:
		r.str("\x1bo")
	}
}

// cursor moves the viewer's cursor, top being what rows are counted from. The
// "last column" flag can only be had by writing the last character once more.
func (r *repainter) cursor(g *grid, x, y, top int, wrap bool) {
	l := g.line(min(y, r.s.rows-1))
	if !wrap || x != r.cols-1 {
		r.moveTo(min(x, r.cols-1), min(y, r.rows-1)-top)
		return
	}
	r.rewrite(l, x, y-top)
}

// rewrite writes the character that ends in column x again.
func (r *repainter) rewrite(l *line, x, row int) {
	c := l.at(x)
	if c.ch == tailCh && x > 0 {
		x--
		c = l.at(x)
	}
	r.moveTo(x, row)
	r.setPen(c)
	r.glyph(c)
}

func (r *repainter) keyboard(k *keyStack) {
	r.str("\x1b[<32u") // taking more than there is empties the stack
	now := 0
	for _, f := range k.saved {
		if int(f) != now {
			r.str("\x1b[=")
			r.num(int(f))
			r.str("u")
		}
		r.str("\x1b[>u")
		now = 0
	}
	if k.flags != 0 {
		r.str("\x1b[=")
		r.num(k.flags)
		r.str("u")
	}
}

// finish sets what the cursor depends on, then the cursor, then what writing
// would change: the pen, the character sets.
func (r *repainter) finish() {
	s := r.s
	r.str("\x1b(B\x1b)B\x1b*B\x1b+B\x0f")
	if s.modes&modeNewline != 0 {
		r.str("\x1b[20h")
	}
	if s.top != 0 || s.bottom != s.rows-1 {
		r.str("\x1b[")
		r.num(s.top + 1)
		r.str(";")
		r.num(min(s.bottom, r.rows-1) + 1)
		r.str("r")
	}
	top := 0
	if s.modes&modeOrigin != 0 {
		r.str("\x1b[?6h")
		top = s.top
	} else {
		r.str("\x1b[?6l")
	}
	if s.modes&modeAutowrap != 0 {
		r.str("\x1b[?7h")
	}
	if s.modes&modeInsert != 0 {
		r.str("\x1b[4h")
	}
	if s.modes&modeSync == 0 {
		r.str("\x1b[?2026l")
	} else {
		r.str("\x1b[?2026h")
	}
	if c, x, ok := r.last(); ok {
		// The program may go on with REP: the character must be the last thing.
		r.visible()
		r.clusters()
		r.charsets(s.charsets, s.gl)
		r.moveTo(x, s.y-top)
		r.setPen(c)
		r.dst = s.appendGlyph(r.dst, c.ch)
		return
	}
	r.cursor(s.g, s.x, s.y, top, s.wrap)
	r.visible() // also ends what REP would repeat
	r.clusters()
	r.charsets(s.charsets, s.gl)
	r.setPen(s.pen)
	switch s.shift {
	case 2:
		r.str("\x1bN")
	case 3:
		r.str("\x1bO")
	}
}

func (r *repainter) clusters() {
	if r.s.modes&modeClusters != 0 {
		r.str("\x1b[?2027h")
	}
}

// last finds the cell that REP would repeat, where writing it once more brings
// about the cursor, too.
func (r *repainter) last() (c cell, x int, ok bool) {
	s := r.s
	if x = s.x; !s.wrap {
		x--
	}
	l := s.g.line(s.y)
	if x > 0 && l.at(x).ch == tailCh {
		x--
	}
	if s.last == 0 || x < 0 || s.x >= r.cols || s.y >= r.rows || s.modes&modeInsert != 0 && !s.wrap {
		return c, 0, false
	}
	c = l.at(x)
	pen := c
	pen.ch, pen.attr = 0, pen.attr&^attrWide
	ch := s.last
	if ch == ' ' {
		ch = 0
	}
	first, _ := utf8.DecodeRune(s.appendGlyph(nil, c.ch))
	if c.ch != ch || pen != s.pen || first < 0x80 && translated(s.charsets[s.gl], first) != first {
		return c, 0, false
	}
	if s.modes&modeClusters == 0 {
		return c, x, !r.joined(c)
	}
	return c, x, !r.joinsLeft(l, x, c)
}

// joinsLeft reports whether writing c at x again would add it to what is left of
// it (mode 2027). That it did not the first time, REP can have brought about.
func (r *repainter) joinsLeft(l *line, x int, c cell) bool {
	if x--; x > 0 && l.at(x).ch == tailCh {
		x--
	}
	if x < 0 {
		return false
	}
	left := r.s.appendGlyph(nil, l.at(x).ch)
	first, _ := utf8.DecodeRune(r.s.appendGlyph(nil, c.ch))
	return first >= 0x80 && joins(string(left), first)
}
