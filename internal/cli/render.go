package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"berth"
)

// version1 is the "v" of every document. It rises when a field changes its
// meaning or goes; a new field does not raise it.
const version1 = 1

// problem is an error on standard error with --json. Facts is never null, so a
// script may read a fact without asking first whether there are any.
type problem struct {
	V      int               `json:"v"`
	Code   berth.Code        `json:"code"`
	Detail string            `json:"detail"`
	Hint   string            `json:"hint"`
	Facts  map[string]string `json:"facts"`
}

// reportError tells of a failure on standard error.
func (a *app) reportError(err error) {
	e := berth.AsError(err)
	if a.jsonWanted() {
		facts := e.Facts
		if facts == nil {
			facts = map[string]string{}
		}
		_ = writeJSON(a.env.Stderr, problem{version1, e.Code, e.Error(), e.Hint, facts}) // nobody is left to tell
		return
	}
	if e.Code == berth.CodeInterrupted {
		return // the user knows: it was the user
	}
	a.tell("%s %s\n", a.styled(a.env.Stderr, styleError, "berth:"), oneLine(e.Error(), 0))
	if e.Hint != "" {
		a.tell("  %s %s\n", a.styled(a.env.Stderr, styleHint, "hint:"), oneLine(a.sameHouse(e.Hint), 0))
	}
}

// sameHouse gives the commands of a hint the directories that this command was
// given: without them they would be about another daemon.
func (a *app) sameHouse(hint string) string {
	var flags string
	for _, f := range []struct{ name, value string }{
		{"--config", a.flags.paths.Config}, {"--machine-dir", a.flags.paths.Machine},
		{"--runtime-dir", a.flags.paths.Runtime}, {"--state-dir", a.flags.paths.State},
	} {
		if f.value != "" {
			flags += " " + f.name + " " + quoteArgv([]string{f.value})
		}
	}
	if flags == "" {
		return hint
	}
	return bareBerth.ReplaceAllString(hint, "berth"+strings.ReplaceAll(flags, "$", "$$")+" $1")
}

// bareBerth is a command of berth in a hint.
var bareBerth = regexp.MustCompile(`\bberth ((?:up|down|op|ps|setup|update|remove|probe|engine|doctor|status|run)\b)`)

// note tells the user something on standard error that is not the answer. With
// --json there are none: a script reads the problem document from there.
func (a *app) note(format string, args ...any) {
	if a.flags.quiet || a.flags.json {
		return
	}
	a.tell(format+"\n", args...)
}

// tell writes to standard error. There is nobody to tell that it cannot be told.
func (a *app) tell(format string, args ...any) {
	_, _ = fmt.Fprintf(a.env.Stderr, format, args...)
}

// printf writes a part of the answer.
func (a *app) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(a.env.Stdout, format, args...)
	return err
}

// answer writes the one JSON document of a command.
func (a *app) answer(doc any) error { return writeJSON(a.env.Stdout, doc) }

// record writes a record with its "v": the fields of the record stay at the top.
func (a *app) record(rec any) error {
	data, err := withVersion(rec)
	if err != nil {
		return err
	}
	_, err = a.env.Stdout.Write(append(data, '\n'))
	return err
}

// withVersion puts "v":1 before the fields of a record that encodes as an object.
func withVersion(rec any) ([]byte, error) {
	data, err := encodeJSON(rec)
	if err != nil {
		return nil, err
	}
	if len(data) < 2 || data[0] != '{' {
		return nil, fmt.Errorf("%T does not encode as an object", rec)
	}
	head := fmt.Sprintf(`{"v":%d`, version1)
	if data[1] != '}' {
		head += ","
	}
	return append([]byte(head), data[1:]...), nil
}

// encodeJSON leaves <, > and & as they are: nothing here goes into HTML, and
// people read it.
func encodeJSON(v any) ([]byte, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	return []byte(strings.TrimSuffix(b.String(), "\n")), nil
}

func writeJSON(w io.Writer, v any) error {
	data, err := encodeJSON(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// Styles, as SGR parameters from the sixteen colours that the user chose.
const (
	styleError = "1;31"
	styleHint  = "36"
	styleBold  = "1"
	styleDim   = "2"
	styleGood  = "32"
	styleWarn  = "33"
)

// styled colours text for w where w is a terminal that wants it.
func (a *app) styled(w io.Writer, style, text string) string {
	if !a.colours(w) {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

func (a *app) colours(w io.Writer) bool {
	if a.flags.noColor || a.flags.json || a.env.Getenv("NO_COLOR") != "" || a.env.Getenv("TERM") == "dumb" {
		return false
	}
	return isTerminal(w)
}

// isTerminal reports whether a reader or writer is a file that is a terminal.
func isTerminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) //nolint:gosec // a descriptor fits
}

// table writes rows in columns two blanks apart. The last column is cut so that
// a row stays one line on a terminal; elsewhere nothing is cut.
func (a *app) table(head []string, rows [][]string) error {
	widths := make([]int, len(head))
	for _, row := range append([][]string{head}, rows...) {
		for i, cell := range row[:len(row)-1] {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	room := a.columns()
	var b strings.Builder
	for n, row := range append([][]string{head}, rows...) {
		var line strings.Builder
		used := 0
		for i, cell := range row {
			if i == len(row)-1 {
				line.WriteString(cut(cell, room-used))
				break
			}
			line.WriteString(cell)
			line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
			used += widths[i] + 2
		}
		text := strings.TrimRight(line.String(), " ")
		if n == 0 {
			text = a.styled(a.env.Stdout, styleBold, text)
		}
		b.WriteString(text + "\n")
	}
	_, err := io.WriteString(a.env.Stdout, b.String())
	return err
}

// columns is the width of the terminal that the answer goes to; 0 = no bound.
func (a *app) columns() int {
	f, ok := a.env.Stdout.(*os.File)
	if !ok {
		return 0
	}
	w, _, err := term.GetSize(int(f.Fd())) //nolint:gosec // a descriptor fits
	if err != nil {
		return 0
	}
	return w
}

// cut shortens text to n characters; n ≤ 0 leaves it.
func cut(text string, n int) string {
	if n <= 0 || utf8.RuneCountInString(text) <= n {
		return text
	}
	runes := []rune(text)
	return string(runes[:n-1]) + "…"
}

// oneLine makes untrusted text safe for a terminal: control characters become
// blanks, so that neither a title nor an error can move the cursor, and so do
// those that nobody sees, or that reorder what follows. max bounds it in
// characters; 0 = no bound.
func oneLine(text string, max int) string {
	clean := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || unicode.Is(unicode.Cf, r) && r != zeroWidthJoiner {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	return cut(clean, max)
}

// zeroWidthJoiner makes one picture of several, as in families and flags.
const zeroWidthJoiner = '\u200d'

// age writes how long ago t was, in the two largest units at most.
func age(now, t time.Time) string {
	d := now.Sub(t)
	if t.IsZero() || d < 0 {
		d = 0
	}
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

// describe says what a session is: the title that its program set, else its command.
func describe(s berth.Session) string {
	if s.Title != "" {
		return s.Title
	}
	return quoteArgv(s.Argv)
}

// quoteArgv writes a command so that its arguments can be told apart.
func quoteArgv(argv []string) string {
	out := make([]string, len(argv))
	for i, arg := range argv {
		if !plainArgument.MatchString(arg) {
			arg = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
		out[i] = arg
	}
	return strings.Join(out, " ")
}

// plainArgument is what every shell takes as it stands.
var plainArgument = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// exitText says how a program ended, in few words.
func exitText(e *berth.Exit) string {
	switch {
	case e == nil:
		return "ended"
	case e.Reason == berth.ExitEnded || e.Reason == berth.ExitSuspended:
		if e.Detail != "" {
			return string(e.Reason) + ": " + oneLine(e.Detail, 0)
		}
		return string(e.Reason)
	case e.Signal != "":
		return "killed by " + e.Signal
	}
	return fmt.Sprintf("exited %d", e.Code)
}
