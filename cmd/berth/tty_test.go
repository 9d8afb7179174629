package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/creack/pty"
	"github.com/rogpeppe/go-internal/testscript"
)

// cmdTTY runs berth on a terminal of 80×24. The arguments are the status that it
// must end with, then pairs of a pattern to wait for and keys to send (as a Go
// string without its quotes), then -- and the command. Keys that begin with ! are
// a command of the script instead: !kill9 daemon, or !berth and its arguments.
func cmdTTY(ts *testscript.TestScript, neg bool, args []string) {
	usage := func() { ts.Fatalf("usage: tty CODE [PATTERN KEYS]… -- ARGS…") }
	if neg || len(args) < 3 {
		usage()
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	args = args[1:]
	var steps [][2]string
	for len(args) >= 2 && args[0] != "--" {
		keys, err := strconv.Unquote(`"` + args[1] + `"`)
		ts.Check(err)
		steps = append(steps, [2]string{args[0], keys})
		args = args[2:]
	}
	if len(args) < 2 || args[0] != "--" {
		usage()
	}
	cmd := command(ts, args[1:])
	tty := &ttyRun{changed: make(chan struct{}, 1)}
	master, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: 80, Rows: 24})
	ts.Check(err)
	defer master.Close() //nolint:errcheck // the other end is gone
	read := make(chan struct{})
	go func() {
		defer close(read)
		tty.read(master)
	}()
	from := 0
	for _, step := range steps {
		if from = tty.wait(step[0], from); from < 0 {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			ts.Fatalf("%q did not come; the terminal shows %q", step[0], tty.text())
		}
		if action, ok := strings.CutPrefix(step[1], "!"); ok {
			act(ts, strings.Fields(action))
			continue
		}
		_, err := io.WriteString(master, step[1])
		ts.Check(err)
	}
	got := wait1(ts, cmd)
	<-read // the last of the output
	_, err = io.WriteString(ts.Stdout(), tty.text())
	ts.Check(err)
	if got != want {
		ts.Fatalf("it ended with %d, not %d; the terminal shows %q", got, want, tty.text())
	}
}

func act(ts *testscript.TestScript, args []string) {
	switch {
	case len(args) == 2 && args[0] == "kill9":
		cmdKill9(ts, false, args[1:])
	case len(args) > 1 && args[0] == "berth":
		if out, err := command(ts, args[1:]).CombinedOutput(); err != nil {
			ts.Fatalf("%v: %v\n%s", args, err, out)
		}
	default:
		ts.Fatalf("%v is no action", args)
	}
}

func wait1(ts *testscript.TestScript, cmd *exec.Cmd) int {
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Wait()
	if err != nil && cmd.ProcessState == nil {
		ts.Check(err)
	}
	return cmd.ProcessState.ExitCode()
}

// ttyRun keeps what a terminal was sent.
type ttyRun struct {
	changed chan struct{}

	mu  sync.Mutex
	out bytes.Buffer
}

func (r *ttyRun) read(master *os.File) {
	buf := make([]byte, 32<<10)
	for {
		n, err := master.Read(buf)
		r.mu.Lock()
		r.out.Write(buf[:n])
		r.mu.Unlock()
		select {
		case r.changed <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

func (r *ttyRun) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.String()
}

// wait waits for a pattern behind an offset and gives where it ended; -1 = it
// did not come.
func (r *ttyRun) wait(pattern string, from int) int {
	re := regexp.MustCompile(pattern)
	deadline := time.After(patience)
	for {
		if loc := re.FindStringIndex(r.text()[from:]); loc != nil {
			return from + loc[1]
		}
		select {
		case <-r.changed:
		case <-deadline:
			return -1
		}
	}
}
