package process

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Detached says how to start a program that outlives its starter.
type Detached struct {
	Path string   // of the program
	Args []string // Args[0] too
	Env  []string // all of it; nothing is inherited
	Dir  string   // "" = /
	// Standard streams; nil = /dev/null. They stay the caller's to close.
	Stdin, Stdout, Stderr *os.File
}

// Child is a program that StartDetached started.
type Child struct {
	PID  int
	done chan struct{}
	exit syscall.WaitStatus // valid when done is closed
}

// StartDetached starts a program in a session of its own, without a terminal,
// and with no open file but its standard streams. A goroutine reaps it when it
// ends, so that it never stays a zombie while the caller lives; it waits on the
// poller and costs no thread.
func StartDetached(d Detached) (*Child, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", d.Path, err)
	}
	defer null.Close() //nolint:errcheck // nothing was written
	files := make([]uintptr, 0, 3)
	for _, f := range []*os.File{d.Stdin, d.Stdout, d.Stderr} {
		if f == nil {
			f = null
		}
		files = append(files, f.Fd())
	}
	if d.Dir == "" {
		d.Dir = "/"
	}
	if d.Env == nil {
		d.Env = []string{}
	}
	// What this process itself inherited open would go on to the child, and a
	// pipe of a caller would never see its end. An old kernel (before 5.11)
	// refuses; then only Go's own files, which close on exec, are safe.
	_ = unix.CloseRange(3, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC)
	pidfd := -1
	pid, err := syscall.ForkExec(d.Path, d.Args, &syscall.ProcAttr{
		Dir: d.Dir, Env: d.Env, Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", d.Path, err)
	}
	c := &Child{PID: pid, done: make(chan struct{})}
	go c.reap(pidfd)
	return c, nil
}

// reap ends when the child has.
func (c *Child) reap(pidfd int) {
	defer close(c.done)
	if pidfd >= 0 && unix.SetNonblock(pidfd, true) == nil {
		f := os.NewFile(uintptr(pidfd), "pidfd")
		defer f.Close() //nolint:errcheck // a pidfd has nothing to lose
		if conn, err := f.SyscallConn(); err == nil {
			_ = conn.Read(func(fd uintptr) bool { return pollable(int(fd)) }) // on failure the wait below blocks instead
		}
	}
	for {
		_, err := syscall.Wait4(c.PID, &c.exit, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}

// Done is closed when the program has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Wait waits until the program has ended and says how.
func (c *Child) Wait(ctx context.Context) (syscall.WaitStatus, error) {
	select {
	case <-c.done:
		return c.exit, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}
