package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"berth"
)

// Handle is a process held by a pidfd: it can be signalled and waited for
// without any chance of meeting another process that got its number.
type Handle struct {
	file *os.File // the pidfd, non-blocking, so that waiting costs no thread
	pid  int
}

// Open opens the process that id names. An error satisfies
// errors.Is(err, os.ErrProcessDone) when it does not run any more.
func Open(id berth.Identity) (*Handle, error) {
	boot, err := BootID()
	if err != nil {
		return nil, err
	}
	if id.PID <= 0 || boot != id.BootID {
		return nil, fmt.Errorf("process %d of another boot: %w", id.PID, os.ErrProcessDone)
	}
	h, err := openPID(id.PID)
	if err != nil {
		return nil, err
	}
	// The order matters: the pidfd is open, then the start time is read, then
	// the pidfd still shows a living process. So what was read was its own.
	st, err := readStat(id.PID)
	switch {
	case err != nil:
	case st.start != id.StartTime:
		err = fmt.Errorf("process %d is another one now: %w", id.PID, os.ErrProcessDone)
	case id.PidfdInode != 0 && h.inode() != 0 && h.inode() != id.PidfdInode:
		err = fmt.Errorf("process %d is another one now: %w", id.PID, os.ErrProcessDone)
	case h.exited():
		err = fmt.Errorf("process %d: %w", id.PID, os.ErrProcessDone)
	}
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// openPID opens whatever process has the number now.
func openPID(pid int) (*Handle, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.10 there was no such flag
		if fd, err = unix.PidfdOpen(pid, 0); err == nil {
			err = unix.SetNonblock(fd, true)
		}
	}
	switch {
	case errors.Is(err, unix.ESRCH):
		return nil, fmt.Errorf("process %d: %w", pid, os.ErrProcessDone)
	case err != nil:
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	return &Handle{file: os.NewFile(uintptr(fd), "pidfd"), pid: pid}, nil
}

// Signal sends a signal; os.ErrProcessDone when the process has ended.
func (h *Handle) Signal(sig unix.Signal) error {
	var err error
	cerr := h.control(func(fd int) { err = unix.PidfdSendSignal(fd, sig, nil, 0) })
	switch {
	case cerr != nil:
		return cerr
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("process %d: %w", h.pid, os.ErrProcessDone)
	case err != nil:
		return fmt.Errorf("signal process %d: %w", h.pid, err)
	}
	return nil
}

// Wait returns nil when the process has ended (it need not be a child), or the
// context's error.
func (h *Handle) Wait(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = h.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	conn, err := h.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("wait for process %d: %w", h.pid, err)
	}
	err = conn.Read(func(fd uintptr) bool { return pollable(int(fd)) })
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("wait for process %d: %w", h.pid, err)
}

// Close closes the handle; the process is not touched.
func (h *Handle) Close() error { return h.file.Close() }

func (h *Handle) control(f func(fd int)) error {
	conn, err := h.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("process %d: %w", h.pid, err)
	}
	return conn.Control(func(fd uintptr) { f(int(fd)) })
}

func (h *Handle) inode() (inode uint64) {
	_ = h.control(func(fd int) { inode = pidfdInode(fd) }) // an unusable handle has no inode
	return inode
}

func (h *Handle) exited() (gone bool) {
	_ = h.control(func(fd int) { gone = pollable(fd) })
	return gone
}

// pollable reports whether the process behind the pidfd has ended.
func pollable(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return err == nil && n == 1
	}
}
