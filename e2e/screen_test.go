package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// program is a real full-screen program, driven by the same keys inside berth
// and on a terminal of its own.
type program struct {
	name  string
	argv  []string
	ready string   // shown when it takes keys
	back  string   // shown when a viewer comes back
	first []string // typed before the viewer leaves
	then  []string // typed after it came back
	done  string   // shown at the end
	quit  []string
}

// TestPrograms attaches at one size, leaves, loses the guest, attaches at
// another size, and compares the screen, its attributes and the modes with the
// same program on a terminal without berth.
func TestPrograms(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.txt")
	var b strings.Builder
	for i := range 300 {
		fmt.Fprintf(&b, "%03d wide 漢字 combining e\u0301 emoji 🙂 tab\tend %s\n", i, strings.Repeat("x", i%90))
	}
	if err := os.WriteFile(text, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	files := filepath.Join(dir, "files")
	for _, name := range []string{"alpha", "beta", "gamma"} {
		if err := os.MkdirAll(filepath.Join(files, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	h := newHouse(t)
	for _, p := range []program{
		{name: "vim", argv: []string{"vim", "-n", "-u", "NONE", "-c", "set nomore t_RV= nu hls", text}, ready: "001 wide", back: "020 wide",
			first: []string{"/wide", "Enter", "20j", "yy", "p"}, then: []string{":split", "Enter", "G", "iinserted text", "Escape"}, done: "inserted text", quit: []string{":qa!", "Enter"}},
		{name: "less", argv: []string{"less", "-N", text}, ready: "001 wide", back: "050 wide",
			first: []string{"Space", "Space"}, then: []string{"/250 wide", "Enter", "j", "j"}, done: "258", quit: []string{"q"}},
		{name: "mc", argv: []string{"mc", "-u", "-x", files, files}, ready: "alpha", back: "alpha",
			first: []string{"Down", "Down"}, then: []string{"Tab", "Down", "Down", "Down"}, done: "gamma", quit: nil},
		{name: "tmux", argv: []string{"sh", "-c", `printf 'set -g status off\nset -g escape-time 0\n' > "$HOME/c"; exec tmux -S "$HOME/t" -f "$HOME/c" new-session "less -N ` + text + `"`}, ready: "001 wide", back: "050 wide",
			first: []string{"Space", "Space"}, then: []string{"/250 wide", "Enter", "j", "j"}, done: "258", quit: []string{"q"}},
	} {
		t.Run(p.name, func(t *testing.T) { p.compare(t, h, dir) })
	}
}

func (p program) compare(t *testing.T, h *house, dir string) {
	if _, err := exec.LookPath(p.argv[0]); err != nil {
		t.Fatalf("%s is not installed: make packages", p.argv[0])
	}
	home, refHome := filepath.Join(dir, "home-"+p.name), filepath.Join(dir, "home-ref-"+p.name)
	for _, d := range []string{home, refHome} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	line := "env HOME=" + refHome + " LC_ALL=C.UTF-8 " + quoted(p.argv)
	ref := newTerm(t, nil, 100, 30, line)
	ref.waitFor(p.ready)
	ref.keys(p.first...)
	ref.keys(p.then...)
	ref.waitFor(p.done)

	h.must(append([]string{"run", "-d", "--name", p.name, "--size", "100x30", "--env", "HOME=" + home, "--env", "LC_ALL=C.UTF-8", "--"}, p.argv...)...)
	small := newTerm(t, h.terminalEnv(), 70, 20, h.attachLine(p.name))
	small.waitFor(p.ready)
	small.keys(p.first...)
	small.keys("C-\\", "d")
	small.waitFor("[detached from " + p.name + "]")
	for _, left := range []string{"alternate=0", "cursor=1", "keypad=0", "appcursor=0", "mouse=0", "wrap=1", "insert=0"} {
		if state := small.state(); !strings.Contains(state, left) {
			t.Errorf("after the viewer left, its terminal has %s; want %s", state, left)
		}
	}
	h.killGuest()
	big := newTerm(t, h.terminalEnv(), 100, 30, h.attachLine(p.name))
	big.waitFor(p.back)
	big.keys(p.then...)
	big.waitFor(p.done)
	sameScreen(t, ref, big)

	var shown struct{ Lines []string }
	h.decode(h.must("screen", p.name, "--json"), &shown)
	if want := ref.lines(); !slices.Equal(trimLines(strings.Join(shown.Lines, "\n")), want) {
		t.Errorf("berth screen differs:\n%s\nwant:\n%s", strings.Join(shown.Lines, "\n"), strings.Join(want, "\n"))
	}
	if len(p.quit) > 0 {
		big.keys(p.quit...)
		big.waitFor("[ended 0]")
		ref.keys(p.quit...)
		ref.waitFor("[ended 0]")
	} else {
		h.must("kill", p.name)
	}
}

// TestHtop cannot be compared with another htop, which would show other numbers.
// It is stopped with its own key, and then what a viewer was repainted with must
// be what the model says.
func TestHtop(t *testing.T) {
	h := newHouse(t)
	h.must("run", "-d", "--name", "htop", "--size", "100x30", "--env", "HOME="+t.TempDir(), "--", "htop")
	small := newTerm(t, h.terminalEnv(), 70, 20, h.attachLine("htop"))
	small.waitFor("CPU")
	small.keys("C-\\", "d")
	small.waitFor("[detached from htop]")
	h.killGuest()
	big := newTerm(t, h.terminalEnv(), 100, 30, h.attachLine("htop"))
	big.waitFor("F10")
	big.keys("Z")
	big.waitFor("PAUSED")
	waitUntil(t, 10*time.Second, "the viewer shows what the model has", func() bool {
		var shown struct{ Lines []string }
		h.decode(h.must("screen", "htop", "--json"), &shown)
		return slices.Equal(trimLines(strings.Join(shown.Lines, "\n")), big.lines())
	})
	big.keys("q")
	big.waitFor("[ended 0]")
}

// sameScreen waits until two terminals show the same, attributes and modes too.
func sameScreen(t *testing.T, want, got *term) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		w, g := want.styled(), got.styled()
		if slices.Equal(w, g) && want.state() == got.state() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the screens differ\n%s\nwant %s\n got %s", diffLines(w, g), want.state(), got.state())
		}
		<-tick.C
	}
}

func diffLines(want, got []string) string {
	var b strings.Builder
	for i := range max(len(want), len(got)) {
		var w, g string
		if i < len(want) {
			w = want[i]
		}
		if i < len(got) {
			g = got[i]
		}
		if w != g {
			fmt.Fprintf(&b, "row %d\n  want %q\n   got %q\n", i, w, g)
		}
	}
	return b.String()
}

func quoted(argv []string) string {
	out := make([]string, len(argv))
	for i, a := range argv {
		out[i] = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
	}
	return strings.Join(out, " ")
}

// terminalEnv lets a shell in a terminal find this house.
func (h *house) terminalEnv() []string {
	return []string{"BERTH_STATE_DIR=" + h.state(), "BERTH_RUNTIME_DIR=" + h.runtime(), "BERTH_CONFIG=" + filepath.Join(h.dir, "config.toml"), "BERTH_MACHINE_DIR=" + filepath.Join(h.dir, "m")}
}

func (h *house) attachLine(name string) string {
	return filepath.Join(h.bin, "berth") + " attach " + name
}

// TestTitle attaches to a program that has set a title while nobody watched: the
// viewer's terminal has it, and gets its own back.
func TestTitle(t *testing.T) {
	h := newHouse(t)
	h.must("run", "-d", "--name", "titled", "--", "sh", "-c", `printf '\033]2;work in progress\007ready'; exec sleep 3000`)
	view := newTerm(t, h.terminalEnv(), 80, 24, h.attachLine("titled"))
	view.waitFor("ready")
	title := func() string { return strings.TrimSpace(view.do("display-message", "-p", "#{pane_title}")) }
	waitUntil(t, 10*time.Second, "the terminal has the title", func() bool { return title() == "work in progress" })
	if out := h.must("ps"); !strings.Contains(out, "work in progress") {
		t.Errorf("ps does not show the title:\n%s", out)
	}
	view.keys("C-\\", "d")
	view.waitFor("[detached from titled]")
	waitUntil(t, 10*time.Second, "the terminal has its own title again", func() bool { return title() != "work in progress" })
}
