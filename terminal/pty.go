package terminal

import (
	"fmt"
	"io"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth"
)

// PTY is a pseudo-terminal. Its descriptors are plain numbers, since the holder
// waits on them in its own loop.
type PTY struct {
	Master int // non-blocking; closes on exec
	Slave  int // closes on exec; -1 after CloseSlave

	mu   sync.Mutex
	size berth.Size
}

// OpenPTY opens a pseudo-terminal that has the size already, so that a program
// never sees another one first.
func OpenPTY(size berth.Size) (*PTY, error) {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open a pseudo-terminal: %w", err)
	}
	p := &PTY{Master: master, Slave: -1}
	if err := p.open(size); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *PTY) open(size berth.Size) error {
	if err := unix.IoctlSetPointerInt(p.Master, unix.TIOCSPTLCK, 0); err != nil {
		return fmt.Errorf("unlock the pseudo-terminal: %w", err)
	}
	// By the master and not by its name: in a container /dev/pts may be another one.
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(p.Master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		return fmt.Errorf("open the other side of the pseudo-terminal: %w", errno)
	}
	p.Slave = int(fd)
	// Without IUTF8 the line editor of the kernel erases bytes, not characters.
	t, err := unix.IoctlGetTermios(p.Slave, unix.TCGETS)
	if err == nil {
		t.Iflag |= unix.IUTF8
		err = unix.IoctlSetTermios(p.Slave, unix.TCSETS, t)
	}
	if err != nil {
		return fmt.Errorf("set up the pseudo-terminal: %w", err)
	}
	return p.SetSize(size)
}

// SetSize sets the size; the program gets SIGWINCH only when it changed.
func (p *PTY) SetSize(size berth.Size) error {
	if !size.Valid() {
		return berth.Errorf(berth.CodeInvalidArgument, "size %s is outside 1x1 to %dx%d", size, berth.MaxCols, berth.MaxRows)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if size == p.size {
		return nil
	}
	ws := unix.Winsize{Row: uint16(size.Rows), Col: uint16(size.Cols)}
	if err := unix.IoctlSetWinsize(p.Master, unix.TIOCSWINSZ, &ws); err != nil {
		return fmt.Errorf("set the terminal's size: %w", err)
	}
	p.size = size
	return nil
}

// Size is the size that was set last.
func (p *PTY) Size() berth.Size {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.size
}

// Foreground gives the foreground process group, 0 when there is none.
func (p *PTY) Foreground() int {
	var pgrp int32
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(p.Master), unix.TIOCGPGRP, uintptr(unsafe.Pointer(&pgrp)))
	if errno != 0 || pgrp <= 0 {
		return 0
	}
	return int(pgrp)
}

// CloseSlave closes this process's hold on the program's side. While it is
// open, a program that closes its terminal for a moment does not make the
// master report an end; once it is closed, the master reports one (EIO) as soon
// as no process has the terminal open.
func (p *PTY) CloseSlave() {
	if p.Slave >= 0 {
		_ = unix.Close(p.Slave) // nothing is buffered in a descriptor
		p.Slave = -1
	}
}

// Close closes both sides: whoever still has the terminal gets SIGHUP.
func (p *PTY) Close() {
	p.CloseSlave()
	if p.Master >= 0 {
		_ = unix.Close(p.Master) // nothing is buffered in a descriptor
		p.Master = -1
	}
}

// Read reads what is there. 0, nil means that there is nothing now; io.EOF that
// no process has the terminal open any more.
func (p *PTY) Read(b []byte) (int, error) {
	n, errno := p.transfer(unix.SYS_READ, b)
	switch {
	case errno == unix.EAGAIN:
		return 0, nil
	case errno == unix.EIO || errno == 0 && n == 0 && len(b) > 0:
		return 0, io.EOF // a master whose other side is closed answers EIO
	case errno != 0:
		return 0, os.NewSyscallError("read", errno)
	}
	return n, nil
}

// Write writes as much as the terminal takes; 0, nil means that it takes
// nothing now.
func (p *PTY) Write(b []byte) (int, error) {
	n, errno := p.transfer(unix.SYS_WRITE, b)
	switch {
	case errno == unix.EAGAIN:
		return 0, nil
	case errno != 0:
		return 0, os.NewSyscallError("write", errno)
	}
	return n, nil
}

// transfer reads or writes. The master never blocks, and it gives 4 KiB at a
// time, so the call is a raw one: telling the scheduler of each costs as much
// as the call.
func (p *PTY) transfer(call uintptr, b []byte) (int, unix.Errno) {
	if len(b) == 0 {
		return 0, 0
	}
	for {
		n, _, errno := unix.RawSyscall(call, uintptr(p.Master), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}
