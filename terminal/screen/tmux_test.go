package screen

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth"

	"golang.org/x/sys/unix"
)

// tmux is a tmux server of this test's own, with one window for each size, which
// shows what is written to a pipe.
type tmux struct {
	t     *testing.T
	dir   string
	n     int
	pipes map[berth.Size]*os.File
}

func newTmux(t *testing.T) *tmux {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("tmux is not installed")
	}
	dir, err := os.MkdirTemp("", "b") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	m := &tmux{t: t, dir: dir, pipes: map[berth.Size]*os.File{}}
	t.Cleanup(func() {
		_ = m.command("kill-server").Run()
		for _, p := range m.pipes {
			_ = p.Close()
		}
		_ = os.RemoveAll(dir)
	})
	return m
}

func (m *tmux) command(args ...string) *exec.Cmd {
	c := exec.Command("tmux", append([]string{"-u", "-f", "/dev/null", "-S", filepath.Join(m.dir, "s")}, args...)...)
	c.Env = append(os.Environ(), "TMUX=", "TERM=xterm-256color", "LC_ALL=C.UTF-8")
	return c
}

func (m *tmux) run(args ...string) string {
	m.t.Helper()
	out, err := m.command(args...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

// window makes the window of a size, or finds it.
func (m *tmux) window(size berth.Size) (name string, pipe *os.File) {
	m.t.Helper()
	name = size.String()
	if p, ok := m.pipes[size]; ok {
		return name, p
	}
	path := filepath.Join(m.dir, name)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		m.t.Fatal(err)
	}
	m.run("set-option", "-g", "status", "off", ";", "set-option", "-g", "allow-rename", "on", ";", "new-session", "-d", "-s", name,
		"-x", fmt.Sprint(size.Cols), "-y", fmt.Sprint(size.Rows), "stty raw -echo; exec cat <> "+path)
	pipe, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		m.t.Fatal(err)
	}
	m.pipes[size] = pipe
	return name, pipe
}

// show gives what tmux has on its screen after stream, as a screen of ours.
func (m *tmux) show(size berth.Size, stream string) (s *Screen, x, y int) {
	m.t.Helper()
	name, pipe := m.window(size)
	m.n++
	// The window's name, which is set last, tells that all was read.
	mark := fmt.Sprintf("end-%d", m.n)
	if _, err := pipe.WriteString("\x18\x1b[?1049l\x1bc" + stream + "\x1b\\\x1bk" + mark + "\x1b\\"); err != nil {
		m.t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	var text string
	for {
		state, rest, _ := strings.Cut(m.run("display-message", "-p", "-t", name, "#{window_name} #{cursor_x} #{cursor_y}", ";",
			"capture-pane", "-p", "-e", "-N", "-t", name), "\n")
		if fields := strings.Fields(state); len(fields) == 3 && fields[0] == mark {
			if _, err := fmt.Sscan(fields[1]+" "+fields[2], &x, &y); err != nil {
				m.t.Fatal(err)
			}
			text = rest
			break
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("tmux did not read the stream: %q", state)
		}
		<-tick.C
	}
	s = New(size, Options{})
	s.Feed([]byte("\x1b)0")) // tmux writes line drawing between SO and SI
	for i, l := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		s.Feed(fmt.Appendf(nil, "\x1b[%dH%s", i+1, l))
	}
	return s, x, y
}

// differs compares text, colours and attributes; of a blank only the background.
// tmux cannot tell a colour of the underline with -e, and no link.
func differs(a, b *Screen) string {
	for y := range a.rows {
		for x := range a.cols {
			ca, cb := a.g.line(y).at(x), b.g.line(y).at(x)
			ta, tb := string(a.appendGlyph(nil, ca.ch)), string(b.appendGlyph(nil, cb.ch))
			attrs := uint32(0xff | underlineMask)
			if ta == " " {
				attrs = attrInverse
				ca.fg, cb.fg = 0, 0
				if cb == (cell{}) { // with -e tmux does not tell how a row's end was erased
					ca.bg, attrs = 0, 0
				}
			}
			if ta != tb || ca.fg != cb.fg || ca.bg != cb.bg || ca.attr&attrs != cb.attr&attrs {
				return fmt.Sprintf("cell %d,%d: ours %s, tmux %s", x, y, a.describe(ca), b.describe(cb))
			}
		}
	}
	return ""
}

// TestAgreesWithTmux compares cells and cursor with the installed tmux.
func TestAgreesWithTmux(t *testing.T) {
	m := newTmux(t)
	for _, c := range loadCases(t, "cases.json") {
		if c.Skip["tmux"] != "" {
			continue
		}
		size := berth.Size{Cols: c.Cols, Rows: c.Rows}
		s := New(size, Options{})
		s.Feed([]byte(c.Stream))
		want, x, y := m.show(size, c.Stream)
		if d := differs(s, want); d != "" {
			t.Errorf("%s: %q: %s", c.Name, c.Stream, d)
			continue
		}
		if ours := s.x; x != ours && (!s.wrap || x != ours+1) || y != s.y {
			t.Errorf("%s: %q: cursor ours %d,%d, tmux %d,%d", c.Name, c.Stream, s.x, s.y, x, y)
		}
	}
}
