package sqlite

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestFile(t *testing.T) {
	ctx, path := t.Context(), filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("what was there before"), 0o644); err != nil {
		t.Fatal(err)
	}
	db, err := Create(ctx, path, "CREATE TABLE word(id INTEGER PRIMARY KEY, text TEXT UNIQUE) STRICT;", 7, 1)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("the new file: %v, %v", info, err)
	}
	add := func(words ...string) error {
		return Transact(ctx, db, func(tx *Tx) error {
			for i, w := range words {
				if id, err := tx.Exec(ctx, "INSERT INTO word(text) VALUES(?)", w); err != nil {
					return err
				} else if id != int64(i)+1 {
					t.Errorf("%q has id %d", w, id)
				}
			}
			return nil
		})
	}
	if err := add("a", "b"); err != nil {
		t.Fatal(err)
	}
	if err := Transact(ctx, db, func(tx *Tx) error {
		_, err := tx.Exec(ctx, "DELETE FROM word")
		return errors.Join(err, fs.ErrInvalid)
	}); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("a transaction that failed: %v", err)
	}
	if _, err := db.ExecContext(ctx, "INSERT INTO word(text) VALUES('a')"); !Damaged(err) {
		t.Errorf("a constraint that does not hold: %v", err)
	}
	read, err := OpenReader(path, 1)
	if err != nil {
		t.Fatal(err)
	}
	words, err := Rows(ctx, read, func(scan func(...any) error) (w string, err error) {
		err = scan(&w)
		return w, err
	}, "SELECT text FROM word ORDER BY id")
	if err != nil || !slices.Equal(words, []string{"a", "b"}) {
		t.Errorf("the words are %q, %v", words, err)
	}
	if there, err := Exists(ctx, read, "SELECT 1 FROM word WHERE text = 'c'"); there || err != nil {
		t.Errorf("what is not there: %v, %v", there, err)
	}
	if _, err := read.ExecContext(ctx, "DELETE FROM word"); err == nil {
		t.Error("a reader writes")
	}
	if err := errors.Join(read.Close(), db.Close(), Remove(path), Remove(path)); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) > 0 {
		t.Errorf("%q is left", left)
	}
}
