package screen

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func typed(parts ...string) string {
	f := NewInputFilter()
	var out []byte
	for _, p := range parts {
		out = f.Append(out, []byte(p))
	}
	return string(f.Flush(out))
}

// TestLateRepliesAreConsumed: after a laptop woke up, `62;1;4c` was typed into
// the program by the viewer's terminal.
func TestLateRepliesAreConsumed(t *testing.T) {
	for _, reply := range []string{
		"\x1b[?62;1;4c", "\x1b[>1;115;0c", "\x1b[=0c", "\x1bP!|00000000\x1b\\", "\x1bP>|xterm(390)\x1b\\", "\x1b[24;80R", "\x1b[1;80R", "\x1b[?5;2R", "\x1b[?5;2;1R",
		"\x1b[?2026;2$y", "\x1b[4;2$y", "\x1b]10;rgb:ffff/ffff/ffff\x1b\\", "\x1b]11;rgb:0000/0000/0000\a", "\x1b]4;1;rgb:cdcd/0000/0000\a", "\x1b[?1u", "\x1b[?0u",
		"\x1bP1$r0m\x1b\\", "\x1bP0+r\x1b\\", "\x1bP1+r544e=78\x1b\\", "\x1b[8;24;80t", "\x1b[4;600;800t", "\x1b]7501;?\x1b\\", "\x1b[0n", "\x1b[>4;2m", "\x1b[?1;0;256S",
		"\x1b_Gi=31;OK\x1b\\", "\x1b]52;c;c2VjcmV0\a", "\x1b[2;1;1;128;128;1;0x",
		"\x1b]52;c;" + strings.Repeat("A", 5000) + "\x1b\\",
	} {
		if got := typed("x" + reply + "y"); got != "xy" {
			t.Errorf("%q: %q", reply, got)
		}
		for cut := 1; cut < min(len(reply), 40); cut++ {
			want := "xy"
			if cut == 1 {
				want = "x\x1by" // a lone ESC goes on at once
			}
			if got := typed("x"+reply[:cut], reply[cut:]+"y"); got != want {
				t.Errorf("%q cut at %d: %q", reply, cut, got)
			}
		}
	}
}

func TestKeysPass(t *testing.T) {
	for _, key := range []string{
		"a", "\r", "\x03", "\x1b", "\x1b[A", "\x1bOA", "\x1bOP", "\x1b[1;2R", "\x1b[1;8R", "\x1b[R", "\x1b[13;2~", "\x1b[1;5C", "\x1b[3~", "\x1b[97;5u", "\x1b[57399;1:3u", "\x1b[27;5;9~",
		"\x1b[<0;10;20M", "\x1b[<0;10;20m", "\x1b[M !!", "\x1b[I", "\x1b[O", "\x1ba", "\x1b[Z", "\x1b\x1b[A", "\x1b[?997;1n", "\x1b[c", "\x1b\r", "\x1b ", "\x1b]", "\x1bP", "\x1b[", "\x1b\x7f", "é", "\xff", "\x1b[32;5u",
		"\x1b[200~paste \x1b[24;80R \x1b]11;rgb:0/0/0\a\x1b[201~", "\x1b[200~\x1b[201\x1b[201~after", "\x1b\x03", "\x1b[\x03", "\x1b[1\x7f",
	} {
		if got := typed(key); got != key {
			t.Errorf("%q became %q", key, got)
		}
		for cut := 1; cut < len(key); cut++ {
			if got := typed(key[:cut], key[cut:]); got != key {
				t.Errorf("%q cut at %d became %q", key, cut, got)
			}
		}
	}
}

// TestNoKeyIsHeld: a lone ESC is a key, and after Flush nothing is kept.
func TestNoKeyIsHeld(t *testing.T) {
	f := NewInputFilter()
	if got := f.Append(nil, []byte("\x1b")); string(got) != "\x1b" {
		t.Errorf("%q", got)
	}
	if got := f.Append(nil, []byte("[")); len(got) != 0 || f.Pending() != 1 {
		t.Errorf("%q, %d pending", got, f.Pending())
	}
	if got := f.Flush(nil); string(got) != "[" || f.Pending() != 0 {
		t.Errorf("%q", got)
	}
	// A reply that never ends takes the keyboard away for a bound only.
	f.Append(nil, []byte("\x1b]52;c;"+strings.Repeat("A", 2*maxReplyHeld)))
	f.Flush(nil)
	if got := f.Append(nil, []byte("ls\r")); string(got) != "ls\r" {
		t.Errorf("%q", got)
	}
	f.Append(nil, []byte("\x1b]52;c;"+strings.Repeat("A", 2*maxSwallow)))
	if got := f.Append(nil, []byte("ls\r")); string(got) != "ls\r" {
		t.Errorf("%q", got)
	}
}

// TestInputOnlyLosesReplies: keys, mouse and pastes come through whole in any cut.
func TestInputOnlyLosesReplies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		keys := rapid.SampledFrom([]string{"a", "\x1b[A", "\x1bOB", "\x1b[<0;1;2M", "\x1b[1;2R", "\x1b[97;5u", "é", "\x1b[200~x\x1b[24;80Ry\x1b[201~", "\x1bx", "\r"})
		text := strings.Join(rapid.SliceOf(keys).Draw(t, "keys"), "")
		f := NewInputFilter()
		var out []byte
		for rest := text; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "chunk")
			out = f.Append(out, []byte(rest[:n]))
			rest = rest[n:]
			if f.Pending() > maxReplyHeld {
				t.Fatal("holds too much")
			}
		}
		if out = f.Flush(out); string(out) != text {
			t.Fatalf("%q became %q", text, out)
		}
	})
}

// FuzzInputFilter: any bytes; what comes out is a subsequence of what went in.
func FuzzInputFilter(f *testing.F) {
	f.Add([]byte("a\x1b[?62c\x1b[200~x\x1b[201~\x1b]11;rgb:0/0/0\x1b\\z"), byte(2))
	f.Fuzz(func(t *testing.T, data []byte, cut byte) {
		flt := NewInputFilter()
		var out []byte
		step := int(cut)%16 + 1
		for i := 0; i < len(data); i += step {
			out = flt.Append(out, data[i:min(i+step, len(data))])
			if flt.Pending() > maxReplyHeld {
				t.Fatal("holds too much")
			}
		}
		out = flt.Flush(out)
		i := 0
		for _, c := range data {
			if i < len(out) && out[i] == c {
				i++
			}
		}
		if i != len(out) {
			t.Fatalf("%q gave %q", data, out)
		}
	})
}
