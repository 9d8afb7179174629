package berth_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth"
)

func TestIDs(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	first, err := berth.NewID(berth.SessionID, now, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	later, err := berth.NewID(berth.SessionID, now.Add(time.Millisecond), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if first >= later {
		t.Errorf("%s does not sort before %s, which is younger", first, later)
	}
	if !berth.ValidID(berth.SessionID, first) || berth.ValidID(berth.HostID, first) {
		t.Errorf("%s is not told from another kind", first)
	}
	for _, bad := range []string{"", "s-", "s-../../etc/passwd", first + "0", strings.ToUpper(first), "s-0123456789abcde/", "s-0123456789abcdeu"} {
		if berth.ValidID(berth.SessionID, bad) {
			t.Errorf("%q passed as an id: it would become a path", bad)
		}
	}
	if _, err := berth.NewID(berth.SessionID, now, bytes.NewReader(nil)); err == nil {
		t.Error("no randomness, and no error")
	}
}

func TestNames(t *testing.T) {
	for _, good := range []string{"a", "0", "web-1", "a.b_c-d", strings.Repeat("x", 63)} {
		if !berth.ValidName(good) {
			t.Errorf("%q is refused", good)
		}
	}
	for _, bad := range []string{"", "-a", ".", "..", "a/b", "A", "a b", "ä", strings.Repeat("x", 64), "a\n"} {
		if berth.ValidName(bad) {
			t.Errorf("%q is accepted", bad)
		}
	}
	for range 200 {
		name, err := berth.GenerateName(rand.Reader)
		if err != nil || !berth.ValidName(name) || strings.Count(name, "-") != 1 {
			t.Fatalf("generated %q, %v", name, err)
		}
	}
}

func TestSessionSpec(t *testing.T) {
	big, negative := int64(1)<<40, int64(-1)
	ok := berth.SessionSpec{Argv: []string{"sh"}}
	if err := ok.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]berth.SessionSpec{
		"no command":       {},
		"empty command":    {Argv: []string{""}},
		"zero byte":        {Argv: []string{"a\x00b"}},
		"huge argument":    {Argv: []string{strings.Repeat("x", 200<<10)}},
		"bad name":         {Argv: []string{"a"}, Name: "No"},
		"bad size":         {Argv: []string{"a"}, Size: berth.Size{Cols: 0, Rows: 5}},
		"bad policy":       {Argv: []string{"a"}, SizePolicy: "biggest"},
		"huge log":         {Argv: []string{"a"}, LogBytes: &big},
		"negative log":     {Argv: []string{"a"}, LogBytes: &negative},
		"bad variable":     {Argv: []string{"a"}, Env: map[string]string{"A=B": "c"}},
		"zero in value":    {Argv: []string{"a"}, Env: map[string]string{"A": "\x00"}},
		"bad withhold":     {Argv: []string{"a"}, Withhold: []string{"A=1"}},
		"parent is a path": {Argv: []string{"a"}, Parent: "../x"},
	} {
		if err := s.Validate(); !errors.Is(err, berth.CodeInvalidArgument) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestParseSize(t *testing.T) {
	if s, err := berth.ParseSize("120x40"); err != nil || s != (berth.Size{Cols: 120, Rows: 40}) {
		t.Errorf("got %v, %v", s, err)
	}
	for _, bad := range []string{"", "x", "120", "0x1", "1x0", "-1x5", "1001x1", "1x501", "1x1x1", "axb"} {
		if _, err := berth.ParseSize(bad); !errors.Is(err, berth.CodeInvalidArgument) {
			t.Errorf("%q: got %v", bad, err)
		}
	}
}

func TestWriteFileReplacesWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "record")
	for _, text := range []string{"one", "two, which is longer", ""} {
		if err := berth.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != text {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := berth.WriteFile(filepath.Join(dir, "no", "such"), nil, 0o600); err == nil {
		t.Error("a missing directory was accepted")
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
	if _, err := berth.ReadFile(path, 0); err != nil {
		t.Errorf("an empty file within a bound of 0: %v", err)
	}
	if err := os.WriteFile(path, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := berth.ReadFile(path, 4); !errors.Is(err, berth.CodeRecordUnreadable) {
		t.Errorf("a file over its bound: %v", err)
	}
}
