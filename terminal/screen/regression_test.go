package screen

import (
	"testing"

	"berth"
)

// TestRepaintRegressions are streams that a repaint once got wrong.
func TestRepaintRegressions(t *testing.T) {
	for name, c := range map[string]struct {
		cols, rows   int
		stream, more string
	}{
		"blanks were written over a cluster":                {10, 5, "0\x1b[?2027h👩\u200d👩00", ""},
		"a flag that REP wrote joined its neighbour":        {2, 5, "\x1b[?2027h0🇪\x1b[b\x1b[b", ""},
		"the last character went through the character set": {14, 5, "\x1b(0\x1bNa", ""},
		"so did the base of a cluster":                      {1, 1, "\x1bN\x1b(0e\u0301", ""},
		"REP repeated what only the repaint had written":    {1, 2, "a\x1b7", "\x1b[b"},
		"REP lost its character":                            {5, 2, "a", "\x1b[2b"},
		"a saved mode ended synchronised output":            {4, 2, "\x1b[?1s\x1b[?2026h", "\x1b[?1r"},
		"a wide character without room lost the flag":       {15, 1, "b qqxx~~\x1b[?7lwide 字字", "x"},
		"the flag in a saved cursor":                        {5, 3, "abcde\x1b7\x1b[H", "\x1b8x"},
		"insert mode moved the last column":                 {5, 2, "\x1b[4habcde", "x"},
		"origin mode moved the cursor":                      {9, 6, "\x1b[2;4r\x1b[?6h\x1b[2;3H", "x\x1b[Hy\x1b[?6l"},
		"the main screen's cursor behind the alternate one": {9, 4, "ab\x1b[31m\x1b[?1049h\x1b[2;2Hx\x1b7\x1b[m", "\x1b8y\x1b[?1049lz"},
		"a link went into the saved cursor":                 {9, 2, "\x1b]8;;http://x\a\x1b7a\x1b]8;;\a", "\x1b8b"},
	} {
		size := berth.Size{Cols: c.cols, Rows: c.rows}
		a, b := New(size, Options{}), New(size, Options{})
		a.Feed([]byte(c.stream))
		b.Feed(a.Repaint(nil))
		if d := diff(a, b, true); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		a.Feed([]byte(c.more))
		b.Feed([]byte(c.more))
		if d := diff(a, b, true); d != "" {
			t.Errorf("%s: gone on: %s", name, d)
		}
	}
}

// TestFilterRegressions are streams that a filter once got wrong.
func TestFilterRegressions(t *testing.T) {
	for text, want := range map[string]string{
		"\x1bX\x1bX":          "\x1bX\x1b\\",         // the end of one string was part of the next
		"\x1b]0;t\x1b[6nx":    "\x1b]0;t\x1b\\x",     // a title stayed open when the query that ended it was taken out
		"\x1b]22;\x1b0":       "\x1b]22;\x1b\\\x1b0", // an empty field was read past its end
		"\u0085\xc2\x9b1mx":   "\x1bE\x1b[1mx",       // viewers do not agree on 8-bit controls
		"\xc2\x9d0;t\xc2\x9c": "\x1b]0;t\x1b\\",      // nor on strings between them
		"\x1b[1\x1b[2mx":      "\x1b[2mx",            // half a sequence went on
		"\x1b[1\x18x\x1b[3éy": "xéy",
	} {
		if got := filtered(false, text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
