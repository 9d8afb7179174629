package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"berth"
	"berth/guestapi"
)

func (l *lab) exec(in guestapi.Exec) guestapi.ExecResult {
	l.t.Helper()
	r, err := l.client.Exec(l.t.Context(), in)
	if err != nil {
		l.t.Fatalf("exec %q: %v", in.Argv, err)
	}
	return r
}

func sh(script string) guestapi.Exec { return guestapi.Exec{Argv: []string{"sh", "-c", script}} }

func TestExecRunsAProgramToItsEnd(t *testing.T) {
	t.Setenv("BERTH_TEST_SECRET", "of the guest")
	l := newLab(t)
	l.start()
	in := sh("cat; echo two >&2; exit 7")
	in.Stdin = bytes.Repeat([]byte("x"), guestapi.MaxExecStdin)
	r := l.exec(in)
	if r.Code != 7 || r.Signal != "" || r.TimedOut || r.Truncated || !bytes.Equal(r.Stdout, in.Stdin) || string(r.Stderr) != "two\n" || !strings.HasSuffix(r.Path, "/bin/sh") {
		t.Errorf("result = code %d, signal %q, %d bytes, %q, %s", r.Code, r.Signal, len(r.Stdout), r.Stderr, r.Path)
	}
	in = sh("echo not read")
	in.Stdin = bytes.Repeat([]byte("x"), guestapi.MaxExecStdin)
	if r := l.exec(in); r.Code != 0 || string(r.Stdout) != "not read\n" {
		t.Errorf("a program that reads no stdin: %+v", r)
	}
	r = l.exec(guestapi.Exec{Argv: []string{"env"}})
	env := strings.Fields(string(r.Stdout))
	slices.Sort(env)
	if want := []string{"HOME=" + home(), "LANG=C.UTF-8", "PATH=" + systemPath}; !slices.Equal(env, want) {
		t.Errorf("the environment is %q, want %q", env, want)
	}
	r = l.exec(guestapi.Exec{Argv: []string{"/usr/bin/env"}, Env: []string{"A=b"}, Cwd: l.dir})
	if string(r.Stdout) != "A=b\n" {
		t.Errorf("the environment is %q", r.Stdout)
	}
	if r := l.exec(guestapi.Exec{Argv: []string{"pwd"}, Cwd: l.dir}); string(r.Stdout) != l.dir+"\n" {
		t.Errorf("it ran in %q", r.Stdout)
	}
	if r := l.exec(sh("kill -9 $$")); r.Code != -1 || r.Signal != "SIGKILL" {
		t.Errorf("killed by itself: %+v", r)
	}
	r = l.exec(sh("ls -l /proc/self/fd | sed 's/.*-> //' | grep -v -e pipe -e /dev/null -e /proc/; cut -d' ' -f5-8 /proc/self/stat; tty"))
	if lines := strings.Split(string(r.Stdout), "\n"); !strings.Contains(lines[len(lines)-2], "not a tty") || strings.Contains(string(r.Stdout), "socket") {
		t.Errorf("what a program has open: %q", r.Stdout)
	}
}

func TestExecTellsWhyNothingRan(t *testing.T) {
	l := newLab(t)
	l.start()
	plain, noInterpreter := filepath.Join(l.dir, "plain"), filepath.Join(l.dir, "script")
	write(t, plain, "echo no", 0o644)
	write(t, noInterpreter, "#!/nowhere/sh\n", 0o755)
	noHeader := filepath.Join(l.dir, "noheader")
	write(t, noHeader, "echo no", 0o755)
	for _, c := range []struct {
		in   guestapi.Exec
		want berth.Code
	}{
		{guestapi.Exec{}, berth.CodeInvalidArgument},
		{guestapi.Exec{Argv: []string{"bin/sh"}}, berth.CodeInvalidArgument},
		{guestapi.Exec{Argv: []string{"true"}, Cwd: "tmp"}, berth.CodeInvalidArgument},
		{guestapi.Exec{Argv: []string{"true", "a\x00b"}}, berth.CodeInvalidArgument},
		{guestapi.Exec{Argv: []string{"true"}, Env: []string{"=x"}}, berth.CodeInvalidArgument},
		{guestapi.Exec{Argv: []string{"true"}, TimeoutMS: -1}, berth.CodeInvalidArgument},
		{guestapi.Exec{Argv: []string{"true"}, TimeoutMS: guestapi.MaxExecTimeout.Milliseconds() + 1}, berth.CodeInvalidArgument},
		{guestapi.Exec{Argv: []string{"true"}, MaxOutput: guestapi.MaxExecOutput + 1}, berth.CodeInvalidArgument},
		{guestapi.Exec{Argv: []string{"true"}, Stdin: make([]byte, guestapi.MaxExecStdin+1)}, berth.CodeTooLarge},
		{guestapi.Exec{Argv: []string{"true", strings.Repeat("x", 1<<20)}}, berth.CodeTooLarge},
		{guestapi.Exec{Argv: []string{"berth-nowhere"}}, berth.CodeCommandNotFound},
		{guestapi.Exec{Argv: []string{"sh"}, Env: []string{"PATH=" + l.dir}}, berth.CodeCommandNotFound},
		{guestapi.Exec{Argv: []string{"plain"}, Env: []string{"PATH=" + l.dir}}, berth.CodeCommandNotFound},
		{guestapi.Exec{Argv: []string{l.dir + "/nowhere/x"}}, berth.CodeCommandNotFound},
		{guestapi.Exec{Argv: []string{plain}}, berth.CodeCommandNotFound},
		{guestapi.Exec{Argv: []string{l.dir}}, berth.CodeCommandNotFound},
		{guestapi.Exec{Argv: []string{noInterpreter}}, berth.CodeCommandNotFound},
		{guestapi.Exec{Argv: []string{noHeader}}, berth.CodeCommandNotFound}, // a shell would have run it
		{guestapi.Exec{Argv: []string{"true"}, Cwd: l.dir + "/nowhere"}, berth.CodeCwdUnusable},
		{guestapi.Exec{Argv: []string{"true"}, Cwd: plain}, berth.CodeCwdUnusable},
	} {
		if _, err := l.client.Exec(t.Context(), c.in); !errors.Is(err, c.want) {
			t.Errorf("%.40q: %v, want %v", c.in.Argv, err, c.want)
		}
	}
}

func write(t testing.TB, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// pidIn waits for a PID that a program wrote to a file.
func pidIn(t *testing.T, path string) int {
	t.Helper()
	var pid int
	eventually(t, "a PID in "+path, func() bool {
		data, _ := os.ReadFile(path)
		n, err := strconv.Atoi(strings.TrimSpace(string(data)))
		pid = n
		return err == nil && bytes.HasSuffix(data, []byte("\n"))
	})
	return pid
}

func awaitGone(t *testing.T, what string, pid int) {
	t.Helper()
	eventually(t, "the end of "+what, func() bool {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || bytes.Contains(data, []byte(") Z "))
	})
}

// Each way to end a program early ends all of its session, also what is in a
// group of its own and what ignores TERM.
func TestExecEndsTheWholeGroup(t *testing.T) {
	l := newLab(t)
	l.start()
	script := func(name string) (guestapi.Exec, string) {
		file := filepath.Join(l.dir, name)
		return sh(fmt.Sprintf("timeout 600 sh -c 'trap \"\" TERM; echo $$ > %s; while :; do sleep 1; done' & trap 'echo asked' TERM; wait; echo end", file)), file
	}
	in, file := script("timeout")
	in.TimeoutMS = 3000 // enough to set its traps, on a busy machine too
	began := time.Now()
	r := l.exec(in)
	if !r.TimedOut || !strings.HasPrefix(string(r.Stdout), "asked\n") {
		t.Errorf("a timeout: %+v", r)
	}
	if took := time.Since(began); took < killAfter || took > patience {
		t.Errorf("it took %v, KILL comes %v after TERM", took, killAfter)
	}
	awaitGone(t, "what ran at the timeout", pidIn(t, file))

	in, file = script("client")
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := l.client.Exec(ctx, in)
		failed <- err
	}()
	pid := pidIn(t, file)
	cancel()
	if err := <-failed; !errors.Is(err, berth.CodeInterrupted) {
		t.Errorf("a caller that goes away: %v", err)
	}
	awaitGone(t, "what ran when the client went", pid)

	in, file = script("stop")
	go func() {
		_, err := l.client.Exec(t.Context(), in)
		failed <- err
	}()
	pid = pidIn(t, file)
	l.stop()
	if err := <-failed; err == nil {
		t.Error("an exec outlived the guest")
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
		awaitGone(t, "what ran when the guest stopped", pid)
	}
}

// What a program leaves running must not hold its answer up: in its group it is
// ended, out of it (as a daemon) it lives on.
func TestExecDoesNotWaitForWhatIsLeft(t *testing.T) {
	l := newLab(t)
	l.start()
	inGroup, daemon := filepath.Join(l.dir, "group"), filepath.Join(l.dir, "daemon")
	began := time.Now()
	r := l.exec(sh(fmt.Sprintf("sleep 600 & echo $! > %s; setsid sh -c 'echo $$ > %s; exec sleep 600' & while ! [ -s %s ]; do sleep 0.01; done; echo out", inGroup, daemon, daemon)))
	if string(r.Stdout) != "out\n" || r.Code != 0 {
		t.Errorf("result = %+v", r)
	}
	if took := time.Since(began); took > patience {
		t.Errorf("it took %v", took)
	}
	awaitGone(t, "what was left in the group", pidIn(t, inGroup))
	left := pidIn(t, daemon)
	if err := unix.Kill(left, unix.SIGKILL); err != nil {
		t.Errorf("the daemon did not live on: %v", err)
	}
}

func TestExecKeepsBothEndsOfALongOutput(t *testing.T) {
	l := newLab(t)
	l.start()
	in := sh("echo first; seq 1 1000000; echo last")
	in.MaxOutput = 1000
	r := l.exec(in)
	if !r.Truncated || len(r.Stdout) != 1000 || !bytes.HasPrefix(r.Stdout, []byte("first\n1\n")) || !bytes.HasSuffix(r.Stdout, []byte("\n1000000\nlast\n")) {
		t.Errorf("kept %d bytes, truncated %v: %.20q", len(r.Stdout), r.Truncated, r.Stdout)
	}
	in = sh("head -c 20000000 /dev/zero")
	if r := l.exec(in); !r.Truncated || len(r.Stdout) != guestapi.MaxExecOutput {
		t.Errorf("kept %d bytes, truncated %v", len(r.Stdout), r.Truncated)
	}
}

func TestManyExecsAtATime(t *testing.T) {
	l := newLab(t)
	l.start()
	var wg sync.WaitGroup
	for i := range 2 * maxExecs {
		wg.Go(func() {
			r, err := l.client.Exec(t.Context(), guestapi.Exec{Argv: []string{"cat"}, Stdin: fmt.Append(nil, i)})
			if err != nil || string(r.Stdout) != fmt.Sprint(i) {
				t.Errorf("exec %d: %q, %v", i, r.Stdout, err)
			}
		})
	}
	wg.Wait()
}

// A reader that did not get its turn before the time was up must not cost output.
func TestWhatIsLeftInAPipeIsKept(t *testing.T) {
	theirs, ours, err := pipe(false)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()       //nolint:errcheck // a pipe
	defer unix.Close(theirs) //nolint:errcheck // a pipe; it is open all the time, as a daemon keeps it
	text := strings.Repeat("x", 60_000)
	if _, err := unix.Write(theirs, []byte(text)); err != nil {
		t.Fatal(err)
	}
	r := reader{file: ours, kept: kept{max: 1 << 20}}
	if err := ours.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	r.run()
	r.rest()
	if got := r.kept.bytes(); string(got) != text {
		t.Errorf("kept %d bytes of %d", len(got), len(text))
	}
}

func TestKeptProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := kept{max: rapid.IntRange(1, 20).Draw(t, "max")}
		var all []byte
		for _, p := range rapid.SliceOfN(rapid.SliceOfN(rapid.Byte(), 0, 30), 0, 8).Draw(t, "writes") {
			k.write(p)
			all = append(all, p...)
		}
		want := all
		if len(all) > k.max {
			want = slices.Concat(all[:k.max-k.max/2], all[len(all)-k.max/2:])
		}
		if got := k.bytes(); !bytes.Equal(got, want) || k.dropped != (len(all) > k.max) {
			t.Errorf("of %q with %d is kept %q, want %q; dropped %v", all, k.max, got, want, k.dropped)
		}
	})
}

func FuzzParseExec(f *testing.F) {
	for _, seed := range []string{
		`{"argv":["true"]}`, `{"argv":["/bin/sh","-c","x"],"env":["A=b"],"cwd":"/","stdin":"eA==","timeout_ms":1,"max_output":1}`,
		`{"argv":[]}`, `{"argv":["a/b"]}`, `{"argv":["x"],"timeout_ms":-1}`, `{"argv":["x"],"timeout_ms":1e300}`, `{"argv":["\u0000"]}`, `null`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		in, err := parseExec(body)
		if err != nil {
			if !errors.Is(err, berth.CodeInvalidArgument) && !errors.Is(err, berth.CodeTooLarge) {
				t.Errorf("an error without a place: %v", err)
			}
			return
		}
		name := in.Argv[0]
		switch {
		case name == "" || strings.Contains(name, "/") && !filepath.IsAbs(name):
			t.Errorf("program %q", name)
		case !filepath.IsAbs(in.Cwd):
			t.Errorf("directory %q", in.Cwd)
		case in.TimeoutMS <= 0 || in.TimeoutMS > guestapi.MaxExecTimeout.Milliseconds():
			t.Errorf("timeout %d", in.TimeoutMS)
		case in.MaxOutput <= 0 || in.MaxOutput > guestapi.MaxExecOutput:
			t.Errorf("output %d", in.MaxOutput)
		case strings.ContainsRune(strings.Join(in.Argv, "")+strings.Join(in.Env, "")+in.Cwd, 0):
			t.Error("a zero byte")
		}
	})
}
