package holder

import (
	"context"
	"encoding/binary"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// siginfoPID gives si_pid. The union of siginfo_t begins where a pointer can,
// behind three ints.
func siginfoPID(info *unix.Siginfo) int {
	const align = unsafe.Sizeof(uintptr(0))
	const at = (12 + align - 1) / align * align
	b := (*[unsafe.Sizeof(*info)]byte)(unsafe.Pointer(info))
	return int(int32(binary.NativeEndian.Uint32(b[at:])))
}

func sysStatus(ws unix.WaitStatus) syscall.WaitStatus { return syscall.WaitStatus(ws) }

func contextFor(bound time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), bound)
}

// gather sends up to three pieces on a socket in one call, without an
// allocation and without SIGPIPE. 0, nil means that it takes nothing now.
type gather struct {
	iov [3]unix.Iovec
	msg unix.Msghdr
}

func (g *gather) send(fd int, pieces ...[]byte) (int, error) {
	n := 0
	for _, p := range pieces {
		if len(p) == 0 {
			continue
		}
		g.iov[n].Base = &p[0]
		g.iov[n].SetLen(len(p))
		n++
	}
	if n == 0 {
		return 0, nil
	}
	g.msg = unix.Msghdr{Iov: &g.iov[0]}
	g.msg.SetIovlen(n)
	// Raw, since a non-blocking socket never blocks: the scheduler need not know.
	sent, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&g.msg)), unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
	g.iov = [3]unix.Iovec{} // hold nothing that is not ours
	switch errno {
	case 0:
		return int(sent), nil
	case unix.EAGAIN, unix.EINTR: // after a signal, as if it were full: it will be tried again
		return 0, nil
	}
	return 0, errno
}
