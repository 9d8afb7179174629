package guest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/holder"
)

var replyPattern = regexp.MustCompile(`got "([^"]*)"`)

// replies are what the program "query" was answered, one for each time it asked.
func (l *lab) replies(id string, n int) []string {
	l.t.Helper()
	var got []string
	eventually(l.t, fmt.Sprintf("%d answers", n), func() bool {
		got = nil
		for _, m := range replyPattern.FindAllStringSubmatch(string(l.output(id)), -1) {
			got = append(got, m[1])
		}
		return len(got) >= n
	})
	return got
}

// wantReply is one answer to DA1, and one to the cursor report that follows.
var wantReply = regexp.MustCompile(`^\\x1b\[\?[0-9;]+c\\x1b\[\?[0-9;]+c\\x1b\[\d+;1R$`)

func TestQueriesAreAnsweredOnceWhoeverLooks(t *testing.T) {
	l := newLab(t)
	l.start()
	id := l.program("query", "early")
	l.awaitOutput(id, "ready")
	for viewers := range 3 {
		if viewers > 0 {
			w := l.attach(id, berth.AttachRequest{Size: berth.Size{Cols: 80, Rows: 24}})
			defer w.see(func() bool {
				if bytes.Contains(w.output, []byte("\x1b[c")) || bytes.Contains(w.output, []byte("\x1b[6n")) || bytes.Contains(w.repaint, []byte("\x1b[c")) {
					t.Error("a viewer was sent a query")
				}
				return true
			})
		}
		l.type_(id, "a")
		got := l.replies(id, viewers+2)
		if r := got[viewers+1]; !wantReply.MatchString(r) {
			t.Errorf("with %d viewers the program was answered %q", viewers, r)
		}
	}
	if r := l.replies(id, 1)[0]; !wantReply.MatchString(r) {
		t.Errorf("before anybody came the program was answered %q", r)
	}
}

// tmux #5616: `62;1;4c` typed into an editor after a laptop woke up.
func TestLateRepliesOfAViewerNeverReachTheProgram(t *testing.T) {
	l := newLab(t)
	l.start()
	id := l.program("raw")
	w := l.attach(id, berth.AttachRequest{Size: berth.Size{Cols: 80, Rows: 24}})
	l.awaitOutput(id, "ready")
	for _, reply := range []string{"\x1b[?62;1;4c", "\x1b[>1;115;0c", "\x1b]11;rgb:0000/0000/0000\x1b\\", "\x1b[24;80R", "\x1bP>|other 1.0\x1b\\"} {
		w.send(berth.FrameInput, []byte(reply[:3]))
		w.send(berth.FrameInput, []byte(reply[3:]))
	}
	w.send(berth.FrameInput, []byte("k"))
	out := l.awaitOutput(id, `read "k"`)
	if n := bytes.Count(out, []byte("read ")); n != 1 {
		t.Errorf("the program read %d times: %q", n, out)
	}
	// A key that looks like the beginning of a reply comes after a moment.
	w.send(berth.FrameInput, []byte("\x1b["))
	eventually(t, "the held key", func() bool {
		out := string(l.output(id))
		return strings.Contains(out, `read "\x1b["`) || strings.Contains(out, `read "["`)
	})
}

// A query whose guest died before it could answer is answered by the next one;
// one that was answered is not answered again.
func TestQueriesOverTheDeathOfAGuest(t *testing.T) {
	l := newLab(t)
	l.spawn()
	fifo := filepath.Join(l.dir, "go")
	id := l.run("sh", "-c", fmt.Sprintf(`mkfifo %s; stty raw -echo; printf 'first \033[6n'; head -c 6 >/dev/null
		printf 'waits '; read x < %s; printf '\033[5n\033[6n'; head -c 11 | tr '\033' E; printf 'answered '; head -c 1; printf ' end'; head -c 1`, fifo, fifo))
	l.awaitScreen(id, "waits")
	l.kill()
	if err := os.WriteFile(fifo, []byte("x\n"), 0o600); err != nil { // it asks while no guest is there
		t.Fatal(err)
	}
	eventually(t, "the question", func() bool {
		p := make([]byte, 100)
		n, err := holder.NewClient(filepath.Join(l.runtime(), berth.DirHolders, id+".sock")).ReadLog(t.Context(), 0, p)
		return err == nil && bytes.HasSuffix(p[:n], []byte("\x1b[6n")) && bytes.Contains(p[:n], []byte("\x1b[5n"))
	})
	l.spawn()
	l.awaitOutput(id, "E[0nE[1;13Ranswered ")
	for range 3 { // however often the guest dies now
		l.kill()
		l.spawn()
	}
	l.type_(id, "Z")
	if out := l.awaitOutput(id, " end"); !bytes.HasSuffix(out, []byte("answered Z end")) {
		t.Errorf("an answer came twice: %q", out)
	}
}

func TestResume(t *testing.T) {
	l := newLab(t)
	l.start()
	r := l.request("sh", "-c", "seq 1 100000; printf '\\033[31mend'; read x")
	r.LogBytes = 128 << 10
	id := l.create(r)
	l.awaitScreen(id, "end")
	s := l.session(id)
	end := s.Offsets.End
	at := func(n uint64) *uint64 { return &n }

	w := l.attach(id, berth.AttachRequest{Generation: 1, Offset: at(end - 1000)})
	if w.Hello.Resume != berth.ResumeExact || w.Hello.Offset != end-1000 {
		t.Errorf("hello = %+v, want exact", w.Hello)
	}
	w.await("all of it", func() bool { return w.next == end })
	whole := l.output(id)
	w.see(func() bool {
		if !bytes.Equal(w.output, whole[len(whole)-1000:]) || w.repaint != nil {
			t.Errorf("got %q", w.output)
		}
		return true
	})

	w = l.attach(id, berth.AttachRequest{Generation: 1, Offset: at(end)})
	if w.Hello.Resume != berth.ResumeExact || w.Hello.Offset != end {
		t.Errorf("at the end: hello = %+v", w.Hello)
	}

	w = l.attach(id, berth.AttachRequest{Generation: 1, Offset: at(5)})
	if w.Hello.Resume != berth.ResumeGap || *w.Hello.Gap != (berth.OutputGap{From: 5, To: end}) || w.Hello.Offset != end {
		t.Errorf("before what is kept: hello = %+v %+v", w.Hello, w.Hello.Gap)
	}
	w.await("a repaint", func() bool { return bytes.Contains(w.repaint, []byte("end")) })

	w = l.attach(id, berth.AttachRequest{Generation: 2, Offset: at(5)})
	if w.Hello.Resume != berth.ResumeGeneration || w.Hello.Generation != 1 {
		t.Errorf("of another generation: hello = %+v", w.Hello)
	}
	w.await("a repaint", func() bool { return bytes.Contains(w.repaint, []byte("end")) })

	_, err := l.client.Attach(t.Context(), id, berth.AttachRequest{Generation: 1, Offset: at(end + 1)})
	if !errors.Is(err, berth.CodeInvalidOffset) {
		t.Errorf("past the end: %v", err)
	}
	if _, err := l.client.Log(t.Context(), id, berth.LogRequest{From: 5}); !errors.Is(err, berth.CodeOffsetGone) {
		t.Errorf("log before what is kept: %v", err)
	}
	if _, err := l.client.Log(t.Context(), id, berth.LogRequest{From: end + 1}); !errors.Is(err, berth.CodeInvalidOffset) {
		t.Errorf("log past the end: %v", err)
	}
	if _, err := l.client.Log(t.Context(), id, berth.LogRequest{Generation: 2}); !errors.Is(err, berth.CodeGenerationChanged) {
		t.Errorf("log of another generation: %v", err)
	}
	// And after the end, the same from the files.
	if _, err := l.client.Kill(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	w = l.attach(id, berth.AttachRequest{Generation: 1, Offset: at(end - 10)})
	w.awaitEnd()
	w.see(func() bool {
		if w.Hello.Resume != berth.ResumeExact || !bytes.HasPrefix(w.output, whole[len(whole)-10:]) || w.exit == nil || w.next != w.exit.Offset {
			t.Errorf("after the end: %+v, %q, %+v", w.Hello, w.output, w.exit)
		}
		return true
	})
	if _, err := l.client.Attach(t.Context(), id, berth.AttachRequest{Generation: 1, Offset: at(end + 1000)}); !errors.Is(err, berth.CodeInvalidOffset) {
		t.Errorf("past the end of an ended one: %v", err)
	}
}

// ET #108, tmux #706 and #4859: a viewer that reads nothing slows nobody and
// costs a bounded number of bytes.
func TestASlowViewerHarmsNobody(t *testing.T) {
	l := newLab(t)
	l.start()
	const lines = 400_000
	id := l.program("count", fmt.Sprint(lines), "stay")
	slow, err := l.client.Attach(t.Context(), id, berth.AttachRequest{Size: berth.Size{Cols: 80, Rows: 24}})
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close() //nolint:errcheck // the test is over
	fast := l.attach(id, berth.AttachRequest{Size: berth.Size{Cols: 80, Rows: 24}})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	fast.awaitOutput("all lines")
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc) - int64(cap(fast.output)); grown > 8<<20 {
		t.Errorf("the heap grew by %d KiB", grown>>10)
	}
	// It drains: what was in flight, then a gap, a repaint and the live output.
	w := &watcher{t: t, stream: slow, done: make(chan struct{})}
	if f, err := slow.Read(); err != nil || f.Decode(&w.Hello) != nil {
		t.Fatal("no hello")
	}
	w.next = w.Hello.Offset
	go w.read()
	defer w.close()
	w.await("the live output", func() bool { return w.next == fast.next })
	l.type_(id, "more\r")
	w.awaitEnd()
	w.see(func() bool {
		if len(w.gaps) == 0 || !bytes.Contains(w.repaint, []byte("all lines")) {
			t.Errorf("gaps %v, the last repaint %q", w.gaps, w.repaint)
		}
		return true
	})
	if out := l.output(id); !bytes.HasPrefix(out[len(out)-len("all lines\r\nmore\r\n"):], []byte("all lines")) {
		t.Errorf("the log ends with %q", out[len(out)-40:])
	}
}

func TestControlCUnderAFlood(t *testing.T) {
	l := newLab(t)
	l.start()
	id := l.run("sh", "-c", "trap 'echo STOPPED; exit 5' INT; while :; do yes | head -c 1000000; done")
	w := l.attach(id, berth.AttachRequest{Size: berth.Size{Cols: 80, Rows: 24}})
	w.await("a flood", func() bool { return len(w.output) > 5<<20 || len(w.gaps) > 0 })
	began := time.Now()
	w.send(berth.FrameInput, []byte("\x03"))
	eventually(t, "an exit record", func() bool {
		_, err := holder.ReadExit(filepath.Join(l.sessions(), id))
		return err == nil
	})
	if took := time.Since(began); took > time.Second { // 100 ms on a machine that does nothing else
		t.Errorf("ctrl-C took %v", took)
	} else {
		t.Logf("ctrl-C took %v", took)
	}
	s := l.awaitState(id, berth.SessionExited)
	if s.Exit.Code != 5 {
		t.Errorf("exit = %+v", s.Exit)
	}
	w.awaitEnd()
}

func TestAReadOnlyViewerOnlyLooks(t *testing.T) {
	l := newLab(t)
	l.start()
	id := l.program("raw")
	w := l.attach(id, berth.AttachRequest{Size: berth.Size{Cols: 100, Rows: 50}, ReadOnly: true, SizePolicy: berth.SizeFixed})
	l.awaitOutput(id, "ready")
	w.send(berth.FrameInput, []byte("x"))
	w.sendJSON(berth.FrameResize, berth.Size{Cols: 120, Rows: 50})
	w.sendJSON(berth.FrameSignal, berth.SignalRequest{Signal: "KILL"})
	w.sendJSON(berth.FrameFocus, berth.ViewerFocus{Refresh: true})
	w.await("the refresh, which comes after all that", func() bool { return w.repaint != nil && len(w.states) > 0 })
	l.type_(id, "q")
	l.awaitState(id, berth.SessionExited)
	out := string(l.output(id))
	s := l.session(id)
	if strings.Contains(out, `"x"`) || s.Exit.Signal != "" || s.Size != (berth.Size{Cols: 80, Rows: 24}) || s.SizePolicy != berth.SizeLatest {
		t.Errorf("output %q, session %+v", out, s)
	}
}

func TestSizes(t *testing.T) {
	l := newLab(t)
	l.start()
	id := l.program("size")
	l.awaitOutput(id, "size 80x24")
	a := l.attach(id, berth.AttachRequest{Size: berth.Size{Cols: 100, Rows: 30}})
	l.awaitOutput(id, "size 100x30")
	b := l.attach(id, berth.AttachRequest{Size: berth.Size{Cols: 60, Rows: 20}})
	l.awaitOutput(id, "size 60x20")
	if b.Hello.Cols != 60 {
		t.Errorf("the second one was told %+v", b.Hello)
	}
	a.await("to be told", func() bool {
		n := len(a.states)
		return n > 0 && a.states[n-1].Size == berth.Size{Cols: 60, Rows: 20} && a.states[n-1].Viewers == 2
	})
	a.send(berth.FrameInput, []byte("k")) // who types decides
	eventually(t, "the size of who types", func() bool { return strings.Count(string(l.output(id)), "size 100x30") == 2 })
	a.sendJSON(berth.FrameResize, berth.Size{Cols: 101, Rows: 31})
	a.sendJSON(berth.FrameResize, berth.Size{Cols: 102, Rows: 32})
	l.awaitOutput(id, "size 102x32")
	hidden := false
	a.sendJSON(berth.FrameFocus, berth.ViewerFocus{Focused: &hidden})
	eventually(t, "the size of who is seen", func() bool { return strings.Count(string(l.output(id)), "size 60x20") == 2 })
	if out := string(l.output(id)); strings.Contains(out, "101x31") {
		t.Errorf("a size between was not gathered: %q", out)
	}
	b.close()
	a.close()
	eventually(t, "nobody", func() bool { return l.session(id).Viewers == 0 })
	if err := l.client.Resize(t.Context(), id, berth.Size{Cols: 33, Rows: 11}); err != nil {
		t.Fatal(err)
	}
	l.awaitOutput(id, "size 33x11")
	c := l.attach(id, berth.AttachRequest{Size: berth.Size{Cols: 90, Rows: 40}, SizePolicy: berth.SizeFixed})
	if c.Hello.Cols != 33 {
		t.Errorf("with a fixed size: %+v", c.Hello)
	}
	l.stop()
	l.start()
	if s := l.session(id); s.Size != (berth.Size{Cols: 33, Rows: 11}) || s.SizePolicy != berth.SizeFixed || s.AttachedAt.IsZero() {
		t.Errorf("after a restart: %+v", s)
	}
	l.type_(id, "\n")
	l.awaitState(id, berth.SessionExited)
}

func TestTypedText(t *testing.T) {
	l := newLab(t)
	l.start()
	id := l.program("raw")
	l.awaitScreen(id, "ready")
	if err := l.client.Input(t.Context(), id, berth.InputRequest{Data: []byte("a\x1b[201~b"), Paste: true, Enter: true}); err != nil {
		t.Fatal(err)
	}
	// A program that is not scheduled for 30 ms reads both at once, so only the
	// bytes are looked at here. TestEnterIsAWriteOfItsOwn looks at the writes.
	eventually(t, "the text between marks and a key behind it", func() bool {
		var read strings.Builder
		for _, m := range regexp.MustCompile(`read "(.*)"\r\n`).FindAllStringSubmatch(string(l.output(id)), -1) {
			read.WriteString(m[1])
		}
		return read.String() == `\x1b[200~ab\x1b[201~\r`
	})
	if err := l.client.Signal(t.Context(), id, "NOSUCH"); !errors.Is(err, berth.CodeInvalidArgument) {
		t.Errorf("a signal that is none: %v", err)
	}
	l.type_(id, "q")
	l.awaitState(id, berth.SessionExited)
	if err := l.client.Input(t.Context(), id, berth.InputRequest{Data: []byte("x")}); !errors.Is(err, berth.CodeSessionEnded) {
		t.Errorf("input after the end: %v", err)
	}
	if err := l.client.Signal(t.Context(), id, "INT"); !errors.Is(err, berth.CodeSessionEnded) {
		t.Errorf("a signal after the end: %v", err)
	}
}

func TestAFreshAttachInTheMiddleOfASequence(t *testing.T) {
	l := newLab(t)
	l.start()
	fifo := filepath.Join(l.dir, "go")
	id := l.run("sh", "-c", fmt.Sprintf(`mkfifo %s; printf 'before\033[3'; read x < %s; printf '1mred\n'; read x`, fifo, fifo))
	l.awaitScreen(id, "before")
	w := l.attach(id, berth.AttachRequest{})
	if w.Hello.Offset != 6 {
		t.Errorf("the live output begins at %d, want 6: behind it a sequence is not complete", w.Hello.Offset)
	}
	if err := os.WriteFile(fifo, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.awaitOutput("\x1b[31mred\r\n")
}
