package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// term is a real terminal of known behaviour: a tmux server of its own with one pane.
type term struct {
	t    *testing.T
	sock string
	env  []string
}

// newTerm runs a shell command line in a terminal of that size. The pane stays
// when the command ends.
func newTerm(t *testing.T, env []string, cols, rows int, line string) *term {
	t.Helper()
	dir, err := os.MkdirTemp("", "bt")
	if err != nil {
		t.Fatal(err)
	}
	tm := &term{t: t, sock: filepath.Join(dir, "t"), env: env}
	t.Cleanup(func() {
		tm.close()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	// Each pane's program sees the same TERM, so that tmux is judged as a
	// terminal and not by its own terminfo entry.
	script := "TERM=xterm-256color; export TERM; unset TMUX TMUX_PANE; " + line + "; echo; echo \"[ended $?]\"; exec sleep 3600"
	tm.do("-f", "/dev/null", "new-session", "-d", "-x", strconv.Itoa(cols), "-y", strconv.Itoa(rows), "sh", "-c", script,
		";", "set", "-g", "status", "off", ";", "set", "-g", "escape-time", "0", ";", "set", "-g", "remain-on-exit", "on")
	// The status line took a row until it was switched off.
	tm.do("resize-window", "-x", strconv.Itoa(cols), "-y", strconv.Itoa(rows))
	return tm
}

func (tm *term) do(args ...string) string {
	tm.t.Helper()
	cmd := exec.CommandContext(tm.t.Context(), "tmux", append([]string{"-S", tm.sock}, args...)...)
	cmd.Env = append(cleanEnv(), tm.env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		tm.t.Fatalf("tmux %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// keys types: names as tmux has them ("Enter", "C-c", "a").
func (tm *term) keys(keys ...string) {
	tm.t.Helper()
	for _, k := range keys {
		tm.do("send-keys", k)
	}
}

// lines is the text on the screen, without trailing blanks.
func (tm *term) lines() []string {
	tm.t.Helper()
	return trimLines(tm.do("capture-pane", "-p"))
}

// styled is the screen with its attributes as tmux writes them.
func (tm *term) styled() []string {
	tm.t.Helper()
	return trimLines(tm.do("capture-pane", "-p", "-e"))
}

// state is what the pane's terminal modes are.
func (tm *term) state() string {
	tm.t.Helper()
	return strings.TrimSpace(tm.do("display-message", "-p",
		"alternate=#{alternate_on} cursor=#{cursor_flag} at=#{cursor_x},#{cursor_y} keypad=#{keypad_flag} appcursor=#{keypad_cursor_flag} mouse=#{mouse_any_flag} sgr=#{mouse_sgr_flag} wrap=#{wrap_flag} insert=#{insert_flag}"))
}

func (tm *term) waitFor(text string) {
	tm.t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	waitUntil(tm.t, 20*time.Second, "the terminal shows "+strconv.Quote(text), func() bool {
		shown := strings.Join(tm.lines(), "\n")
		if time.Now().After(deadline) {
			tm.t.Fatalf("%q is not shown:\n%s", text, shown)
		}
		return strings.Contains(shown, text)
	})
}

func (tm *term) close() {
	cmd := exec.Command("tmux", "-S", tm.sock, "kill-server")
	_ = cmd.Run() // it may have ended with its pane
}

func trimLines(text string) []string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, l := range lines {
		lines[i] = strings.TrimRight(l, " ")
	}
	for len(lines) > 0 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	return lines
}
