package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth"
)

func mustKeys(t testing.TB, text string) detachKeys {
	t.Helper()
	keys, err := parseDetachKeys(text)
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func TestDetachKeysAreFound(t *testing.T) {
	for _, c := range []struct {
		name, keys string
		reads      []string // as the terminal's bytes arrive
		out        string
		detach     bool
	}{
		{"plain", defaultDetachKey, []string{"abc"}, "abc", false},
		{"prefix and d", defaultDetachKey, []string{"ab\x1cd"}, "ab", true},
		{"over two reads", defaultDetachKey, []string{"ab\x1c", "d"}, "ab", true},
		{"what follows is dropped", defaultDetachKey, []string{"\x1cdls\r"}, "", true},
		{"twice sends one", defaultDetachKey, []string{"\x1c", "\x1c"}, "\x1c", false},
		{"twice, then d is a letter", defaultDetachKey, []string{"\x1c\x1cd"}, "\x1cd", false},
		{"another key sends both", defaultDetachKey, []string{"\x1c", "x"}, "\x1cx", false},
		{"capital D is another key", defaultDetachKey, []string{"\x1cD"}, "\x1cD", false},
		{"ctrl-d is another key", defaultDetachKey, []string{"\x1c\x04"}, "\x1c\x04", false},
		{"escape is never held", defaultDetachKey, []string{"\x1b"}, "\x1b", false},
		{"alt-[ is never held", defaultDetachKey, []string{"\x1b["}, "\x1b[", false},
		{"arrow keys pass", defaultDetachKey, []string{"\x1b[A\x1bOA\x1b[1;5C"}, "\x1b[A\x1bOA\x1b[1;5C", false},
		{"arrow after the prefix", defaultDetachKey, []string{"\x1c\x1b[A"}, "\x1c\x1b[A", false},
		{"multi-byte characters pass", defaultDetachKey, []string{"żółw\x1cż"}, "żółw\x1cż", false},
		{"broken UTF-8 passes", defaultDetachKey, []string{"\xff\xc3\x1c\xff"}, "\xff\xc3\x1c\xff", false},

		// A program may turn on the kitty protocol or modifyOtherKeys; then the
		// prefix is no control byte any more.
		{"kitty", defaultDetachKey, []string{"\x1b[92;5u", "d"}, "", true},
		{"kitty, all keys as sequences", defaultDetachKey, []string{"\x1b[92;5u\x1b[100u"}, "", true},
		{"kitty with event types", defaultDetachKey, []string{"\x1b[92;5:1u", "\x1b[92;5:3u", "\x1b[100;1:1u"}, "", true},
		{"kitty with num lock", defaultDetachKey, []string{"\x1b[92;133u", "\x1b[100;129u"}, "", true},
		{"kitty with alternates", defaultDetachKey, []string{"\x1b[92:124:92;5u", "\x1b[100;;100u"}, "", true},
		{"kitty, ctrl's own events between", defaultDetachKey, []string{"\x1b[57442;5:1u\x1b[92;5:1u\x1b[57442;1:3u", "d"}, "\x1b[57442;5:1u\x1b[57442;1:3u", true},
		{"kitty, twice sends one", defaultDetachKey, []string{"\x1b[92;5u\x1b[92;5u"}, "\x1b[92;5u", false},
		{"kitty with alt too is another key", defaultDetachKey, []string{"\x1b[92;7u", "d"}, "\x1b[92;7ud", false},
		{"kitty flags reply is no key", defaultDetachKey, []string{"\x1c\x1b[?1u", "d"}, "\x1b[?1u", true},
		{"modifyOtherKeys", defaultDetachKey, []string{"\x1b[27;5;92~", "d"}, "", true},

		{"mouse between does not disarm", defaultDetachKey, []string{"\x1c\x1b[<35;10;20M", "d"}, "\x1b[<35;10;20M", true},
		{"old mouse with a d in it", defaultDetachKey, []string{"\x1c\x1b[M d!", "x"}, "\x1b[M d!\x1cx", false},
		{"focus between does not disarm", defaultDetachKey, []string{"\x1c\x1b[O\x1b[I", "d"}, "\x1b[O\x1b[I", true},

		{"a paste is data", defaultDetachKey, []string{"\x1b[200~a\x1cd\x1b[201~", "\x1cd"}, "\x1b[200~a\x1cd\x1b[201~", true},
		{"a paste in pieces", defaultDetachKey, []string{"\x1b[200~a\x1c", "d\x1b[20", "1~", "\x1cd"}, "\x1b[200~a\x1cd\x1b[201~", true},
		{"a paste after the prefix", defaultDetachKey, []string{"\x1c\x1b[200~d\x1b[201~"}, "\x1c\x1b[200~d\x1b[201~", false},

		{"one key", "ctrl-]", []string{"ab\x1dcd"}, "ab", true},
		{"other keys", "ctrl-b D", []string{"\x02d", "\x02D"}, "\x02d", true},
		{"second with ctrl", "ctrl-a ctrl-d", []string{"\x01d", "\x01\x04"}, "\x01d", true},
		{"none", "none", []string{"\x1cd\x00"}, "\x1cd\x00", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := keyScanner{keys: mustKeys(t, c.keys)}
			var out []byte
			var detach bool
			for _, read := range c.reads {
				if detach {
					t.Fatal("it detached before the last read")
				}
				out, detach = s.scan(out, []byte(read))
			}
			if string(out) != c.out || detach != c.detach {
				t.Errorf("got %q, %v; want %q, %v", out, detach, c.out, c.detach)
			}
		})
	}
}

func TestDetachKeyNames(t *testing.T) {
	for _, bad := range []string{"", "d", "ctrl-", "ctrl-dd", "ctrl-\\ d e", "alt-x", "ctrl-ż", "ctrl-1", "none d"} {
		if _, err := parseDetachKeys(bad); berth.ExitCode(err) != berth.ExitUsage {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if a, b := mustKeys(t, "Ctrl-B d"), mustKeys(t, "ctrl-b d"); a != b {
		t.Errorf("%v differs from %v", a, b)
	}
}

// FuzzKeyScanner: whatever comes in and however it is cut, nothing but detach
// keys is taken out, and nothing is added.
func FuzzKeyScanner(f *testing.F) {
	for _, seed := range []string{"ab\x1cd", "\x1b[200~\x1cd\x1b[201~", "\x1b[92;5:1u\x1b[100u", "\x1b[M\x1c\x1cd", "\x1b[27;5;92~", "\x1c\x1c", "\x1b[201~", "\x1b["} {
		f.Add([]byte(seed), uint8(3))
	}
	f.Fuzz(func(t *testing.T, in []byte, cut uint8) {
		n := min(int(cut), len(in))
		off := keyScanner{}
		out, detach := off.scan(nil, in[:n])
		out, detach2 := off.scan(out, in[n:])
		if detach || detach2 || !bytes.Equal(out, in) {
			t.Fatalf("without keys %q became %q", in, out)
		}
		on := keyScanner{keys: mustKeys(t, defaultDetachKey)}
		out, detach = on.scan(nil, in[:n])
		if !detach {
			out, detach = on.scan(out, in[n:])
		}
		if len(out)+len(on.held) > len(in) {
			t.Fatalf("%q grew to %q", in, out)
		}
		if !detach && !bytes.Contains(in, []byte{0x1c}) && !bytes.Contains(in, []byte("\x1b[")) && !bytes.Equal(out, in) {
			t.Fatalf("%q became %q", in, out)
		}
	})
}

func TestDetachKeyOfTheConfigFile(t *testing.T) {
	for _, c := range []struct{ file, want, note string }{
		{"", defaultDetachKey, ""},
		{"[sessions]\nlog_bytes = 1\n", defaultDetachKey, ""},
		{"[sessions]\ndetach_key = \"ctrl-b q\"\n", "ctrl-b q", ""},
		{"[sessions]\ndetach_key = \"q\"\n", defaultDetachKey, "is not a detach key"},
		{"[sessions", defaultDetachKey, "is not used"},
	} {
		path := filepath.Join(t.TempDir(), "config.toml")
		must(t, os.WriteFile(path, []byte(c.file), 0o600))
		env, _, errs := testEnv(t, &fakeAPI{}, map[string]string{"BERTH_CONFIG": path}, nil)
		a := &app{env: env}
		if got := a.detachKeyText(); got != c.want || !strings.Contains(errs.String(), c.note) || c.note == "" && errs.Len() > 0 {
			t.Errorf("%q: got %q, %q", c.file, got, errs)
		}
	}
}
