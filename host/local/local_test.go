package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gofrs/flock"
	"go.uber.org/goleak"

	"berth"
	"berth/guestapi"
	"berth/host"
)

var _ host.Driver = (*Driver)(nil)

// The real programs, built once.
var guestBinary, holderBinary string

func TestMain(m *testing.M) {
	code, err := withPrograms(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code) //nolint:forbidigo // a test's main
}

func withPrograms(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	guestBinary, holderBinary = filepath.Join(dir, "berth-guest"), filepath.Join(dir, "berth-holder")
	for path, pkg := range map[string]string{guestBinary: "berth/cmd/berth-guest", holderBinary: "berth/cmd/berth-holder"} {
		cmd := exec.CommandContext(context.Background(), "go", "build", "-o", path, pkg)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("build %s: %w\n%s", pkg, err, out)
		}
	}
	return m.Run(), nil
}

// shortDir is a directory whose sockets have short paths.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func newDriver(t *testing.T, change func(*Config)) *Driver {
	t.Helper()
	dir := shortDir(t)
	cfg := Config{
		Sessions: filepath.Join(dir, "s"), Runtime: filepath.Join(dir, "r"), GuestLog: filepath.Join(dir, "guest.log"),
		GuestBinary: guestBinary, HolderBinary: holderBinary,
		Getenv: func(name string) string {
			return map[string]string{"PATH": os.Getenv("PATH"), "HOME": "/home/u", "SECRET_KEY": "hush", "LANG": "C.UTF-8"}[name]
		},
		Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	d, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// info asks the guest who it is, and makes sure that it ends with the test.
func info(t *testing.T, d *Driver) guestapi.Info {
	t.Helper()
	c := guestapi.NewClient(d.Dial)
	defer c.Close() //nolint:errcheck // a test's client
	in, err := c.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(t, in.Identity.PID) })
	return in
}

// end kills a guest that this test started and waits until its lock is free.
func end(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return // it has ended before
	}
	deadline := time.NewTimer(5 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for syscall.Kill(pid, 0) == nil {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("the guest %d does not end", pid)
		}
	}
}

func TestEnsureStartsOneGuest(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	d := newDriver(t, nil)
	if _, err := d.Dial(t.Context()); !errors.Is(err, berth.CodeHostUnreachable) {
		t.Fatalf("dial without a guest: %v", err)
	}
	began := time.Now()
	if err := d.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("a guest was started and answered within %s", time.Since(began))
	first := info(t, d)
	defer end(t, first.Identity.PID)
	began = time.Now()
	if err := d.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("the second look took %s", time.Since(began))
	if again := info(t, d); again.Identity.PID != first.Identity.PID {
		t.Error("a second guest was started")
	}
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", first.Identity.PID))
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range strings.Split(strings.Trim(string(env), "\x00"), "\x00") {
		if name, _, _ := strings.Cut(kv, "="); name != "PATH" && name != "HOME" && name != "LANG" {
			t.Errorf("the guest got %s", kv)
		}
	}
	if sid := syscallGetsid(first.Identity.PID); sid != first.Identity.PID {
		t.Errorf("the guest is in session %d, not its own", sid)
	}
}

func syscallGetsid(pid int) int {
	sid, _, _ := syscall.Syscall(syscall.SYS_GETSID, uintptr(pid), 0, 0)
	return int(sid)
}

func TestEnsureReplacesAKilledGuest(t *testing.T) {
	d := newDriver(t, nil)
	if err := d.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := info(t, d).Identity.PID
	end(t, first)
	if _, err := os.Lstat(d.socket()); err != nil {
		t.Fatalf("the killed guest left no socket: %v", err)
	}
	if err := d.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if second := info(t, d).Identity.PID; second == first {
		t.Error("no second guest was started")
	}
}

// A guest that is stopped answers nothing; it is alive, and a second one beside
// it would be wrong. The kernel takes the connection for it.
func TestEnsureLeavesASlowGuestAlone(t *testing.T) {
	d := newDriver(t, nil)
	if err := d.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid := info(t, d).Identity.PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := d.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if again := info(t, d).Identity.PID; again != pid {
		t.Errorf("guest %d was started beside %d", again, pid)
	}
}

func TestEnsureSaysWhyAGuestDoesNotStart(t *testing.T) {
	script := filepath.Join(t.TempDir(), "guest")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho the disk of $2 is on fire >&2\nexit 3\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	d := newDriver(t, func(c *Config) { c.GuestBinary = script })
	if err := os.WriteFile(d.cfg.GuestLog, []byte("an older line\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	err := d.Ensure(t.Context())
	if !errors.Is(err, berth.CodeGuestFailed) || !strings.Contains(err.Error(), "on fire") || strings.Contains(err.Error(), "older") {
		t.Errorf("%v", err)
	}
	if time.Since(began) > readyTimeout/2 {
		t.Error("a guest that ended was waited for")
	}
	d = newDriver(t, func(c *Config) { c.GuestBinary = "/nonexistent/berth-guest" })
	if err := d.Ensure(t.Context()); !errors.Is(err, berth.CodeGuestFailed) {
		t.Errorf("%v", err)
	}
}

// Somebody holds the lock but listens nowhere: its socket was cleaned away. It
// may have sessions in hand, so nothing is started; the error says what is so.
func TestEnsureDoesNotStartBesideALock(t *testing.T) {
	d := newDriver(t, nil)
	if err := PrivateDir(d.cfg.Runtime); err != nil {
		t.Fatal(err)
	}
	lock := flock.New(filepath.Join(d.cfg.Runtime, berth.FileGuestLock))
	if err := lock.Lock(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := d.Ensure(ctx); !errors.Is(err, berth.CodeHostUnreachable) {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(d.cfg.GuestLog); err == nil {
		t.Error("a guest was started beside one that holds the lock")
	}
	if err := lock.Unlock(); err != nil {
		t.Fatal(err)
	}
	if err := d.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	info(t, d)
}

func TestEnsureRefusesAForeignSocket(t *testing.T) {
	d := newDriver(t, nil)
	if err := PrivateDir(d.cfg.Runtime); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.socket(), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.Ensure(t.Context()); !errors.Is(err, berth.CodeForeignSocket) {
		t.Errorf("%v", err)
	}
	if data, err := os.ReadFile(d.socket()); err != nil || string(data) != "precious" {
		t.Error("what was at the path is not there any more")
	}
}

func TestEnsureClearsAStaleSocket(t *testing.T) {
	d := newDriver(t, nil)
	if err := PrivateDir(d.cfg.Runtime); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.socket(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Ensure(t.Context()); err != nil {
		t.Fatal(err)
	}
	info(t, d)
}

func TestPrivateDir(t *testing.T) {
	top := t.TempDir()
	fresh := filepath.Join(top, "a", "b")
	if err := PrivateDir(fresh); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(fresh); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	link := filepath.Join(top, "link")
	if err := os.Symlink(fresh, link); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(top, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(top, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o770); err != nil {
		t.Fatal(err)
	}
	cases := []string{link, file, open}
	if os.Geteuid() == 0 {
		theirs := filepath.Join(top, "theirs")
		if err := errors.Join(os.Mkdir(theirs, 0o700), os.Chown(theirs, 65534, 65534)); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, theirs)
	}
	for _, dir := range cases {
		if err := PrivateDir(dir); !errors.Is(err, berth.CodeRuntimeDir) {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	good := newDriver(t, nil).cfg
	long := good
	long.Runtime = "/" + strings.Repeat("x", 120)
	if _, err := New(long); !errors.Is(err, berth.CodeSocketPathTooLong) {
		t.Errorf("%v", err)
	}
	relative := good
	relative.GuestBinary = "berth-guest"
	if _, err := New(relative); err == nil {
		t.Error("a relative path was accepted")
	}
}
