package search

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"sallyport/internal/sqlite"
	"sallyport/memory"
)

const (
	// MaxFiles is how many entries of a memory are looked at: as many as its history records.
	MaxFiles = 100_000
	// maxText is the size of the largest file whose text is indexed, in bytes.
	maxText = 1 << 20
	// batch is how many files a transaction is about, and batchText their size in bytes, but
	// for a single one.
	batch     = 64
	batchText = 4 << 20
	// settled is how old a change must be for its stamp to tell it from the next one:
	// more than a tick of the clock that stamps files.
	settled = 50 * time.Millisecond
)

// known is a file as it was met last.
type known struct {
	id    int64
	stamp memory.Stamp
	bytes int64 // of text that is indexed, or left if that was too much
}

// left is the size of a file's text that had no room.
const left = -1

// words brings the words up to date, and says whether anything had changed. incomplete is a
// memory.ErrTruncated, an ErrFull, or both.
func (x *Index) words(ctx context.Context, f *memory.Folder, entries []memory.Entry, cut error, progress Progress) (news bool, incomplete, err error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	now := time.Now()
	incomplete = cut
	files := x.files
	if files == nil {
		if files, err = x.known(ctx); err != nil {
			return false, nil, err
		}
		x.files = files
	}
	met := 0
	w := &writer{ctx: ctx, index: x, folder: f, now: now}
	for _, k := range files {
		w.total += max(0, k.bytes)
	}
	type change struct {
		memory.Entry
		known
	}
	var changed, waiting []change
	for _, e := range entries {
		if e.Kind != memory.KindFile || strings.Contains(e.Path, ".sallyport-") {
			continue
		}
		if e.Path == conversations && e.Size > maxConversations {
			incomplete = errors.Join(incomplete, fmt.Errorf("%w: no turn of %s is found, as %d MiB of it are the most: remove old turns, or move them out of the memory", ErrFull, conversations, maxConversations>>20))
		}
		k, was := files[e.Path]
		if was {
			met++
		}
		switch {
		case k.id == 0 || k.stamp != e.Stamp:
			changed = append(changed, change{e, k})
		case k.bytes == left:
			waiting = append(waiting, change{e, k})
		}
	}
	gone := len(files) - met
	if gone > 0 {
		there := map[string]bool{}
		for _, e := range entries {
			there[e.Path] = e.Kind == memory.KindFile
		}
		if err := w.do(func() error {
			for path, k := range files {
				if there[path] {
					continue
				}
				if err := w.remove(k); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return true, nil, err
		}
	}
	free := x.options.MaxText - w.total
	for _, c := range waiting {
		if free -= c.Size; free < 0 {
			free += c.Size
			w.left++
			continue
		}
		changed = append(changed, c)
	}
	for i := 0; i < len(changed); {
		progress(i, len(changed))
		some := changed[i:min(i+batch, len(changed))]
		size := int64(0)
		for n, c := range some {
			if size += min(c.Size, maxConversations); size > batchText && n > 0 {
				some = some[:n]
				break
			}
		}
		i += len(some)
		err := w.do(func() error {
			for _, c := range some {
				if err := w.file(c.Entry, c.known); err != nil {
					return fmt.Errorf("%q: %w", c.Path, err)
				}
			}
			return nil
		})
		if err != nil {
			return true, nil, err
		}
	}
	progress(len(changed), len(changed))
	if w.left > 0 {
		incomplete = errors.Join(incomplete, fmt.Errorf("%w: %d files are found by their names alone, as %d MiB of text are the most: remove files that are not needed, or move them out of the memory", ErrFull, w.left, x.options.MaxText>>20))
	}
	return len(changed)+gone > 0, incomplete, nil
}

func (x *Index) known(ctx context.Context) (map[string]known, error) {
	files := map[string]known{}
	return files, each(ctx, x.db, func(scan func(...any) error) error {
		var path string
		var k known
		var inode int64
		err := scan(&path, &k.id, &inode, &k.stamp.Changed, &k.bytes)
		k.stamp.Inode = uint64(inode)
		files[path] = k
		return err
	}, "SELECT path, id, inode, changed, bytes FROM file")
}

// writer writes to the index, a transaction at a time.
type writer struct {
	ctx    context.Context
	index  *Index
	folder *memory.Folder
	total  int64 // bytes of text that are indexed
	left   int   // files whose text has no room
	now    time.Time
	tx     *sqlite.Tx
}

func (w *writer) do(work func() error) error {
	w.index.files = nil
	return sqlite.Transact(w.ctx, w.index.db, func(tx *sqlite.Tx) error {
		w.tx = tx
		return work()
	})
}

func (w *writer) exec(statement string, args ...any) (id int64, err error) {
	return w.tx.Exec(w.ctx, statement, args...)
}

// file indexes a file in place of what was known of it. A file that the sandbox took away
// or replaced meanwhile, or that nobody may read, is found by its name.
func (w *writer) file(e memory.Entry, k known) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	w.total -= max(0, k.bytes)
	most := int64(maxText)
	if e.Path == conversations {
		most = maxConversations
	}
	var data []byte
	size := int64(0)
	switch {
	case e.Size > most:
	case w.total+e.Size > w.index.options.MaxText:
		w.left++
		size = left
	default:
		var err error
		data, err = w.folder.Read(e.Path)
		if errors.Is(err, fs.ErrNotExist) {
			k.bytes = 0
			return w.remove(k)
		}
		if err != nil || int64(len(data)) > most || !isText(data) {
			data = nil
		}
		if inspect := w.index.options.Inspect; data != nil && inspect != nil && inspect(w.ctx, e.Path, data) != "" {
			data, e.Stamp.Changed = nil, -1 // the next Update asks again
		}
	}
	if data != nil {
		size = int64(len(data))
		w.total += size
	}
	stamp := e.Stamp
	if w.now.Sub(time.Unix(0, stamp.Changed)) < settled {
		stamp.Changed = -1
	}
	args := []any{e.Path, int64(stamp.Inode), stamp.Changed, size}
	if k.id != 0 {
		if _, err := w.exec("UPDATE file SET path=?, inode=?, changed=?, bytes=? WHERE id=?", append(args, k.id)...); err != nil {
			return err
		}
	} else {
		var err error
		if k.id, err = w.exec("INSERT INTO file(path, inode, changed, bytes) VALUES(?,?,?,?)", args...); err != nil {
			return err
		}
	}
	return w.documents(k.id, split(e.Path, data, e.Modified))
}

// documents puts documents of a file in place of those that differ.
func (w *writer) documents(file int64, documents []document) error {
	old := map[string]int64{}
	err := each(w.ctx, w.tx, func(scan func(...any) error) error {
		var id int64
		var digest []byte
		err := scan(&id, &digest)
		old[string(digest)] = id
		return err
	}, "SELECT id, digest FROM document WHERE file=?", file)
	if err != nil {
		return err
	}
	for _, d := range documents {
		digest := d.digest()
		if _, ok := old[string(digest)]; ok {
			delete(old, string(digest))
			continue
		}
		if err := w.insert(file, digest, d); err != nil {
			return err
		}
	}
	for _, id := range old {
		if err := w.removeDocument(id); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) insert(file int64, digest []byte, d document) error {
	document, err := w.exec("INSERT INTO document(file, digest, entry, session, units) VALUES(?,?,?,?,?)", file, digest, d.entry, d.session, len(d.units))
	if err != nil {
		return err
	}
	var whole strings.Builder
	for i, u := range d.units {
		id, err := w.exec("INSERT INTO unit(document, line, type, time, digest, heading, text) VALUES(?,?,?,?,?,?,?)",
			document, u.line, u.kind, u.time.UnixMilli(), u.digest(), u.heading, u.text)
		if err != nil {
			return err
		}
		if _, err := w.exec("INSERT INTO unit_words(rowid, heading, text, near) VALUES(?,?,?,?)", id, spaced(u.heading+u.date()), spaced(u.text), spaced(d.near(i))); err != nil {
			return err
		}
		if u.kind == turnType {
			whole.WriteString(u.heading + ": ")
		}
		whole.WriteString(u.text)
		whole.WriteString("\n\n")
	}
	if len(d.units) == 1 {
		return nil
	}
	_, err = w.exec("INSERT INTO document_words(rowid, heading, text) VALUES(?,?,?)", document, spaced(d.heading+d.units[0].date()), spaced(whole.String()))
	return err
}

func (w *writer) removeDocument(id int64) error {
	for _, s := range []string{
		"DELETE FROM unit_words WHERE rowid IN (SELECT id FROM unit WHERE document=?)",
		"DELETE FROM unit WHERE document=?",
		"DELETE FROM document_words WHERE rowid=?",
		"DELETE FROM document WHERE id=?",
	} {
		if _, err := w.exec(s, id); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) remove(k known) error {
	if k.id == 0 {
		return nil
	}
	if err := w.documents(k.id, nil); err != nil {
		return err
	}
	w.total -= max(0, k.bytes)
	_, err := w.exec("DELETE FROM file WHERE id=?", k.id)
	return err
}
