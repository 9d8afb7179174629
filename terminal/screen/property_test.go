package screen

import (
	"fmt"
	"testing"

	"berth"

	"pgregory.net/rapid"
)

// tokens are what random streams are made of: every sequence that the model
// knows, with the parameters that programs use and some that they do not.
func genToken() *rapid.Generator[string] {
	n := rapid.SampledFrom([]string{"", "0", "1", "2", "3", "5", "8", "20", "999"})
	text := rapid.SampledFrom([]string{
		"a", "b ", " ", "hello", "wide 字字", "字", "é", "e\u0301", "\u0301", "❤\ufe0f", "👩\u200d👩", "👍🏽", "🇩🇪", "\u200d",
		"0123456789012345", "qqxx~~", "\xff", "\xe2\x82", "\u0085", "\u008d", "한글", "x\u0338",
	})
	control := rapid.SampledFrom([]string{"\n", "\r", "\r\n", "\b", "\t", "\a", "\x0e", "\x0f", "\x00", "\x7f", "\v"})
	esc := rapid.SampledFrom([]string{
		"\x1b7", "\x1b8", "\x1bD", "\x1bE", "\x1bH", "\x1bM", "\x1bN", "\x1bO", "\x1bc", "\x1bn", "\x1bo", "\x1b=", "\x1b>",
		"\x1b(0", "\x1b(B", "\x1b)0", "\x1b*A", "\x1b+0", "\x1b(A", "\x1b#8", "\x1b\\", "\x1bZ",
	})
	private := rapid.SampledFrom([]string{"1", "5", "6", "7", "9", "12", "25", "45", "47", "66", "1000", "1002", "1003", "1004", "1005", "1006", "1007", "1015", "1016", "1047", "1048", "1049", "2004", "2026", "2027", "2031", "7727"})
	csi := rapid.Custom(func(t *rapid.T) string {
		f := rapid.SampledFrom([]string{"@", "A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L", "M", "P", "S", "T", "X", "Z", "`", "a", "b", "d", "e", "f", "g", "h", "l", "r", "s", "u", "c", "n", "t", " q", "!p"}).Draw(t, "final")
		a, b := n.Draw(t, "a"), n.Draw(t, "b")
		if f == "h" || f == "l" {
			a, b = rapid.SampledFrom([]string{"4", "20"}).Draw(t, "mode"), ""
		}
		if b != "" {
			a += ";" + b
		}
		return "\x1b[" + a + f
	})
	modes := rapid.Custom(func(t *rapid.T) string {
		return "\x1b[?" + private.Draw(t, "mode") + rapid.SampledFrom([]string{"h", "l", "s", "r"}).Draw(t, "how")
	})
	sgr := rapid.SampledFrom([]string{
		"\x1b[m", "\x1b[1m", "\x1b[31m", "\x1b[42m", "\x1b[7m", "\x1b[4:3m", "\x1b[58:2::1:2:3m", "\x1b[58;5;9m", "\x1b[38;5;200m", "\x1b[48;2;1;2;3m",
		"\x1b[38:2:9:8:7m", "\x1b[0;1;3;9m", "\x1b[22;23m", "\x1b[59;24m", "\x1b[97;104m", "\x1b[2;53m", "\x1b[38;5m", "\x1b[39;49m", "\x1b[8;5m", "\x1b[21m",
	})
	other := rapid.SampledFrom([]string{
		"\x1b]0;title\a", "\x1b]2;x\x1b\\", "\x1b[22;0t", "\x1b[23;0t", "\x1b]4;1;rgb:11/22/33\a", "\x1b]104\a", "\x1b]104;1\a", "\x1b]11;#123456\x1b\\", "\x1b]111\a",
		"\x1b]8;;http://x/\a", "\x1b]8;id=1;http://y/\x1b\\", "\x1b]8;;\a", "\x1b]7;file://h/tmp\a", "\x1b[>1u", "\x1b[>5u", "\x1b[<u", "\x1b[=3;2u", "\x1b[=1u",
		"\x1b[>4;2m", "\x1b[>4m", "\x1bPq#0\x1b\\", "\x1b]52;c;eA==\a", "\x1b[?5W", "\x1b[3g", "\x1b[2;4r", "\x1b[2;4r\x1b[?6h", "\x1b[r", "\x1b[3\n1m", "\x1b[\x18", "\x1b_G\x1b\\",
	})
	return rapid.OneOf(text, text, control, esc, csi, csi, csi, modes, sgr, sgr, other)
}

func genStream() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		s := ""
		for _, token := range rapid.SliceOfN(genToken(), 0, 60).Draw(t, "tokens") {
			s += token
		}
		return s
	})
}

func genSize(t *rapid.T) berth.Size {
	return berth.Size{Cols: rapid.IntRange(1, 24).Draw(t, "cols"), Rows: rapid.IntRange(1, 8).Draw(t, "rows")}
}

// feedChunks feeds text cut at random places.
func feedChunks(t *rapid.T, s *Screen, text string) {
	for len(text) > 0 {
		n := rapid.IntRange(1, len(text)).Draw(t, "chunk")
		s.Feed([]byte(text[:n]))
		text = text[n:]
		if bad := s.check(); bad != "" {
			t.Fatal(bad)
		}
	}
}

// TestRepaintRebuilds holds the promise of Repaint: a fresh terminal and one in
// any state come to show and to be in what the model is in, and go on alike.
func TestRepaintRebuilds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := genSize(t)
		a, b, c := New(size, Options{}), New(size, Options{}), New(size, Options{})
		text := genStream().Draw(t, "stream")
		feedChunks(t, a, text)
		c.Feed([]byte(genStream().Draw(t, "dirt")))
		paint := a.Repaint(nil)
		b.Feed(paint)
		c.Feed(paint)
		compare := func(when string) {
			if d := diff(a, b, true); d != "" {
				t.Fatalf("%s: a fresh terminal differs: %s\n%q", when, d, paint)
			}
			if d := diff(a, c, true); d != "" {
				t.Fatalf("%s: a used terminal differs: %s\n%q", when, d, paint)
			}
		}
		compare("painted")
		if len(b.TakeReplies()) > 0 {
			t.Fatalf("the repaint asks something: %q", paint)
		}
		more := genStream().Draw(t, "more")
		a.TakeReplies()
		rest := []byte(text[len(text)-a.Pending():])
		b.Feed(rest)
		c.Feed(rest)
		c.titles, c.title, c.titled, c.cwd, c.cwdURL = a.titles, a.title, a.titled, a.cwd, a.cwdURL
		b.titles, b.title, b.titled, b.cwd, b.cwdURL = a.titles, a.title, a.titled, a.cwd, a.cwdURL
		// What XTSAVE kept before, XTRESTORE still finds.
		c.savedMask, c.savedModes, c.savedMouse, c.savedMouseSet = a.savedMask, a.savedModes, a.savedMouse, a.savedMouseSet
		for _, s := range []*Screen{a, b, c} {
			s.titles = append([]string(nil), s.titles...)
			s.Feed([]byte(more))
		}
		compare("gone on")
	})
}

// TestSnapshotRestores: a restored model is the same in everything and goes on
// alike, also from the middle of a sequence.
func TestSnapshotRestores(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := New(genSize(t), Options{})
		text := genStream().Draw(t, "stream")
		a.Feed([]byte(text[:rapid.IntRange(0, len(text)).Draw(t, "cut")]))
		b, err := Restore(a.Snapshot(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if d := exact(a, b); d != "" {
			t.Fatal(d)
		}
		if a.title != b.title || a.cwd != b.cwd || fmt.Sprint(a.titles) != fmt.Sprint(b.titles) {
			t.Fatal("title")
		}
		a.TakeReplies()
		more := []byte(genStream().Draw(t, "more"))
		a.Feed(more)
		b.Feed(more)
		if d := exact(a, b); d != "" {
			t.Fatal("gone on: " + d)
		}
		if string(a.TakeReplies()) != string(b.TakeReplies()) {
			t.Fatal("answers differ")
		}
		if string(a.Snapshot()) != string(b.Snapshot()) {
			t.Fatal("snapshots differ")
		}
	})
}

// TestChunksDoNotMatter: where the output is cut makes no difference.
func TestChunksDoNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size, text := genSize(t), genStream().Draw(t, "stream")
		a, b := New(size, Options{}), New(size, Options{})
		a.Feed([]byte(text))
		feedChunks(t, b, text)
		if d := exact(a, b); d != "" {
			t.Fatal(d)
		}
	})
}

// TestResizeKeepsRules resizes between pieces of output.
func TestResizeKeepsRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := New(genSize(t), Options{})
		for range 4 {
			a.Feed([]byte(genStream().Draw(t, "stream")))
			a.Resize(genSize(t))
			if bad := a.check(); bad != "" {
				t.Fatal(bad)
			}
		}
		b := New(a.Size(), Options{})
		b.Feed(a.Repaint(nil))
		if d := diff(a, b, true); d != "" {
			t.Fatal(d)
		}
	})
}

// TestSkimFollowsModes: skimming changes everything but cells as drawing does.
func TestSkimFollowsModes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size, text := genSize(t), genStream().Draw(t, "stream")
		a, b := New(size, Options{}), New(size, Options{})
		a.Feed([]byte(text))
		b.Skim([]byte(text))
		if bad := b.check(); bad != "" {
			t.Fatal(bad)
		}
		state := func(s *Screen) string {
			return fmt.Sprint(s.modes, s.mouse, s.alt != nil, s.top, s.bottom, s.describe(s.pen), s.charsets, s.gl, s.title, s.titles,
				s.palette, s.colours, s.cursorStyle, s.keyboard, s.modifyKeys, s.cwd, s.pending, s.state)
		}
		if state(a) != state(b) {
			t.Fatalf("%s\n%s", state(a), state(b))
		}
	})
}
