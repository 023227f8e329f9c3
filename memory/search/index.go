// Package search finds entries of a sandbox's memory, with no model and no network: the
// full text of its files, by SQLite's FTS5.
//
// It promises: the index is made of the files and nothing else, so it can be removed
// at any time; after an Update, a Search finds what is in the files as that Update met
// them; whatever the files hold and whatever is asked, the work is bounded. The index is
// on the host, where a sandbox cannot write to it.
//
// It does not promise that words which mean the same find each other. An [Embedder]
// is for that.
package search

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"sync"
	"sync/atomic"
	"unicode"

	"sallyport/internal/sqlite"
	"sallyport/memory"
)

// schema has the files as they were met, their documents (a file, or a part of a session
// of the conversations), the documents' units (a paragraph, or a turn), the words of units
// (of those around them too), and the words of documents that have several.
const schema = `
CREATE TABLE file(id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, inode INTEGER NOT NULL, changed INTEGER NOT NULL, bytes INTEGER NOT NULL) STRICT;
CREATE TABLE document(id INTEGER PRIMARY KEY, file INTEGER NOT NULL, digest BLOB NOT NULL, entry TEXT NOT NULL, session TEXT NOT NULL, units INTEGER NOT NULL) STRICT;
CREATE INDEX document_file ON document(file);
CREATE TABLE unit(id INTEGER PRIMARY KEY, document INTEGER NOT NULL, line INTEGER NOT NULL, type TEXT NOT NULL, time INTEGER NOT NULL, digest BLOB NOT NULL, heading TEXT NOT NULL, text TEXT NOT NULL) STRICT;
CREATE INDEX unit_document ON unit(document);
CREATE INDEX unit_time ON unit(time);
CREATE INDEX unit_digest ON unit(digest);
CREATE TABLE vector(digest BLOB PRIMARY KEY, vector BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE model(name TEXT NOT NULL) STRICT;
CREATE VIRTUAL TABLE unit_words USING fts5(heading, text, near, content='', contentless_delete=1, tokenize='porter unicode61');
CREATE VIRTUAL TABLE document_words USING fts5(heading, text, content='', contentless_delete=1, tokenize='porter unicode61');
`

// splitting changes with how files are made into units and words.
const splitting = "1"

// version tells an index of this program from that of another one.
var version = int64(crc32.ChecksumIEEE([]byte(schema+splitting+unicode.Version)) >> 1)

// Options of an Index.
type Options struct {
	// Embedder adds the units that mean what a query means. nil for none.
	Embedder Embedder
	// Inspect returns why a file must not be indexed, or "". Such a file is found by its
	// name only, and asked about again by the next Update. nil admits all.
	Inspect func(ctx context.Context, path string, data []byte) (reason string)
	// MaxText is how many bytes of text are indexed: the index takes about six times as much
	// on disk. Files beyond that are found by their names only. 0 is 256 MiB.
	MaxText int64
}

// Index finds entries of one sandbox's memory. It is safe for concurrent use by one
// process.
type Index struct {
	path    string
	options Options

	mu sync.RWMutex // held for reading while db is used
	db *sql.DB

	update sync.Mutex
	files  map[string]known // the table file as it is, or nil; guarded by update
	broken atomic.Bool      // it is to be made anew
}

// Open opens the index at path. One that is not there, is damaged, or was made by another
// version begins empty.
func Open(ctx context.Context, path string, o Options) (*Index, error) {
	o.MaxText = cmp.Or(o.MaxText, 256<<20)
	x := &Index{path: path, options: o}
	if _, err := os.Stat(path); err == nil {
		if x.db, err = sqlite.Open(path, connections, pragmas...); err != nil {
			return nil, err
		}
		var of int64
		if err = x.db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&of); err == nil && of == version {
			return x, nil
		}
		if err != nil && !damaged(err) {
			return nil, fmt.Errorf("opening the search index: %w", errors.Join(err, x.db.Close()))
		}
	}
	if err := x.create(ctx); err != nil {
		return nil, fmt.Errorf("making the search index: %w", err)
	}
	return x, nil
}

// Close closes the index.
func (x *Index) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.db.Close()
}

const connections = 2

var pragmas = []string{"synchronous(normal)", "cache_size(-8192)", "journal_size_limit(16777216)", "secure_delete(on)"}

// create makes an index that has nothing, in place of what is there.
func (x *Index) create(ctx context.Context) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.files = nil
	if x.db != nil {
		x.db.Close() // what it says of a damaged index does not matter
	}
	db, err := sqlite.Create(ctx, x.path, schema, version, connections, pragmas...)
	if err != nil {
		x.broken.Store(true) // a search returns the errors of the one that was closed
		return err
	}
	x.db = db
	return nil
}

// errDamaged is of a row that this program has not written.
var errDamaged = errors.New("the index is damaged")

// damaged says whether SQLite cannot read the index, or finds in it what cannot be.
func damaged(err error) bool { return errors.Is(err, errDamaged) || sqlite.Damaged(err) }

// each is sqlite.Each with errDamaged of a row that cannot be scanned.
func each(ctx context.Context, q sqlite.Querier, do func(scan func(...any) error) error, query string, args ...any) error {
	return sqlite.Each(ctx, q, func(row func(...any) error) error {
		return do(func(into ...any) error {
			if err := row(into...); err != nil {
				return fmt.Errorf("%w: %w", errDamaged, err)
			}
			return nil
		})
	}, query, args...)
}

// ErrFull says that the text of some files is not indexed.
var ErrFull = errors.New("the memory has more text than is searched")

// Progress is told how much of a long work is done.
type Progress func(done, total int)

// Update brings the index up to what is in a memory. It reads the files whose stamps are
// not known and no other. Broken off, it keeps what it has done. An index that turns out
// to be damaged is made anew. progress may be nil.
//
// Its error wraps [memory.ErrTruncated] if the memory has more than 100,000 entries,
// [ErrFull] if it has more text than Options.MaxText, and [ErrEmbedding] if the Embedder
// failed; the words of all else are up to date then.
func (x *Index) Update(ctx context.Context, f *memory.Folder, progress Progress) error {
	entries, err := f.Scan(MaxFiles)
	if err != nil && !errors.Is(err, memory.ErrTruncated) {
		return fmt.Errorf("updating the search index: %w", err)
	}
	return x.UpdateTo(ctx, f, entries, err, progress)
}

// UpdateTo is Update by what [memory.Folder.Scan] has returned just now. Text that is
// written to a file since is met by this Update, or by the next.
func (x *Index) UpdateTo(ctx context.Context, f *memory.Folder, entries []memory.Entry, cut error, progress Progress) error {
	x.update.Lock()
	defer x.update.Unlock()
	if progress == nil {
		progress = func(int, int) {}
	}
	if x.broken.Swap(false) {
		if err := x.create(ctx); err != nil {
			return fmt.Errorf("making the search index anew: %w", err)
		}
	}
	news, incomplete, err := x.words(ctx, f, entries, cut, progress)
	if damaged(err) {
		if err := x.create(ctx); err != nil {
			return fmt.Errorf("making the search index anew: %w", err)
		}
		news, incomplete, err = x.words(ctx, f, entries, cut, progress)
	}
	if err != nil {
		return fmt.Errorf("updating the search index: %w", err)
	}
	return errors.Join(incomplete, x.embed(ctx, news, progress))
}
