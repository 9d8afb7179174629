package cli

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// relay is a session's socket that keeps the lines it gets.
func relay(t *testing.T) (path string, lines <-chan string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "b")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path = filepath.Join(dir, "r.sock")
	l, err := net.Listen("unix", path)
	must(t, err)
	got := make(chan string, 16)
	done := make(chan struct{})
	t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r := bufio.NewReaderSize(c, 2<<20)
			if line, err := r.ReadString('\n'); err == nil {
				got <- line
			}
			_ = c.Close()
		}
	}()
	return path, got
}

func runHook(t *testing.T, socket string, stdin io.Reader, args ...string) outcome {
	t.Helper()
	vars := map[string]string{}
	if socket != "" {
		vars[envSocket], vars[envSession] = socket, "s-0123456789abcdef"
	}
	env, out, errs := testEnv(t, &fakeAPI{}, vars, stdin, append([]string{"hook"}, args...)...)
	code := Run(t.Context(), env)
	return outcome{code, out.String(), errs.String()}
}

func TestHookSendsOneLine(t *testing.T) {
	socket, lines := relay(t)
	for _, c := range []struct {
		name, stdin string
		args        []string
		want        string
	}{
		{"claude", "{\n \"hook_event_name\": \"Stop\",\n \"n\": 1\n}\n", nil, `{"session":"s-0123456789abcdef","event":"Stop","payload":{"hook_event_name":"Stop","n":1}}`},
		{"flag beats payload", `{"type":"x"}`, []string{"--event", "Notification"}, `{"session":"s-0123456789abcdef","event":"Notification","payload":{"type":"x"}}`},
		{"codex gives it as an argument", "", []string{"--event", "notify", `{"type":"agent-turn-complete"}`}, `{"session":"s-0123456789abcdef","event":"notify","payload":{"type":"agent-turn-complete"}}`},
		{"name from the argument", "", []string{`{"type":"agent-turn-complete"}`}, `{"session":"s-0123456789abcdef","event":"agent-turn-complete","payload":{"type":"agent-turn-complete"}}`},
		{"no payload", "", []string{"--event", "idle"}, `{"session":"s-0123456789abcdef","event":"idle"}`},
		{"no JSON", "plain <text>\nof two lines", []string{"--event", "x"}, `{"session":"s-0123456789abcdef","event":"x","payload":"plain \u003ctext\u003e\nof two lines"}`},
		{"a flag of a newer agent", `{"type":"x"}`, []string{"--nosuch"}, `{"session":"s-0123456789abcdef","event":"x","payload":{"type":"x"}}`},
		{"too large", `{"type":"` + strings.Repeat("x", hookMaxPayload) + `"}`, []string{"--event", "x"}, `{"session":"s-0123456789abcdef","event":"x"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := runHook(t, socket, strings.NewReader(c.stdin), c.args...)
			if got != (outcome{}) {
				t.Errorf("it is not silent: %+v", got)
			}
			select {
			case line := <-lines:
				if line != c.want+"\n" || !json.Valid([]byte(line)) {
					t.Errorf("got %q, want %q", line, c.want)
				}
			case <-time.After(testWait):
				t.Fatal("no line came")
			}
		})
	}
}

// A hook that fails or hangs would hold up or break the agent that calls it.
func TestHookAlwaysSucceedsInTime(t *testing.T) {
	endless, w := io.Pipe() // an agent that keeps its end open
	defer w.Close()         //nolint:errcheck // it was never written to
	dir := t.TempDir()
	socket, lines := relay(t)
	for _, c := range []struct {
		name, socket string
		stdin        io.Reader
		args         []string
	}{
		{"outside a session", "", strings.NewReader(`{"type":"x"}`), nil},
		{"nobody listens", filepath.Join(dir, "no.sock"), strings.NewReader(`{"type":"x"}`), nil},
		{"no name", socket, strings.NewReader(`{}`), nil},
		{"bad flags", socket, strings.NewReader(`{"type":"x"}`), []string{"--event"}},
		{"endless input", socket, endless, []string{"--event", "x"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			if got := runHook(t, c.socket, c.stdin, c.args...); got != (outcome{}) {
				t.Errorf("got %+v", got)
			}
			if took := time.Since(start); took > hookTimeout+time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
	// The last one was heard by its name, without a payload.
	if line := <-lines; !strings.Contains(line, `"event":"x"}`) {
		t.Errorf("got %q", line)
	}
	if got := runHook(t, "", strings.NewReader(""), "--verbose"); got.code != 0 || got.stdout != "" || !strings.Contains(got.stderr, "not inside a session") {
		t.Errorf("got %+v", got)
	}
}

func TestHookPrintIsTheFile(t *testing.T) {
	got := runCLI(t, &fakeAPI{}, "hook", "print", "claude")
	if got.code != 0 || !json.Valid([]byte(got.stdout)) || !strings.Contains(got.stderr, "settings.json") {
		t.Errorf("got %+v", got)
	}
	if got := runCLI(t, &fakeAPI{}, "hook", "print", "nosuch"); got.code != 2 || got.stdout != "" {
		t.Errorf("got %+v", got)
	}
}
