// Package screen is the model of a terminal's screen: what a program's output
// makes of it, the sequences that rebuild it for a viewer, a snapshot for a
// later process, and the answers to the program's queries.
//
// The model follows xterm; where xterm, tmux and xterm.js differ, it does what
// the latter two do, because they are what viewers mostly look through. It has
// no scrollback: the log has that.
package screen

import (
	"unicode/utf8"

	"berth"
)

// Options of a Screen.
type Options struct {
	// Name and Version are what XTVERSION answers.
	Name, Version string
	// OnReport gets each valid OSC 7501 report. nil = none wanted. It runs inside
	// Feed and Skim and must not call the Screen.
	OnReport func(Report)
}

// Report is one OSC 7501 report, bounded and free of control characters.
type Report struct {
	State    berth.AgentState
	Cleared  bool // the program took its state back, or a new prompt ended it
	Kind     berth.BlockedKind
	Message  string // at most berth.MaxAgentMessage bytes
	Progress *int   // percent; nil = not said
	Child    string // id of a record below the program's own; "" = its own
}

// Screen is not safe for concurrent use: its owner locks.
type Screen struct {
	opts Options
	parser

	cols, rows int
	main, alt  *grid // alt is nil while it is not shown
	g          *grid // the shown one
	skim       bool  // the running feed does not draw

	x, y        int
	wrap        bool // the "last column" flag: the next character wraps first
	pen         cell // ch is 0
	charsets    [4]byte
	gl          uint8  // which of them is in use
	shift       uint8  // 2 or 3: for the next character only
	last        uint32 // the character that REP repeats; 0 = none
	top, bottom int    // scroll region, both inclusive
	saved       [2]savedCursor
	keyboard    [2]keyStack
	tabs        tabStops

	modes         uint64
	savedMask     uint64 // which modes XTSAVE has kept
	savedModes    uint64
	savedMouse    uint16
	savedMouseSet bool
	mouse         uint16 // 0, 9, 1000, 1002 or 1003
	modifyKeys    uint8
	cursorStyle   uint8

	title   string
	titled  bool // a title was set
	titles  []string
	cwd     string
	cwdURL  string
	palette map[uint8]string
	colours [3]string // OSC 10, 11, 12; "" = unchanged

	clusters  table[string]
	extras    table[extra]
	linkBytes int // of extras, never too low

	replies        []byte
	reported, busy bool // OSC 7501: a state stands; it is working or blocked

	onScroll func(*line) // a row leaves the main screen at the top
	onClear  func()      // the main screen is about to be cleared
}

// New makes an empty screen. A side that is out of bounds is taken to the next
// that is in.
func New(size berth.Size, opts Options) *Screen {
	size = bounded(size)
	s := &Screen{
		opts: opts, cols: size.Cols, rows: size.Rows, main: newGrid(size.Rows), bottom: size.Rows - 1,
		charsets: defaultCharsets, modes: defaultModes, tabs: defaultTabs(),
	}
	s.g = s.main
	return s
}

func bounded(size berth.Size) berth.Size {
	return berth.Size{Cols: min(max(size.Cols, 1), berth.MaxCols), Rows: min(max(size.Rows, 1), berth.MaxRows)}
}

// Pending is how many of the last bytes fed belong to a sequence or character
// that is not complete: a repaint taken now stands at that many bytes earlier.
func (s *Screen) Pending() int { return s.pending }

// Size is the current size.
func (s *Screen) Size() berth.Size { return berth.Size{Cols: s.cols, Rows: s.rows} }

// Resize changes the size. Text is cut or padded at the right, never moved to
// other rows; rows below the cursor go before rows at the top. The scroll region
// becomes the whole screen.
func (s *Screen) Resize(size berth.Size) {
	size = bounded(size)
	if size == s.Size() {
		return
	}
	for x := s.cols; x < size.Cols; x++ { // new columns have the usual tab stops
		s.tabs.clear(x)
		if x%8 == 0 && x > 0 {
			s.tabs.set(x)
		}
	}
	if size.Cols > s.cols {
		s.cutLast()
	}
	y := s.y
	if s.alt != nil {
		y = min(s.saved[0].y, s.rows-1)
	}
	moved := s.main.resize(size.Cols, size.Rows, y, s.onScroll)
	s.saved[0].y += moved - y
	if s.alt != nil {
		y, moved = s.y, s.alt.resize(size.Cols, size.Rows, s.y, nil)
		s.saved[1].y += moved - y
	}
	s.y = moved
	s.cols, s.rows = size.Cols, size.Rows
	s.x, s.wrap, s.last = min(s.x, s.cols-1), false, 0
	s.top, s.bottom = 0, s.rows-1
	for i := range s.saved {
		c := &s.saved[i]
		c.x, c.y, c.wrap = min(c.x, s.cols-1), min(max(c.y, 0), s.rows-1), false
	}
	if s.modes&modeSizeReports != 0 {
		s.reportSize()
	}
}

// cutLast takes clusters that had no room to become wide (mode 2027) in the last
// column back to their first character: with room they would be another thing.
func (s *Screen) cutLast() {
	for _, g := range []*grid{s.main, s.alt} {
		if g == nil {
			continue
		}
		for i := range g.lines {
			l := &g.lines[i]
			if l.used < s.cols || l.cells[s.cols-1].ch&clusterBit == 0 || l.cells[s.cols-1].ch == tailCh {
				continue
			}
			text := s.clusters.get(l.cells[s.cols-1].ch &^ clusterBit)
			if first, _ := utf8.DecodeRuneInString(text); clusterWidth(text) == 2 && runeWidth(first) == 1 {
				l.cells[s.cols-1].ch = uint32(first)
			}
		}
	}
}

// Lines is the text of the shown screen, one string a row, trailing blanks cut.
func (s *Screen) Lines() []string {
	lines := make([]string, s.rows)
	var buf []byte
	for y := range lines {
		buf = s.appendText(buf[:0], s.g.line(y))
		lines[y] = string(buf)
	}
	return lines
}

// appendText appends the text of a row without trailing blanks.
func (s *Screen) appendText(dst []byte, l *line) []byte {
	n := l.used
	for n > 0 && l.cells[n-1].ch == 0 {
		n--
	}
	for _, c := range l.cells[:n] {
		dst = s.appendGlyph(dst, c.ch)
	}
	return dst
}

// Cursor is where the cursor stands, from 0.
func (s *Screen) Cursor() (col, row int, visible bool) {
	return s.x, s.y, s.modes&modeVisible != 0
}

// Alternate reports whether the alternate screen is shown.
func (s *Screen) Alternate() bool { return s.alt != nil }

// Title is what the program reported with OSC 0 or 2: bounded, clean.
func (s *Screen) Title() string { return s.title }

// Cwd is the directory that the program reported with OSC 7, or "".
func (s *Screen) Cwd() string { return s.cwd }

// BracketedPaste reports mode 2004.
func (s *Screen) BracketedPaste() bool { return s.modes&modePaste != 0 }

// FocusEvents reports mode 1004.
func (s *Screen) FocusEvents() bool { return s.modes&modeFocus != 0 }
