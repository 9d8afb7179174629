package sqlite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"syscall"

	driver "modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"

	"berth"
)

// failure remembers the first error after which the store must not be trusted.
//
// After a failed fsync the kernel drops what it could not write and calls the
// pages clean; the next fsync answers well although the data is gone. So a
// store that went on would acknowledge what is not there. It stops instead, and
// the next opening recovers from what the disk has.
type failure struct {
	once   sync.Once
	closed chan struct{}
	err    error // written before closed is closed, read after
}

func newFailure() *failure { return &failure{closed: make(chan struct{})} }

// check is nil while the store has not failed.
func (f *failure) check() error {
	select {
	case <-f.closed:
		return berth.Errorf(berth.CodeStoreFailed, "the store failed before: %w", f.err)
	default:
		return nil
	}
}

// classify gives an error of a call its code, and stops the store where the
// error is one of the disk. A refusal passes as it is.
func (s *Store) classify(what string, err error) error {
	var refusal *berth.Error
	if err == nil || errors.As(err, &refusal) {
		return err
	}
	if s.isClosed() { // a read that met Close
		return closedError()
	}
	switch {
	case isLocked(err):
		return locked(what, s.cfg.Path, err)
	case isFatal(err):
		return s.fail(what, err)
	}
	return berth.Errorf(berth.CodeInternal, "%s in %s: %w", what, s.cfg.Path, err)
}

// isLocked reports that another process has the file; nothing was written.
func isLocked(err error) bool {
	code := sqliteCode(err)
	return code == codes.SQLITE_BUSY || code == codes.SQLITE_LOCKED
}

// isFatal reports an error of the disk, the file or the memory.
func isFatal(err error) bool {
	switch sqliteCode(err) {
	case codes.SQLITE_IOERR, codes.SQLITE_FULL, codes.SQLITE_CORRUPT, codes.SQLITE_NOTADB,
		codes.SQLITE_CANTOPEN, codes.SQLITE_READONLY, codes.SQLITE_PERM, codes.SQLITE_NOMEM,
		codes.SQLITE_PROTOCOL, codes.SQLITE_NOLFS:
		return true
	}
	return false
}

// fail stops the store.
func (s *Store) fail(what string, err error) error {
	failed := storeFailed(what, s.cfg.Path, err)
	s.failure.once.Do(func() {
		s.cfg.Log.Error("the store failed", "path", s.cfg.Path, "doing", what, "error", err)
		s.failure.err = failed
		close(s.failure.closed)
	})
	return failed
}

// sqliteCode is the primary result code behind err; 0 = not from SQLite.
func sqliteCode(err error) int {
	var e *driver.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// noRoomToShare reports that the file that several processes share could not
// grow, which is what a full disk looks like there.
func noRoomToShare(err error) bool {
	var e *driver.Error
	return errors.As(err, &e) && e.Code() == codes.SQLITE_IOERR_SHMSIZE
}

func storeFailed(what, path string, err error) *berth.Error {
	if full := sqliteCode(err) == codes.SQLITE_FULL || noRoomToShare(err) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, berth.CodeDiskFull); full {
		cause := berth.Errorf(berth.CodeDiskFull, "the disk of %s is full: %w", path, err)
		return berth.Errorf(berth.CodeStoreFailed, "%s: %w", what, cause).
			WithFact("path", path).WithFact("cause", string(berth.CodeDiskFull)).
			WithHint("free some space, then: berth up")
	}
	return berth.Errorf(berth.CodeStoreFailed, "%s in %s: %w", what, path, err).WithFact("path", path)
}

// unusable is why a file cannot be opened as a store.
func (c Config) unusable(err error) error {
	path := c.Path
	switch {
	case errors.Is(err, errNotDatabase), errors.Is(err, errForeignDatabase),
		sqliteCode(err) == codes.SQLITE_CORRUPT, sqliteCode(err) == codes.SQLITE_NOTADB:
		return berth.Errorf(berth.CodeStoreFailed, "%s cannot be used as the store: %w", path, err).
			WithFact("path", path).
			WithHint("move the file away (" + cmp.Or(c.Loss, "what it holds is lost") + "), or put a copy back, then: berth up")
	case errors.Is(err, fs.ErrPermission), errors.Is(err, fs.ErrNotExist):
		return berth.Errorf(berth.CodeStateDir, "open the store: %w", err).WithFact("path", path)
	}
	if isLocked(err) {
		return locked("open the store", path, err)
	}
	var refusal *berth.Error
	if errors.As(err, &refusal) && !errors.Is(err, berth.CodeDiskFull) {
		return err
	}
	return storeFailed("open the store", path, err)
}

// stopped is the answer to a caller that stopped waiting.
func stopped(what string, cause error) error {
	code := berth.CodeInterrupted
	if errors.Is(cause, context.DeadlineExceeded) {
		code = berth.CodeTimeout
	}
	return berth.Errorf(code, "%s: %w", what, cause)
}

func locked(what, path string, err error) error {
	return berth.Errorf(berth.CodeTimeout, "%s: another process had %s locked for %s: %w", what, path, busyTimeout, err).
		WithFact("path", path).WithHint("end the program that works on that file")
}

func closedError() error {
	return &berth.Error{Code: berth.CodeDaemonStopping, Detail: "the store is closed"}
}

// notInForce is the refusal of a database whose promises do not hold.
func notInForce(path, pragma, want, got string) error {
	return berth.Errorf(berth.CodeStoreFailed, "%s: %s is %s, not %s; without it an acknowledged write could be lost", path, pragma, got, want).
		WithFact("path", path).WithFact(pragma, got).
		WithHint(fmt.Sprintf("put the state directory on a local disk (%s must be %s)", pragma, want))
}
