package history

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"sync"

	"github.com/klauspost/compress/zstd"

	"sallyport/internal/sqlite"
	"sallyport/memory"
)

// A row of the table content is the contents of its base row, if it has one, followed by its
// own data, compressed. A file that grows at its end so costs what each version adds. A base
// has a smaller id than the rows above it. A row without a digest is no version any more: it
// is there as the base of others.

// encoder and decoder compress and decompress one row's data, with Zstandard (RFC 8878).
var encoder = sync.OnceValue(func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
	if err != nil {
		panic(err)
	}
	return e
})

var decoder = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(memory.MaxFile))
	if err != nil {
		panic(err)
	}
	return d
})

// digests returns the digests of data and of its first size bytes.
func digests(data []byte, size int64) (whole, head memory.Digest) {
	h := sha256.New()
	h.Write(data[:size])
	head = sum(h)
	h.Write(data[size:])
	return sum(h), head
}

func sum(h hash.Hash) memory.Digest { return memory.Digest(hex.EncodeToString(h.Sum(nil))) }

// keep stores contents, and reports false if they are larger than MaxFile or MaxBytes. If they
// begin with the contents of a base, which are head bytes, only the rest is stored and counts.
func (r *recording) keep(ctx context.Context, d memory.Digest, data []byte, base memory.Digest, head int64) (bool, error) {
	there, from := false, int64(0)
	err := sqlite.Each(ctx, r.tx, func(scan func(...any) error) error {
		var id int64
		var is memory.Digest
		err := scan(&id, &is)
		if is == d {
			there = true
		} else {
			from = id
		}
		return err
	}, "SELECT id, digest FROM content WHERE digest IN (?, ?)", d, base)
	if err != nil || there {
		return there, err
	}
	added := data
	if from > 0 {
		added = data[head:]
	}
	if size := int64(len(added)); size > r.s.o.MaxFile || size > r.s.o.MaxBytes {
		return false, nil
	}
	packed := encoder().EncodeAll(added, []byte{})
	err = r.exec(ctx, "INSERT INTO content(digest, number, size, stored, base, data) VALUES(?, ?, ?, ?, ?, ?)",
		d, r.commit.Number, len(data), len(packed), from, packed)
	return true, err
}

// content returns contents by their digest. Its error is [ErrNotKept], [ErrDamaged], or the
// database's.
func content(ctx context.Context, q sqlite.Querier, d memory.Digest) (data []byte, err error) {
	there := false
	err = sqlite.Each(ctx, q, func(scan func(...any) error) error {
		var packed []byte
		var whole int
		err := scan(&packed, &whole)
		if there = true; data == nil {
			data = make([]byte, 0, max(0, min(whole, memory.MaxFile)))
		}
		if err == nil {
			if data, err = decoder().DecodeAll(packed, data); err == nil && len(data) > memory.MaxFile {
				err = memory.ErrTooLarge
			}
		}
		if err != nil {
			err = fmt.Errorf("%w: the contents %.12s: %w", ErrDamaged, string(d), err)
		}
		return err
	}, `WITH RECURSIVE part(id, base, whole, data) AS (SELECT id, base, size, data FROM content WHERE digest = ?
		UNION ALL SELECT c.id, c.base, p.whole, c.data FROM part p JOIN content c ON c.id = p.base AND c.id < p.id)
		SELECT data, whole FROM part ORDER BY id`, d)
	switch {
	case err != nil:
	case !there:
		err = fmt.Errorf("%w: %.12s", ErrNotKept, string(d))
	case memory.DigestOf(data) != d:
		err = fmt.Errorf("%w: the contents %.12s are others", ErrDamaged, string(d))
	}
	return data, err
}

// release takes the digest from a row, and deletes it and its bases as far as no other row is
// built on them. It returns how many stored bytes that frees, and the id of the row at which
// it stopped, or 0.
func (r *recording) release(ctx context.Context, id int64) (freed, base int64, err error) {
	if err = r.exec(ctx, "UPDATE content SET digest = NULL WHERE id = ?", id); err != nil {
		return 0, 0, err
	}
	for base = id; ; {
		size, below := int64(0), int64(-1)
		err = sqlite.Each(ctx, r.tx, func(scan func(...any) error) error { return scan(&size, &below) },
			"SELECT stored, base FROM content d WHERE id = ? AND digest IS NULL AND NOT EXISTS(SELECT 1 FROM content c WHERE c.base = d.id)", base)
		if err != nil || below < 0 {
			return freed, base, err
		}
		if err = r.exec(ctx, "DELETE FROM content WHERE id = ?", base); err != nil {
			return freed, 0, err
		}
		freed, base = freed+size, below
	}
}

// forget takes contents out of the store. Data that other contents begin with stays for them.
func (r *recording) forget(ctx context.Context, d memory.Digest) error {
	id := int64(0)
	err := sqlite.Each(ctx, r.tx, func(scan func(...any) error) error { return scan(&id) }, "SELECT id FROM content WHERE digest = ?", d)
	if err != nil || id == 0 {
		return err
	}
	r.commit.Dropped, r.purge = append(r.commit.Dropped, d), true
	_, _, err = r.release(ctx, id)
	return err
}

// bound drops the oldest contents while all are more than MaxBytes: first those that no
// present file has, and those in quarantine last. Contents that others begin with stay as
// long as these, since they cost nothing.
func (r *recording) bound(ctx context.Context) error {
	var total int64
	err := r.tx.QueryRowContext(ctx, "SELECT (SELECT coalesce(sum(stored), 0) FROM content) + (SELECT coalesce(sum(size), 0) FROM quarantine)").Scan(&total)
	const last, alone = "NOT EXISTS(SELECT 1 FROM content c WHERE c.base = d.id)", "NOT EXISTS(SELECT 1 FROM file WHERE file.digest = d.digest)"
	for _, from := range []string{
		"id, digest, 0 FROM content d WHERE " + last + " AND " + alone,
		"id, digest, 0 FROM content d WHERE " + last,
		"id, digest, size FROM quarantine d WHERE true",
	} {
		if err != nil || total <= r.s.o.MaxBytes {
			return err
		}
		type row struct {
			id   int64
			d    memory.Digest
			size int64
		}
		read := func(scan func(...any) error) (x row, err error) {
			err = scan(&x.id, &x.d, &x.size)
			return x, err
		}
		var oldest []row
		oldest, err = sqlite.Rows(ctx, r.tx, read, "SELECT "+from+" ORDER BY number, id")
		for len(oldest) > 0 && err == nil && total > r.s.o.MaxBytes {
			x := oldest[0]
			oldest = oldest[1:]
			r.commit.Dropped = append(r.commit.Dropped, x.d)
			if x.size > 0 {
				total -= x.size
				err = r.exec(ctx, "DELETE FROM quarantine WHERE id = ?", x.id)
				continue
			}
			var freed, base int64
			if freed, base, err = r.release(ctx, x.id); err != nil {
				break
			}
			total -= freed
			// The base is older than all that are left: it is the next one.
			var next []row
			next, err = sqlite.Rows(ctx, r.tx, read, "SELECT "+from+" AND id = ?", base)
			oldest = append(next, oldest...)
		}
	}
	return err
}

// verifyContents checks that what is stored are the contents that commits have kept.
func verifyContents(ctx context.Context, q sqlite.Querier, kept map[memory.Digest]bool) error {
	type begun struct {
		hash hash.Hash
		size int64
	}
	known, unused := map[int64]begun{0: {hash: sha256.New()}}, map[int64]bool{}
	err := sqlite.Each(ctx, q, func(scan func(...any) error) error {
		var id, base, size, stored int64
		var digest *memory.Digest
		var packed []byte
		if err := scan(&id, &digest, &size, &stored, &base, &packed); err != nil {
			return err
		}
		before, ok := known[base]
		part, err := decoder().DecodeAll(packed, nil)
		if !ok || err != nil || int64(len(packed)) != stored || before.size+int64(len(part)) != size {
			return errors.Join(damaged("the contents %d are not what was recorded", id), err)
		}
		h, err := before.hash.(hash.Cloner).Clone()
		if err != nil {
			return err
		}
		h.Write(part)
		known[id] = begun{h, size}
		if delete(unused, base); digest == nil {
			unused[id] = true
			return nil
		}
		if !kept[*digest] || sum(h) != *digest {
			return damaged("the contents %.12s are not what was recorded", string(*digest))
		}
		delete(kept, *digest)
		return nil
	}, "SELECT id, digest, size, stored, base, data FROM content ORDER BY id")
	if err != nil {
		return err
	}
	for id := range unused {
		return damaged("the contents %d are of no version", id)
	}
	for d := range kept {
		return damaged("the contents %.12s are missing", string(d))
	}
	return nil
}

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, args...))
}
