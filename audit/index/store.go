package index

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"unicode"

	"sallyport/audit/auditlog"
	"sallyport/internal/sqlite"
)

// schema has, for each event, its place in the log and its terms. The terms are an FTS5
// table of lists of numbers alone: no text is in it twice, and none can be read back.
const schema = `
CREATE TABLE record(number INTEGER PRIMARY KEY, at INTEGER NOT NULL, completion INTEGER) STRICT;
CREATE VIRTUAL TABLE event USING fts5(terms, content='', columnsize=0, detail=none, tokenize='ascii');
CREATE TABLE open(id TEXT PRIMARY KEY, number INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE span(first INTEGER PRIMARY KEY, last INTEGER NOT NULL, low INTEGER NOT NULL, high INTEGER NOT NULL, head INTEGER NOT NULL, tail INTEGER NOT NULL) STRICT;
CREATE TABLE damage(file TEXT, at INTEGER, number INTEGER NOT NULL, reason TEXT NOT NULL, PRIMARY KEY(file, at)) STRICT, WITHOUT ROWID;
CREATE INDEX damaged ON damage(number, file, at);
`

// terming changes with what terms are.
const terming = "1"

// version tells an index of this program from that of another one.
var version = int64(crc32.ChecksumIEEE([]byte(schema+terming+unicode.Version)) >> 1)

// spanned is how many events a row of span is about: which time and which lines they have.
const spanned = 1024

// errUnfit says that the file is not an index of this log by this program.
var errUnfit = errors.New("the index does not fit the audit log")

// pragmas have a writer sync when it moves what it has written into the file: after a crash
// the index is as it was somewhat earlier.
var pragmas = []string{"synchronous(normal)", "cache_size(-4096)"}

// reading calls f with an index and its log, both opened to be read, and the number of the
// last event that is indexed. Nothing is made where there is no index of the log.
func reading(ctx context.Context, dir, path string, f func(*sql.DB, *auditlog.Picker, uint64) error) error {
	if _, err := os.Stat(path); err != nil {
		return err
	}
	log, err := auditlog.OpenPicker(dir)
	if err != nil {
		return err
	}
	defer log.Close()
	db, err := sqlite.OpenReader(path, 1)
	if err != nil {
		return err
	}
	defer db.Close()
	last, err := through(ctx, db, log)
	if err != nil {
		return err
	}
	return f(db, log, last)
}

// through is the number of the last event that is in the index: of all before it those are
// there that the log has. It is 0 if there is none. Its error wraps errUnfit if what is
// indexed is not what the log has there.
func through(ctx context.Context, db *sql.DB, log *auditlog.Picker) (uint64, error) {
	var of int64
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&of); err != nil {
		return 0, err
	}
	if of != version {
		return 0, fmt.Errorf("%w: another version has made it", errUnfit)
	}
	last := checked{}
	err := db.QueryRowContext(ctx, "SELECT r.number, r.at, s.tail FROM span s JOIN record r ON r.number = s.last ORDER BY s.first DESC LIMIT 1").Scan(&last.number, &last.at, &last.sum)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	return last.number, last.verify(log)
}

// checked is an event whose line the index remembers.
type checked struct {
	number  uint64
	at, sum int64
}

func (c checked) verify(log *auditlog.Picker) error {
	e, err := log.Pick(c.number, c.at)
	switch {
	case errors.Is(err, auditlog.ErrNoEntry), err == nil && sum(e.JSON) != c.sum:
		return fmt.Errorf("%w: event %d is another one", errUnfit, c.number)
	}
	return err
}

func sum(line []byte) int64 {
	s := sha256.Sum256(line)
	return int64(binary.BigEndian.Uint64(s[:8]))
}

// examine checks events all over the index, and that most of it is still in the log.
func examine(ctx context.Context, db *sql.DB, log *auditlog.Picker) (uint64, error) {
	const checks = 16
	last, err := through(ctx, db, log)
	if err != nil || last == 0 {
		return last, err
	}
	first := log.First()
	err = sqlite.Each(ctx, db, func(scan func(...any) error) error {
		var c checked
		if err := scan(&c.number, &c.at, &c.sum); err != nil {
			return err
		}
		return c.verify(log)
	}, `SELECT r.number, r.at, s.head FROM span s JOIN record r ON r.number = s.first
		WHERE s.first >= ? AND s.first / ? % max((? - ?) / ? / ?, 1) = 0`, first, spanned, last, first, spanned, checks)
	if err != nil {
		return 0, err
	}
	var oldest uint64
	if err := db.QueryRowContext(ctx, "SELECT min(first) FROM span").Scan(&oldest); err != nil {
		return 0, err
	}
	switch {
	case oldest > first:
		return 0, fmt.Errorf("%w: it begins after the log", errUnfit)
	case first > oldest && first-oldest > last-first:
		return 0, fmt.Errorf("%w: most of it is not in the log any more", errUnfit)
	}
	return last, nil
}
