// Package index finds events of an audit log without reading all of it.
//
// The index is a file, made of the log and of nothing else: it can be removed at any time,
// and is made anew if it is of another version, of another log, or if a line that it
// remembers is another one now. It holds where each event is and the terms that it has
// (words, and digests or numbers of fields), so that every event that is found is read from
// the log, and compared with the query once more.
//
// [Search] promises the same events, in the same order, as from the log alone
// ([Scan]), however old the index is or whether there is one. Records that the index does
// not have yet are read from the log. An index that is damaged in a way that SQLite does not
// notice can hide events, and never invent or change one; Scan needs no index.
//
// [Follow] keeps an index current. It looks at the log every two seconds, rests as long as
// it works, leaves 1 GiB of the disk free, and waits for nothing that others wait for.
package index

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/audit/auditlog"
	"sallyport/internal/periodic"
	"sallyport/internal/sqlite"
)

// Index is an index that is written. It is not safe for concurrent use.
type Index struct {
	dir     string // of the log
	db      *sql.DB
	last    uint64 // number of the last event that is indexed
	current span
}

// span is a row of the table of that name.
type span struct {
	first, last uint64
	low, high   int64 // times
	head, tail  int64 // sums
}

// Open opens the index at path of the log in dir, and makes it anew if it does not fit.
func Open(ctx context.Context, dir, path string) (*Index, error) {
	log, err := auditlog.OpenPicker(dir)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	x := &Index{dir: dir}
	if _, err := os.Stat(path); err == nil {
		if x.db, err = sqlite.Open(path, 1, pragmas...); err != nil {
			return nil, err
		}
		if x.last, err = examine(ctx, x.db, log); err == nil {
			return x, x.resume(ctx)
		}
		if err := errors.Join(x.db.Close(), ctx.Err()); err != nil {
			return nil, err
		}
	}
	x.last = 0
	if x.db, err = sqlite.Create(ctx, path, schema, version, 1, pragmas...); err != nil {
		return nil, fmt.Errorf("making the audit's index: %w", err)
	}
	return x, nil
}

func (x *Index) resume(ctx context.Context) error {
	s := &x.current
	err := x.db.QueryRowContext(ctx, "SELECT first, last, low, high, head, tail FROM span ORDER BY first DESC LIMIT 1").Scan(&s.first, &s.last, &s.low, &s.high, &s.head, &s.tail)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	return err
}

// Close closes the file.
func (x *Index) Close() error { return x.db.Close() }

// Update indexes what the log has now. It calls rest, unless nil, after each batch with
// the time that it took. The error wraps what Open would find: that the index does not
// fit the log any more.
func (x *Index) Update(ctx context.Context, rest func(time.Duration)) error {
	log, err := auditlog.OpenPicker(x.dir)
	if err != nil {
		return err
	}
	_, err = through(ctx, x.db, log)
	if err := errors.Join(err, log.Close()); err != nil {
		return err
	}
	began := time.Now()
	b := x.batch()
	for e, err := range auditlog.Entries(ctx, x.dir, auditlog.Query{From: x.last + 1}) {
		var damage *auditlog.DamageError
		switch {
		case errors.As(err, &damage):
			b.damage = append(b.damage, found{damage, b.last + 1})
		case err != nil:
			return err
		default:
			b.add(e)
		}
		if len(b.rows)+len(b.damage) < maxBatch {
			continue
		}
		if err := x.commit(ctx, b); err != nil {
			return err
		}
		if rest != nil {
			rest(time.Since(began))
		}
		began, b = time.Now(), x.batch()
	}
	return x.commit(ctx, b)
}

// Last is the number up to which the log in dir is in the index at path, 0 for no index.
func Last(ctx context.Context, dir, path string) (last uint64) {
	_ = reading(ctx, dir, path, func(_ *sql.DB, _ *auditlog.Picker, n uint64) error { last = n; return nil })
	return last
}

// Times of Follow.
const (
	lookEvery  = 2 * time.Second
	afterError = time.Minute
	closeAfter = time.Minute // without anything new
)

// minFree is how much of the disk stays free, in bytes: the log needs it more.
const minFree = 1 << 30

var errRoom = errors.New("too little of the disk is free")

// Follow keeps the index at path of the log in dir current until ctx is done. A failure is
// logged once, and the work tried again. It returns nil.
func Follow(ctx context.Context, dir, path string, log *slog.Logger) error {
	f := follower{dir: dir, path: path}
	defer f.close()
	failing := false
	for {
		err := f.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		wait := lookEvery
		switch {
		case err != nil:
			wait = afterError
			f.close()
			if !failing {
				log.Error("the audit's index is not kept current: queries read the log instead", "error", err)
			}
		case failing:
			log.Info("the audit's index is kept current again")
		}
		failing = err != nil
		if !periodic.Sleep(ctx, wait) {
			return nil
		}
	}
}

type follower struct {
	dir, path string
	open      *Index // nil while there is nothing to do
	seen      string // of the log, at the last look
	since     time.Time
}

// look indexes what is new.
func (f *follower) look(ctx context.Context) error {
	file, at, err := auditlog.Written(f.dir)
	if err != nil {
		return err
	}
	now := file + " " + at.Format(time.RFC3339Nano)
	if now == f.seen {
		if time.Since(f.since) > closeAfter {
			f.close()
		}
		return nil
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(f.dir, &disk); err != nil {
		return err
	}
	if free := disk.Bavail * uint64(disk.Bsize); free < minFree {
		return fmt.Errorf("%w: %d bytes, of which %d stay", errRoom, free, minFree)
	}
	rest := func(took time.Duration) { periodic.Sleep(ctx, took) }
	if f.open != nil {
		err = f.open.Update(ctx, rest)
	}
	if f.open == nil || errors.Is(err, errUnfit) {
		f.close()
		if f.open, err = Open(ctx, f.dir, f.path); err == nil {
			err = f.open.Update(ctx, rest)
		}
	}
	if err == nil {
		f.seen, f.since = now, time.Now()
	}
	return err
}

func (f *follower) close() {
	if f.open != nil {
		_ = f.open.Close() // what it has is in the file, or will be indexed again
		f.open, f.seen = nil, ""
	}
}
