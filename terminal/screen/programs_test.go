package screen

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"berth"

	"github.com/creack/pty"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recording runs a real program in a real terminal whose answers come from our
// model, presses keys when it shows what is waited for, and gives all its output.
type recording struct {
	t      *testing.T
	mu     sync.Mutex
	s      *Screen
	output []byte
	master *os.File
	cmd    *exec.Cmd
	done   chan struct{}
}

var programSize = berth.Size{Cols: 100, Rows: 30}

func record(t *testing.T, name string, args ...string) *recording {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skip(name + " is not installed")
	}
	home := t.TempDir()
	r := &recording{t: t, s: New(programSize, Options{Name: "berth", Version: "test"}), done: make(chan struct{})}
	r.cmd = exec.Command(name, args...)
	r.cmd.Dir = home
	r.cmd.Env = []string{"TERM=xterm-256color", "LC_ALL=C.UTF-8", "HOME=" + home, "PATH=" + os.Getenv("PATH"), "COLORTERM=truecolor"}
	master, err := pty.StartWithSize(r.cmd, &pty.Winsize{Cols: uint16(programSize.Cols), Rows: uint16(programSize.Rows)})
	if err != nil {
		t.Fatal(err)
	}
	r.master = master
	go r.read()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.done
		_ = r.master.Close()
		_ = r.cmd.Wait()
	})
	return r
}

func (r *recording) read() {
	defer close(r.done)
	buf := make([]byte, 32<<10)
	for {
		n, err := r.master.Read(buf)
		r.mu.Lock()
		r.output = append(r.output, buf[:n]...)
		r.s.Feed(buf[:n])
		reply := r.s.TakeReplies()
		r.mu.Unlock()
		if len(reply) > 0 {
			_, _ = r.master.Write(reply)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.EIO) && !errors.Is(err, os.ErrClosed) {
				r.t.Error(err)
			}
			return
		}
	}
}

// wait waits until the screen shows text.
func (r *recording) wait(text string) *recording {
	r.t.Helper()
	r.until("shows "+text, func() bool { return strings.Contains(strings.Join(r.s.Lines(), "\n"), text) })
	return r
}

func (r *recording) until(what string, ok func() bool) {
	r.t.Helper()
	r.press("", what, ok)
}

// press presses keys, and again each two seconds, until ok.
func (r *recording) press(keys, what string, ok func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for again := time.Now(); ; {
		if now := time.Now(); keys != "" && now.After(again) {
			r.keys(keys)
			again = now.Add(2 * time.Second)
		}
		r.mu.Lock()
		good := ok()
		lines := strings.Join(r.s.Lines(), "\n")
		r.mu.Unlock()
		if good {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("waited for: %s; the screen:\n%s", what, lines)
		}
		<-tick.C
	}
}

func (r *recording) keys(text string) *recording {
	r.t.Helper()
	if _, err := r.master.WriteString(text); err != nil {
		r.t.Fatal(err)
	}
	return r
}

// snapshot gives the output so far, at a moment when nothing is pending.
func (r *recording) snapshot() string {
	r.t.Helper()
	var out string
	r.until("a whole sequence", func() bool {
		out = string(r.output)
		return r.s.Pending() == 0
	})
	return out
}

// checkProgram holds a real program's stream against tmux, and its repaint,
// filter and snapshot against the stream itself.
func checkProgram(t *testing.T, name, stream string) {
	t.Helper()
	a := New(programSize, Options{})
	a.Feed([]byte(stream))
	b := New(programSize, Options{})
	b.Feed(a.Repaint(nil))
	if d := diff(a, b, true); d != "" {
		t.Errorf("%s: repaint: %s", name, d)
	}
	c := New(programSize, Options{})
	live, _ := NewFilter(false).Append(nil, []byte(stream))
	c.Feed(live)
	if d := diff(a, c, false); d != "" {
		t.Errorf("%s: filter: %s", name, d)
	}
	if r := c.TakeReplies(); len(r) > 0 {
		t.Errorf("%s: the filter lets queries through: %q", name, r)
	}
	again, err := Restore(a.Snapshot(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if d := exact(a, again); d != "" {
		t.Errorf("%s: snapshot: %s", name, d)
	}
	m := newTmux(t)
	want, x, y := m.show(programSize, stream)
	if d := differs(a, want); d != "" {
		t.Errorf("%s: %s\nours:\n%s\ntmux:\n%s", name, d, strings.Join(a.Lines(), "\n"), strings.Join(want.Lines(), "\n"))
	}
	if x != a.x && (!a.wrap || x != a.x+1) || y != a.y {
		t.Errorf("%s: cursor ours %d,%d, tmux %d,%d", name, a.x, a.y, x, y)
	}
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func sourceText() string {
	var b strings.Builder
	for i := range 120 {
		b.WriteString("func f" + strings.Repeat("x", i%40) + "(a int) { return \"text 字 é\" } // a comment\n\tif a > 0 {\n\t}\n")
	}
	return b.String()
}

func TestVim(t *testing.T) {
	file := writeFile(t, "a.go", sourceText())
	r := record(t, "vim", "-N", "-u", "NONE", "-i", "NONE", "-c", "syntax on", "-c", "set number ruler title mouse=a", "-c", "filetype on", file)
	r.wait("a.go").keys(":split\r").keys("20\x06").keys("5dd3p").keys("ihello \x1b").wait("hello ")
	r.keys(":vsplit\r/xxxxx\r:set hlsearch\rGzz").keys(":echo 'ready'\r").wait("ready")
	checkProgram(t, "vim", r.snapshot())
	r.keys(":qa!\r")
	<-r.done
	checkProgram(t, "vim after its end", r.snapshot())
	if r.s.Alternate() || r.s.mouse != 0 || r.s.BracketedPaste() {
		t.Error("vim left modes on")
	}
}

func TestLess(t *testing.T) {
	file := writeFile(t, "text", sourceText())
	r := record(t, "less", "-N", "-S", file)
	r.wait("func fxx").keys("\x04\x04jjjkk/comment\r").keys("50g").keys("=").wait("line")
	checkProgram(t, "less", r.snapshot())
	r.keys("q")
	<-r.done
	checkProgram(t, "less after its end", r.snapshot())
}

func TestHtop(t *testing.T) {
	r := record(t, "htop", "-d", "5")
	r.wait("Quit").keys("\x1b[B\x1b[B").keys("t").keys("\x1bOQ")
	r.wait("Display options")
	checkProgram(t, "htop", r.snapshot())
}

func TestMc(t *testing.T) {
	r := record(t, "mc", "-u")
	r.wait("10Quit").keys("\x1bOB\x1bOB").wait("│/.config    ")
	// mc throws away keys that come while it is busy: they are pressed again.
	r.press("\x1b[20~", "an active menu", func() bool { return r.s.g.line(0).at(2).bg == colourIndexed })
	r.press("\r", "an open menu", func() bool { return strings.Contains(r.s.Lines()[3], "uick view") })
	checkProgram(t, "mc", r.snapshot())
}

func TestBash(t *testing.T) {
	r := record(t, "bash", "--norc", "-i")
	r.keys("PS1='\\[\\e[32m\\]prompt\\[\\e[m\\]> '\r").wait("prompt>")
	r.keys("for i in $(seq 40); do printf '\\e[3%dmrow %d\\e[m\\n' $((i%8)) $i; done\r").wait("row 40")
	r.keys("echo abc def\x1b[D\x1b[D\x01\x05\x17xyz\x12row\x07").keys("\x15echo fin''ished\r").wait("finished")
	checkProgram(t, "bash", r.snapshot())
}

// TestTmuxInside: a multiplexer as the program, with its own use of regions,
// queries and modes. tmux takes keys that follow each other within a millisecond
// for a paste and gives them to its program: assume-paste-time 0 turns that off,
// since this test types faster than a person.
func TestTmuxInside(t *testing.T) {
	m := newTmux(t)
	conf := writeFile(t, "tmux.conf", "set -g assume-paste-time 0\n")
	r := record(t, "tmux", "-u", "-f", conf, "-S", filepath.Join(m.dir, "inner"), "new-session", "-s", "in", "exec bash --norc -i")
	t.Cleanup(func() {
		_ = exec.Command("tmux", "-S", filepath.Join(m.dir, "inner"), "kill-server").Run()
	})
	r.wait("bash").keys("seq 60\r").wait("59").keys("\x02%").wait("│").keys("seq 100 160; echo do''ne\r").wait("done")
	checkProgram(t, "tmux", r.snapshot())
}
