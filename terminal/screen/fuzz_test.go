package screen

import (
	"errors"
	"testing"

	"berth"
)

var seeds = []string{
	"hello\r\nworld\x1b[31m red \x1b[0m\x1b[2J\x1b[5;5H\x1b[?1049hx\x1b[?1049l",
	"\x1b[1;3r\x1b[?6h\x1b[2;2H\n\n\n\x1bM\x1bM\x1b[L\x1b[M\x1b[@\x1b[P\x1b[X",
	"字e\u0301❤\ufe0f\x1b[?2027h👩\u200d👩\u200d👧🇩🇪\x1b[b\x1b[3b",
	"\x1b(0qqq\x1b(B\x0e\x0f\x1bNx\x1b7\x1b8\x1b#8\x1bc",
	"\x1b]0;t\a\x1b]4;1;?\a\x1b]7501;state=working:msg=aGk=\a\x1bP$qm\x1b\\\x1b[6n\x1b[c",
	"\x1b[?1003;1006h\x1b[>1u\x1b[=3;2u\x1b[>4;2m\x1b[?1s\x1b[?1r\x1b[22t\x1b[23t\xc2\x9b1m\xff\xe2\x82",
	"\x1b]8;id=1;http://x\x1b\\a\x1b]8;;\x1b\\\x1b[58:2::1:2:3;4:3mu\x1b[3g\x1bH\t\x1b[Z",
}

// FuzzFeed: any bytes at any size. The model keeps its rules, a repaint rebuilds
// it, a snapshot restores it, the cuts make no difference.
func FuzzFeed(f *testing.F) {
	for i, s := range seeds {
		f.Add([]byte(s), byte(10+i), byte(4))
	}
	f.Fuzz(func(t *testing.T, data []byte, cols, rows byte) {
		size := berth.Size{Cols: int(cols)%40 + 1, Rows: int(rows)%12 + 1}
		a, b := New(size, Options{}), New(size, Options{})
		a.Feed(data)
		if bad := a.check(); bad != "" {
			t.Fatal(bad)
		}
		for i := range data {
			b.Feed(data[i : i+1])
		}
		if d := exact(a, b); d != "" {
			t.Fatalf("byte by byte: %s", d)
		}
		viewer := New(size, Options{})
		viewer.Feed(a.Repaint(nil))
		if d := diff(a, viewer, true); d != "" {
			t.Fatalf("repainted: %s", d)
		}
		again, err := Restore(a.Snapshot(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if d := exact(a, again); d != "" {
			t.Fatalf("restored: %s", d)
		}
		a.Resize(berth.Size{Cols: size.Rows, Rows: size.Cols})
		a.Skim(data)
		a.Lines()
		if bad := a.check(); bad != "" {
			t.Fatal(bad)
		}
		a.Snapshot()
		NewTranscript(size).Append(nil, data)
	})
}

// FuzzRestore: damaged snapshots are errors, and what is accepted can be used.
func FuzzRestore(f *testing.F) {
	for _, text := range seeds {
		s := New(berth.Size{Cols: 20, Rows: 5}, Options{})
		s.Feed([]byte(text))
		f.Add(s.Snapshot())
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, snapshot := range [][]byte{data, resum(data)} {
			s, err := Restore(snapshot, Options{})
			if err != nil {
				if !errors.Is(err, berth.CodeRecordUnreadable) {
					t.Fatal(err)
				}
				continue
			}
			if bad := s.check(); bad != "" {
				t.Fatal(bad)
			}
			for _, text := range seeds {
				s.Feed([]byte(text))
			}
			s.Repaint(nil)
			s.Resize(berth.Size{Cols: 7, Rows: 3})
			s.Snapshot()
			s.Lines()
			if bad := s.check(); bad != "" {
				t.Fatal(bad)
			}
		}
	})
}
