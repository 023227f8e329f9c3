package history

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"sallyport/internal/sqlite"
	"sallyport/memory"
)

// pathVersion names what a path was made by a commit.
type pathVersion struct {
	path   string
	number uint64
}

// lineage is where a version comes from. It never changes.
type lineage struct {
	first     uint64
	contacted []string // sorted
	more      int
}

// lineages are those that are known.
type lineages struct {
	mu    sync.Mutex
	of    map[pathVersion]lineage
	hosts int
}

const (
	maxLineages = 4096
	maxHosts    = 1 << 17 // of all lineages
)

func (l *lineages) get(v pathVersion) (lineage, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	x, ok := l.of[v]
	return x, ok
}

func (l *lineages) put(v pathVersion, x lineage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.of) >= maxLineages || l.hosts+len(x.contacted) > maxHosts || l.of == nil {
		l.of, l.hosts = map[pathVersion]lineage{}, 0
	}
	l.of[v] = x
	l.hosts += len(x.contacted)
}

// Taint says where the present contents of a path come from, as far as the last commit
// knows them. A version has a part of the one before it at its path; contents that were
// anywhere in the memory before have the provenance that they had there, so that moving,
// copying and rolling back change nothing. Text that a program wrote anew from what it had
// read has the destinations of its own commit only.
// With a number they are those that the path had by the commit of that number.
func (s *Store) Taint(ctx context.Context, path string, number uint64) (Provenance, error) {
	tx, err := s.read.BeginTx(ctx, nil)
	if err != nil {
		return Provenance{}, err
	}
	defer tx.Rollback()
	v := pathVersion{path: path, number: number}
	if number == 0 {
		err = sqlite.Each(ctx, tx, func(scan func(...any) error) error { return scan(&v.number) }, "SELECT number FROM file WHERE path = ?", blob(path))
	}
	if err == nil && v.number == 0 {
		err = fmt.Errorf("%q: %w", path, fs.ErrNotExist)
	}
	if err != nil {
		return Provenance{}, err
	}
	x, known := s.lineages.get(v)
	if !known {
		if x, err = s.lineage(ctx, tx, v); err != nil {
			return Provenance{}, err
		}
		s.lineages.put(v, x)
	}
	listed := min(len(x.contacted), maxDestinations)
	return Provenance{Commit: v.number, First: x.first, Contacted: slices.Clone(x.contacted[:listed]), MoreContacted: x.more + len(x.contacted) - listed}, nil
}

// versionsOf are the versions of a path up to a commit, the newest first: what was done,
// whom the sandbox had contacted, and the first commit that had the same contents before.
const versionsOf = `SELECT c.number, c.op, c.digest, s.head ->> '$.cause.contacted', coalesce(s.head ->> '$.cause.more_contacted', 0),
	CASE WHEN c.digest IN ('', ?1) THEN 0 ELSE coalesce((SELECT min(o.number) FROM change o WHERE o.digest = c.digest AND o.number < c.number AND o.op <> ?2), 0) END
	FROM change c LEFT JOIN commits s USING(number) WHERE c.path = ?3 AND c.number <= ?4 AND c.op <> ?2 ORDER BY c.number DESC`

// lineage follows a version back to where its contents are from.
func (s *Store) lineage(ctx context.Context, q sqlite.Querier, v pathVersion) (lineage, error) {
	x := lineage{first: v.number}
	done := errors.New("done")
	for v.number > 0 {
		var digest memory.Digest
		next := uint64(0)
		err := sqlite.Each(ctx, q, func(scan func(...any) error) error {
			var op string
			var contacted *string
			var more int
			at := pathVersion{path: v.path}
			if err := scan(&at.number, &op, &digest, &contacted, &more, &next); err != nil {
				return err
			}
			if known, ok := s.lineages.get(at); ok {
				x.first, x.more, next = min(x.first, known.first), x.more+known.more, 0
				x.contacted = append(x.contacted, known.contacted...)
				return done
			}
			if x.first = min(x.first, at.number); contacted != nil {
				var hosts []string
				if err := json.Unmarshal([]byte(*contacted), &hosts); err != nil {
					return fmt.Errorf("%w: commit %d: %w", ErrDamaged, at.number, err)
				}
				x.contacted = append(x.contacted, hosts...)
			}
			if x.more += more; next > 0 || op == Added {
				return done
			}
			return nil
		}, versionsOf, memory.DigestOf(nil), Discarded, blob(v.path), v.number)
		if err != nil && !errors.Is(err, done) {
			return x, err
		}
		v.number = next
		if next > 0 {
			var origin []byte
			if err := sqlite.Each(ctx, q, func(scan func(...any) error) error { return scan(&origin) },
				"SELECT path FROM change WHERE digest = ? AND number = ? AND op <> ? ORDER BY path LIMIT 1", digest, next, Discarded); err != nil {
				return x, err
			}
			v.path = string(origin)
		}
		if len(x.contacted) > 1<<16 {
			x.contacted = unique(x.contacted)
		}
	}
	x.contacted = unique(x.contacted)
	return x, nil
}

func unique(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}
