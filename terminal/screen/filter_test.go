package screen

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// filtered gives what a filter passes of text fed whole.
func filtered(replay bool, text string) string {
	out, _ := NewFilter(replay).Append(nil, []byte(text))
	return string(out)
}

func TestFilterStripsQueries(t *testing.T) {
	for _, query := range []string{
		"\x1b[c", "\x1b[0c", "\x1b[>c", "\x1b[=c", "\x1b[5n", "\x1b[6n", "\x1b[?6n", "\x1b[?996n", "\x1b[>q", "\x1b[>0q",
		"\x1b[?2026$p", "\x1b[4$p", "\x1b[?u", "\x1b[?4m", "\x1b[14t", "\x1b[18t", "\x1b[21t", "\x1b[?1;1;0S", "\x1b[0x",
		"\x1b]4;1;?\a", "\x1b]4;1;rgb:00/00/00;2;?\a", "\x1b]10;?\x1b\\", "\x1b]11;?\a", "\x1b]12;?\a", "\x1b]52;c;?\a", "\x1b]7501;?\x1b\\",
		"\x1b]7501;state=working\x1b\\", "\x1bP+q544e\x1b\\", "\x1bP$qm\x1b\\", "\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\",
		"\x1bZ", "\x05", "\xc2\x9b6n", "\xc2\x9a", "\x1b[?2048h", "\x1b[?69h", "\x1b[8;24;80t", "\x1b[5i", "\x1b%@", "\x1bPtmux;\x1b\x1b[6n\x1b\\",
		"\x1b]1337;ReportCellSize\a", "\x1b]99;i=1:p=?;\x1b\\", "\x1b]21;foreground=?\x1b\\", "\x1b[1;1;1;1;1;1*y",
	} {
		for _, replay := range []bool{false, true} {
			if got := filtered(replay, "a"+query+"b"); strings.Contains(got, "\x1b[6n") || got != "ab" && query[0] != 0x1b || got != "ab" && !strings.HasPrefix(query, "\x1bPtmux") {
				t.Errorf("%q: %q", query, got)
			}
		}
	}
}

func TestFilterPasses(t *testing.T) {
	for _, text := range []string{
		"plain\r\n\ttext", "\x1b[1;31mred\x1b[m", "\x1b]0;what?\a", "\x1b]8;;http://x/?a=b;?\x1b\\link\x1b]8;;\x1b\\", "\x1b]4;1;rgb:11/22/33\a",
		"\x1b[?1049h\x1b[?2004h", "\x1b[22;0t", "\x1b[23;0t", "\x1b[>1u", "\x1b[<u", "\x1b[>4;2m", "\x1b[2 q", "\x1bP0;1q#0;2;0;0;0#0~~\x1b\\",
		"日本語 é \xff broken \xe2\x82 too", "\x1bM\x1b7\x1b8\x1bc", "\x1b_Ga=T,f=100;AAAA\x1b\\", "\x1b]133;A\a", "\x1b[!p", "\x1b[>4;1m", "\u00a0", "\x1b]11;#001122\a",
	} {
		for _, replay := range []bool{false, true} {
			if got := filtered(replay, text); got != text {
				t.Errorf("replay=%v %q became %q", replay, text, got)
			}
		}
	}
}

// TestFilterReplayHasNoSideEffects: a replayed OSC 52 overwrote the clipboard
// with text days old, and bells and notifications came again.
func TestFilterReplayHasNoSideEffects(t *testing.T) {
	for _, text := range []string{"\a", "\x1b]52;c;eA==\a", "\x1b]9;hello\a", "\x1b]777;notify;a;b\x1b\\", "\x1b]99;;hi\x1b\\", "\x1b]1337;RequestAttention=yes\a"} {
		if got := filtered(false, text); got != text {
			t.Errorf("live %q became %q", text, got)
		}
		if got := filtered(true, "a"+text+"b"); got != "ab" {
			t.Errorf("replay %q gave %q", text, got)
		}
	}
	// The BEL that ends a string is no bell.
	if got := filtered(true, "\x1b]0;t\a"); got != "\x1b]0;t\a" {
		t.Errorf("title became %q", got)
	}
}

func TestFilterRewritesModes(t *testing.T) {
	if got := filtered(false, "\x1b[?1049;69;25h"); got != "\x1b[?1049;25h" {
		t.Errorf("%q", got)
	}
	// A line feed inside a query is still a line feed.
	if got := filtered(false, "a\x1b[\n6nb"); got != "a\nb" {
		t.Errorf("%q", got)
	}
}

// TestFilterLongStrings: what is longer than the bound is judged by its start.
func TestFilterLongStrings(t *testing.T) {
	long := strings.Repeat("x", 3*maxHeld)
	for text, passed := range map[string]bool{
		"\x1b]52;c;" + long + "\a": true, "\x1bPq" + long + "\x1b\\": true, "\x1b]4;1;?;2;" + long + "\a": false, "\x1bP+q" + long + "\x1b\\": false,
		"\x1b]7501;" + long + "\x1b\\": false, "\x1b[" + strings.Repeat("1;", maxHeld) + "m": false,
	} {
		f := NewFilter(false)
		var out []byte
		sum := 0
		for i := 0; i < len(text); i += 1000 {
			var n int
			out, n = f.Append(out, []byte(text[i:min(i+1000, len(text))]))
			sum += n
			if f.Pending() > maxHeld {
				t.Fatal("holds too much")
			}
		}
		out, n := f.Append(out, []byte("end"))
		sum += n
		want := "end"
		if passed {
			want = text + "end"
		}
		if string(out) != want && len(text) != 2*maxHeld+3 || sum != len(text)+3 {
			t.Errorf("%.20q: %d bytes out, %d covered of %d", text, len(out), sum, len(text)+3)
		}
	}
	// A replay drops a long clipboard write, too.
	if got := filtered(true, "a\x1b]52;c;"+long+"\ab"); got != "ab" {
		t.Errorf("%d bytes", len(got))
	}
}

// TestFilterAccounts: covers and Pending account for every byte at all times, the
// cuts make no difference, a sequence is never passed in part, and a screen that
// sees the filtered output shows what one that sees it all does.
func TestFilterAccounts(t *testing.T) {
	rep := regexp.MustCompile(`\x1b\[[0-9;]*b`) // without REP: a query that is taken out no longer ends what it repeats
	rapid.Check(t, func(t *rapid.T) {
		size, text := genSize(t), rep.ReplaceAllString(genStream().Draw(t, "stream"), "")
		text += rapid.SampledFrom([]string{"", "\x1b", "\x1b[1", "\x1b]0;x", "\xe2", "\x1bP", "\x1b[?6n", "\xc2"}).Draw(t, "end")
		f := NewFilter(rapid.Bool().Draw(t, "replay"))
		a, b := New(size, Options{}), New(size, Options{})
		var out []byte
		sum := 0
		for fed := 0; fed < len(text); {
			n := rapid.IntRange(1, len(text)-fed).Draw(t, "chunk")
			var covers int
			out, covers = f.Append(out, []byte(text[fed:fed+n]))
			a.Feed([]byte(text[fed : fed+n]))
			fed += n
			sum += covers
			if covers < 0 || sum+f.Pending() != fed {
				t.Fatalf("%d covered, %d pending, %d fed", sum, f.Pending(), fed)
			}
			if f.Pending() != a.Pending() {
				t.Fatalf("%d pending, and %d in the screen, after %q", f.Pending(), a.Pending(), text[:fed])
			}
		}
		whole, _ := NewFilter(f.replay).Append(nil, []byte(text))
		if !bytes.Equal(whole, out) {
			t.Fatalf("%q whole, %q in pieces", whole, out)
		}
		b.Feed(out)
		if b.Pending() != b.npartial { // a broken character goes on as it is
			t.Fatalf("part of a sequence was passed: %q", out)
		}
		if a.npartial == 0 {
			a.Feed([]byte("\x18"))
		}
		b.Feed([]byte("\x18")) // ends a broken character
		if len(b.TakeReplies()) != 0 {
			t.Fatalf("a query was passed: %q", out)
		}
		if d := diff(a, b, false); d != "" {
			t.Fatalf("%s: %q became %q", d, text, out)
		}
		second := NewFilter(f.replay)
		again, _ := second.Append(nil, out)
		if again = append(again, out[len(out)-second.Pending():]...); !bytes.Equal(again, out) {
			t.Fatalf("%q filtered again is %q", out, again)
		}
	})
}

// FuzzFilter: any bytes, any cuts.
func FuzzFilter(f *testing.F) {
	f.Add([]byte("\x1b[31ma\x1b]0;t\a\x1b[6n\xe2\x82\xac\x1bP$qm\x1b\\"), byte(3))
	f.Add([]byte("\x1b]52;c;?\x1b[m\xc2\x9b6n\xc2"), byte(1))
	f.Fuzz(func(t *testing.T, data []byte, cut byte) {
		for _, replay := range []bool{false, true} {
			flt, s := NewFilter(replay), New(size120, Options{})
			v := New(size120, Options{})
			sum, step := 0, int(cut)%16+1
			var out []byte
			for i := 0; i < len(data); i += step {
				var n int
				part := data[i:min(i+step, len(data))]
				out, n = flt.Append(out, part)
				s.Feed(part)
				sum += n
				if fed := i + len(part); sum+flt.Pending() != fed || flt.Pending() != s.Pending() && len(data) < maxHeld {
					t.Fatalf("%d covered, %d pending, %d fed, %d in the screen", sum, flt.Pending(), fed, s.Pending())
				}
			}
			v.Feed(out)
			if len(data) < maxHeld && (v.Pending() != v.npartial || len(v.TakeReplies()) != 0) {
				t.Fatalf("%q passed %q", data, out)
			}
		}
	})
}
