package screen

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"berth"
)

// oracleCase is one entry of testdata: a stream, and what another terminal made
// of it. Skip names terminals that are known to differ, and why.
type oracleCase struct {
	Name   string            `json:"name"`
	Cols   int               `json:"cols"`
	Rows   int               `json:"rows"`
	Stream string            `json:"stream"`
	Skip   map[string]string `json:"skip"`
	Lines  []string          `json:"lines"`
	X      int               `json:"x"`
	Y      int               `json:"y"`
}

func loadCases(t *testing.T, name string) []oracleCase {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var cases []oracleCase
	if err := json.Unmarshal(data, &cases); err != nil {
		t.Fatal(err)
	}
	if len(cases) == 0 {
		t.Fatal("no cases")
	}
	return cases
}

// TestAgreesWithXtermJS compares with what xterm.js made of the same streams:
// testdata/xtermjs.js says how the file is written anew.
func TestAgreesWithXtermJS(t *testing.T) {
	for _, c := range loadCases(t, "xtermjs.json") {
		s := New(berth.Size{Cols: c.Cols, Rows: c.Rows}, Options{})
		s.Feed([]byte(c.Stream))
		x, y, _ := s.Cursor()
		if s.wrap {
			x++ // so does xterm.js tell it
		}
		if !slices.Equal(s.Lines(), c.Lines) || x != c.X || y != c.Y {
			t.Errorf("%s: %q at %dx%d\nxterm.js %q %d,%d\nours     %q %d,%d", c.Name, c.Stream, c.Cols, c.Rows, c.Lines, c.X, c.Y, s.Lines(), x, y)
		}
	}
}
