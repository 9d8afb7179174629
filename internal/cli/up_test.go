package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth"
)

// upWith runs `up` with a shell script in place of the daemon. answers decides
// what the daemon's socket says.
func upWith(t *testing.T, ctx context.Context, script string, answers func(state string) (berth.Status, error)) (outcome, string) {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, daemonProgram)
	must(t, os.WriteFile(program, []byte("#!/bin/sh\n"+script), 0o700)) //nolint:gosec // a program
	state := filepath.Join(dir, "state")
	api := &fakeAPI{status: func() (berth.Status, error) { return answers(state) }}
	env, out, errs := testEnv(t, api, nil, nil, "up", "--json", "--state-dir", state)
	env.Executable = func() (string, error) { return filepath.Join(dir, "berth"), nil }
	env.Environ = func() []string { return []string{"PATH=" + os.Getenv("PATH"), "MARK=here"} }
	code := Run(ctx, env)
	return outcome{code, out.String(), errs.String()}, state
}

var errNobody = berth.Errorf(berth.CodeDaemonNotRunning, "nobody")

// answersWhen is a daemon that answers when a file says that it is there.
func answersWhen(file string) func(string) (berth.Status, error) {
	return func(state string) (berth.Status, error) {
		if _, err := os.Stat(filepath.Join(state, file)); err != nil {
			return berth.Status{}, errNobody
		}
		return berth.Status{Daemon: berth.Daemon{PID: 7, Version: berth.Version()}}, nil
	}
}

func TestUpStartsTheDaemonDetached(t *testing.T) {
	// $3 is the state directory: see startDaemon.
	script := `echo "$1 $2 $4 $6 $8 $MARK $PWD $(ps -o sid= -p $$) $$" > "$3/seen"; echo ready >&3; touch "$3/up"`
	got, state := upWith(t, t.Context(), script, answersWhen("up"))
	if got.code != 0 || !strings.Contains(got.stdout, `"started":true`) || got.stderr != "" {
		t.Fatalf("got %+v", got)
	}
	data, err := os.ReadFile(filepath.Join(state, "seen"))
	must(t, err)
	seen := strings.Fields(string(data))
	if len(seen) != 9 || strings.Join(seen[:7], " ") != "serve --state-dir --runtime-dir --config --machine-dir here /" || seen[7] != seen[8] {
		t.Errorf("the daemon saw %q", data)
	}
}

func TestUpTellsWhyTheDaemonEnded(t *testing.T) {
	for _, c := range []struct{ name, script, code, detail string }{
		{"it says so", `echo '{"code":"store_newer","detail":"version 9","hint":"run it"}' >&3; exit 1`, "store_newer", "version 9"},
		{"only its log does", `echo first; echo 'panic: lost' >&2; exit 2`, "daemon_failed", "ended with exit status 2 while it started: panic: lost"},
		{"it says nonsense", `echo 'what?' >&3`, "daemon_failed", "what?"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _ := upWith(t, t.Context(), c.script, answersWhen("never"))
			if got.code != 1 || !strings.Contains(got.stderr, `"code":"`+c.code+`"`) || !strings.Contains(got.stderr, c.detail) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// The daemon that loses the lock says so, and `up` waits for the one that won.
func TestUpWaitsForTheWinner(t *testing.T) {
	script := `echo '{"code":"already_running","detail":"another"}' >&3; (sleep 0.2; touch "$3/up") >/dev/null 2>&1 3>&- &`
	got, _ := upWith(t, t.Context(), script, answersWhen("up"))
	if got.code != 0 || !strings.Contains(got.stdout, `"started":false`) {
		t.Errorf("got %+v", got)
	}
}

// A daemon that is stopping holds the lock and answers nobody: `up` tries again
// until its own daemon can start.
func TestUpTriesAgainBehindAStoppingDaemon(t *testing.T) {
	script := `echo x >> "$3/tries"
if [ $(wc -l < "$3/tries") -lt 2 ]; then echo '{"code":"already_running","detail":"another"}' >&3; exit 1; fi
touch "$3/up"; echo ready >&3`
	got, _ := upWith(t, t.Context(), script, answersWhen("up"))
	if got.code != 0 || !strings.Contains(got.stdout, `"started":true`) {
		t.Errorf("got %+v", got)
	}
}

func TestUpIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	start := time.Now()
	got, _ := upWith(t, ctx, `exec sleep 0.3`, answersWhen("never"))
	if got.code != berth.ExitInterrupted || time.Since(start) > upDeadline/2 {
		t.Errorf("got %+v after %s", got, time.Since(start))
	}
}

func TestUpDoesNotReplaceAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	env, _, errs := testEnv(t, &fakeAPI{err: errNobody}, nil, nil, "up", "--state-dir", file)
	if code := Run(t.Context(), env); code != 1 || !strings.Contains(errs.String(), "state directory") {
		t.Errorf("got %d, %s", code, errs)
	}
}

func TestDownFindsADaemonThatDoesNotAnswer(t *testing.T) {
	dir := t.TempDir()
	start, err := os.ReadFile("/proc/self/stat")
	must(t, err)
	fields := strings.Fields(string(start[strings.LastIndexByte(string(start), ')')+1:]))
	record := fmt.Sprintf(`{"pid":%d,"start_time":%s}`, os.Getpid(), fields[19])
	must(t, os.WriteFile(filepath.Join(dir, berth.FileDaemonJSON), []byte(record), 0o600))
	got := runCLI(t, &fakeAPI{err: errNobody}, "down", "--state-dir", dir, "--json")
	if got.code != 1 || !strings.Contains(got.stderr, `"code":"daemon_unreachable"`) {
		t.Errorf("got %+v", got)
	}
	// The PID is somebody else's by now: nobody is left to stop.
	record = fmt.Sprintf(`{"pid":%d,"start_time":1}`, os.Getpid())
	must(t, os.WriteFile(filepath.Join(dir, berth.FileDaemonJSON), []byte(record), 0o600))
	got = runCLI(t, &fakeAPI{err: errNobody}, "down", "--state-dir", dir, "--json")
	if got.code != 0 || got.stdout != `{"v":1,"stopped":false}`+"\n" {
		t.Errorf("got %+v", got)
	}
}

func TestLastLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if got := lastLine(path); got != "" {
		t.Errorf("got %q", got)
	}
	must(t, os.WriteFile(path, []byte(strings.Repeat("x", 10000)+"\nlast \x1b[2J\n\n"), 0o600))
	if got := lastLine(path); got != "last  [2J" {
		t.Errorf("got %q", got)
	}
}

// A fault of ours must not leave the user without a terminal.
func TestPanicPutsTheTerminalBack(t *testing.T) {
	s := newSeat(t, attachOptions{}, true)
	s.rawMode()
	a := &app{env: Env{Stdin: s.slave, Stdout: s.slave}}
	term, err := a.openTerminal()
	must(t, err)
	t.Cleanup(func() { term.wake(); _ = term.wakeR.Close() })
	term.saved = nil
	must(t, term.raw())
	func() {
		defer func() {
			if r := recover(); fmt.Sprint(r) != "fault" {
				t.Errorf("the panic became %v", r)
			}
		}()
		defer term.restoreOnPanic()
		panic(errors.New("fault"))
	}()
	s.shows(resetTerminal)
	s.keys("\x1cd")
	s.ended()
}
