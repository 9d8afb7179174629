package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth"
)

// lockRuntime makes the runtime directory and takes the lock in it, so that two
// guests never serve one directory. The file is never unlinked: a lock on a
// name that somebody else may create again is none.
func lockRuntime(dir string) (*os.File, error) {
	for _, d := range []string{dir, filepath.Join(dir, berth.DirHolders), filepath.Join(dir, berth.DirRelays), filepath.Join(dir, berth.DirAgents)} {
		if err := ownDir(d); err != nil {
			return nil, err
		}
	}
	path := filepath.Join(dir, berth.FileGuestLock)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, berth.Errorf(berth.CodeRuntimeDir, "the guest's lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close() // nothing was written
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, berth.Errorf(berth.CodeAlreadyRunning, "another guest serves %s", dir).
				WithHint("use that one, or give another --runtime")
		}
		return nil, berth.Errorf(berth.CodeRuntimeDir, "lock %s: %w", path, err)
	}
	return f, nil
}

// ownDir makes a directory of mode 0700, or checks that the one there is ours
// and closed to others: a socket in a directory of somebody else can be swapped.
func ownDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return berth.Errorf(berth.CodeRuntimeDir, "make %s: %w", dir, err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return berth.Errorf(berth.CodeRuntimeDir, "look at %s: %w", dir, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return berth.Errorf(berth.CodeRuntimeDir, "%s is not a directory", dir)
	case int(st.Uid) != os.Geteuid():
		return berth.Errorf(berth.CodeRuntimeDir, "%s belongs to uid %d", dir, st.Uid)
	case st.Mode&0o077 != 0:
		return berth.Errorf(berth.CodeRuntimeDir, "%s has mode %#o: others can enter it", dir, st.Mode&0o777)
	}
	return nil
}

// clearStale removes the socket that an earlier guest left at path. The caller
// holds the lock, so a socket of ours there is nobody's; anything else is not
// ours to touch.
func clearStale(path string) error {
	if len(path) > berth.SocketPathMax {
		return berth.Errorf(berth.CodeSocketPathTooLong, "%s has %d bytes, a socket's path has at most %d", path, len(path), berth.SocketPathMax)
	}
	var st unix.Stat_t
	err := unix.Lstat(path, &st)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("look at %s: %w", path, err)
	case st.Mode&unix.S_IFMT != unix.S_IFSOCK || int(st.Uid) != os.Geteuid():
		return berth.Errorf(berth.CodeForeignSocket, "%s is there and is not a socket of ours", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove a stale socket: %w", err)
	}
	return nil
}

// listener accepts only peers of the same user, and root.
type listener struct {
	*net.UnixListener
	log   *slog.Logger
	path  string
	inode uint64
}

func listen(path string, log *slog.Logger) (*listener, error) {
	l, err := listenUnix(path)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return nil, errors.Join(fmt.Errorf("look at %s: %w", path, err), l.Close())
	}
	return &listener{UnixListener: l, log: log, path: path, inode: st.Ino}, nil
}

// listenUnix listens at path with mode 0600. The directory is closed to others,
// so nobody can connect between bind and chmod.
func listenUnix(path string) (*net.UnixListener, error) {
	if err := clearStale(path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, berth.Errorf(berth.CodeRuntimeDir, "listen at %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false) // Close unlinks by inode, see below
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("close %s to others: %w", path, err), l.Close())
	}
	return l, nil
}

// Close stops listening and removes the socket where it still is the same one.
func (l *listener) Close() error {
	var st unix.Stat_t
	if err := unix.Lstat(l.path, &st); err == nil && st.Ino == l.inode {
		_ = os.Remove(l.path) // a socket that stays is stale, and the next guest removes it
	}
	return l.UnixListener.Close()
}

// Accept gives the next connection of a peer that may connect.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, err := peerUID(conn)
		if err == nil && (uid == os.Geteuid() || uid == 0) {
			return conn, nil
		}
		l.log.Warn("a connection was refused", "peer_uid", uid, "error", err)
		_ = conn.Close() // it was never used
	}
}

func peerUID(conn *net.UnixConn) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return -1, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return -1, err
	}
	if credErr != nil {
		return -1, credErr
	}
	return int(cred.Uid), nil
}

// uptime is how long the host runs, suspended time included; 0 = not known.
func uptime() time.Duration {
	data, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(data), " ")
	seconds, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0
	}
	return time.Duration(seconds * float64(time.Second))
}
