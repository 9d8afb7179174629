package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestQueriesAreAnsweredOnce has a program ask its terminal with no, one and
// two viewers. A viewer's own terminal must never be asked, and what it says
// late must never be typed into the program: that is how "62;1;4c" gets into
// somebody's editor.
func TestQueriesAreAnsweredOnce(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	h := newHouse(t)
	for viewers := range 3 {
		t.Run(fmt.Sprintf("%d viewers", viewers), func(t *testing.T) {
			name := fmt.Sprintf("asker-%d", viewers)
			file := filepath.Join(h.dir, name)
			h.startSession("--name", name, "--size", "80x24", "--", self, childArg, "queries", file, file+".go")
			var views []*term
			for range viewers {
				v := newTerm(t, h.terminalEnv(), 80, 24, h.attachLine(name))
				v.waitFor("ready")
				views = append(views, v)
			}
			if err := os.WriteFile(file+".go", nil, 0o600); err != nil {
				t.Fatal(err)
			}
			waitUntil(t, 60*time.Second, "all questions are asked", func() bool { _, err := os.Stat(file + ".more"); return err == nil })
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]string
			if err := json.Unmarshal(data, &got); err != nil {
				t.Fatal(err)
			}
			for _, q := range asked {
				answer := got[q.name]
				if !strings.HasPrefix(answer, q.answer) || strings.Count(answer, q.answer) != 1 {
					t.Errorf("%s is answered with %q, want %q… once", q.name, answer, q.answer)
				}
			}
			for _, v := range views {
				// DA1, a cursor position, a colour and XTVERSION, as a terminal
				// sends them long after they were asked for; then a key.
				for _, late := range []string{"\x1b[?62;1;4c", "\x1b[24;80R", "\x1b]11;rgb:0000/0000/0000\x1b\\", "\x1bP>|tmux 3.3a\x1b\\"} {
					v.raw(late)
				}
				v.raw("k")
			}
			waitUntil(t, 10*time.Second, "the keys arrive", func() bool {
				more, err := os.ReadFile(file + ".more")
				return err == nil && strings.Count(string(more), "k") >= viewers
			})
			if more, err := os.ReadFile(file + ".more"); err != nil || string(more) != strings.Repeat("k", viewers) {
				t.Errorf("the program was typed %q, %v", more, err)
			}
			h.must("kill", name)
		})
	}
}

// raw sends bytes as the terminal itself would.
func (tm *term) raw(text string) {
	tm.t.Helper()
	args := []string{"send-keys", "-H"}
	for _, b := range []byte(text) {
		args = append(args, fmt.Sprintf("%02x", b))
	}
	tm.do(args...)
}
