package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"berth"
)

const (
	// pollEvery is how soon a commit of another process is seen.
	pollEvery = 200 * time.Millisecond
	// turnEvery is how often a start looks whether another start has ended.
	turnEvery = 5 * time.Millisecond
)

// lockDir makes the starts on one directory go one after the other: two that
// make the schema at once would undo each other. The lock is on the directory
// itself, so no file is left over, and goes with the process that holds it.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(turnEvery)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // which unlocks; nothing was written
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			_ = f.Close()
			return nil, stopped("open the store", ctx.Err())
		}
	}
}

// settleSchema folds the log in after a change of the schema, so that the next
// process finds the version in the file itself. It is tried: a reader may be in
// the way, and the version is read from the log too.
func settleSchema(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, `PRAGMA wal_checkpoint(TRUNCATE)`)
	return err
}

// follow wakes the watchers for commits of other processes. data_version of a
// connection changes with every commit that another connection made; the own
// writer's are among them, and a wake-up for nothing is allowed.
func (s *Store) follow() error {
	db, err := sql.Open("sqlite", dsn(s.cfg.Path, "busy_timeout("+fmt.Sprint(busyTimeout.Milliseconds())+")", "query_only(1)"))
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	ctx := context.Background() // it ends with the store, not with who opened it
	stmt, err := db.PrepareContext(ctx, `PRAGMA data_version`)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	s.following.Go(func() {
		defer db.Close()   //nolint:errcheck // it was only read
		defer stmt.Close() //nolint:errcheck // it was only read
		tick := time.NewTicker(pollEvery)
		defer tick.Stop()
		var last int64
		for {
			var version int64
			err := stmt.QueryRowContext(ctx).Scan(&version)
			switch {
			case err != nil && isFatal(err):
				_ = s.fail("follow other processes", err) // Failed says it
				return
			case err == nil && version != last:
				last = version
				s.watch.wake()
			}
			select {
			case <-tick.C:
			case <-s.closed:
				return
			}
		}
	})
	return nil
}

// stillOurs refuses a write after another process brought the schema further.
func (t *txn) stillOurs(path string, known int64) error {
	var version int64
	if err := t.do.version.QueryRowContext(t.ctx).Scan(&version); err != nil {
		return err
	}
	if version > known {
		return newer(path, version, known)
	}
	return nil
}

func newer(path string, version, known int64) error {
	return berth.Errorf(berth.CodeStoreNewer, "%s was written by a newer berth: its schema is %d, this one knows up to %d; nothing was touched", path, version, known).
		WithFact("path", path).WithFact("schema", fmt.Sprint(version)).WithFact("known", fmt.Sprint(known))
}

// oneStart takes the turn among the processes that open a shared store.
func (c Config) oneStart(ctx context.Context) (done func(), err error) {
	if !c.Shared {
		return func() {}, nil
	}
	done, err = lockDir(ctx, filepath.Dir(c.Path))
	if err != nil && ctx.Err() == nil {
		return nil, c.unusable(err)
	}
	return done, err
}
