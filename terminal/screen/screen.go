// Package screen is the model of a terminal's screen: what a program's output
// makes of it, the sequences that rebuild it for a viewer, a snapshot for a
// later process, and the answers to the program's queries.
package screen

import "berth"

// Options of a Screen.
type Options struct {
	// Name and Version are what XTVERSION answers.
	Name, Version string
	// OnReport gets each valid OSC 7501 report. nil = none wanted.
	OnReport func(Report)
}

// Report is one OSC 7501 report, bounded and free of control characters.
type Report struct {
	State    berth.AgentState
	Cleared  bool // the program took its state back
	Kind     berth.BlockedKind
	Message  string
	Progress *int
	Child    string
}

// Screen is not safe for concurrent use: its owner locks.
type Screen struct{ opts Options }

// New makes an empty screen.
func New(size berth.Size, opts Options) *Screen { return &Screen{opts: opts} }

// Feed draws p.
func (s *Screen) Feed(p []byte) { panic("todo") }

// Skim passes over p without drawing: modes, alternate screen, scroll region,
// SGR, charsets, titles and queries are followed, cells are not.
func (s *Screen) Skim(p []byte) { panic("todo") }

// Pending is how many of the last bytes fed belong to a sequence or character
// that is not complete: a repaint taken now stands at that many bytes earlier.
func (s *Screen) Pending() int { panic("todo") }

// TakeReplies gives the answers to queries since the last call; nil = none.
func (s *Screen) TakeReplies() []byte { panic("todo") }

// Resize changes the size.
func (s *Screen) Resize(size berth.Size) { panic("todo") }

// Size is the current size.
func (s *Screen) Size() berth.Size { panic("todo") }

// Repaint appends the sequences that rebuild both screens, modes, cursor,
// title and palette on a terminal in any state.
func (s *Screen) Repaint(dst []byte) []byte { panic("todo") }

// Lines is the text of the shown screen, one string a row, trailing blanks cut.
func (s *Screen) Lines() []string { panic("todo") }

// Cursor is where the cursor stands, from 0.
func (s *Screen) Cursor() (col, row int, visible bool) { panic("todo") }

// Alternate reports whether the alternate screen is shown.
func (s *Screen) Alternate() bool { panic("todo") }

// Title and Cwd are what the program reported (OSC 0/2, OSC 7): bounded, clean.
func (s *Screen) Title() string { panic("todo") }

// Cwd is the directory that the program reported.
func (s *Screen) Cwd() string { panic("todo") }

// BracketedPaste reports mode 2004, and FocusEvents mode 1004.
func (s *Screen) BracketedPaste() bool { panic("todo") }

// FocusEvents reports mode 1004.
func (s *Screen) FocusEvents() bool { panic("todo") }

// Snapshot is the whole model as bytes, parser state included, for Restore.
func (s *Screen) Snapshot() []byte { panic("todo") }

// Restore rebuilds a model. A damaged snapshot is an error, never a panic.
func Restore(snapshot []byte, opts Options) (*Screen, error) { panic("todo") }

// Filter takes out of a program's output what a viewer's terminal must not get.
type Filter struct{ replay bool }

// NewFilter makes a filter that stands between two sequences. A live filter
// removes queries (the guest answers them). A replay filter also removes side
// effects: bells, notifications, clipboard writes.
func NewFilter(replay bool) *Filter { return &Filter{replay} }

// Append appends to dst what may go on of p, and says how many bytes of the
// output so far that completes: a sequence or character that is not complete is
// held back and counted when it is. covers sums up to what was fed, less Pending.
func (f *Filter) Append(dst, p []byte) (out []byte, covers int) { panic("todo") }

// Pending is how many bytes are held back.
func (f *Filter) Pending() int { panic("todo") }

// InputFilter takes replies of a viewer's own terminal out of its input, so
// that an answer nobody waits for is never typed into the program.
type InputFilter struct{}

// NewInputFilter makes one for one viewer.
func NewInputFilter() *InputFilter { return &InputFilter{} }

// Append appends to dst what is really input. A lone ESC at the end of p is
// input at once: a key is never held back for a sequence that may follow.
func (f *InputFilter) Append(dst, p []byte) []byte { panic("todo") }
