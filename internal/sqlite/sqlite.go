// Package sqlite opens files of SQLite, and asks and changes what is in them.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"

	driver "modernc.org/sqlite"
	codes "modernc.org/sqlite/lib"
)

// Open opens a file that is there, to be written too, over so many connections, and with
// pragmas such as "synchronous(full)". Its journal is a write-ahead log.
func Open(path string, connections int, pragmas ...string) (*sql.DB, error) {
	return open(path, "rw", connections, append([]string{"busy_timeout(5000)", "journal_mode(wal)", "trusted_schema(off)"}, pragmas...))
}

// OpenReader is Open to be read only.
func OpenReader(path string, connections int) (*sql.DB, error) {
	return open(path, "ro", connections, []string{"busy_timeout(5000)", "query_only(on)", "trusted_schema(off)"})
}

func open(path, mode string, connections int, pragmas []string) (*sql.DB, error) {
	v := url.Values{"mode": {mode}, "_pragma": pragmas}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path, RawQuery: v.Encode()}).String())
	if err == nil {
		db.SetMaxOpenConns(connections)
	}
	return db, err
}

// Create is Open of a file with a schema and nothing else, in place of what is there.
// version is its PRAGMA user_version.
func Create(ctx context.Context, path, schema string, version int64, connections int, pragmas ...string) (*sql.DB, error) {
	if err := Remove(path); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return nil, err
	}
	db, err := Open(path, connections, pragmas...)
	if err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, fmt.Sprintf("BEGIN; %s PRAGMA user_version=%d; COMMIT", schema, version)); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// Remove removes a file that nobody has open, with its journal, if it is there.
func Remove(path string) (err error) {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if e := os.Remove(path + suffix); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// Damaged says whether SQLite cannot read a file, or finds in it what cannot be.
func Damaged(err error) bool {
	var e *driver.Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code() & 0xff {
	case codes.SQLITE_CORRUPT, codes.SQLITE_NOTADB, codes.SQLITE_CONSTRAINT, codes.SQLITE_MISMATCH, codes.SQLITE_ERROR:
		return true
	}
	return false
}

// Querier is a *sql.DB, a *sql.Tx or a *Tx.
type Querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Each calls do for each row that a query finds, until do fails.
func Each(ctx context.Context, q Querier, do func(scan func(...any) error) error, query string, args ...any) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := do(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Exists says whether a query finds a row.
func Exists(ctx context.Context, q Querier, query string, args ...any) (there bool, err error) {
	err = Each(ctx, q, func(func(...any) error) error { there = true; return nil }, query, args...)
	return there, err
}

// Rows returns what scan makes of each row that a query finds.
func Rows[T any](ctx context.Context, q Querier, scan func(func(...any) error) (T, error), query string, args ...any) (list []T, err error) {
	err = Each(ctx, q, func(row func(...any) error) error {
		x, err := scan(row)
		list = append(list, x)
		return err
	}, query, args...)
	return list, err
}

// Tx is a transaction.
type Tx struct {
	*sql.Tx
	prepared map[string]*sql.Stmt // the end of the transaction closes them
}

// Begin begins a transaction.
func Begin(ctx context.Context, db *sql.DB) (*Tx, error) {
	tx, err := db.BeginTx(ctx, nil)
	return &Tx{tx, map[string]*sql.Stmt{}}, err
}

// Transact commits what work does in a transaction, unless that fails.
func Transact(ctx context.Context, db *sql.DB, work func(*Tx) error) error {
	tx, err := Begin(ctx, db)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := work(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// Exec executes a statement, which is prepared once in a transaction, and returns the id of
// the row that was inserted last.
func (t *Tx) Exec(ctx context.Context, statement string, args ...any) (id int64, err error) {
	s := t.prepared[statement]
	if s == nil {
		if s, err = t.PrepareContext(ctx, statement); err != nil {
			return 0, err
		}
		t.prepared[statement] = s
	}
	r, err := s.ExecContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	return r.LastInsertId()
}
