package holder

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"berth"
)

// backlog is how many connections may wait to be accepted: a daemon that comes
// back asks everything of a holder in a burst, but not more than this.
const backlog = 64

// bind binds and listens. It comes before the program starts, so that a start
// that fails for the socket has nothing to kill; connections wait until the loop runs.
func (k *keeper) bind() error {
	if len(k.socket) > berth.SocketPathMax {
		return errPathTooLong(k.socket)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("make the holder's socket: %w", err)
	}
	k.fds.listener = fd
	old := unix.Umask(0o177) // the socket is born with mode 0600
	defer unix.Umask(old)
	addr := &unix.SockaddrUnix{Name: k.socket}
	err = unix.Bind(fd, addr)
	if errors.Is(err, unix.EADDRINUSE) {
		if err := removeStale(k.socket); err != nil {
			return err
		}
		err = unix.Bind(fd, addr)
	}
	if err != nil {
		return fmt.Errorf("bind %s: %w", k.socket, err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(k.socket, &st); err != nil {
		return fmt.Errorf("look at %s: %w", k.socket, err)
	}
	k.sockDev, k.sockIno = st.Dev, st.Ino
	if err := unix.Listen(fd, backlog); err != nil {
		return fmt.Errorf("listen on %s: %w", k.socket, err)
	}
	return k.watchFD(fd, unix.EPOLLIN)
}

// removeStale removes a socket that a holder left. Only a socket of ours that
// refuses a connection is one: a slow answer proves nothing, and what is no
// socket was not made by berth.
func removeStale(path string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fmt.Errorf("look at %s: %w", path, err)
	}
	foreign := berth.Errorf(berth.CodeForeignSocket, "%s is in the way", path).WithFact("path", path)
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || int(st.Uid) != os.Geteuid() {
		return foreign
	}
	fd, err := connect(path)
	if err == nil {
		_ = unix.Close(fd) // nothing was said
		return foreign
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return foreign
	}
	if err := unix.Unlink(path); err != nil {
		return fmt.Errorf("remove the stale %s: %w", path, err)
	}
	return nil
}

// unbind removes the socket, if it is still the one that bind made.
func (k *keeper) unbind() {
	if k.fds.listener < 0 {
		return
	}
	var st unix.Stat_t
	if unix.Lstat(k.socket, &st) == nil && k.sockIno != 0 && st.Ino == k.sockIno && st.Dev == k.sockDev {
		_ = unix.Unlink(k.socket) // a dead socket is removed by the next one, too
	}
	_ = unix.Close(k.fds.listener) // closing also takes it out of the epoll set
	k.fds.listener = -1
}

// peerAllowed reports whether the other side is our own user or root.
func peerAllowed(fd int) bool {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	return err == nil && (int(cred.Uid) == os.Geteuid() || cred.Uid == 0)
}
