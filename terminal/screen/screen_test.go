package screen

import (
	"encoding/base64"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"berth"
)

func small(text string) *Screen {
	s := New(berth.Size{Cols: 10, Rows: 3}, Options{Name: "berth", Version: "1.2"})
	s.Feed([]byte(text))
	return s
}

func TestQueriesAreAnswered(t *testing.T) {
	for query, want := range map[string]string{
		"\x1b[c": "\x1b[?62;22c", "\x1b[>c": "\x1b[>0;277;0c", "\x1b[=c": "\x1bP!|00000000\x1b\\", "\x1bZ": "\x1b[?62;22c",
		"\x1b[5n": "\x1b[0n", "\x1b[2;4H\x1b[6n": "\x1b[2;4R", "\x1b[2;3r\x1b[?6h\x1b[2;2H\x1b[6n": "\x1b[2;2R", "\x1b[?6n": "\x1b[?1;1;1R",
		"0123456789\x1b[6n": "\x1b[1;10R", "\x1b[>q": "\x1bP>|berth(1.2)\x1b\\", "\x1b[0x": "\x1b[2;1;1;128;128;1;0x",
		"\x1b[?2026$p": "\x1b[?2026;2$y", "\x1b[?2026h\x1b[?2026$p": "\x1b[?2026;1$y", "\x1b[?7$p": "\x1b[?7;1$y", "\x1b[?9999$p": "\x1b[?9999;0$y", "\x1b[4h\x1b[4$p": "\x1b[4;1$y",
		"\x1b[?1002h\x1b[?1000$p\x1b[?1002$p": "\x1b[?1000;2$y\x1b[?1002;1$y", "\x1b[?1049h\x1b[?1049$p": "\x1b[?1049;1$y", "\x1b[?2027$p": "\x1b[?2027;0$y",
		"\x1b[14t": "\x1b[4;0;0t", "\x1b[16t": "\x1b[6;0;0t", "\x1b[18t": "\x1b[8;3;10t", "\x1b]0;evil\a\x1b[21t": "\x1b]l\x1b\\",
		"\x1b[?u": "\x1b[?0u", "\x1b[>5u\x1b[?u": "\x1b[?5u", "\x1b[>5u\x1b[>1u\x1b[<u\x1b[?u": "\x1b[?5u", "\x1b[=3u\x1b[=8;2u\x1b[=1;3u\x1b[?u": "\x1b[?10u",
		"\x1b[>1u\x1b[?1049h\x1b[?u": "\x1b[?0u", "\x1b[>4;2m\x1b[?4m": "\x1b[>4;2m", "\x1b[?1;1;0S": "\x1b[?1;3;0S",
		"\x1b]11;?\x1b\\": "\x1b]11;rgb:0000/0000/0000\x1b\\", "\x1b]10;?\a": "\x1b]10;rgb:e5e5/e5e5/e5e5\a", "\x1b]11;#ff8000\a\x1b]11;?\a": "\x1b]11;rgb:ffff/8080/0000\a",
		"\x1b]4;1;?\a": "\x1b]4;1;rgb:cdcd/0000/0000\a", "\x1b]4;255;?\a": "\x1b]4;255;rgb:eeee/eeee/eeee\a", "\x1b]4;1;rgb:1/2/3;1;?\a": "\x1b]4;1;rgb:1111/2222/3333\a",
		"\x1b]10;?;?\a": "\x1b]10;rgb:e5e5/e5e5/e5e5\a\x1b]11;rgb:0000/0000/0000\a", "\x1b]52;c;?\a": "\x1b]52;c;\a", "\x1b]7501;?\x1b\\": "\x1b]7501;?\x1b\\",
		"\x1b[?996n": "\x1b[?997;1n", "\x1b]11;white\a\x1b]11;rgb:f/f/f\a\x1b[?996n": "\x1b[?997;2n",
		"\x1bP$qm\x1b\\": "\x1bP1$r0m\x1b\\", "\x1b[1;31m\x1bP$qm\x1b\\": "\x1bP1$r0;1;31m\x1b\\", "\x1b[2;3r\x1bP$qr\x1b\\": "\x1bP1$r2;3r\x1b\\", "\x1b[4 q\x1bP$q q\x1b\\": "\x1bP1$r4 q\x1b\\",
		"\x1bP$qzz\x1b\\": "\x1bP0$r\x1b\\", "\x1bP+q436f\x1b\\": "\x1bP1+r436f=323536\x1b\\", "\x1bP+q7878\x1b\\": "\x1bP0+r7878\x1b\\", "\x1b[?2048h": "\x1b[48;3;10;0;0t",
		"\xc2\x9b5n": "\x1b[0n", "\x1b[\n5n": "\x1b[0n", "\x1b[1;1;1;1;1;1*y": "",
	} {
		if got := string(small(query).TakeReplies()); got != want {
			t.Errorf("%q: %q, want %q", query, got, want)
		}
	}
}

// TestQueryFloodIsBounded: a program that only asks costs no memory.
func TestQueryFloodIsBounded(t *testing.T) {
	s := small(strings.Repeat("\x1b[c\x1b]11;?\a\x1bP+q544e\x1b\\", 10000))
	if n := len(s.TakeReplies()); n == 0 || n > maxReplies {
		t.Errorf("%d bytes of answers", n)
	}
	if s.TakeReplies() != nil {
		t.Error("answers are given twice")
	}
}

func TestReports(t *testing.T) {
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	percent := func(n int) *int { return &n }
	for text, want := range map[string]*Report{
		"state=working":                                       {State: berth.AgentWorking},
		"state=working:progress=40":                           {State: berth.AgentWorking, Progress: percent(40)},
		"state=working:progress=400":                          {State: berth.AgentWorking},
		"state=idle:progress=4":                               {State: berth.AgentIdle},
		"state=blocked:kind=permission:msg=" + b64("run rm?"): {State: berth.AgentBlocked, Kind: berth.BlockedPermission, Message: "run rm?"},
		"state=blocked:kind=soul":                             {State: berth.AgentBlocked},
		"state=idle:kind=auth":                                {State: berth.AgentIdle},
		"state=done:title=" + b64("t"):                        {State: berth.AgentDone, Message: "t"},
		"state=error:msg=" + b64("no network"):                {State: berth.AgentIdle, Message: "error: no network"},
		"state=error":                                         {State: berth.AgentIdle, Message: "error"},
		"state=clear":                                         {State: berth.AgentUnknown, Cleared: true},
		"state=working:id=a/b.c":                              {State: berth.AgentWorking, Child: "a/b.c"},
		"state=working:id=":                                   nil,
		"state=working:id=a//b":                               nil,
		"state=working:id=" + strings.Repeat("x", 33):         nil,
		"state=sleeping":                                      nil,
		"msg=aGk=":                                            nil,
		"state=idle:msg=" + b64("a\x1b[31mb\nc\u202ed\xff"):   {State: berth.AgentIdle, Message: "a[31mbcd\ufffd"},
		"state=idle:msg=%%%:foo=bar:=x:Bad=1":                 {State: berth.AgentIdle},
		"state=idle:state=done":                               {State: berth.AgentDone},
		"state=idle:" + strings.Repeat("k", 17) + "=1":        nil,
		"state=idle:msg=" + b64(strings.Repeat("é", 800)):     {State: berth.AgentIdle, Message: strings.Repeat("é", 256)},
		"state=idle:msg=" + strings.Repeat("A", 5000):         nil,
		"": nil,
	} {
		var got []Report
		s := New(size120, Options{OnReport: func(r Report) { got = append(got, r) }})
		s.Feed([]byte("\x1b]7501;" + text + "\x1b\\"))
		switch {
		case want == nil && len(got) != 0:
			t.Errorf("%q: %+v", text, got)
		case want != nil && (len(got) != 1 || show(got[0]) != show(*want)):
			t.Errorf("%q: %+v, want %+v", text, got, *want)
		}
		if len(s.TakeReplies()) != 0 {
			t.Errorf("%q is answered", text)
		}
	}
}

func show(r Report) string {
	p := "none"
	if r.Progress != nil {
		p = fmt.Sprint(*r.Progress)
	}
	r.Progress = nil
	return fmt.Sprintf("%+v %s", r, p)
}

// TestPromptEndsReport: an agent that was killed while it worked would be shown
// working for ever; a new prompt or a full reset ends what it said.
func TestPromptEndsReport(t *testing.T) {
	var got []Report
	s := New(size120, Options{OnReport: func(r Report) { got = append(got, r) }})
	s.Feed([]byte("\x1b]133;A\a\x1b]7501;state=done\a\x1b]133;A\a\x1b]7501;state=working\a\x1b]133;B\a\x1b]133;A\a\x1b]133;A\a\x1b]7501;state=idle\a\x1bc\x1bc"))
	var states []string
	for _, r := range got {
		states = append(states, fmt.Sprintf("%s %v", r.State, r.Cleared))
	}
	if want := []string{"done false", "working false", "unknown true", "idle false", "unknown true"}; !slices.Equal(states, want) {
		t.Errorf("%q", states)
	}
}

func TestTitleAndCwd(t *testing.T) {
	s := small("\x1b]0;a\x01b\u202e\xffc\a")
	if s.Title() != "ab\ufffdc" {
		t.Errorf("%q", s.Title())
	}
	s.Feed([]byte("\x1b]2;" + strings.Repeat("é", 300) + "\a"))
	if s.Title() != strings.Repeat("é", 128) {
		t.Errorf("%d bytes", len(s.Title()))
	}
	s.Feed([]byte("\x1b]2;one\a\x1b[22;0t\x1b]2;two\a\x1b[22;2t\x1b]2;three\a\x1b[23;0t"))
	if s.Title() != "two" {
		t.Errorf("%q", s.Title())
	}
	s.Feed([]byte("\x1b[23t\x1b[23t"))
	if s.Title() != "one" {
		t.Errorf("%q", s.Title())
	}
	for raw, want := range map[string]string{
		"file://host/tmp/a%20b": "/tmp/a b", "file:///x": "/x", "http://h/x": "", "/plain": "", "file://h/a%0ab": "", "file://h/" + strings.Repeat("x", 300): "", "": "",
	} {
		s.Feed([]byte("\x1b]7;file://h/before\a\x1b]7;" + raw + "\a"))
		if s.Cwd() != want {
			t.Errorf("%q: %q", raw, s.Cwd())
		}
	}
}

// TestRepaintHasNoSideEffects: no bell, no query, no clipboard, no notification,
// no erased scrollback, and the alternate screen only when it is shown.
func TestRepaintHasNoSideEffects(t *testing.T) {
	s := small("\a\x1b]52;c;eA==\a\x1b]9;hi\a\x1b[6nhello\x1b]0;t\a\x1b[3J\x1b]7501;state=working\a\x1b]7;file://h/x\a")
	paint := string(s.Repaint(nil))
	for _, bad := range []string{"\a", "\x1b]52", "\x1b]9;", "[6n", "[c", "3J", "2J", "?1049h", "?47", "7501", "$p"} {
		if strings.Contains(paint, bad) {
			t.Errorf("%q in %q", bad, paint)
		}
	}
	if got := filtered(true, paint[1:]); got != strings.ReplaceAll(paint[1:], ";69;", ";") && !strings.Contains(paint, "69") {
		t.Errorf("the filter takes something out of a repaint:\n%q\n%q", paint, got)
	}
}

// TestRepaintForSmallViewer: nothing is drawn beyond a smaller viewer, where it
// would pile up in the last row and column.
func TestRepaintForSmallViewer(t *testing.T) {
	s := New(berth.Size{Cols: 20, Rows: 6}, Options{})
	s.Feed([]byte("abcdefghij字klmnopqr\r\n2\r\n3\r\n4\r\n5\r\nsix"))
	v := New(berth.Size{Cols: 11, Rows: 3}, Options{})
	v.Feed(s.RepaintFor(nil, v.Size()))
	if want := []string{"abcdefghij", "2", "3"}; !slices.Equal(v.Lines(), want) {
		t.Errorf("%q", v.Lines())
	}
	big := New(berth.Size{Cols: 30, Rows: 10}, Options{})
	big.Feed([]byte(strings.Repeat("old old old old old old old\r\n", 9)))
	big.Feed(s.Repaint(nil))
	if got := big.Lines(); got[0] != "abcdefghij字klmnopqr" || got[5] != "six" || strings.Join(got[6:], "") != "" {
		t.Errorf("%q", got)
	}
}

// TestResetSequence: after a viewer has left, nothing that a program set is left
// in the local terminal.
func TestResetSequence(t *testing.T) {
	v := New(size120, Options{})
	v.Feed([]byte("\x1b[5;7Hprompt\x1b[?1049h\x1b[?1003;1006;1004;2004;1;25;7;5;2026;2031;45h\x1b[?25l\x1b[?7l\x1b[>5u\x1b[>1u\x1b[>4;2m\x1b=\x1b[2;4r\x1b[?6h\x1b[4h\x1b[20h" +
		"\x1b[1;31;4:3m\x1b]8;;http://x\a\x1b(0\x0e\x1b]4;1;red\a\x1b]11;blue\a\x1b[3 q\x1b]0;unfinished"))
	v.Feed(ResetSequence())
	want := New(size120, Options{})
	want.Feed([]byte("\x1b[5;7Hprompt"))
	want.saved, v.saved = [2]savedCursor{}, [2]savedCursor{}
	if d := diff(want, v, true); d != "" {
		t.Error(d)
	}
	if len(v.TakeReplies()) != 0 {
		t.Error("it asks something")
	}
	before := New(size120, Options{})
	before.Feed([]byte("\x1b[5;7Hprompt"))
	before.Feed(ResetSequence())
	if x, y, _ := before.Cursor(); x != 12 || y != 4 {
		t.Errorf("on a plain terminal the cursor moves to %d,%d", x, y)
	}
}

func TestTranscript(t *testing.T) {
	size := berth.Size{Cols: 10, Rows: 3}
	for text, want := range map[string]string{
		"a\r\nb\r\nc\r\nd\r\ne": "a\nb\nc\nd\ne\n",
		"":                      "",
		"0123456789abc\r\nx":    "0123456789abc\nx\n",
		"one two th ree four five\r\n1\r\n2\r\n3\r\n":          "one two th ree four five\n1\n2\n3\n",
		"\x1b[31mred\x1b[m  \r\n":                              "red\n",
		"main\r\n\x1b[?1049halt\r\n\r\n\r\n\r\n\x1b[?1049lend": "main\nend\n",
		"before\x1b[2J\x1b[Hafter":                             "before\nafter\n",
		"before\x1b[H\x1b[Jafter":                              "before\nafter\n",
		"10%\r20%\r30%\r\n":                                    "30%\n",
		"h\r\n\x1b[2;3r\x1b[3;1Ha\r\nb\r\nc":                   "h\nb\nc\n",
	} {
		for step := 1; step < 30; step += 7 {
			tr := NewTranscript(size)
			var out []byte
			for i := 0; i < len(text); i += step {
				out = tr.Append(out, []byte(text[i:min(i+step, len(text))]))
			}
			if out = tr.Finish(out); string(out) != want {
				t.Errorf("%q: %q, want %q", text, out, want)
			}
		}
	}
	// A line that never ends costs a bound.
	tr := NewTranscript(size)
	n := 0
	for range 300 {
		n += len(tr.Append(nil, []byte(strings.Repeat("x", 10000))))
		if len(tr.line) > maxTranscriptLine+10 {
			t.Fatal("the line grows")
		}
	}
	if n += len(tr.Finish(nil)); n < 3000000 {
		t.Errorf("%d bytes", n)
	}
}

// TestIdleMemory holds the cost of a screen: a guest keeps up to 1000 of them.
func TestIdleMemory(t *testing.T) {
	const count = 100
	measure := func(text []byte) int {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		all := make([]*Screen, count)
		for i := range all {
			all[i] = New(size120, Options{})
			all[i].Feed(text)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(all)
		return int(after.HeapAlloc-before.HeapAlloc) / count
	}
	if n := measure([]byte("prompt> ")); n > 8<<10 {
		t.Errorf("a screen with a prompt takes %d bytes", n)
	}
	if n := measure(flood()); n > 100<<10 {
		t.Errorf("a full screen takes %d bytes", n)
	}
	if n := measure([]byte("\x1b[?1049h" + strings.Repeat("x", 4800) + "\x1b[?1049l")); n > 8<<10 {
		t.Errorf("a screen that left the alternate one takes %d bytes", n)
	}
}

// TestSideTablesAreBounded: links, clusters and titles without end.
func TestSideTablesAreBounded(t *testing.T) {
	s := New(size120, Options{})
	for i := range 30000 {
		s.Feed(fmt.Appendf(nil, "\x1b]8;;http://host/%d\a\x1b[58;5;%dma%c%c\x1b]8;;\a\x1b[22t", i, i%256, 'a'+i%26, 0x300+i%112))
		s.Feed(fmt.Appendf(nil, "b%c%c%c", 0x300+i%112, 0x300+i/112%112, 0x300+i/7%112))
		s.Feed(fmt.Appendf(nil, "\x1b]4;%d;#%06x\a", i, i))
	}
	if len(s.clusters.values) > maxClusters || len(s.extras.values) > maxExtras || s.linkBytes > maxLinkBytes || len(s.titles) > maxTitles || len(s.palette) > 256 {
		t.Errorf("%d clusters, %d extras, %d bytes of links, %d titles, %d colours", len(s.clusters.values), len(s.extras.values), s.linkBytes, len(s.titles), len(s.palette))
	}
	if bad := s.check(); bad != "" {
		t.Error(bad)
	}
	again, err := Restore(s.Snapshot(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if d := exact(s, again); d != "" {
		t.Error(d)
	}
	// Marks on one cell without end.
	s.Feed([]byte("\x1b[2J\x1b[Hz" + strings.Repeat("\u0301", 10000)))
	if n := len(s.Lines()[0]); n > maxCluster {
		t.Errorf("%d bytes in one cell", n)
	}
}

// TestLongStringsAreNotKept: OSC 52 and pictures can be megabytes.
func TestLongStringsAreNotKept(t *testing.T) {
	s := small("\x1b]52;c;" + strings.Repeat("A", 1<<20))
	if cap(s.buf) > 2*maxOSC {
		t.Errorf("%d bytes kept", cap(s.buf))
	}
	if s.Pending() != 1<<20+7 {
		t.Errorf("%d pending", s.Pending())
	}
	s.Feed([]byte("\aok\x1bPq" + strings.Repeat("~", 1<<20) + "\x1b\\!"))
	if s.Lines()[0] != "ok!" || s.Pending() != 0 || cap(s.buf) > 1024 {
		t.Errorf("%q, %d pending, %d kept", s.Lines()[0], s.Pending(), cap(s.buf))
	}
}

// TestCharacterSplitOverChunks: decoding each piece gave U+FFFD.
func TestCharacterSplitOverChunks(t *testing.T) {
	s := small("")
	for _, b := range []byte("é字🚀") {
		s.Feed([]byte{b})
	}
	if s.Lines()[0] != "é字🚀" {
		t.Errorf("%q", s.Lines()[0])
	}
	s.Feed([]byte("\r\x1b[K\xe5\xad"))
	if s.Pending() != 2 {
		t.Errorf("%d pending", s.Pending())
	}
	s.Feed([]byte("\x1b[m\xe5\xad\x97\xff"))
	if s.Lines()[0] != "\ufffd字\ufffd" {
		t.Errorf("%q", s.Lines()[0])
	}
}

// TestWidths holds the rule of widths: by code point without mode 2027, by
// cluster with it. Borders shifted where inside and outside did not count alike.
func TestWidths(t *testing.T) {
	for text, want := range map[string][2]int{
		"a": {1, 1}, "字": {2, 2}, "é": {1, 1}, "e\u0301": {1, 1}, "❤": {1, 1}, "❤\ufe0f": {1, 2}, "👍🏽": {4, 2}, "👩\u200d👩\u200d👧": {6, 2},
		"🇩🇪": {2, 2}, "한": {2, 2}, "\u1112\u1161\u11ab": {2, 2}, "─": {1, 1}, "✅": {2, 2}, "\u200b": {0, 0}, "ｱ": {1, 1}, "Ａ": {2, 2}, "\u00ad": {1, 1},
	} {
		for i, mode := range []string{"\x1b[?2027l", "\x1b[?2027h"} {
			if x, _, _ := small(mode + text).Cursor(); x != want[i] {
				t.Errorf("%q after %q: %d columns, want %d", text, mode, x, want[i])
			}
		}
	}
}

func TestResizeKeepsTheBottom(t *testing.T) {
	s := New(berth.Size{Cols: 10, Rows: 5}, Options{})
	s.Feed([]byte("1\r\n2\r\n3\r\n4"))
	s.Resize(berth.Size{Cols: 10, Rows: 4}) // the blank row below the cursor goes first
	if got := s.Lines(); !slices.Equal(got, []string{"1", "2", "3", "4"}) {
		t.Errorf("%q", got)
	}
	s.Resize(berth.Size{Cols: 10, Rows: 2})
	if got := s.Lines(); !slices.Equal(got, []string{"3", "4"}) || s.y != 1 {
		t.Errorf("%q, cursor in row %d", got, s.y)
	}
	s.Feed([]byte("\r12345字8"))
	s.Resize(berth.Size{Cols: 6, Rows: 3})
	if got := s.Lines(); !slices.Equal(got, []string{"3", "12345", ""}) {
		t.Errorf("%q", got)
	}
	s.Feed([]byte("\x1b[?2048h"))
	s.TakeReplies()
	s.Resize(berth.Size{Cols: 7, Rows: 3})
	if got := string(s.TakeReplies()); got != "\x1b[48;3;7;0;0t" {
		t.Errorf("%q", got)
	}
	s.Resize(berth.Size{Cols: 7, Rows: 3}) // the same size is no change
	if s.TakeReplies() != nil {
		t.Error("a report for no change")
	}
	s.Resize(berth.Size{Cols: 0, Rows: 100000})
	if s.Size() != (berth.Size{Cols: 1, Rows: berth.MaxRows}) {
		t.Errorf("%v", s.Size())
	}
}

// TestSkimThenDraw: after a flood that was passed over, the tail is drawn right.
func TestSkimThenDraw(t *testing.T) {
	data := flood()
	a, b := New(size120, Options{}), New(size120, Options{})
	a.Feed(data)
	cut := len(data) - 40*120
	b.Skim(data[:cut])
	b.Feed(data[cut:])
	if d := diff(a, b, false); d != "" {
		t.Error(d)
	}
	b = New(size120, Options{})
	b.Feed([]byte("\x1b[?1049hold"))
	b.Skim([]byte("garbage\x1b[?1049l\x1b[?2004h\x1b[31m\x1b[5;9H"))
	if x, y, _ := b.Cursor(); b.Alternate() || !b.BracketedPaste() || x != 8 || y != 4 {
		t.Error("modes are not followed")
	}
}
