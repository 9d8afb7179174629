package screen

// A cell is one column of one row: 16 bytes and no pointers, so that the
// garbage collector never looks inside a screen, and writing a character is
// four stores.
type cell struct {
	ch   uint32 // 0 = blank; a rune; tailCh; or clusterBit|index
	fg   uint32 // colour, see colourIndexed
	bg   uint32
	attr uint32 // attr bits, underline style, index of an extra
}

const (
	// tailCh marks the right half of a wide character.
	tailCh = 0x7fffffff
	// clusterBit marks an index into the table of clusters: a character with
	// combining marks does not fit into a rune.
	clusterBit = 0x80000000
)

// The attribute bits of a cell. What is in penMask can be in a pen, too;
// attrWide is only ever in cells.
const (
	attrBold uint32 = 1 << iota
	attrFaint
	attrItalic
	attrBlink
	attrInverse
	attrConceal
	attrStrike
	attrOverline
	attrWide

	underlineShift = 12
	underlineMask  = 7 << underlineShift
	extraShift     = 16
	extraMask      = 0xffff << extraShift
)

// Colours: 0 is the default, else a kind in the top byte.
const (
	colourIndexed = 1 << 24 // low byte: palette index
	colourRGB     = 2 << 24 // low three bytes: red, green, blue
	colourKind    = 0xff << 24
)

// line is one row. Cells at used and after are blank in the default style,
// whatever the memory holds: clearing a row is one store, and an empty row has
// no memory at all.
type line struct {
	cells   []cell // nil, or as many as the screen has columns
	used    int
	wrapped bool // the text goes on in the next row
}

// grid is the rows of one of the two screens, as a ring: a scroll of the whole
// screen moves one index.
type grid struct {
	lines []line
	top   int
}

func newGrid(rows int) *grid { return &grid{lines: make([]line, rows)} }

func (g *grid) line(y int) *line {
	i := g.top + y
	if i >= len(g.lines) {
		i -= len(g.lines)
	}
	return &g.lines[i]
}

// at reads a cell.
func (l *line) at(x int) cell {
	if x < l.used {
		return l.cells[x]
	}
	return cell{}
}

// grow makes cells up to x (exclusive) real.
func (l *line) grow(x, cols int) {
	if len(l.cells) < cols {
		l.cells = make([]cell, cols)
	}
	if l.used < x {
		clear(l.cells[l.used:x])
		l.used = x
	}
}

// clear makes the whole row blank.
func (l *line) clear(blank cell, cols int) {
	l.wrapped = false
	l.used = 0
	if blank != (cell{}) {
		l.fill(0, cols, blank, cols)
	}
}

// split makes sure that no wide character spans the border before column x.
func (l *line) split(x int) {
	if x > 0 && x < l.used && l.cells[x].ch == tailCh {
		l.cells[x].ch = 0
		l.cells[x-1].ch = 0
		l.cells[x-1].attr &^= attrWide
	}
}

// fill sets columns a to b (exclusive) to the blank cell.
func (l *line) fill(a, b int, blank cell, cols int) {
	if a >= b {
		return
	}
	l.split(a)
	l.split(b)
	if b >= cols {
		l.wrapped = false
	}
	if blank == (cell{}) {
		if b >= l.used {
			l.used = min(l.used, a)
			return
		}
		clear(l.cells[a:b])
		return
	}
	l.grow(b, cols)
	for i := a; i < b; i++ {
		l.cells[i] = blank
	}
}

// insert shifts what is at x and right of it by n; the right end falls off.
func (l *line) insert(x, n int, blank cell, cols int) {
	l.split(x)
	n = min(n, cols-x)
	if l.used > x {
		end := min(l.used+n, cols)
		used := l.used
		l.grow(end, cols)
		copy(l.cells[x+n:end], l.cells[x:used])
		l.dropHalf(cols)
	}
	l.fillRaw(x, x+n, blank, cols)
	l.wrapped = false
}

// fillRaw is fill where the neighbours are known to be whole.
func (l *line) fillRaw(a, b int, blank cell, cols int) {
	if blank == (cell{}) && a >= l.used {
		return
	}
	l.grow(b, cols)
	for i := a; i < b; i++ {
		l.cells[i] = blank
	}
}

// remove takes n cells out at x; blanks come in at the right.
func (l *line) remove(x, n int, blank cell, cols int) {
	n = min(n, cols-x)
	l.split(x)
	l.split(x + n)
	if l.used > x {
		if l.used > x+n {
			copy(l.cells[x:], l.cells[x+n:l.used])
		}
		l.used = max(x, l.used-n)
	}
	if blank != (cell{}) {
		l.fillRaw(cols-n, cols, blank, cols)
	}
	l.wrapped = false
}

// dropHalf blanks a wide character whose right half is past the last column.
func (l *line) dropHalf(cols int) {
	if l.used == cols && l.cells[cols-1].attr&attrWide != 0 {
		l.cells[cols-1].ch = 0
		l.cells[cols-1].attr &^= attrWide
	}
}

// scrollUp moves rows top to bottom (inclusive) up by n and blanks what comes in.
func (g *grid) scrollUp(top, bottom, n int, blank cell, cols int) {
	height := bottom - top + 1
	n = min(n, height)
	if height == len(g.lines) {
		for range n {
			l := &g.lines[g.top]
			l.clear(blank, cols)
			g.top++
			if g.top == len(g.lines) {
				g.top = 0
			}
		}
		return
	}
	for range n {
		first := *g.line(top)
		for y := top; y < bottom; y++ {
			*g.line(y) = *g.line(y + 1)
		}
		first.clear(blank, cols)
		*g.line(bottom) = first
	}
}

// scrollDown is scrollUp the other way.
func (g *grid) scrollDown(top, bottom, n int, blank cell, cols int) {
	height := bottom - top + 1
	n = min(n, height)
	if height == len(g.lines) {
		for range n {
			g.top--
			if g.top < 0 {
				g.top = len(g.lines) - 1
			}
			g.lines[g.top].clear(blank, cols)
		}
		return
	}
	for range n {
		last := *g.line(bottom)
		for y := bottom; y > top; y-- {
			*g.line(y) = *g.line(y - 1)
		}
		last.clear(blank, cols)
		*g.line(top) = last
	}
}

// visible is how many columns, from the left, are not blank in the default style.
func (l *line) visible() int {
	n := l.used
	for n > 0 && l.cells[n-1] == (cell{}) {
		n--
	}
	return n
}

// resize gives the grid another size without moving text between rows. When it
// gets lower, the rows below cursor y go first, as xterm.js and tmux do it
// (below a prompt they are blank), then rows from the top; those are given to
// off. It returns the cursor's new row.
func (g *grid) resize(cols, rows, y int, off func(*line)) int {
	lines := make([]line, 0, max(rows, len(g.lines)))
	for i := range g.lines {
		lines = append(lines, *g.line(i))
	}
	lines = lines[:min(len(lines), max(rows, y+1))]
	if n := len(lines) - rows; n > 0 {
		for i := range n {
			if off != nil {
				off(&lines[i])
			}
		}
		lines = lines[n:]
		y -= n
	}
	for len(lines) < rows {
		lines = append(lines, line{})
	}
	for i := range lines {
		lines[i].recol(cols)
	}
	g.lines, g.top = append([]line(nil), lines...), 0
	return y
}

// recol gives a row another number of columns.
func (l *line) recol(cols int) {
	n := l.visible()
	if n == 0 {
		*l = line{}
		return
	}
	l.split(cols) // cuts a wide character that would be halved, and nothing else
	n = min(n, cols)
	cells := make([]cell, cols)
	copy(cells, l.cells[:n])
	l.cells, l.used = cells, n
	l.wrapped = false
}
