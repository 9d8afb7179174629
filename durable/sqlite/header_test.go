package sqlite

import (
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/pressly/goose/v3"

	"berth"
	"berth/durable"
)

// crashed gives a copy of the files of a database that is still open with its
// newest commits in the log, as a killed process leaves them.
func crashed(t *testing.T, version int64) (path string) {
	t.Helper()
	live := filepath.Join(t.TempDir(), berth.FileStore)
	closeStore(t, openStore(t, Config{Path: live}))
	db, err := sql.Open("sqlite", dsn(live))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close() //nolint:errcheck // a test's
	db.SetMaxOpenConns(1)
	for _, q := range []string{
		"CREATE TABLE newer (x)",
		// One transaction of many pages: cut off inside it, the log has the new
		// version in its first page and no commit.
		"BEGIN", fmt.Sprintf("PRAGMA user_version = %d", version), "INSERT INTO newer VALUES (zeroblob(20000))", "COMMIT",
		"INSERT INTO newer VALUES (zeroblob(20000))",
	} {
		if _, err := db.ExecContext(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	path = filepath.Join(t.TempDir(), berth.FileStore)
	for _, suffix := range []string{"", "-wal"} {
		data, err := os.ReadFile(live + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+suffix, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// latest is the schema that this program makes.
func latest(t *testing.T) int64 {
	t.Helper()
	sch, err := newSchema()
	if err != nil {
		t.Fatal(err)
	}
	return sch.latest
}

func refusesNewer(t *testing.T, path string) {
	t.Helper()
	dir := filepath.Dir(path)
	before := files(t, dir)
	for range 2 {
		_, err := Open(t.Context(), Config{Path: path, Owner: testOwner})
		var e *berth.Error
		if !errors.As(err, &e) || e.Code != berth.CodeStoreNewer || e.Facts["schema"] != "99" || e.Facts["path"] != path {
			t.Fatalf("a newer database: %v", err)
		}
		if after := files(t, dir); !reflect.DeepEqual(before, after) {
			t.Fatalf("a newer database was touched: %v, before %v", after, before)
		}
	}
}

func TestNewerIsNotTouched(t *testing.T) {
	t.Run("Closed", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), berth.FileStore)
		closeStore(t, openStore(t, Config{Path: path}))
		db, err := sql.Open("sqlite", dsn(path))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.ExecContext(t.Context(), "PRAGMA user_version = 99"); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		refusesNewer(t, path)
	})
	// The version stands in the log alone: the header of the file still has the
	// one that this program made.
	t.Run("Killed", func(t *testing.T) {
		path := crashed(t, 99)
		if v, err := os.ReadFile(path); err != nil || int64(v[headerUserVersion+3]) != latest(t) {
			t.Fatalf("the file itself has the version %d, %v", v[headerUserVersion+3], err)
		}
		refusesNewer(t, path)
	})
	t.Run("KilledInAWrite", func(t *testing.T) {
		path := crashed(t, 99)
		f, err := os.OpenFile(path+"-wal", os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(strings.Repeat("torn", 3000)); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		refusesNewer(t, path)
	})
}

// What the files say must be what SQLite says, wherever the log was cut off.
func TestSchemaVersionIsThatOfSQLite(t *testing.T) {
	path := crashed(t, 7)
	log, err := os.ReadFile(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int64]bool{}
	for cut := 0; cut <= len(log); cut += 1000 {
		dir := t.TempDir()
		at := filepath.Join(dir, berth.FileStore)
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.WriteFile(at, data, 0o600), os.WriteFile(at+"-wal", log[:cut], 0o600)); err != nil {
			t.Fatal(err)
		}
		got, err := schemaVersion(at)
		if err != nil {
			t.Fatal(err)
		}
		db, err := sql.Open("sqlite", dsn(at))
		if err != nil {
			t.Fatal(err)
		}
		var want int64
		if err := db.QueryRowContext(t.Context(), "PRAGMA user_version").Scan(&want); err != nil {
			t.Fatal(err)
		}
		_ = db.Close()
		if got != want {
			t.Fatalf("a log of %d bytes: version %d, SQLite says %d", cut, got, want)
		}
		seen[got] = true
	}
	if !seen[latest(t)] || !seen[7] {
		t.Fatalf("the cuts show the versions %v only", seen)
	}
}

// After a kill the log has commits of this version; they are all there again.
func TestKilledIsRecovered(t *testing.T) {
	live := openStore(t, Config{})
	for i := range 10 {
		if _, _, err := live.Begin(t.Context(), durable.Begin{Kind: "thing", ID: fmt.Sprint(i), State: []byte(`{}`)}); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), berth.FileStore)
	for _, suffix := range []string{"", "-wal"} {
		data, err := os.ReadFile(live.cfg.Path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+suffix, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := openStore(t, Config{Path: path})
	if page, err := s.List(t.Context(), durable.Query{}); err != nil || len(page.Records) != 10 {
		t.Fatalf("%d records, %v", len(page.Records), err)
	}
}

func TestUnusableFiles(t *testing.T) {
	good := filepath.Join(t.TempDir(), berth.FileStore)
	closeStore(t, openStore(t, Config{Path: good}))
	image, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(t.TempDir(), "foreign.db")
	db, err := sql.Open("sqlite", dsn(foreign))
	if err != nil {
		t.Fatal(err)
	}
	var foreignImages [2][]byte
	for i, q := range []string{"CREATE TABLE songs (x)", "PRAGMA user_version = 1"} {
		if _, err := db.ExecContext(t.Context(), q); err != nil {
			t.Fatal(err)
		}
		if foreignImages[i], err = os.ReadFile(foreign); err != nil {
			t.Fatal(err)
		}
	}
	_ = db.Close()
	spoiled := append([]byte(nil), image...)
	for i := headerSize; i < len(spoiled); i++ {
		spoiled[i] = byte(i)
	}
	for name, content := range map[string][]byte{
		"text":             []byte("this is a note to myself\n"),
		"long text":        []byte(strings.Repeat("this is a note to myself\n", 1000)),
		"a short header":   image[:50],
		"another program":  foreignImages[0],
		"one of version 1": foreignImages[1],
		"a spoiled schema": spoiled,
		"a cut off file":   image[:4096],
	} {
		path := filepath.Join(t.TempDir(), berth.FileStore)
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(t.Context(), Config{Path: path, Owner: testOwner})
		var e *berth.Error
		if !errors.As(err, &e) || e.Code != berth.CodeStoreFailed || !strings.Contains(e.Detail, path) || e.Facts["path"] != path || e.Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
		if now, err := os.ReadFile(path); err != nil || string(now) != string(content) {
			t.Errorf("%s: the file was changed, %v", name, err)
		}
	}
	dir := filepath.Join(t.TempDir(), berth.FileStore)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{Path: dir, Owner: testOwner}); !errors.Is(err, berth.CodeStoreFailed) {
		t.Errorf("a directory: %v", err)
	}
	empty := filepath.Join(t.TempDir(), berth.FileStore)
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	closeStore(t, openStore(t, Config{Path: empty})) // a first start that was cut off
	begun := filepath.Join(t.TempDir(), berth.FileStore)
	db, err = sql.Open("sqlite", dsn(begun, "journal_mode(WAL)"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, os.DirFS("migrations"), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.GetDBVersion(t.Context()); err != nil { // it makes the table of the migrations alone
		t.Fatal(err)
	}
	_ = db.Close()
	closeStore(t, openStore(t, Config{Path: begun})) // and a later one
}

// Damage behind the header shows when it is read, and stops the store.
func TestDamageStopsTheStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), berth.FileStore)
	s := openStore(t, Config{Path: path})
	state := []byte(`"` + strings.Repeat("x", 100_000) + `"`)
	if _, _, err := s.Begin(t.Context(), durable.Begin{Kind: "thing", ID: "a", State: state}); err != nil {
		t.Fatal(err)
	}
	var page int64
	if err := s.conn.QueryRowContext(t.Context(), "SELECT rootpage FROM sqlite_schema WHERE name = 'records'").Scan(&page); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte(strings.Repeat("\xff", 4096)), (page-1)*4096); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	s = openStore(t, Config{Path: path})
	_, err = s.Get(t.Context(), "thing", "a")
	var e *berth.Error
	if !errors.As(err, &e) || e.Code != berth.CodeStoreFailed || !strings.Contains(e.Detail, path) {
		t.Fatalf("damage: %v", err)
	}
	<-s.Failed()
	if _, err := s.Events(t.Context(), 0, 0); !errors.Is(err, berth.CodeStoreFailed) {
		t.Fatalf("after damage: %v", err)
	}
}

// Each migration says its number in the header, or an older program would not
// see that it is older.
func TestMigrationsSayTheirNumber(t *testing.T) {
	sch, err := newSchema()
	if err != nil {
		t.Fatal(err)
	}
	names, err := fs.Glob(sch.files, "*.sql")
	if err != nil || int64(len(names)) != sch.latest {
		t.Fatalf("%d migrations up to number %d, %v", len(names), sch.latest, err)
	}
	for i, name := range names {
		text, err := fs.ReadFile(sch.files, name)
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("PRAGMA user_version = %d;", i+1); !strings.HasPrefix(name, fmt.Sprintf("%05d_", i+1)) || strings.Count(string(text), want) != 1 {
			t.Errorf("%s is not number %d or lacks %q", name, i+1, want)
		}
	}
	s := openStore(t, Config{})
	var version int64
	if err := s.conn.QueryRowContext(t.Context(), "SELECT MAX(version_id) FROM goose_db_version").Scan(&version); err != nil || version != sch.latest {
		t.Errorf("the migrations' own table says %d, %v", version, err)
	}
}

// The log of a crash is whatever the disk gives back.
func FuzzNewestFirstPage(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte(strings.Repeat("\x37\x7f\x06\x82", 40)))
	f.Add(append([]byte("\x37\x7f\x06\x83\x00\x2d\xe2\x18\x00\x00\x02\x00"), make([]byte, 2000)...))
	path := filepath.Join(f.TempDir(), "log")
	f.Fuzz(func(t *testing.T, log []byte) {
		if err := os.WriteFile(path, log, 0o600); err != nil {
			t.Fatal(err)
		}
		header, err := newestFirstPage(path)
		if err != nil || header != nil && len(header) != headerSize {
			t.Fatalf("%d bytes of header, %v", len(header), err)
		}
	})
}
