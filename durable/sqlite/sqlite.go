// Package sqlite keeps durable's records, events and leases in one SQLite file.
//
// One connection writes, a few read. The log is write-ahead with
// synchronous=FULL: a commit is on the disk before its call returns. That is
// read back at every start, because a setting that is not in force fails
// silently (a filesystem without shared memory falls back to another journal).
package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth"
	"berth/durable"
)

const (
	// busyTimeout is how long a write waits for another process that has the
	// file locked: a backup, a person with sqlite3, the other daemons of a
	// shared store.
	busyTimeout = 5 * time.Second
	// readers is the size of the read pool. Reads are short; more connections
	// than this would only wait for the same two or four cores.
	readers = 4
	// walKept bounds the log's file after a checkpoint that follows a burst.
	walKept = 8 << 20
)

// Config is what a Store is opened with.
type Config struct {
	Path  string         // of the database, absolute; its directory exists
	Owner berth.Identity // of this process, stamped on every write
	// Shared says that several processes have the file open. Watch then wakes
	// for the commits of the others too, within about 200 ms; no two have the
	// same Owner.
	Shared bool
	// Loss says what is lost with the file, for the hint where it cannot be used:
	// "names and events are lost". "" = what it holds is.
	Loss string
	// Now is the wall clock, for created, updated and events; nil = time.Now.
	Now func() time.Time
	// Boottime is the time since the boot of Owner.BootID, the time asleep
	// included, for leases; nil = CLOCK_BOOTTIME.
	Boottime func() time.Duration
	// EventsKept and EventsKeptFor bound the events at a Prune; 0 =
	// berth.EventsKept and berth.EventsKeptFor.
	EventsKept    int64
	EventsKeptFor time.Duration
	Log           *slog.Logger // nil = none
}

func (c Config) withDefaults() (Config, error) {
	if !filepath.IsAbs(c.Path) {
		return c, berth.Errorf(berth.CodeInvalidArgument, "the path of the store, %q, is not absolute", c.Path)
	}
	if c.Owner.BootID == "" || c.Owner.PID <= 0 {
		return c, berth.Errorf(berth.CodeInvalidArgument, "the owner of the store has no boot id or no PID")
	}
	if c.EventsKept < 0 || c.EventsKeptFor < 0 {
		return c, berth.Errorf(berth.CodeInvalidArgument, "a negative bound of events")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Boottime == nil {
		c.Boottime = boottime
	}
	if c.EventsKept == 0 {
		c.EventsKept = berth.EventsKept
	}
	if c.EventsKeptFor == 0 {
		c.EventsKeptFor = berth.EventsKeptFor
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

func boottime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0 // since Linux 2.6.39 it cannot fail; at 0 every lease of this boot ends with MaxLeaseTTL
	}
	return time.Duration(t.Nano())
}

// Store is a durable.Store in a file. A process has it open once. Unless it is
// Shared only one process has: the daemon, which locks the state directory
// before. What several processes write is as ordered as what one writes: each
// transaction takes the file's write lock before it reads, and the counters of
// events and epochs are in the file. (Any close of the file in
// the same process, also that of Open's look at the header, gives up the POSIX
// locks that the process has on it.)
type Store struct {
	cfg     Config
	owner   string // JSON of cfg.Owner
	failure *failure
	watch   watchers

	write *sql.DB // one connection
	read  *sql.DB

	// turn has one token. Who has it uses conn and its statements.
	turn chan struct{}
	conn *sql.Conn
	do   statements

	ask queries // of read

	known     int64          // the newest schema that this program knows
	following sync.WaitGroup // of follow, which ends with closed

	closing sync.Once
	closed  chan struct{}
}

var _ durable.Store = (*Store)(nil)

// Open opens the database, makes it where it is missing, and brings its schema
// up to date. A database of a newer schema is CodeStoreNewer and not one byte is
// touched; what is not a database of berth is CodeStoreFailed with its path.
func Open(ctx context.Context, cfg Config) (_ *Store, err error) {
	cfg, err = cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	schema, err := newSchema()
	if err != nil {
		return nil, err
	}
	done, err := cfg.oneStart(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	version, err := cfg.refuseNewer(schema.latest)
	if err != nil {
		return nil, err
	}
	if err := createFile(cfg.Path); err != nil {
		return nil, cfg.unusable(err)
	}
	owner, err := json.Marshal(cfg.Owner)
	if err != nil {
		return nil, fmt.Errorf("open the store: %w", err)
	}
	s := &Store{
		cfg: cfg, owner: string(owner), failure: newFailure(),
		turn: make(chan struct{}, 1), closed: make(chan struct{}), known: schema.latest,
	}
	if err := s.connect(ctx, schema, version); err != nil {
		err = errors.Join(err, s.disconnect())
		if ctxErr := ctx.Err(); ctxErr != nil {
			return nil, stopped("open the store", ctxErr)
		}
		return nil, cfg.unusable(err)
	}
	s.turn <- struct{}{}
	return s, nil
}

// createFile makes the file before SQLite does, which would give it the rights
// of the umask; the log and the shared memory take theirs from it.
func createFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return berth.SyncDir(filepath.Dir(path))
}

func (s *Store) connect(ctx context.Context, schema schema, version int64) (err error) {
	if version == 0 {
		if err := refuseForeign(ctx, s.cfg.Path); err != nil {
			return err
		}
	}
	if s.write, err = sql.Open("sqlite", dsn(s.cfg.Path,
		"busy_timeout("+fmt.Sprint(busyTimeout.Milliseconds())+")",
		"journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)",
		"journal_size_limit("+fmt.Sprint(walKept)+")",
	)); err != nil {
		return err
	}
	s.write.SetMaxOpenConns(1)
	if version < schema.latest {
		if err := schema.migrate(ctx, s.write); err != nil {
			return err
		}
		if s.cfg.Shared {
			if err := settleSchema(ctx, s.write); err != nil {
				return err
			}
		}
		s.cfg.Log.Info("the store's schema is up to date", "path", s.cfg.Path, "from", version, "to", schema.latest)
	}
	if s.conn, err = s.write.Conn(ctx); err != nil {
		return err
	}
	if err := inForce(ctx, s.conn, s.cfg.Path); err != nil {
		return err
	}
	if s.do, err = prepareStatements(ctx, s.conn); err != nil {
		return err
	}
	if s.read, err = sql.Open("sqlite", dsn(s.cfg.Path,
		"busy_timeout("+fmt.Sprint(busyTimeout.Milliseconds())+")",
		"foreign_keys(1)", "query_only(1)",
	)); err != nil {
		return err
	}
	s.read.SetMaxOpenConns(readers)
	s.read.SetMaxIdleConns(readers)
	if s.ask, err = prepareQueries(ctx, s.read); err != nil || !s.cfg.Shared {
		return err
	}
	return s.follow()
}

// dsn names a file as an URI, whatever characters its path has.
func dsn(path string, pragmas ...string) string {
	u := url.URL{Path: path}
	return "file:" + u.EscapedPath() + "?" + url.Values{"_pragma": pragmas}.Encode()
}

// inForce reads the settings back that the promises rest on.
func inForce(ctx context.Context, conn *sql.Conn, path string) error {
	for _, want := range []struct{ pragma, value string }{
		{"journal_mode", "wal"},
		{"synchronous", "2"}, // FULL
		{"foreign_keys", "1"},
		{"busy_timeout", fmt.Sprint(busyTimeout.Milliseconds())},
	} {
		var got string
		if err := conn.QueryRowContext(ctx, "PRAGMA "+want.pragma).Scan(&got); err != nil {
			return fmt.Errorf("read %s: %w", want.pragma, err)
		}
		if !strings.EqualFold(got, want.value) {
			return notInForce(path, want.pragma, want.value, got)
		}
	}
	return nil
}

// Owner is the identity that is stamped on every write.
func (s *Store) Owner() berth.Identity { return s.cfg.Owner }

// Failed is closed after an I/O error.
func (s *Store) Failed() <-chan struct{} { return s.failure.closed }

// Close waits for the write that runs, and folds the log into the database.
func (s *Store) Close() error {
	var err error
	s.closing.Do(func() {
		close(s.closed)
		s.following.Wait()
		<-s.turn
		s.watch.close()
		err = s.disconnect()
	})
	return err
}

// disconnect closes the readers first: the last connection to close folds the
// log into the database, and only the writer may.
//
// After a failure that is still safe. SQLite copies only what commits before
// the failure had synced, and keeps the log until the copy is synced too.
func (s *Store) disconnect() error {
	errs := []error{s.ask.all.close(), s.do.all.close()}
	if s.read != nil {
		errs = append(errs, s.read.Close())
	}
	if s.conn != nil {
		errs = append(errs, s.conn.Close())
	}
	if s.write != nil {
		errs = append(errs, s.write.Close())
	}
	return errors.Join(errs...)
}

// usable is nil while calls may go on. It reads ctx too, so a call whose context
// is over does nothing.
func (s *Store) usable(ctx context.Context, what string) error {
	if err := s.failure.check(); err != nil {
		return err
	}
	if s.isClosed() {
		return closedError()
	}
	if err := ctx.Err(); err != nil {
		return stopped(what, err)
	}
	return nil
}

func (s *Store) isClosed() bool {
	select {
	case <-s.closed:
		return true
	default:
		return false
	}
}

// now reads the clocks.
func (s *Store) now() durable.Moment {
	return durable.Moment{Wall: s.cfg.Now().UTC(), BootID: s.cfg.Owner.BootID, Boot: s.cfg.Boottime()}
}
