package history

import (
	"cmp"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sallyport/internal/durable"
	"sallyport/internal/sqlite"
	"sallyport/memory"
)

// schema has the commits, what they change, the contents, and the memory as the last
// commit left it, with the stamps by which the next one knows what to read. In a commit
// each path has one change at most.
const schema = `
CREATE TABLE commits(number INTEGER PRIMARY KEY, at INTEGER NOT NULL, digest TEXT NOT NULL, head TEXT NOT NULL) STRICT;
CREATE TABLE change(path BLOB NOT NULL, number INTEGER NOT NULL, op TEXT NOT NULL, kind TEXT NOT NULL, digest TEXT NOT NULL, previous TEXT NOT NULL,
	size INTEGER NOT NULL, mode TEXT NOT NULL, target BLOB NOT NULL, kept INTEGER NOT NULL, reason TEXT NOT NULL, PRIMARY KEY(path, number)) STRICT, WITHOUT ROWID;
CREATE INDEX changed ON change(number);
CREATE INDEX origin ON change(digest, number);
CREATE TABLE content(id INTEGER PRIMARY KEY, digest TEXT UNIQUE, number INTEGER NOT NULL, size INTEGER NOT NULL, stored INTEGER NOT NULL,
	base INTEGER NOT NULL, data BLOB NOT NULL) STRICT;
CREATE INDEX oldest ON content(number, stored);
CREATE INDEX built ON content(base);
CREATE TABLE file(path BLOB PRIMARY KEY, number INTEGER NOT NULL, kind TEXT NOT NULL, digest TEXT NOT NULL, size INTEGER NOT NULL, mode TEXT NOT NULL,
	target BLOB NOT NULL, inode INTEGER NOT NULL, changed INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX needed ON file(digest);
CREATE TABLE quarantine(id INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER NOT NULL, at INTEGER NOT NULL, path BLOB NOT NULL, digest TEXT NOT NULL,
	size INTEGER NOT NULL, mode TEXT NOT NULL, reason TEXT NOT NULL, sealed BLOB NOT NULL) STRICT;
`

// madeSchema is apart: a history without it is opened too, and has no proofs until then.
const madeSchema = "CREATE TABLE IF NOT EXISTS made(number INTEGER PRIMARY KEY, proof BLOB NOT NULL) STRICT"

// version tells a history of this program from that of another one.
var version = int64(crc32.ChecksumIEEE([]byte(schema)) >> 1)

// Store is the history of one sandbox's memory. It is safe for concurrent use; only one
// process may have it open.
type Store struct {
	o     Options
	read  *sql.DB
	mu    sync.Mutex // one writer at a time, from looking at the memory to the commit
	write *sql.DB
	state map[string]file // the table file as it is, or nil; guarded by mu

	lineages lineages
}

// connect opens the file. A commit is on disk when it returns, and what is deleted is
// overwritten.
func connect(path string) (*sql.DB, error) {
	return sqlite.Open(path, 1, "synchronous(full)", "secure_delete(on)", "cache_size(-4096)", "journal_size_limit(16777216)")
}

// Open opens the history in a file, and makes it if there is none. Its folder must be out
// of the sandbox's reach.
func Open(ctx context.Context, path string, o Options) (*Store, error) {
	o.MaxFile, o.MaxBytes, o.MaxLog = cmp.Or(o.MaxFile, 1<<20), cmp.Or(o.MaxBytes, 256<<20), cmp.Or(o.MaxLog, 256<<20)
	if o.Now == nil {
		o.Now = time.Now
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = errors.Join(f.Close(), durable.SyncDir(filepath.Dir(path)))
	}
	if err != nil {
		return nil, fmt.Errorf("opening the memory's history: %w", err)
	}
	s := &Store{o: o}
	if s.write, err = connect(path); err != nil {
		return nil, err
	}
	if s.read, err = sqlite.OpenReader(path, 4); err != nil {
		return nil, errors.Join(err, s.write.Close())
	}
	s.read.SetMaxIdleConns(1)
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("opening the memory's history %s: %w", path, err), s.Close())
	}
	return s, nil
}

func (s *Store) prepare(ctx context.Context) error {
	return sqlite.Transact(ctx, s.write, func(tx *sqlite.Tx) error {
		var of int64
		err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&of)
		switch {
		case err != nil || of == version:
		case of == 0:
			_, err = tx.ExecContext(ctx, fmt.Sprintf("%s PRAGMA user_version=%d", schema, version))
		default:
			err = errors.New("another version of this program has made it")
		}
		if err == nil {
			_, err = tx.ExecContext(ctx, madeSchema)
		}
		return err
	})
}

// Close closes the store.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.read.Close(), s.write.Close())
}

const changeColumns = "c.path, c.op, c.kind, c.digest, c.previous, c.size, c.mode, c.target, c.kept, c.reason"

func scanChange(scan func(...any) error) (c Change, err error) {
	var path, target []byte
	err = scan(&path, &c.Op, &c.Kind, &c.Digest, &c.Previous, &c.Size, &c.Mode, &target, &c.Kept, &c.Reason)
	c.Path, c.Target = string(path), string(target)
	return c, err
}

// changes are those of a commit at or below a path, or all of them.
func changes(ctx context.Context, q sqlite.Querier, number uint64, path string) ([]Change, error) {
	query, args := "SELECT "+changeColumns+" FROM change c WHERE c.number = ?", []any{number}
	if path != "" {
		query, args = query+" AND "+within, append(args, blob(path), blob(path+"/"), blob(path+"0"))
	}
	return sqlite.Rows(ctx, q, scanChange, query+" ORDER BY c.path", args...)
}

// within is of a path and what is below it: "0" is next to "/".
const within = "(c.path = ? OR c.path >= ? AND c.path < ?)"

// blob is text that SQLite takes as the bytes that it is.
func blob(s string) []byte { return append([]byte{}, s...) }

// encode is the JSON that the digest of a commit is of.
func (c Commit) encode() ([]byte, error) {
	c.Digest = ""
	return json.Marshal(c)
}

func (c Commit) digestOf() (string, error) {
	text, err := c.encode()
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), err
}

// head is the JSON that is stored of a commit.
func (c Commit) head() (string, error) {
	c.Changes = nil
	text, err := c.encode()
	return string(text), err
}

// last is the newest commit, without its changes. It is the zero Commit if there is none.
func last(ctx context.Context, q sqlite.Querier) (c Commit, err error) {
	err = sqlite.Each(ctx, q, func(scan func(...any) error) error { return scanHead(scan, &c) },
		"SELECT number, digest, head FROM commits ORDER BY number DESC LIMIT 1")
	return c, err
}

func scanHead(scan func(...any) error, c *Commit) error {
	var number uint64
	var digest, head string
	if err := scan(&number, &digest, &head); err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(head), c); err != nil {
		return fmt.Errorf("%w: commit %d: %w", ErrDamaged, number, err)
	}
	c.Number, c.Digest = number, digest
	return nil
}

// file is the version of a path that the last commit left, and its stamp.
type file struct {
	Version
	stamp memory.Stamp
}

func files(ctx context.Context, q sqlite.Querier) (map[string]file, error) {
	all := map[string]file{}
	err := sqlite.Each(ctx, q, func(scan func(...any) error) error {
		var v file
		var path, target []byte
		var inode int64
		err := scan(&path, &v.Commit, &v.Kind, &v.Digest, &v.Size, &v.Mode, &target, &inode, &v.stamp.Changed, &v.Kept)
		v.Target, v.stamp.Inode = string(target), uint64(inode)
		all[string(path)] = v
		return err
	}, `SELECT path, number, kind, digest, size, mode, target, inode, changed,
		EXISTS(SELECT 1 FROM content d WHERE d.digest = f.digest) FROM file f`)
	return all, err
}

// Copy writes the history to a new file, for a fork. Versions in quarantine are not in it.
func (s *Store) Copy(ctx context.Context, to string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	err = func() error {
		if _, err := s.write.ExecContext(ctx, "VACUUM INTO ?", to); err != nil {
			return err
		}
		db, err := connect(to)
		if err != nil {
			return err
		}
		_, err = db.ExecContext(ctx, "DELETE FROM quarantine")
		return errors.Join(err, db.Close())
	}()
	if err == nil {
		err = durable.SyncDir(filepath.Dir(to))
	}
	if err != nil {
		return fmt.Errorf("copying the memory's history: %w", errors.Join(err, sqlite.Remove(to)))
	}
	return nil
}
