package screen

import (
	"unicode/utf8"

	"github.com/clipperhouse/displaywidth"
	"github.com/clipperhouse/uax29/v2/graphemes"
)

// Widths. Without mode 2027 each code point has a width of its own, as wcwidth
// gives it: zero-width ones join the cell before them, an emoji variation
// selector does not widen, and a joined emoji sequence takes the sum of its
// parts. That is what xterm, tmux and most programs count, and the only rule
// that all kinds of viewers share: a session has many viewers, and the program
// can only be told one rule. With mode 2027 a grapheme cluster is one
// character, with a variation selector it is 2 wide, and so is a joined emoji.

// runeWidth is the number of columns of r: 0, 1 or 2.
func runeWidth(r rune) int {
	switch {
	case r < 0x300:
		// U+00AD is drawn by terminals, whatever it means in a text.
		return 1
	case r >= 0x1100 && r < 0x1160, r >= 0x4e00 && r <= 0x9fff, r >= 0xac00 && r <= 0xd7a3:
		return 2
	case r >= 0x2500 && r < 0x2600 && r != 0x25fd && r != 0x25fe: // boxes and blocks
		return 1
	case r >= 0x1160 && r < 0x1200, r >= 0xd7b0 && r < 0xd800: // Hangul vowels and finals join
		return 0
	case r >= 0x1f1e6 && r <= 0x1f1ff: // one letter of a flag
		return 1
	}
	return min(displaywidth.Rune(r), 2)
}

// clusterWidth is the width of a whole cluster under mode 2027.
func clusterWidth(s string) int { return min(max(displaywidth.String(s), 1), 2) }

// joins reports whether r continues the cluster prev (mode 2027).
func joins(prev string, r rune) bool {
	it := graphemes.FromString(prev + string(r))
	return it.Next() && len(it.Value()) == len(prev)+utf8.RuneLen(r)
}

// maxCluster bounds the bytes of one cell. The longest emoji in use has 41;
// without a bound a program could stack marks on one cell for ever.
const maxCluster = 64

// Bounds of the side tables of one screen: entries, and bytes of all links.
const (
	maxClusters  = 8192
	maxExtras    = 4096
	maxLinkBytes = 256 << 10
	maxLink      = 2048
)

// extra is what few cells have: an underline colour, a hyperlink.
type extra struct {
	underline uint32
	link      string // "params;uri" of OSC 8; "" = none
}

// table interns values of cells. Entry 0 is the zero value.
type table[T comparable] struct {
	values []T
	index  map[T]uint32
	free   []uint32
	wait   int // failed inserts until the next sweep may run
}

func (t *table[T]) get(i uint32) T {
	if int(i) < len(t.values) {
		return t.values[i]
	}
	var zero T
	return zero
}

// put gives the index of v. When there are limit entries, sweep is called for
// the marks of those in use; if that frees nothing, ok is false.
func (t *table[T]) put(v T, limit int, sweep func(mark []bool)) (i uint32, ok bool) {
	var zero T
	if v == zero {
		return 0, true
	}
	if i, ok := t.index[v]; ok {
		return i, true
	}
	if t.index == nil {
		t.index = map[T]uint32{}
		t.values = append(t.values[:0], zero)
	}
	if len(t.free) == 0 && len(t.values) >= limit {
		if t.wait > 0 {
			t.wait--
			return 0, false
		}
		t.collect(sweep)
		if len(t.free) < limit/8 {
			// Nearly all are in use: looking again at each insert would make a
			// hostile stream quadratic.
			t.wait = limit
		}
		if len(t.free) == 0 {
			return 0, false
		}
	}
	if n := len(t.free); n > 0 {
		i = t.free[n-1]
		t.free = t.free[:n-1]
		t.values[i] = v
	} else {
		i = uint32(len(t.values))
		t.values = append(t.values, v)
	}
	t.index[v] = i
	return i, true
}

func (t *table[T]) collect(sweep func(mark []bool)) {
	mark := make([]bool, len(t.values))
	sweep(mark)
	var zero T
	for i := 1; i < len(t.values); i++ {
		if !mark[i] && t.values[i] != zero {
			delete(t.index, t.values[i])
			t.values[i] = zero
			t.free = append(t.free, uint32(i))
		}
	}
}

// eachCell visits every real cell of both screens.
func (s *Screen) eachCell(visit func(*cell)) {
	for _, g := range []*grid{s.main, s.alt} {
		if g == nil {
			continue
		}
		for i := range g.lines {
			l := &g.lines[i]
			for x := range l.cells[:l.used] {
				visit(&l.cells[x])
			}
		}
	}
}

// cluster interns the text of a cell; ok is false when there is no room.
func (s *Screen) cluster(text []byte) (ch uint32, ok bool) {
	if i, ok := s.clusters.index[string(text)]; ok {
		return i | clusterBit, true
	}
	i, ok := s.clusters.put(string(text), maxClusters, func(mark []bool) {
		s.eachCell(func(c *cell) {
			if c.ch&clusterBit != 0 {
				mark[c.ch&^clusterBit] = true
			}
		})
		if s.last&clusterBit != 0 {
			mark[s.last&^clusterBit] = true
		}
	})
	return i | clusterBit, ok
}

// setExtra puts underline colour and link into the pen. A full table loses the
// newest link or colour, never a character.
func (s *Screen) setExtra(e extra) {
	if _, have := s.extras.index[e]; !have && e.link != "" {
		if s.linkBytes+len(e.link) > maxLinkBytes {
			s.extras.collect(s.markExtras)
			s.linkBytes = 0
			for _, v := range s.extras.values {
				s.linkBytes += len(v.link)
			}
		}
		if s.linkBytes+len(e.link) > maxLinkBytes {
			e.link = ""
		}
		s.linkBytes += len(e.link)
	}
	i, _ := s.extras.put(e, maxExtras, s.markExtras)
	s.pen.attr = s.pen.attr&^extraMask | i<<extraShift
}

func (s *Screen) markExtras(mark []bool) {
	note := func(c *cell) { mark[c.attr>>extraShift] = true }
	s.eachCell(note)
	note(&s.pen)
	note(&s.saved[0].pen)
	note(&s.saved[1].pen)
}

func (s *Screen) extra(attr uint32) extra { return s.extras.get(attr >> extraShift) }

// appendGlyph appends the text of a cell; a blank is a space, a tail nothing.
func (s *Screen) appendGlyph(dst []byte, ch uint32) []byte {
	switch {
	case ch == 0:
		return append(dst, ' ')
	case ch < 0x80:
		return append(dst, byte(ch))
	case ch == tailCh:
		return dst
	case ch&clusterBit != 0:
		return append(dst, s.clusters.get(ch&^clusterBit)...)
	}
	return utf8.AppendRune(dst, rune(ch))
}
