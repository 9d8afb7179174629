package cli

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"berth"
	"berth/client"
)

// fakeViewer tells what a test puts into it.
type fakeViewer struct {
	updates chan client.Update
	closed  chan struct{}
	once    sync.Once

	mu      sync.Mutex
	input   bytes.Buffer
	sizes   []berth.Size
	refresh int
	changed chan struct{} // one for each of the above
}

func newFakeViewer() *fakeViewer {
	return &fakeViewer{updates: make(chan client.Update, 64), closed: make(chan struct{}), changed: make(chan struct{}, 1024)}
}

func (v *fakeViewer) Next() (client.Update, error) {
	select {
	case u := <-v.updates:
		return u, nil
	case <-v.closed:
		return client.Update{}, berth.Errorf(berth.CodeInterrupted, "closed")
	}
}

func (v *fakeViewer) note(f func()) error {
	v.mu.Lock()
	f()
	v.mu.Unlock()
	v.changed <- struct{}{}
	return nil
}
func (v *fakeViewer) Input(p []byte) error { return v.note(func() { v.input.Write(p) }) }
func (v *fakeViewer) Resize(s berth.Size) error {
	return v.note(func() { v.sizes = append(v.sizes, s) })
}
func (v *fakeViewer) Focus(f berth.ViewerFocus) error {
	return v.note(func() {
		if f.Refresh {
			v.refresh++
		}
	})
}
func (v *fakeViewer) Close() error { v.once.Do(func() { close(v.closed) }); return nil }

// seat is a person's terminal with `show` running on it.
type seat struct {
	t      *testing.T
	master *os.File
	slave  *os.File
	before unix.Termios
	viewer *fakeViewer
	cancel context.CancelFunc
	end    chan ending
	errs   chan error

	mu  sync.Mutex
	out bytes.Buffer
	got chan struct{} // one for each read
}

func newSeat(t *testing.T, o attachOptions, reads bool) *seat {
	t.Helper()
	master, slave, err := pty.Open()
	must(t, err)
	must(t, pty.Setsize(master, &pty.Winsize{Cols: 100, Rows: 30}))
	s := &seat{
		t: t, master: master, slave: slave, viewer: newFakeViewer(),
		end: make(chan ending, 1), errs: make(chan error, 1), got: make(chan struct{}, 1<<16),
	}
	s.before = s.termios()
	t.Cleanup(func() {
		_ = slave.Close()
		_ = master.Close()
	})
	if reads {
		go s.read()
	}
	if o.keyText == "" {
		o.keyText = defaultDetachKey
	}
	o.keys = mustKeys(t, o.keyText)
	if o.name == "" {
		o.name = "calm-heron"
	}
	a := &app{env: Env{Stdin: slave, Stdout: slave}}
	term, err := a.openTerminal()
	must(t, err)
	t.Cleanup(func() { _ = term.wakeR.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	s.cancel = cancel
	t.Cleanup(cancel)
	go func() {
		end, err := show(ctx, term, s.viewer, o)
		s.end <- end
		s.errs <- err
	}()
	return s
}

func (s *seat) read() {
	buf := make([]byte, 32<<10)
	for {
		n, err := s.master.Read(buf)
		s.mu.Lock()
		s.out.Write(buf[:n])
		s.mu.Unlock()
		select {
		case s.got <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

func (s *seat) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

// until waits for the terminal to show what ok looks for.
func (s *seat) until(ok func(shown string) bool) {
	s.t.Helper()
	deadline := time.After(testWait)
	for !ok(s.text()) {
		select {
		case <-s.got:
		case <-deadline:
			s.t.Fatalf("the terminal shows %q", s.text())
		}
	}
}

func (s *seat) shows(part string) {
	s.t.Helper()
	s.until(func(shown string) bool { return strings.Contains(shown, part) })
}

// viewerUntil waits for the viewer to have been told what ok looks for.
func (s *seat) viewerUntil(ok func(*fakeViewer) bool) {
	s.t.Helper()
	deadline := time.After(testWait)
	for {
		s.viewer.mu.Lock()
		done := ok(s.viewer)
		s.viewer.mu.Unlock()
		if done {
			return
		}
		select {
		case <-s.viewer.changed:
		case <-deadline:
			s.t.Fatal("the viewer was not told")
		}
	}
}

func (s *seat) keys(text string) {
	s.t.Helper()
	_, err := io.WriteString(s.master, text)
	must(s.t, err)
}

func (s *seat) send(updates ...client.Update) {
	for _, u := range updates {
		s.viewer.updates <- u
	}
}

func (s *seat) termios() unix.Termios {
	s.t.Helper()
	t, err := unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS) //nolint:gosec // a descriptor fits
	must(s.t, err)
	return *t
}

// rawMode waits until keys come through as they are.
func (s *seat) rawMode() {
	s.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(testWait)
	for s.termios().Lflag&unix.ICANON != 0 {
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatal("the terminal is not in raw mode")
		}
	}
}

// ended waits for the end and checks that the terminal is the user's again.
func (s *seat) ended() ending {
	s.t.Helper()
	select {
	case end := <-s.end:
		must(s.t, <-s.errs)
		if after := s.termios(); after != s.before {
			s.t.Errorf("the terminal's modes are %+v, were %+v", after, s.before)
		}
		return end
	case <-time.After(testWait):
		s.t.Fatal("it did not end")
		return ending{}
	}
}

func paint() client.Update {
	return client.Update{Kind: client.UpdateRepaint, Data: []byte("\x1b[H\x1b[2J\x1b[?1000h\x1b[?2004h\x1b[>1upainted")}
}

func hello(kind berth.ResumeKind) client.Update {
	return client.Update{Kind: client.UpdateHello, Hello: berth.AttachHello{Resume: kind}}
}

func output(text string) client.Update {
	return client.Update{Kind: client.UpdateOutput, Data: []byte(text)}
}

func TestAttachDetaches(t *testing.T) {
	s := newSeat(t, attachOptions{}, true)
	s.send(hello(berth.ResumeFresh), paint(), output("output"))
	s.shows("paintedoutput")
	s.keys("ls\r")
	s.viewerUntil(func(v *fakeViewer) bool { return v.input.String() == "ls\r" })
	s.keys("\x1cd")
	if end := s.ended(); !end.detached || end.exit != nil || end.err != nil {
		t.Errorf("got %+v", end)
	}
	s.shows(resetTerminal + giveBack + "\r\r\n\x1b[J") // leaveLine; the terminal adds a return again
	// What stood on the terminal went into its scrollback before the repaint
	// cleared it: one line feed a row, from where the cursor was.
	if shown := s.text(); !strings.HasPrefix(shown, saveTerminal+strings.Repeat("\n", 30)+"\x1b[H") {
		t.Errorf("it begins with %q", shown[:min(len(shown), 60)])
	}
}

func TestAttachEndsWithTheProgram(t *testing.T) {
	s := newSeat(t, attachOptions{}, true)
	s.send(hello(berth.ResumeFresh), paint(), output("\x1b]11;#000000\x07last words\r\n"),
		client.Update{Kind: client.UpdateExit, Exit: berth.Exit{Code: 7, Reason: berth.ExitExited}})
	if end := s.ended(); end.exit == nil || end.exit.Code != 7 {
		t.Errorf("got %+v", end)
	}
	// The cursor stands on a fresh line already, and only the colour that was
	// changed is put back: the user may have set others.
	s.shows("last words\r\n" + resetTerminal + "\x1b]111\x1b\\" + giveBack + clearBelow)
}

// On SIGTERM and SIGHUP the context ends: the terminal is put back then too.
func TestAttachPutsTheTerminalBackWhenInterrupted(t *testing.T) {
	s := newSeat(t, attachOptions{}, true)
	s.send(hello(berth.ResumeFresh), paint())
	s.shows("painted")
	s.cancel()
	if end := s.ended(); berth.ExitCode(end.err) != berth.ExitInterrupted {
		t.Errorf("got %+v", end)
	}
	s.shows(resetTerminal)
}

func TestAttachPutsTheTerminalBackOnAnError(t *testing.T) {
	s := newSeat(t, attachOptions{}, true)
	s.send(hello(berth.ResumeFresh), paint())
	s.shows("painted")
	_ = s.viewer.Close() // Next fails from now on
	if end := s.ended(); end.err == nil {
		t.Errorf("got %+v", end)
	}
	s.shows(resetTerminal)
}

// A terminal that takes nothing (a dead link, a stopped emulator) must leave
// its user the detach key, and ends within the bound.
func TestAttachDetachesFromAStuckTerminal(t *testing.T) {
	s := newSeat(t, attachOptions{}, false) // nobody reads the master
	s.send(hello(berth.ResumeFresh), paint())
	s.rawMode()
	flood := strings.Repeat("x", 32<<10)
	for range 40 { // more than the queue and the pty hold
		s.send(output(flood))
	}
	s.keys("\x1cd")
	if end := s.ended(); !end.detached {
		t.Errorf("got %+v", end)
	}
	go s.read() // lets the write that was stuck end
	s.until(func(shown string) bool { return strings.Contains(shown, resetTerminal) })
}

func TestAttachFollowsTheSize(t *testing.T) {
	s := newSeat(t, attachOptions{}, true)
	s.send(hello(berth.ResumeFresh), paint())
	s.shows("painted")
	must(t, pty.Setsize(s.master, &pty.Winsize{Cols: 60, Rows: 20}))
	// The pty is not our controlling terminal, so the kernel tells nobody.
	must(t, unix.Kill(os.Getpid(), unix.SIGWINCH))
	s.viewerUntil(func(v *fakeViewer) bool {
		return len(v.sizes) > 0 && v.sizes[len(v.sizes)-1] == berth.Size{Cols: 60, Rows: 20}
	})
	s.keys("\x1cd")
	s.ended()
}

func TestReadOnlyViewerTypesNothing(t *testing.T) {
	s := newSeat(t, attachOptions{readOnly: true}, true)
	s.send(hello(berth.ResumeFresh), paint())
	s.shows("painted")
	s.keys("rm -rf\r")
	s.keys("\x03")
	if end := s.ended(); !end.detached {
		t.Errorf("got %+v", end)
	}
	if got := s.viewer.input.String(); got != "" {
		t.Errorf("the program got %q", got)
	}
}

// While the daemon is away for long the user is told, and what was drawn over
// the screen goes with a repaint, asked for where the continuation is exact.
func TestNoticeComesAndGoes(t *testing.T) {
	s := newSeat(t, attachOptions{}, true)
	s.send(hello(berth.ResumeFresh), paint())
	s.shows("painted")
	start := time.Now()
	s.send(client.Update{Kind: client.UpdateDisconnected})
	s.shows("berth is away; calm-heron goes on")
	if waited := time.Since(start); waited < noticeAfter {
		t.Errorf("the notice came after %s", waited)
	}
	s.shows("\x1b[30;1H")
	s.send(client.Update{Kind: client.UpdateReconnected}, hello(berth.ResumeExact))
	s.viewerUntil(func(v *fakeViewer) bool { return v.refresh == 1 })
	s.send(paint())
	s.until(func(shown string) bool { return strings.Count(shown, "painted") == 2 })
	// A short break says nothing and asks for nothing.
	s.send(client.Update{Kind: client.UpdateDisconnected}, client.Update{Kind: client.UpdateReconnected}, hello(berth.ResumeExact), output("more"))
	s.shows("more")
	s.keys("\x1cd")
	s.ended()
	if n := strings.Count(s.text(), "berth is away"); n != 1 || s.viewer.refresh != 1 {
		t.Errorf("%d notices, %d refreshes", n, s.viewer.refresh)
	}
}

// The user's terminal closes under the viewer: there is nothing to put back and
// nobody to tell, and it ends.
func TestAttachEndsWhenTheTerminalCloses(t *testing.T) {
	s := newSeat(t, attachOptions{}, false)
	s.send(hello(berth.ResumeFresh))
	must(t, s.master.Close())
	select {
	case <-s.end:
	case <-time.After(testWait):
		t.Fatal("it did not end")
	}
}
