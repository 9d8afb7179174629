package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/pressly/goose/v3"
)

//go:embed migrations/*.sql
var migrations embed.FS

// schema is the migrations that this program knows.
type schema struct {
	files  fs.FS
	latest int64
}

func newSchema() (schema, error) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return schema{}, fmt.Errorf("read the migrations: %w", err)
	}
	names, err := fs.Glob(files, "*.sql")
	if err != nil || len(names) == 0 {
		return schema{}, fmt.Errorf("read the migrations: %d files, %w", len(names), err)
	}
	number, _, _ := strings.Cut(names[len(names)-1], "_") // Glob sorts
	latest, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return schema{}, fmt.Errorf("the number of migration %s: %w", names[len(names)-1], err)
	}
	return schema{files: files, latest: latest}, nil
}

// refuseForeign refuses a database without a version that has tables: it is
// another program's, which uses neither of the two numbers in the header. Our
// own has at most the table of the migrations then, from a start that was cut
// off. The database is opened without a change of its journal.
func refuseForeign(ctx context.Context, path string) (err error) {
	db, err := sql.Open("sqlite", dsn(path, "query_only(1)"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var tables int
	err = db.QueryRowContext(ctx, `SELECT COUNT(*) FROM sqlite_schema WHERE name NOT IN ('goose_db_version', 'sqlite_sequence')`).Scan(&tables)
	if err == nil && tables > 0 {
		return errForeignDatabase
	}
	return err
}

// migrate brings the schema up to date. A start on a schema that is up to date
// does not come here: its version stands in the file's header.
func (s schema) migrate(ctx context.Context, db *sql.DB) error {
	p, err := goose.NewProvider(goose.DialectSQLite3, db, s.files,
		goose.WithDisableGlobalRegistry(true), goose.WithLogger(goose.NopLogger()))
	if err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("bring the schema up to date: %w", err)
	}
	return nil
}
