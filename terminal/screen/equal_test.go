package screen

import (
	"fmt"
	"slices"
)

// diffGrid says where two grids differ in what is seen, or "".
func diffGrid(a, b *Screen, ga, gb *grid) string {
	if (ga == nil) != (gb == nil) {
		return "one has an alternate screen"
	}
	if ga == nil {
		return ""
	}
	for y := range a.rows {
		for x := range a.cols {
			ca, cb := ga.line(y).at(x), gb.line(y).at(x)
			if a.describe(ca) != b.describe(cb) {
				return fmt.Sprintf("cell %d,%d: %s and %s", x, y, a.describe(ca), b.describe(cb))
			}
		}
	}
	return ""
}

// describe is a cell without the indexes of its side tables.
func (s *Screen) describe(c cell) string {
	ch := "tail"
	if c.ch != tailCh {
		ch = string(s.appendGlyph(nil, c.ch))
	}
	return fmt.Sprintf("%q fg=%x bg=%x attr=%x %v", ch, c.fg, c.bg, c.attr&^uint32(extraMask), s.extra(c.attr))
}

func (s *Screen) describeSaved(c savedCursor) string {
	if !c.set { // the same as a saved home
		c = savedCursor{charsets: defaultCharsets}
	}
	c.set = false
	pen := s.describe(c.pen)
	c.pen = cell{}
	return fmt.Sprintf("%+v %s", c, pen)
}

// diff says how two models differ in what a program or a viewer could notice, or "".
// A viewer that was used before can have a deeper title stack and, where the
// program set none, another title and directory.
func diff(a, b *Screen, viewer bool) string {
	if a.Size() != b.Size() {
		return fmt.Sprintf("size %v and %v", a.Size(), b.Size())
	}
	if d := diffGrid(a, b, a.main, b.main); d != "" {
		return "main " + d
	}
	if d := diffGrid(a, b, a.alt, b.alt); d != "" {
		return "alternate " + d
	}
	state := func(s *Screen) []string {
		list := []string{
			fmt.Sprintf("cursor %d,%d wrap=%v", s.x, s.y, s.wrap), "pen " + s.describe(s.pen),
			fmt.Sprintf("charsets %s gl=%d shift=%d", s.charsets, s.gl, s.shift),
			fmt.Sprintf("region %d-%d", s.top, s.bottom),
			"saved " + s.describeSaved(s.saved[0]), "saved alternate " + s.describeSaved(s.saved[1]),
			fmt.Sprintf("keyboard %v", s.keyboard),
			fmt.Sprintf("modes %x", s.modes&^modeSizeReports), fmt.Sprintf("mouse %d", s.mouse),
			fmt.Sprintf("modify %d style %d", s.modifyKeys, s.cursorStyle),
			fmt.Sprintf("palette %v %q", s.palette, s.colours),
		}
		for x := range s.cols {
			if s.tabs.has(x) {
				list = append(list, fmt.Sprintf("tab %d", x))
			}
		}
		return list
	}
	sa, sb := state(a), state(b)
	for i := range sa {
		if i >= len(sb) || sa[i] != sb[i] {
			return fmt.Sprintf("%s and %s", sa[i], sb[min(i, len(sb)-1)])
		}
	}
	if len(sa) != len(sb) {
		return "tabs"
	}
	switch {
	case (a.titled || !viewer) && a.title != b.title:
		return fmt.Sprintf("title %q and %q", a.title, b.title)
	case a.cwdURL != "" && a.cwd != b.cwd:
		return fmt.Sprintf("directory %q and %q", a.cwd, b.cwd)
	}
	if viewer {
		if n := len(b.titles) - len(a.titles); n > 0 {
			b = &Screen{titles: b.titles[n:]}
		}
	}
	if !slices.Equal(a.titles, b.titles) {
		return fmt.Sprintf("titles %q and %q", a.titles, b.titles)
	}
	return ""
}

// exact is diff and the parser's state: what Restore must give back.
func exact(a, b *Screen) string {
	if d := diff(a, b, false); d != "" {
		return d
	}
	pa, pb := a.parser, b.parser
	pa.buf, pb.buf = nil, nil
	if !slices.Equal(a.buf, b.buf) && a.state != inGround {
		return fmt.Sprintf("string %q and %q", a.buf, b.buf)
	}
	if pa.state == inGround {
		pa = parser{npartial: pa.npartial, partial: pa.partial, pending: pa.pending}
		pb = parser{npartial: pb.npartial, partial: pb.partial, pending: pb.pending}
	}
	for i := range pa.params {
		if i > pa.nparam || i == pa.nparam && !pa.digits {
			pa.params[i], pb.params[i] = 0, 0
		}
	}
	clear(pa.c0[pa.nc0:])
	clear(pb.c0[pb.nc0:])
	clear(pa.partial[pa.npartial:])
	clear(pb.partial[pb.npartial:])
	if fmt.Sprintf("%+v", pa) != fmt.Sprintf("%+v", pb) {
		return fmt.Sprintf("parser %+v and %+v", pa, pb)
	}
	return ""
}

// check gives what is wrong inside the model, or "".
func (s *Screen) check() string {
	switch {
	case s.x < 0 || s.x >= s.cols || s.y < 0 || s.y >= s.rows:
		return fmt.Sprintf("cursor %d,%d of %dx%d", s.x, s.y, s.cols, s.rows)
	case len(s.main.lines) != s.rows || s.alt != nil && len(s.alt.lines) != s.rows:
		return "wrong number of rows"
	case !s.sound():
		return "not sound"
	}
	for _, g := range []*grid{s.main, s.alt} {
		if g == nil {
			continue
		}
		for i := range g.lines {
			if n := len(g.lines[i].cells); n != 0 && n != s.cols || g.lines[i].used > n {
				return fmt.Sprintf("row %d has %d cells, %d used, of %d", i, n, g.lines[i].used, s.cols)
			}
		}
	}
	return ""
}
