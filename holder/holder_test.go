package holder_test

import (
	"bytes"
	"crypto/md5"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth"
	"berth/holder"
	"berth/process"
	"berth/terminal"
)

func TestOutputAndExit(t *testing.T) {
	s := start(t, "sh", "-c", "read x; echo got $x; stty size; exit 7")
	info, err := s.Info(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if info.Program != s.run.Program || info.Holder != s.run.Holder || info.Size.Cols != 100 || info.Exit != nil {
		t.Errorf("info: %+v", info)
	}
	if v := process.Look(info.Program); v != process.Alive {
		t.Errorf("the program is %s", v)
	}
	s.input("abc\n")
	data, gaps, exit := s.collect(0)
	if want := "abc\r\ngot abc\r\n30 100\r\n"; string(data) != want || gaps != 0 {
		t.Errorf("got %q, %d gaps, want %q", data, gaps, want)
	}
	if exit.Code != 7 || exit.Signal != "" || exit.Offset != uint64(len(data)) || exit.Survivors != 0 {
		t.Errorf("exit: %+v", exit)
	}
	if onDisk := s.waitExit(); onDisk != exit {
		t.Errorf("on disk %+v, told %+v", onDisk, exit)
	}
	s.waitGone()
	if _, err := os.Lstat(s.socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if s.run.Cgroup != "" {
		if _, err := os.Lstat(s.run.Cgroup); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the cgroup is still there: %v", err)
		}
	}
}

// TestEveryByteOnce: readers come and go in the middle of frames; each goes on
// where the one before stopped, and together they have the output exactly.
func TestEveryByteOnce(t *testing.T) {
	const lines = 200_000
	s := start(t, "sh", "-c", "read x; seq -f 'line %.0f' 1 200000; sleep 1")
	var want bytes.Buffer
	want.WriteString("\r\n")
	for i := 1; i <= lines; i++ {
		fmt.Fprintf(&want, "line %d\r\n", i)
	}
	s.input("\n")
	var got []byte
	for round := 0; len(got) < want.Len(); round++ {
		st, err := s.Stream(ctx(t), uint64(len(got)))
		if err != nil {
			t.Fatal(err)
		}
		for range 1 + round%7 {
			item, err := st.Next()
			if err != nil {
				t.Fatal(err)
			}
			if item.Kind != holder.KindOutput || item.Offset != uint64(len(got)) || item.End < item.Offset+uint64(len(item.Data)) {
				t.Fatalf("round %d: kind %d offset %d end %d, have %d", round, item.Kind, item.Offset, item.End, len(got))
			}
			if got = append(got, item.Data...); len(got) >= want.Len() {
				break
			}
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Error("the output differs from the program's")
	}
	// The same from the log, by the client and by the reader of ended sessions.
	p := make([]byte, want.Len())
	n, err := s.ReadLog(ctx(t), 0, p)
	if err != nil || !bytes.Equal(p[:n], want.Bytes()) {
		t.Errorf("ReadLog: %d bytes, %v", n, err)
	}
	s.waitExit()
	out, err := terminal.OpenOutput(filepath.Join(s.dir, berth.DirOutput))
	if err != nil {
		t.Fatal(err)
	}
	n, err = out.ReadAt(p, 0)
	if err != nil || out.End() != uint64(want.Len()) || !bytes.Equal(p[:n], want.Bytes()) {
		t.Errorf("OpenOutput: %d bytes to %d, %v", n, out.End(), err)
	}
}

// TestNobodyListened: an end that nobody saw is on disk with the last bytes.
func TestNobodyListened(t *testing.T) {
	for _, c := range []struct {
		script string
		code   int
		signal string
	}{
		{"printf last; exit 3", 3, ""},
		{"printf last; kill -9 $$", 137, "SIGKILL"},
		{"printf last; kill -SEGV $$", 139, "SIGSEGV"},
	} {
		s := start(t, "sh", "-c", c.script)
		exit := s.waitExit()
		if exit.Code != c.code || exit.Signal != c.signal || exit.Reason != berth.ExitExited || exit.Offset != 4 || exit.At.IsZero() {
			t.Errorf("%s: %+v", c.script, exit)
		}
		s.waitGone()
		if got := lastOutput(t, s); got != "last" {
			t.Errorf("%s: last output %q", c.script, got)
		}
	}
}

// TestLargeLastOutput: what the program wrote just before it ended is more than
// the terminal holds at a time, and none of it may be lost (creack/pty #100).
func TestLargeLastOutput(t *testing.T) {
	for range 10 {
		s := start(t, "sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x; exit 0")
		if exit := s.waitExit(); exit.Offset != 300000 {
			t.Fatalf("offset %d", exit.Offset)
		}
	}
}

// TestBackgroundHoldsTerminal: the session ends with its leader although a
// background process keeps the terminal open, also when it floods it.
func TestBackgroundHoldsTerminal(t *testing.T) {
	for _, background := range []string{"sleep 60", "yes"} {
		s := start(t, "sh", "-c", "trap '' HUP; "+background+" & echo done; exit 4")
		begin := time.Now()
		exit := s.waitExit()
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%s: took %s", background, took)
		}
		if exit.Code != 4 || exit.Survivors != 1 {
			t.Errorf("%s: %+v", background, exit)
		}
		s.waitGone()
		if s.run.Cgroup == "" {
			continue // nobody can find the survivor; it ends with its terminal
		}
		// It was left alone, and can be killed later.
		res, err := holder.KillRemains(s.dir)
		if err != nil || !res.Contained || len(res.Survivors) != 0 || res.Exit == nil {
			t.Errorf("%s: %+v, %v", background, res, err)
		}
		if _, err := os.Lstat(s.run.Cgroup); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the cgroup is still there: %v", err)
		}
	}
}

func TestResize(t *testing.T) {
	s := start(t, "sh", "-c", "trap 'stty size' WINCH; echo ready; while :; do read x; done")
	s.waitOutput("ready")
	for range 2 { // the second changes nothing, so it must not signal
		if err := s.Resize(ctx(t), berth.Size{Cols: 120, Rows: 40}); err != nil {
			t.Fatal(err)
		}
	}
	s.waitOutput("40 120")
	s.input("\n")
	if err := s.Resize(ctx(t), berth.Size{Cols: 121, Rows: 41}); err != nil {
		t.Fatal(err)
	}
	if got := s.waitOutput("41 121"); strings.Count(got, "40 120") != 1 {
		t.Errorf("an unchanged size signalled: %q", got)
	}
	if err := s.Resize(ctx(t), berth.Size{Cols: 0, Rows: 1}); !errors.Is(err, berth.CodeInvalidArgument) {
		t.Errorf("a size of 0: %v", err)
	}
}

// TestInterruptUnderFlood: ET #108 and tmux #468: Ctrl-C must act while the
// program floods, although a viewer reads nothing.
func TestInterruptUnderFlood(t *testing.T) {
	s := start(t, "yes")
	slow, err := s.Stream(ctx(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close() //nolint:errcheck // it is the viewer that never reads
	s.waitFlood(8 << 20)
	begin := time.Now()
	s.input("\x03")
	exit := s.waitExit()
	if took := time.Since(begin); took > time.Second {
		t.Errorf("Ctrl-C took %s", took)
	}
	if exit.Signal != "SIGINT" {
		t.Errorf("exit: %+v", exit)
	}
}

func TestSignalForeground(t *testing.T) {
	// Job control: the shell's child has a process group of its own in the
	// foreground. The shell must not get the signal.
	s := start(t, "bash", "-c", "set -m; trap 'echo shell got it' USR1; sh -c \"trap 'echo child got it; exit 0' USR1; echo ready; while :; do sleep 0.05; done\"; echo end; read x")
	s.waitOutput("ready")
	if err := s.Signal(ctx(t), int(unix.SIGUSR1)); err != nil {
		t.Fatal(err)
	}
	if got := s.waitOutput("end"); !strings.Contains(got, "child got it") || strings.Contains(got, "shell got it") {
		t.Errorf("%q", got)
	}
	if err := s.Signal(ctx(t), 0); !errors.Is(err, berth.CodeInvalidArgument) {
		t.Errorf("signal 0: %v", err)
	}
}

// TestSlowViewerSlowsNobody: one viewer reads nothing while a program puts out
// 32 MB and another viewer reads all of it; then the slow one gets a gap.
func TestSlowViewerSlowsNobody(t *testing.T) {
	const size = 32 << 20
	s := start(t, "sh", "-c", "stty raw; head -c 33554432 /dev/zero; read x", func(c *holder.StartConfig) { c.Spec.LogBytes = 1 << 20 })
	slow, err := s.Stream(ctx(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close() //nolint:errcheck // only what it reads counts
	fast, err := s.Stream(ctx(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer fast.Close() //nolint:errcheck // only what it reads counts
	for next := uint64(0); next < size; {
		item, err := fast.Next()
		if err != nil {
			t.Fatal(err)
		}
		if item.Kind == holder.KindGap {
			next = item.To
			continue
		}
		if item.Offset != next {
			t.Fatalf("at %d, expected %d", item.Offset, next)
		}
		next += uint64(len(item.Data))
	}
	gaps := 0
	for next := uint64(0); next < size; {
		item, err := slow.Next()
		if err != nil {
			t.Fatal(err)
		}
		if item.Kind == holder.KindGap {
			gaps++
			if item.From != next {
				t.Fatalf("gap from %d at %d", item.From, next)
			}
			next = item.To
			continue
		}
		if item.Offset != next {
			t.Fatalf("at %d, expected %d", item.Offset, next)
		}
		next += uint64(len(item.Data))
	}
	if gaps == 0 {
		t.Error("the slow viewer was told of no gap")
	}
}

// TestBounds: 24 MB of `yes` leave ring and log within their bounds, and what
// is kept is the end of it, byte for byte.
func TestBounds(t *testing.T) {
	const logCap = 1 << 20
	s := start(t, "sh", "-c", "yes | head -c 16000000; sleep 60", func(c *holder.StartConfig) { c.Spec.LogBytes = logCap })
	waitFor(t, "the flood", func() bool {
		info, err := s.Info(ctx(t))
		if err != nil {
			t.Fatal(err)
		}
		// A sum over files that are written and dropped meanwhile is no size: the
		// holder stands still for it.
		if size := s.frozen(func() int64 { return dirSize(t, filepath.Join(s.dir, berth.DirOutput)) }); info.LogSize > logCap || size > logCap {
			t.Fatalf("%d bytes of output, %d bytes on disk", info.LogSize, size)
		}
		return info.End == 24_000_000 && info.LogFrom+uint64(info.LogSize) == info.End // "y\r\n"
	})
	info, err := s.Info(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if kept := info.End - info.Start; kept < logCap/2 {
		t.Errorf("only %d bytes are kept", kept)
	}
	p := make([]byte, info.End-info.Start)
	n, err := s.ReadLog(ctx(t), info.Start, p)
	if err != nil || n != len(p) {
		t.Fatalf("read %d of %d: %v", n, len(p), err)
	}
	for i, c := range p {
		if want := "y\r\n"[(info.Start+uint64(i))%3]; c != want {
			t.Fatalf("at %d: %q, want %q", info.Start+uint64(i), c, want)
		}
	}
	_, err = s.ReadLog(ctx(t), info.Start-1, p)
	var e *berth.Error
	if !errors.Is(err, berth.CodeOffsetGone) || !errors.As(err, &e) || e.Facts["kept_from"] != fmt.Sprint(info.Start) {
		t.Errorf("before the kept range: %v", err)
	}
	if _, err := s.ReadLog(ctx(t), info.End+1, p); !errors.Is(err, berth.CodeInvalidOffset) {
		t.Errorf("past the end: %v", err)
	}
	if _, err := s.Stream(ctx(t), info.End+1); !errors.Is(err, berth.CodeInvalidOffset) {
		t.Errorf("stream past the end: %v", err)
	}
	if kb := privateKB(t, info.Holder.PID); kb > 6<<10 { // the program's text is private when only one runs
		t.Errorf("the holder has %d KiB private memory after a flood", kb)
	}
}

// frozen runs f while every thread of the holder is stopped.
func (s *session) frozen(f func() int64) int64 {
	s.t.Helper()
	pid := s.run.Holder.PID
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	waitFor(s.t, "the holder to stand still", func() bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil || len(tasks) == 0 {
			s.t.Fatalf("the holder is gone: %v", err)
		}
		for _, task := range tasks {
			if data, err := os.ReadFile(task); err == nil && !bytes.Contains(data, []byte(") T ")) {
				return false
			}
		}
		return true
	})
	defer func() {
		if err := unix.Kill(pid, unix.SIGCONT); err != nil {
			s.t.Error(err)
		}
	}()
	return f()
}

func dirSize(t *testing.T, dir string) (total int64) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			total += info.Size()
		}
	}
	return total
}

// TestNoLog: without a log on disk the holder stays until Quit, serves what its
// ring has, and tells of the rest as a gap.
func TestNoLog(t *testing.T) {
	s := start(t, "sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x; exit 5", noLog)
	exit := s.waitExit()
	if exit.Code != 5 || exit.Offset != 1000000 {
		t.Errorf("exit: %+v", exit)
	}
	data, gaps, told := s.collect(0)
	if gaps != 1 || len(data) == 0 || len(data) > 256<<10 || told != exit {
		t.Errorf("%d bytes after %d gaps, %+v", len(data), gaps, told)
	}
	if _, err := os.Lstat(filepath.Join(s.dir, berth.DirOutput)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a log: %v", err)
	}
	info, err := s.Info(ctx(t))
	if err != nil || info.Exit == nil || *info.Exit != exit {
		t.Errorf("info %+v, %v", info, err)
	}
	if err := s.Signal(ctx(t), 2); !errors.Is(err, berth.CodeSessionEnded) {
		t.Errorf("signal after the end: %v", err)
	}
	if err := s.Quit(ctx(t)); err != nil {
		t.Fatal(err)
	}
	s.waitGone()
	if _, err := s.Info(ctx(t)); !errors.Is(err, holder.ErrGone) {
		t.Errorf("after quit: %v", err)
	}
}

func TestQuitRefusedWhileItRuns(t *testing.T) {
	s := start(t, "cat")
	if err := s.Quit(ctx(t)); !errors.Is(err, berth.CodeSessionLive) {
		t.Errorf("quit: %v", err)
	}
}

func TestDeposit(t *testing.T) {
	for _, opts := range [][]any{{"cat"}, {"cat", noLog}} {
		s := start(t, opts...)
		if _, err := s.Snapshot(ctx(t)); !errors.Is(err, berth.CodeNotFound) {
			t.Errorf("no snapshot yet: %v", err)
		}
		s.input("0123456789\n")
		s.waitOutput("9\r\n0")
		big := bytes.Repeat([]byte("screen"), 1<<20)
		for _, d := range []holder.Snapshot{
			{Generation: 1, Offset: 3, Screen: []byte("three")},
			{Generation: 1, Offset: 9, Screen: big},
			{Generation: 1, Offset: 5, Screen: []byte("older")},
		} {
			if err := s.Deposit(ctx(t), d); err != nil {
				t.Fatal(err)
			}
		}
		got, err := s.Snapshot(ctx(t))
		if err != nil || got.Offset != 9 || got.Generation != 1 || !bytes.Equal(got.Screen, big) {
			t.Errorf("got offset %d, %d bytes, %v", got.Offset, len(got.Screen), err)
		}
		if err := s.Deposit(ctx(t), holder.Snapshot{Generation: 2, Offset: 10}); !errors.Is(err, berth.CodeGenerationChanged) {
			t.Errorf("another generation: %v", err)
		}
		if err := s.Deposit(ctx(t), holder.Snapshot{Generation: 1, Offset: 1 << 40}); !errors.Is(err, berth.CodeInvalidOffset) {
			t.Errorf("an offset to come: %v", err)
		}
		if s.run.LogBytes > 0 {
			if got, err := holder.ReadSnapshot(s.dir); err != nil || !bytes.Equal(got.Screen, big) {
				t.Errorf("on disk: %v", err)
			}
		}
	}
}

// TestDepositSizes: a screen is written as it came, whatever way it took: in
// one read, in several, in memory of its own.
func TestDepositSizes(t *testing.T) {
	s := start(t, "cat")
	for i, n := range []int{0, 1, 100, 4000, 4096, 5000, 16340, 16350, 16370, 16384, 17000, 300_000, 8 << 20} {
		screen := bytes.Repeat([]byte{byte('a' + i)}, n)
		if err := s.Deposit(ctx(t), holder.Snapshot{Generation: 1, Screen: screen}); err != nil {
			t.Fatal(err)
		}
		if got, err := holder.ReadSnapshot(s.dir); err != nil || !bytes.Equal(got.Screen, screen) {
			t.Errorf("%d bytes: %d, %v", n, len(got.Screen), err)
		}
	}
	if err := s.Deposit(ctx(t), holder.Snapshot{Generation: 1, Screen: make([]byte, 8<<20+1)}); !errors.Is(err, berth.CodeTooLarge) {
		t.Errorf("too large: %v", err)
	}
}

// TestInputBlocksAndIsBounded: a program that does not read its input holds up
// the sender, not the output and not other requests, and costs no memory.
func TestInputBlocksAndIsBounded(t *testing.T) {
	s := start(t, "sh", "-c", "stty raw -echo; echo ready; read x < /dev/zero & sleep 1000")
	s.waitOutput("ready")
	st, err := s.Stream(ctx(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() { sent <- st.Input(make([]byte, 64<<20)) }()
	waitFor(t, "answers while input waits", func() bool {
		_, err := s.Info(ctx(t))
		return err == nil
	})
	tick := time.NewTimer(300 * time.Millisecond)
	defer tick.Stop()
	select {
	case err := <-sent:
		t.Errorf("64 MiB went into a program that does not read: %v", err)
	case <-tick.C:
	}
	if kb := privateKB(t, s.run.Holder.PID); kb > 6<<10 {
		t.Errorf("the holder has %d KiB private memory", kb)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err == nil {
		t.Error("the input went through after all")
	}
}

func TestLargePaste(t *testing.T) {
	s := start(t, "sh", "-c", "stty raw -echo; echo ready; head -c 1000000 | md5sum; read x")
	s.waitOutput("ready")
	text := strings.Repeat("0123456789", 100_000)
	s.input(text)
	s.waitOutput(fmt.Sprintf("%x", md5.Sum([]byte(text))))
}

// TestReapsOrphans: what daemonises inside a session is reaped by the holder
// (OpenHands #11801: defunct processes piled up).
func TestReapsOrphans(t *testing.T) {
	s := start(t, "sh", "-c", "for i in 1 2 3 4 5; do (sh -c 'sleep 0.1' &); done; echo ready; read x")
	s.waitOutput("ready")
	waitFor(t, "no child but the program", func() bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.run.Holder.PID))
		if err != nil || len(tasks) == 0 {
			t.Fatal(tasks, err)
		}
		var children []string
		for _, task := range tasks {
			b, err := os.ReadFile(task)
			if err != nil {
				return false // the thread has ended
			}
			children = append(children, strings.Fields(string(b))...)
		}
		return len(children) == 1 && children[0] == fmt.Sprint(s.run.Program.PID)
	})
}

// TestProgramStartsClean: default signals although the starter ignored some,
// the starter's umask, a controlling terminal, no open file of the holder, and
// nothing of the environment in the holder or on disk.
func TestProgramStartsClean(t *testing.T) {
	old := syscall.Umask(0o027)
	s := start(t, "sh", "-c", "umask; ls -l /proc/self/fd | wc -l; grep -E '^Sig(Ign|Blk)' /proc/self/status; echo tty > /dev/tty; echo $SECRET; read x")
	syscall.Umask(old)
	got := s.waitOutput("hunter2")
	// ls has 0, 1, 2 and the directory; its listing has one line more.
	for _, want := range []string{"0027\r\n", "\n5\r\n", "SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000", "tty\r\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.run.Holder.PID))
	if err != nil || bytes.Contains(environ, []byte("hunter2")) || bytes.Contains(environ, []byte("PATH")) {
		t.Errorf("environment of the holder: %q, %v", environ, err)
	}
	for _, name := range []string{berth.FileIdentity, berth.FileHolderErr, berth.FileHolderLck} {
		b, err := os.ReadFile(filepath.Join(s.dir, name))
		if err != nil || bytes.Contains(b, []byte("hunter2")) {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", s.run.Holder.PID)); err != nil || cwd != "/" {
		t.Errorf("the holder is in %q, %v", cwd, err)
	}
}
