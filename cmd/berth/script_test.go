package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"berth"
)

// The scripts in testdata/script are the command line's behaviour, one topic a
// file, run against the real programs. A bug becomes a script named after it.
//
// Beside the commands of testscript they have:
//
//	berth CODE ARGS…         run berth; it must end with that status
//	json FILE PATH VALUE     a value in a JSON document: json stdout sessions.0.name x
//	                         (VALUE ? = is there, ! = is not); @N picks line N
//	until PATTERN ARGS…      repeat a berth command until its output matches
//	kill9 daemon|guest       what it says
//	listen FILE              make a unix socket that answers nobody
//	stale FILE               make a unix socket that nobody listens on
//	both NAME ARGS…          run the same berth command twice at once; both must
//	                         succeed, and stdout has both answers
//	tty KEYS PATTERN ARGS…   run berth on a terminal, send KEYS when PATTERN is
//	                         shown; then it must end. stdout is what was shown

// programs is the directory of the binaries that the scripts run, and other the
// one of the same with another version.
var programs, other string

const otherVersion = "99.0.0-other"

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "berth-bin")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	programs, other = filepath.Join(dir, "bin"), filepath.Join(dir, "other")
	for _, b := range []struct{ dir, flags string }{{programs, ""}, {other, "-X berth.version=" + otherVersion}} {
		cmd := exec.Command("go", "build", "-ldflags", b.flags, "-o", b.dir+"/", ".", "../berth-daemon", "../berth-guest", "../berth-holder")
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build the programs: %v\n%s", err, out)
			return 1
		}
	}
	return m.Run()
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		Setup:               setup,
		RequireUniqueNames:  true,
		RequireExplicitExec: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"berth":  cmdBerth,
			"json":   cmdJSON,
			"until":  cmdUntil,
			"kill9":  cmdKill9,
			"listen": cmdListen,
			"stale":  cmdStale,
			"both":   cmdBoth,
			"tty":    cmdTTY,
		},
	})
}

// setup gives each script a berth of its own, in a directory with a short path:
// a socket's has 107 bytes.
func setup(env *testscript.Env) error {
	house, err := os.MkdirTemp("", "b")
	if err != nil {
		return err
	}
	env.Defer(func() {
		endAll(env.T(), house)
		_ = os.RemoveAll(house) // what is left is told by the next test that needs the space
	})
	home := filepath.Join(house, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		return err
	}
	for name, value := range map[string]string{
		"HOUSE":             house,
		"STATE":             filepath.Join(house, "s"),
		"RUNTIME":           filepath.Join(house, "r"),
		"BERTH_STATE_DIR":   filepath.Join(house, "s"),
		"BERTH_RUNTIME_DIR": filepath.Join(house, "r"),
		"BERTH_CONFIG":      filepath.Join(house, "config.toml"),
		"BERTH_MACHINE_DIR": filepath.Join(house, "m"),
		"HOME":              home,
		"PATH":              programs + ":" + os.Getenv("PATH"),
		"OTHER":             other,
		"VERSION":           berth.Version(),
		"OTHER_VERSION":     otherVersion,
		"TERM":              "xterm-256color",
		"LANG":              "C.UTF-8",
		"SHELL":             "/bin/sh",
		"NO_COLOR":          "1",
	} {
		env.Setenv(name, value)
	}
	return nil
}

// endAll ends what a script started, by identity and in the order in which they
// would start each other again: daemon, guest, holders, programs.
func endAll(t testscript.T, house string) {
	runtime := filepath.Join(house, "r")
	for _, socket := range []string{berth.SocketDaemon, berth.SocketGuest} {
		if pid := peerOf(filepath.Join(runtime, socket)); pid > 0 && pid != os.Getpid() {
			end(t, pid, 0)
		}
	}
	records, err := filepath.Glob(filepath.Join(house, "s", berth.DirSessions, "*", berth.FileIdentity))
	if err != nil {
		t.Log(err)
	}
	for _, path := range records {
		var r struct {
			Holder, Program berth.Identity
		}
		data, err := os.ReadFile(path)
		if err != nil || json.Unmarshal(data, &r) != nil {
			continue
		}
		end(t, r.Holder.PID, r.Holder.StartTime)
		end(t, r.Program.PID, r.Program.StartTime)
	}
	// What got stuck before it wrote a record names the directory, which no
	// process of anybody else does.
	for _, pid := range mentioning(house + "/") {
		end(t, pid, 0)
	}
}

// mentioning lists the processes that have text among their arguments.
func mentioning(text string) []int {
	var pids []int
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(data, []byte(text)) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}

// end kills a process and waits until it is gone. startTime 0 = it was found
// alive just now.
func end(t testscript.T, pid int, startTime uint64) {
	if pid <= 1 || startTime != 0 && startTimeOf(pid) != startTime {
		return
	}
	if startTime == 0 {
		startTime = startTimeOf(pid)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return
	}
	if !eventually(func() bool { return startTimeOf(pid) != startTime }) {
		t.Log(fmt.Sprintf("process %d is still there", pid))
	}
}

// startTimeOf is field 22 of /proc/PID/stat; 0 = there is no such process, or
// only its remains.
func startTimeOf(pid int) uint64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return 0
	}
	n, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// peerOf is the process that listens on a unix socket; 0 = nobody does.
func peerOf(socket string) int {
	c, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return 0
	}
	defer c.Close() //nolint:errcheck // nothing was written
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) { // a failure leaves 0
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil { //nolint:gosec // a descriptor fits
			pid = int(cred.Pid)
		}
	})
	return pid
}

// patience bounds every wait of a script.
const patience = 20 * time.Second

func eventually(ok func() bool) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			return ok()
		}
	}
	return true
}

// command makes a berth command in the script's environment and directory.
func command(ts *testscript.TestScript, args []string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(programs, "berth"), args...)
	if ts.Getenv("USE_OTHER") != "" {
		cmd.Path = filepath.Join(other, "berth")
	}
	cmd.Dir = ts.MkAbs(".")
	for _, name := range strings.Split(ts.Getenv("PASS"), ",") {
		if name != "" {
			cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
		}
	}
	for _, name := range []string{
		"BERTH_STATE_DIR", "BERTH_RUNTIME_DIR", "BERTH_CONFIG", "BERTH_MACHINE_DIR", "HOME", "PATH", "TERM", "LANG", "SHELL", "NO_COLOR", "TMPDIR",
	} {
		if value := ts.Getenv(name); value != "" {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	return cmd
}

func cmdBerth(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: berth CODE ARGS…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	cmd := command(ts, args[1:])
	if in := ts.Getenv("STDIN"); in != "" {
		f, err := os.Open(ts.MkAbs(in))
		ts.Check(err)
		defer f.Close() //nolint:errcheck // it was only read
		cmd.Stdin = f
	}
	cmd.Stdout, cmd.Stderr = ts.Stdout(), ts.Stderr()
	if got := run1(ts, cmd); got != want {
		ts.Fatalf("berth %s ended with %d, not %d", strings.Join(args[1:], " "), got, want)
	}
}

// run1 runs a command and gives its status.
func run1(ts *testscript.TestScript, cmd *exec.Cmd) int {
	timer := time.AfterFunc(3*patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	ts.Check(err)
	return 0
}

func cmdUntil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until PATTERN ARGS…")
	}
	pattern := regexp.MustCompile("(?m)" + args[0])
	var last []byte
	if !eventually(func() bool {
		cmd := command(ts, args[1:])
		last, _ = cmd.CombinedOutput() // the pattern decides
		return pattern.Match(last)
	}) {
		ts.Fatalf("%q did not come; berth %s says\n%s", args[0], strings.Join(args[1:], " "), last)
	}
}

func cmdJSON(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: json FILE PATH VALUE")
	}
	text := ts.ReadFile(args[0])
	path := args[1]
	if rest, ok := strings.CutPrefix(path, "@"); ok {
		n, p, _ := strings.Cut(rest, ".")
		line, err := strconv.Atoi(n)
		ts.Check(err)
		lines := strings.Split(strings.TrimSpace(text), "\n")
		if line >= len(lines) {
			ts.Fatalf("%s has %d lines", args[0], len(lines))
		}
		text, path = lines[line], p
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var doc any
	if err := dec.Decode(&doc); err != nil {
		ts.Fatalf("%s is no JSON: %v\n%s", args[0], err, text)
	}
	value, found := lookUp(doc, strings.Split(path, "."))
	switch args[2] {
	case "?":
		if !found {
			ts.Fatalf("there is no %s in %s", path, text)
		}
	case "!":
		if found {
			ts.Fatalf("there is %s in %s", path, text)
		}
	default:
		if got := fmt.Sprint(value); !found || got != args[2] {
			ts.Fatalf("%s is %q, not %q, in %s", path, got, args[2], text)
		}
	}
}

// lookUp walks a document. "len" is the number of elements of an array.
func lookUp(doc any, path []string) (any, bool) {
	for _, key := range path {
		switch v := doc.(type) {
		case map[string]any:
			next, ok := v[key]
			if !ok {
				return nil, false
			}
			doc = next
		case []any:
			if key == "len" {
				return len(v), true
			}
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(v) {
				return nil, false
			}
			doc = v[i]
		default:
			return nil, false
		}
	}
	return doc, true
}

func cmdKill9(ts *testscript.TestScript, neg bool, args []string) {
	sockets := map[string]string{"daemon": berth.SocketDaemon, "guest": berth.SocketGuest}
	if neg || len(args) != 1 || sockets[args[0]] == "" {
		ts.Fatalf("usage: kill9 daemon|guest")
	}
	socket := filepath.Join(ts.Getenv("RUNTIME"), sockets[args[0]])
	pid := peerOf(socket)
	if pid == 0 {
		ts.Fatalf("no %s answers", args[0])
	}
	ts.Check(syscall.Kill(pid, syscall.SIGKILL))
	// Its first thread can be gone while others still hold the socket, which then
	// takes a connection and drops it.
	if !eventually(func() bool { return startTimeOf(pid) == 0 && peerOf(socket) != pid }) {
		ts.Fatalf("the %s is still there", args[0])
	}
}

func cmdListen(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: listen FILE")
	}
	l, err := net.Listen("unix", args[0])
	ts.Check(err)
	ts.Defer(func() { _ = l.Close() })
}

func cmdStale(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: stale FILE")
	}
	l, err := net.Listen("unix", args[0])
	ts.Check(err)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	ts.Check(l.Close())
}

func cmdBoth(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: both ARGS…")
	}
	cmds := []*exec.Cmd{command(ts, args), command(ts, args)}
	outs := make([]bytes.Buffer, len(cmds))
	for i, cmd := range cmds {
		cmd.Stdout, cmd.Stderr = &outs[i], &outs[i]
		ts.Check(cmd.Start())
	}
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			ts.Fatalf("berth %s: %v\n%s", strings.Join(args, " "), err, outs[i].String())
		}
		_, err := ts.Stdout().Write(outs[i].Bytes())
		ts.Check(err)
	}
}
