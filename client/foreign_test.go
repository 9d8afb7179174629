package client

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"berth"
)

// The role in which this test's binary is another account's daemon.
const squatterEnv = "BERTH_CLIENT_TEST_SQUATTER"

func squat(path string) int {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", path)
	if err != nil {
		return 1
	}
	if _, err := os.Stdout.WriteString("x"); err != nil {
		return 1
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return 0
		}
		_ = conn.Close()
	}
}

// Whoever else answers at the socket is not spoken to: what a daemon hands out
// may be run as root.
func TestForeignDaemon(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it starts a process of another user")
	}
	dir, err := os.MkdirTemp("", "peer")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	self := filepath.Join(dir, "squatter")
	data, err := os.ReadFile(os.Args[0])
	if err == nil {
		err = os.WriteFile(self, data, 0o755) //nolint:gosec // a program that another user runs
	}
	if err := errors.Join(err, os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = []string{squatterEnv + "=" + path}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{Socket: path})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // it only has idle connections
	if _, err := c.Status(t.Context()); !errors.Is(err, berth.CodeForeignSocket) {
		t.Errorf("%v", err)
	}
}
