package holder

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"berth"
)

// takeLock takes the lock of a session's directory for the life of the process.
// It is a lock of the open file (OFD), which somebody else can ask about
// without taking it: a look must never make a holder that starts just then fail.
func takeLock(dir string) (*os.File, error) {
	path := filepath.Join(dir, berth.FileHolderLck)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the session: %w", err)
	}
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lk)
	if err == nil && sameFile(f, path) {
		return f, nil
	}
	_ = f.Close() // nothing was written
	if err == nil || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return nil, berth.Errorf(berth.CodeConflict, "a holder keeps %s already", dir)
	}
	return nil, fmt.Errorf("lock the session: %w", err)
}

// sameFile reports whether the open file is the one at the path: a holder that
// failed to start removes its lock, and a lock on a removed file keeps nobody out.
func sameFile(f *os.File, path string) bool {
	a, err1 := f.Stat()
	b, err2 := os.Lstat(path)
	return err1 == nil && err2 == nil && os.SameFile(a, b)
}

// Alive looks whether a holder keeps that directory now: it holds the lock.
func Alive(dir string) (bool, error) {
	f, err := os.Open(filepath.Join(dir, berth.FileHolderLck))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for the holder: %w", err)
	}
	defer f.Close() //nolint:errcheck // it was only looked at
	lk := unix.Flock_t{Type: unix.F_WRLCK}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lk); err != nil {
		return false, fmt.Errorf("look for the holder: %w", err)
	}
	return lk.Type != unix.F_UNLCK, nil
}
