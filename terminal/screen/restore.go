package screen

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"berth"
)

// Restore rebuilds a model. A damaged snapshot is an error with
// berth.CodeRecordUnreadable, never a panic.
func Restore(snapshot []byte, opts Options) (*Screen, error) {
	n := len(snapshot) - 4
	if n < len(snapshotMagic) || n > maxSnapshot || string(snapshot[:len(snapshotMagic)]) != snapshotMagic {
		return nil, errSnapshot("it does not begin as one")
	}
	if crc32.Checksum(snapshot[:n], castagnoli) != binary.LittleEndian.Uint32(snapshot[n:]) {
		return nil, errSnapshot("its checksum is wrong")
	}
	d := decoder{src: snapshot[len(snapshotMagic):n]}
	if v := d.int(1 << 20); v != snapshotVersion {
		return nil, errSnapshot("its version is another")
	}
	size := berth.Size{Cols: d.int(berth.MaxCols), Rows: d.int(berth.MaxRows)}
	if d.bad || !size.Valid() {
		return nil, errSnapshot("its size is out of bounds")
	}
	s := New(size, opts)
	d.tables(s)
	d.parser(&s.parser)
	d.state(s)
	d.grid(s, s.main)
	if d.bool() {
		s.alt = newGrid(s.rows)
		s.g = s.alt
		d.grid(s, s.alt)
	}
	if d.bad || len(d.src) > 0 || !s.sound() {
		return nil, errSnapshot("its content is out of bounds")
	}
	return s, nil
}

func errSnapshot(why string) error {
	return berth.Errorf(berth.CodeRecordUnreadable, "the snapshot of a screen cannot be used: %s", why).
		WithHint("the screen is rebuilt from the log")
}

// decoder reads what encoder wrote. After the first fault everything is zero.
type decoder struct {
	src []byte
	bad bool
}

func (d *decoder) fail() {
	d.bad = true
	d.src = nil
}

func (d *decoder) uint(limit uint64) uint64 {
	v, n := binary.Uvarint(d.src)
	if n <= 0 || v > limit {
		d.fail()
		return 0
	}
	d.src = d.src[n:]
	return v
}

func (d *decoder) int(limit int) int { return int(d.uint(uint64(limit))) }

func (d *decoder) byte(limit byte) byte {
	if len(d.src) == 0 || d.src[0] > limit {
		d.fail()
		return 0
	}
	v := d.src[0]
	d.src = d.src[1:]
	return v
}

func (d *decoder) bool() bool { return d.byte(1) == 1 }

func (d *decoder) bytes(limit int) []byte {
	n := d.int(limit)
	if n > len(d.src) {
		d.fail()
		return nil
	}
	v := d.src[:n:n]
	d.src = d.src[n:]
	return v
}

// text is a string that was clean when it was written.
func (d *decoder) text(limit int) string {
	v := string(d.bytes(limit))
	if clean(v, limit) != v {
		d.fail()
		return ""
	}
	return v
}

func (d *decoder) tables(s *Screen) {
	n := d.int(maxClusters)
	for i := range n {
		v := string(d.bytes(maxCluster))
		if !utf8.ValidString(v) || strings.ContainsFunc(v, unicode.IsControl) {
			d.fail()
		}
		if i == 0 {
			s.clusters.index, s.clusters.values = map[string]uint32{}, append(s.clusters.values, "")
			continue
		}
		restoreEntry(d, &s.clusters, v)
	}
	n = d.int(maxExtras)
	for i := range n {
		v := extra{underline: uint32(d.uint(colourRGB | 0xffffff)), link: d.text(maxLink)}
		if i == 0 {
			s.extras.index, s.extras.values = map[extra]uint32{}, append(s.extras.values, extra{})
			continue
		}
		s.linkBytes += len(v.link)
		if !validStored(v.underline) {
			d.fail()
		}
		restoreEntry(d, &s.extras, v)
	}
}

func restoreEntry[T comparable](d *decoder, t *table[T], v T) {
	var zero T
	i := uint32(len(t.values))
	t.values = append(t.values, v)
	if v == zero {
		t.free = append(t.free, i)
		return
	}
	if _, twice := t.index[v]; twice {
		d.fail()
		return
	}
	t.index[v] = i
}

func (d *decoder) parser(p *parser) {
	p.state = parserState(d.byte(byte(numStates) - 1))
	p.back = parserState(d.byte(byte(numStates) - 1))
	p.prefix = d.byte(0x7f)
	p.inter = d.byte(0xff)
	p.final = d.byte(0x7f)
	p.nparam = d.int(maxParams)
	p.digits = d.bool()
	p.colon = uint32(d.uint(1<<32 - 1))
	for i := range d.int(maxParams) {
		p.params[i] = uint16(d.uint(0xffff))
	}
	p.buf = append([]byte(nil), d.bytes(maxOSC)...)
	p.overflow = d.bool()
	p.c2 = d.bool()
	p.bell = d.bool()
	p.nc0 = copy(p.c0[:], d.bytes(maxC0))
	p.npartial = copy(p.partial[:], d.bytes(3))
	p.pending = d.int(1 << 62)
	if p.nparam == maxParams {
		p.digits = false
	}
}

func (d *decoder) state(s *Screen) {
	s.x = d.int(s.cols - 1)
	s.y = d.int(s.rows - 1)
	s.wrap = d.bool()
	s.pen = d.style()
	d.charsets(&s.charsets)
	s.gl = d.byte(3)
	s.shift = d.byte(3)
	s.last = uint32(d.uint(1<<32 - 1))
	s.top = d.int(s.rows - 1)
	s.bottom = d.int(s.rows - 1)
	for i := range s.saved {
		c := &s.saved[i]
		c.set = d.bool()
		c.x = d.int(s.cols - 1)
		c.y = d.int(s.rows - 1)
		c.wrap = d.bool()
		c.origin = d.bool()
		c.pen = d.style()
		d.charsets(&c.charsets)
		c.gl = d.byte(3)
		s.keyboard[i].flags = d.int(31)
		s.keyboard[i].saved = append([]uint8(nil), d.bytes(maxKeyStack)...)
	}
	for i := range s.tabs {
		s.tabs[i] = d.uint(1<<64 - 1)
	}
	s.modes = d.uint(1<<64 - 1)
	s.savedMask = d.uint(1<<64 - 1)
	s.savedModes = d.uint(1<<64 - 1)
	s.savedMouse = uint16(d.uint(0xffff))
	s.mouse = uint16(d.uint(0xffff))
	s.savedMouseSet = d.bool()
	s.modifyKeys = d.byte(3)
	s.cursorStyle = d.byte(6)
	d.reports(s)
}

func (d *decoder) reports(s *Screen) {
	s.title = d.text(berth.MaxTitle)
	s.titled = d.bool()
	for range d.int(maxTitles) {
		s.titles = append(s.titles, d.text(berth.MaxTitle))
	}
	s.cwd = d.text(berth.MaxTitle)
	s.cwdURL = d.text(2 * maxLink)
	n := d.int(256)
	for range n {
		k, v := d.byte(0xff), d.text(maxColour)
		if !validColour(v) {
			d.fail()
			return
		}
		if s.palette == nil {
			s.palette = map[uint8]string{}
		}
		s.palette[k] = v
	}
	for i := range s.colours {
		v := d.text(maxColour)
		if v != "" && !validColour(v) {
			d.fail()
		}
		s.colours[i] = v
	}
	s.reported = d.bool()
	s.busy = d.bool()
}

func (d *decoder) charsets(to *[4]byte) {
	for i := range to {
		if to[i] = d.byte('B'); to[i] != 'B' && to[i] != 'A' && to[i] != '0' && to[i] != 0 {
			d.fail()
		}
	}
}

func validStored(c uint32) bool {
	switch c & colourKind {
	case 0:
		return c == 0
	case colourIndexed:
		return c&0xffffff < 256
	}
	return c&colourKind == colourRGB
}

func (d *decoder) style() (c cell) {
	c.fg = uint32(d.uint(1<<32 - 1))
	c.bg = uint32(d.uint(1<<32 - 1))
	c.attr = uint32(d.uint(1<<32 - 1))
	const known = 0xff | attrWide | underlineMask | extraMask
	if !validStored(c.fg) || !validStored(c.bg) || c.attr&^known != 0 || c.attr&underlineMask > 5<<underlineShift {
		d.fail()
	}
	return c
}

func (d *decoder) grid(s *Screen, g *grid) {
	for y := range s.rows {
		n := d.int(s.cols)
		l := g.line(y)
		l.wrapped = d.bool()
		if n == 0 || d.bad {
			continue
		}
		l.grow(n, s.cols)
		for x := 0; x < n && !d.bad; {
			end := x + d.int(n-x)
			c := d.style()
			if end == x {
				d.fail()
			}
			for ; x < end; x++ {
				c.ch = d.char()
				l.cells[x] = c
			}
		}
	}
}

func (d *decoder) char() uint32 {
	switch v := uint32(d.uint(clusterBase + maxClusters)); {
	case v == 1:
		return tailCh
	case v >= clusterBase:
		return v - clusterBase | clusterBit
	default:
		return v
	}
}

// sound reports whether a restored screen keeps the rules that drawing relies on.
func (s *Screen) sound() bool {
	if s.top > s.bottom || s.top == s.bottom && s.rows > 1 || s.wrap && s.x != s.cols-1 || s.shift == 1 {
		return false
	}
	const known = modeWin32Input<<1 - 1
	if (s.modes|s.savedMask|s.savedModes)&^known != 0 || s.pen.attr&attrWide != 0 || !s.soundPen(s.pen) {
		return false
	}
	if s.modes&modeOrigin != 0 && (s.y < s.top || s.y > s.bottom) || !s.soundChar(s.last) || s.last == tailCh {
		return false
	}
	for _, m := range []uint16{s.mouse, s.savedMouse} {
		if m != 0 && !slices.Contains(mouseModes[:], m) {
			return false
		}
	}
	for i, c := range s.saved {
		if c.wrap && c.x != s.cols-1 || !s.soundPen(c.pen) || c.pen.attr&attrWide != 0 || s.extra(c.pen.attr).link != "" {
			return false
		}
		if c.set == slices.Contains(c.charsets[:], 0) || !c.set && (c != savedCursor{}) || slices.ContainsFunc(s.keyboard[i].saved, func(f uint8) bool { return f > 31 }) {
			return false
		}
	}
	if slices.Contains(s.charsets[:], 0) || !s.parser.sound() {
		return false
	}
	return s.soundGrid(s.main) && (s.alt == nil || s.soundGrid(s.alt))
}

func (p *parser) sound() bool {
	text := p.state == inOSC || p.state == inDCSData || p.state == inDCSIgnore || p.state == inString
	back := p.back == inOSC || p.back == inDCSData || p.back == inDCSIgnore || p.back == inString
	if p.state == inStringStop && !back || (len(p.buf) > 0 && !text && p.state != inStringStop) {
		return false
	}
	if p.state != inGround {
		return p.npartial == 0 && p.pending > 0
	}
	if p.nc0 != 0 || p.pending != p.npartial {
		return false
	}
	if p.npartial == 0 {
		return true
	}
	_, n := decodeRune(p.partial[:p.npartial])
	return n == 0
}

func (s *Screen) soundPen(c cell) bool {
	return int(c.attr>>extraShift) < max(len(s.extras.values), 1)
}

func (s *Screen) soundChar(ch uint32) bool {
	switch {
	case ch == 0 || ch == tailCh:
		return true
	case ch&clusterBit != 0:
		return s.clusters.get(ch&^clusterBit) != ""
	}
	return ch >= 0x20 && ch <= 0x10ffff && (ch < 0x7f || ch >= 0xa0) && (ch < 0xd800 || ch > 0xdfff)
}

// soundGrid checks characters, styles, and that wide characters have both halves.
func (s *Screen) soundGrid(g *grid) bool {
	for i := range g.lines {
		l := &g.lines[i]
		for x := range l.used {
			c := l.cells[x]
			if !s.soundChar(c.ch) || !s.soundPen(c) || c.ch == ' ' {
				return false
			}
			head := x > 0 && l.cells[x-1].attr&attrWide != 0
			if (c.ch == tailCh) != head || c.ch == tailCh && c.attr&attrWide != 0 {
				return false
			}
			if c.attr&attrWide != 0 && x+1 >= l.used {
				return false
			}
		}
	}
	return true
}
