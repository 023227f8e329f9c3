package history

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"sallyport/internal/sqlite"
	"sallyport/memory"
)

// maxChanges is how many changes Commits returns, or those of one commit.
const maxChanges = 200_000

// Commits returns commits, the newest first: fewer than asked for if they have very many
// changes. With a path the changes are those of the path only.
func (s *Store) Commits(ctx context.Context, f Filter) ([]Commit, error) {
	query, args := "SELECT s.number, s.digest, s.head FROM commits s WHERE s.number > ?", []any{f.After}
	and := func(text string, more ...any) { query, args = query+" AND "+text, append(args, more...) }
	if f.Before > 0 {
		and("s.number < ?", f.Before)
	}
	if !f.Since.IsZero() {
		and("s.at >= ?", f.Since.UnixNano())
	}
	if !f.Until.IsZero() {
		and("s.at <= ?", f.Until.UnixNano())
	}
	f.Path = strings.TrimSuffix(f.Path, "/")
	if f.Path != "" {
		and("s.number IN (SELECT c.number FROM change c WHERE "+within+")", blob(f.Path), blob(f.Path+"/"), blob(f.Path+"0"))
	}
	if f.Operation != "" {
		and("s.head ->> '$.cause.operation' = ?", f.Operation)
	}
	if f.Destination != "" {
		and("EXISTS(SELECT 1 FROM json_each(s.head, '$.cause.contacted') WHERE value = ?)", f.Destination)
	}
	tx, err := s.read.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	list, err := sqlite.Rows(ctx, tx, func(scan func(...any) error) (c Commit, err error) {
		err = scanHead(scan, &c)
		return c, err
	}, query+" ORDER BY s.number DESC LIMIT ?", append(args, min(cmp.Or(max(f.Limit, 0), 100), 1000))...)
	if err != nil {
		return nil, err
	}
	all := 0
	for i := range list {
		if list[i].Changes, err = changes(ctx, tx, list[i].Number, f.Path); err != nil {
			return nil, err
		}
		if all += len(list[i].Changes); all > maxChanges && i > 0 {
			return list[:i], nil
		}
	}
	return list, nil
}

// Last returns the newest commit, if there is one.
func (s *Store) Last(ctx context.Context) (Commit, bool, error) {
	list, err := s.Commits(ctx, Filter{Limit: 1})
	if err != nil || len(list) == 0 {
		return Commit{}, false, err
	}
	return list[0], true, nil
}

// At returns the memory as a commit left it, by path; 0 is before the first one.
func (s *Store) At(ctx context.Context, number uint64) (map[string]Version, error) {
	return at(ctx, s.read, number)
}

func at(ctx context.Context, q sqlite.Querier, number uint64) (map[string]Version, error) {
	newest, err := last(ctx, q)
	if err != nil {
		return nil, err
	}
	if number > newest.Number {
		return nil, fmt.Errorf("%w: %d, the last one is %d", ErrNoCommit, number, newest.Number)
	}
	there, err := sqlite.Exists(ctx, q, "SELECT 1 FROM commits WHERE number = ?", number)
	if err != nil {
		return nil, err
	}
	if !there && number > 0 {
		return nil, fmt.Errorf("%w: %d was trimmed", ErrNoCommit, number)
	}
	all := map[string]Version{}
	err = sqlite.Each(ctx, q, func(scan func(...any) error) error {
		var v Version
		var path, target []byte
		err := scan(&path, &v.Commit, &v.Kind, &v.Digest, &v.Size, &v.Mode, &target, &v.Kept)
		v.Target = string(target)
		all[string(path)] = v
		return err
	}, `SELECT path, number, kind, digest, size, mode, target, EXISTS(SELECT 1 FROM content d WHERE d.digest = c.digest)
		FROM (SELECT path, max(number) AS number, op, kind, digest, size, mode, target FROM change WHERE number <= ? AND op <> ? GROUP BY path) c
		WHERE op IN (?, ?)`, number, Discarded, Added, Changed)
	return all, err
}

// NumberAt returns the number of the commit that was the newest at a time.
func (s *Store) NumberAt(ctx context.Context, t time.Time) (number uint64, err error) {
	err = s.read.QueryRowContext(ctx, "SELECT coalesce(max(number), 0) FROM commits WHERE at <= ?", t.UnixNano()).Scan(&number)
	if err == nil && number == 0 {
		err = fmt.Errorf("%w: none is as old as %s", ErrNoCommit, t.Format(time.RFC3339))
	}
	return number, err
}

// Has says whether a path had the contents of a digest at the last commit.
func (s *Store) Has(ctx context.Context, path string, d memory.Digest) (has bool, err error) {
	err = s.read.QueryRowContext(ctx, "SELECT EXISTS(SELECT 1 FROM file WHERE path = ? AND digest = ?)", blob(path), d).Scan(&has)
	return has, err
}

// Contents returns what a path had at the last commit. Its error wraps [fs.ErrNotExist] if
// no file had that path, and [ErrNotKept].
func (s *Store) Contents(ctx context.Context, path string) ([]byte, error) {
	var d memory.Digest
	err := s.read.QueryRowContext(ctx, "SELECT digest FROM file WHERE path = ? AND kind = ?", blob(path), memory.KindFile).Scan(&d)
	if errors.Is(err, sql.ErrNoRows) {
		err = fmt.Errorf("%q: %w", path, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	return s.Content(ctx, d)
}

// Content returns contents by their digest.
func (s *Store) Content(ctx context.Context, d memory.Digest) ([]byte, error) {
	return content(ctx, s.read, d)
}

// Since returns the number of the first commit whose cause names a destination. A cause
// that lists not all of its destinations may have any.
func (s *Store) Since(ctx context.Context, destination string) (number uint64, err error) {
	err = s.read.QueryRowContext(ctx, `SELECT coalesce(min(number), 0) FROM commits WHERE head ->> '$.cause.more_contacted' > 0
		OR EXISTS(SELECT 1 FROM json_each(head, '$.cause.contacted') WHERE value = ?)`, destination).Scan(&number)
	if err == nil && number == 0 {
		err = fmt.Errorf("%w: none has contacted %q", ErrNoCommit, destination)
	}
	return number, err
}

// Verify checks that all commits are as they were recorded, and that the contents, the
// state and the quarantine are theirs. Its error wraps [ErrDamaged] if not.
func (s *Store) Verify(ctx context.Context) error {
	tx, err := s.read.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	err = sqlite.Each(ctx, tx, func(scan func(...any) error) error {
		var text string
		if err := scan(&text); err != nil || text == "ok" {
			return err
		}
		return damaged("%s", text)
	}, "PRAGMA integrity_check(1)")
	if err != nil {
		return err
	}
	var before Commit
	trimmed := false // what is in quarantine may be older then
	kept, state, known, count := map[memory.Digest]bool{}, map[string]Version{}, map[memory.Digest]bool{}, 0
	err = sqlite.Each(ctx, tx, func(scan func(...any) error) error {
		var c Commit
		var at int64
		var head string
		if err := scanHead(func(to ...any) error { err := scan(append(to, &at)...); head = *to[2].(*string); return err }, &c); err != nil {
			return err
		}
		if c.Changes, err = changes(ctx, tx, c.Number, ""); err != nil {
			return err
		}
		digest, err := c.digestOf()
		if err != nil {
			return err
		}
		again, err := c.head()
		if err != nil {
			return err
		}
		follows := c.Number == before.Number+1 && c.Parent == before.Digest
		if before.Number == 0 && c.Trimmed {
			follows, trimmed = true, true
		}
		switch {
		case !follows:
			return damaged("commit %d does not follow commit %d", c.Number, before.Number)
		case digest != c.Digest, again != head, at != c.Time.UnixNano():
			return damaged("commit %d has been changed", c.Number)
		}
		before, count = c, count+len(c.Changes)
		before.Changes = nil
		for _, x := range c.Changes {
			known[x.Digest] = true
			if x.Kept {
				kept[x.Digest] = true
			}
			switch x.Op {
			case Added, Changed:
				state[x.Path] = Version{Commit: c.Number, Kind: x.Kind, Digest: x.Digest, Size: x.Size, Mode: x.Mode, Target: x.Target}
			case Removed, Quarantined:
				delete(state, x.Path)
			}
		}
		for _, d := range c.Dropped {
			delete(kept, d)
		}
		return nil
	}, "SELECT number, digest, head, at FROM commits ORDER BY number")
	if err != nil {
		return err
	}
	var stored int
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM change").Scan(&stored); err != nil {
		return err
	}
	if stored != count {
		return damaged("%d changes are in no commit", stored-count)
	}
	now, err := files(ctx, tx)
	if err != nil {
		return err
	}
	for path, v := range now {
		v.Kept = false
		if state[path] != v.Version {
			return damaged("the state of %q is not what the commits say", path)
		}
	}
	if len(now) != len(state) {
		return damaged("the state has not all of the commits' files")
	}
	if err := verifyContents(ctx, tx, kept); err != nil {
		return err
	}
	return sqlite.Each(ctx, tx, func(scan func(...any) error) error {
		var sealed []byte
		q, err := scanQuarantine(scan, &sealed)
		if err != nil {
			return err
		}
		var data []byte
		if s.o.Key != nil {
			data, err = s.o.Key.Open(sealed)
		}
		if err != nil || !known[q.Digest] && !trimmed || s.o.Key != nil && memory.DigestOf(data) != q.Digest {
			return errors.Join(damaged("quarantined %q is not what was recorded", q.Path), err)
		}
		return nil
	}, "SELECT "+quarantineColumns+", sealed FROM quarantine")
}
