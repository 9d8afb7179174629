package holder_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth"
	"berth/holder"
)

// refuse starts what cannot start, and looks that nothing is left of it.
func refuse(t *testing.T, cfg holder.StartConfig, want berth.Code) {
	t.Helper()
	before, err := os.ReadDir(cfg.Dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = holder.Start(ctx(t), cfg)
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %s", err, want)
	}
	waitFor(t, "the holder ends", func() bool {
		alive, err := holder.Alive(cfg.Dir)
		return err == nil && !alive
	})
	after, err := os.ReadDir(cfg.Dir)
	if err != nil || len(after) != len(before) {
		t.Errorf("before %v, after %v, %v", before, after, err)
	}
}

func TestStartRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	noInterpreter := filepath.Join(dir, "script")
	if err := os.WriteFile(noInterpreter, []byte("#!/no/such/interpreter\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		argv, cwd string
		want      berth.Code
	}{
		{"no-such-program", "/", berth.CodeCommandNotFound},
		{"/no/such/program", "/", berth.CodeCommandNotFound},
		{"./no-such-program", "/tmp", berth.CodeCommandNotFound},
		{file, "/", berth.CodeCommandNotFound}, // not executable
		{dir, "/", berth.CodeCommandNotFound},  // a directory
		{noInterpreter, "/", berth.CodeCommandNotFound},
		{"sh", "/no/such/directory", berth.CodeCwdUnusable},
		{"sh", file, berth.CodeCwdUnusable},
		{"sh", "relative", berth.CodeCwdUnusable},
	} {
		cfg := config(t, c.argv)
		cfg.Spec.Cwd = c.cwd
		refuse(t, cfg, c.want)
	}
	cfg := config(t, "sh")
	cfg.Spec.Size.Cols = 0
	refuse(t, cfg, berth.CodeInvalidArgument)
	cfg = config(t, "sh")
	cfg.Socket = filepath.Join(cfg.Dir, strings.Repeat("x", 108))
	refuse(t, cfg, berth.CodeSocketPathTooLong)
	cfg = config(t, "sh")
	cfg.Binary = "/no/such/holder"
	if _, err := holder.Start(ctx(t), cfg); !errors.Is(err, berth.CodeStartFailed) {
		t.Errorf("no binary: %v", err)
	}
}

// TestScriptWithoutInterpreter: as execvp and every shell do it.
func TestScriptWithoutInterpreter(t *testing.T) {
	file := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(file, []byte("echo it runs with $1; exit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := start(t, file, "arg")
	if exit := s.waitExit(); exit.Code != 3 {
		t.Errorf("%+v", exit)
	}
	if got := lastOutput(t, s); got != "it runs with arg\r\n" {
		t.Errorf("%q", got)
	}
}

// TestRelativeProgram: found from the directory that it starts in, by a PATH
// with a relative entry.
func TestRelativeProgram(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "prog"), []byte("#!/bin/sh\npwd; exit 2\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, argv0 := range []string{"./prog", "prog"} {
		cfg := config(t, argv0)
		cfg.Spec.Cwd = dir
		cfg.Spec.Env = []string{"PATH=/nowhere::/usr/bin:/bin"}
		s := startWith(t, cfg)
		if exit := s.waitExit(); exit.Code != 2 {
			t.Errorf("%s: %+v", argv0, exit)
		}
	}
}

func TestForeignSocket(t *testing.T) {
	cfg := config(t, "cat")
	if err := os.WriteFile(cfg.Socket, []byte("somebody's"), 0o600); err != nil {
		t.Fatal(err)
	}
	refuse(t, cfg, berth.CodeForeignSocket)
	if b, err := os.ReadFile(cfg.Socket); err != nil || string(b) != "somebody's" {
		t.Errorf("the foreign file was touched: %q, %v", b, err)
	}

	cfg = config(t, "cat")
	l, err := net.Listen("unix", cfg.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // it only has to be there
	refuse(t, cfg, berth.CodeForeignSocket)
	if _, err := os.Lstat(cfg.Socket); err != nil {
		t.Errorf("a socket that answers was removed: %v", err)
	}
}

// TestStaleSocket: a socket that a holder left is replaced.
func TestStaleSocket(t *testing.T) {
	cfg := config(t, "cat")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: cfg.Socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s := startWith(t, cfg)
	if _, err := s.Info(ctx(t)); err != nil {
		t.Error(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(cfg.Socket, &st); err != nil || st.Mode&0o777 != 0o600 {
		t.Errorf("mode %o, %v", st.Mode, err)
	}
}

// TestOneHolder: a directory has one holder at a time, and one program ever.
func TestOneHolder(t *testing.T) {
	s := start(t, "cat")
	cfg := config(t, "cat")
	cfg.Dir, cfg.Socket = s.dir, filepath.Join(cfg.Dir, "s")
	if _, err := holder.Start(ctx(t), cfg); !errors.Is(err, berth.CodeConflict) {
		t.Errorf("second holder: %v", err)
	}
	if alive, err := holder.Alive(s.dir); !alive || err != nil {
		t.Errorf("alive %v, %v", alive, err)
	}
	if _, err := holder.KillRemains(s.dir); !errors.Is(err, berth.CodeSessionLive) {
		t.Errorf("remains of a living one: %v", err)
	}
	if _, err := s.Kill(ctx(t)); err != nil {
		t.Fatal(err)
	}
	s.waitGone()
	if _, err := holder.Start(ctx(t), cfg); !errors.Is(err, berth.CodeConflict) {
		t.Errorf("another program in its directory: %v", err)
	}
	if _, err := holder.ReadExit(s.dir); err != nil {
		t.Errorf("the records of the first were touched: %v", err)
	}
}

func TestScope(t *testing.T) {
	cfg := config(t, "cat")
	var seen int
	cfg.Scope = func(_ context.Context, pid int) error {
		seen = pid
		if _, err := os.Stat(filepath.Join(cfg.Dir, berth.FileIdentity)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the program runs before its scope is there: %v", err)
		}
		return errors.New("no scopes here") // not fatal
	}
	s := startWith(t, cfg)
	if seen != s.run.Holder.PID {
		t.Errorf("scope of %d, the holder is %d", seen, s.run.Holder.PID)
	}
}

// TestFullDisk: when the disk is full the recording stops with its reason, and
// the program and its viewers go on.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("mounting a file system needs root")
		}
		t.Skip("mounting a file system needs root")
	}
	cfg := config(t, "sh", "-c", "read x; head -c 20000000 /dev/zero | tr '\\0' x; echo END; read x; exit 3")
	if err := unix.Mount("tmpfs", cfg.Dir, "tmpfs", 0, "size=2m"); err != nil {
		t.Skip("no file system can be mounted here:", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(cfg.Dir, unix.MNT_DETACH) })
	socketDir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(socketDir) })
	cfg.Socket = filepath.Join(socketDir, "s")
	s := startWith(t, cfg)
	s.input("\n")
	var info holder.Info
	waitFor(t, "all output", func() bool {
		if info, err = s.Info(ctx(t)); err != nil {
			t.Fatal(err)
		}
		return info.End == 20000000+7
	})
	if info.LogGap != unix.ENOSPC.Error() || info.LogSize == 0 || info.LogSize > 2<<20 || info.LogFrom != 0 {
		t.Errorf("%+v", info)
	}
	// What was recorded is there, what comes now is in the ring, between is a gap.
	p := make([]byte, 16)
	if n, err := s.ReadLog(ctx(t), 2, p); n != len(p) || err != nil {
		t.Errorf("recorded: %d, %v", n, err)
	}
	if n, err := s.ReadLog(ctx(t), info.End-5, p); n != 5 || err != nil || string(p[:n]) != "END\r\n" {
		t.Errorf("the end: %q, %v", p[:n], err)
	}
	var e *berth.Error
	if _, err := s.ReadLog(ctx(t), uint64(info.LogSize), p); !errors.Is(err, berth.CodeOffsetGone) || !errors.As(err, &e) || e.Facts["kept_from"] == "" {
		t.Errorf("in the gap: %v", err)
	}
	s.input("\n")
	_, gaps, exit := s.collect(0)
	if gaps != 1 || exit.Code != 3 {
		t.Errorf("%d gaps, %+v", gaps, exit)
	}
	// The exit record does not fit either. The holder stays and tells of it.
	if _, err := holder.ReadExit(s.dir); !errors.Is(err, os.ErrNotExist) {
		t.Logf("the exit record found room: %v", err)
		return
	}
	if info, err := s.Info(ctx(t)); err != nil || info.Exit == nil {
		t.Errorf("%+v, %v", info, err)
	}
	if err := unix.Mount("tmpfs", cfg.Dir, "tmpfs", unix.MS_REMOUNT, "size=8m"); err != nil {
		t.Fatal(err)
	}
	if err := s.Quit(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if exit, err := holder.ReadExit(s.dir); err != nil || exit.Code != 3 {
		t.Errorf("after room was made: %+v, %v", exit, err)
	}
}
