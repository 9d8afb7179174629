package e2e

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSecretsStayOut gives the daemon secrets and the marks of an enclosing
// agent, and looks for them everywhere that berth writes.
func TestSecretsStayOut(t *testing.T) {
	const secret = "hunter2-correct-horse"
	h := bareHouse(t)
	h.env = []string{"MY_TOKEN=" + secret, "KEPT=kept-value", "CLAUDECODE=1", "TMUX=/tmp/x,1,0", "BERTH_SESSION=s-0000000000000000", "BERTH_SOCKET=/nowhere"}
	h.must("up")
	h.env = nil // commands after that one do not carry them
	out := filepath.Join(h.dir, "env")
	s := h.startSession("--name", "quiet", "--withhold", "MY_TOKEN", "--env", "ASKED=asked-value", "--", "sh", "-c", "env; env > "+out+".tmp; mv "+out+".tmp "+out+"; exec sleep 3000")
	waitUntil(t, 10*time.Second, "the program has printed its environment", func() bool { _, err := os.Stat(out); return err == nil })
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for _, line := range strings.Split(string(text), "\n") {
		k, v, _ := strings.Cut(line, "=")
		env[k] = v
	}
	for _, name := range []string{"MY_TOKEN", "CLAUDECODE", "TMUX", "BERTH_STATE_DIR", "BERTH_RUNTIME_DIR", "BERTH_CONFIG", "BERTH_MACHINE_DIR", "BERTH_READY_FD"} {
		if v, ok := env[name]; ok {
			t.Errorf("the program has %s=%s", name, v)
		}
	}
	for name, want := range map[string]string{"KEPT": "kept-value", "ASKED": "asked-value", "BERTH_SESSION": s.ID, "TERM": "xterm-256color"} {
		if env[name] != want {
			t.Errorf("the program has %s=%q, want %q", name, env[name], want)
		}
	}
	if !strings.HasPrefix(env["BERTH_SOCKET"], h.runtime()) {
		t.Errorf("BERTH_SOCKET is %q", env["BERTH_SOCKET"])
	}
	for _, text := range []string{h.must("ps", "--all", "--json"), h.must("events", "--json"), h.must("logs", "quiet"), h.must("status", "--json")} {
		if strings.Contains(text, secret) {
			t.Errorf("the secret is shown:\n%s", text)
		}
	}
	h.must("kill", "quiet")
	err = filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // files come and go under a running daemon
		}
		if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(secret)) {
			t.Errorf("the secret is in %s", path)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	// What runs beside the program must not carry it either: /proc shows it to
	// every process of the user. The daemon was given it, and keeps it.
	status := h.status()
	for _, pid := range h.processes() {
		environ, err := os.ReadFile("/proc/" + itoa(pid) + "/environ")
		if err == nil && pid != status.Daemon.PID && bytes.Contains(environ, []byte(secret)) {
			t.Errorf("process %d has the secret in its environment", pid)
		}
	}
}
