// Package ondisk looks for texts in the files of a folder, for tests that nothing of a secret
// is left there.
package ondisk

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/klauspost/compress/zstd"
)

// large is the size of files that are not read, in bytes: those of tests about large files.
const large = 64 << 20

// Find returns the files in a folder, and in those below it, that have one of some texts: in
// their bytes, or in a value of an SQLite database, compressed or not. A full-text index
// has the words of a text apart and in small letters: the longest word with a digit is
// looked for too, if it has 12 letters and digits or more, without its first half, of which
// such an index leaves out what it shares with another word.
func Find(t testing.TB, dir string, texts ...string) (found []string) {
	t.Helper()
	var wanted [][]byte
	for _, text := range texts {
		wanted = append(wanted, []byte(strings.ToLower(text)))
		words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsNumber(r) })
		words = slices.DeleteFunc(append(words, "0"), func(w string) bool { return !strings.ContainsFunc(w, unicode.IsNumber) })
		if longest := slices.MaxFunc(words, func(a, b string) int { return len(a) - len(b) }); len(longest) >= 12 {
			wanted = append(wanted, []byte(longest[len(longest)/2:]))
		}
	}
	has := func(data []byte) bool {
		data = bytes.ToLower(data)
		return slices.ContainsFunc(wanted, func(w []byte) bool { return bytes.Contains(data, w) })
	}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		if info, err := e.Info(); err != nil || info.Size() > large {
			return err
		}
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		is := err == nil && has(data)
		if err == nil && !is && bytes.HasPrefix(data, []byte("SQLite format 3\x00")) {
			is, err = database(path, has)
		}
		if is {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// database says whether a value in an SQLite database has something.
func database(path string, has func([]byte) bool) (is bool, err error) {
	source := url.URL{Scheme: "file", Path: path, RawQuery: "mode=ro&_pragma=busy_timeout(5000)"}
	db, err := sql.Open("sqlite", source.String())
	if err != nil {
		return false, err
	}
	defer db.Close()
	unzip, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return false, err
	}
	defer unzip.Close()
	var tables []string
	err = each(db, func(values []any) { tables = append(tables, fmt.Sprint(values[0])) }, "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'")
	for _, table := range tables {
		err = errors.Join(err, each(db, func(values []any) {
			for _, v := range values {
				switch v := v.(type) {
				case string:
					is = is || has([]byte(v))
				case []byte:
					is = is || has(v)
					if data, err := unzip.DecodeAll(v, nil); err == nil {
						is = is || has(data)
					}
				}
			}
		}, `SELECT * FROM "`+table+`"`))
	}
	return is, err
}

func each(db *sql.DB, do func(values []any), query string) error {
	rows, err := db.Query(query)
	if err != nil {
		return err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return err
	}
	values, into := make([]any, len(columns)), make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		do(values)
	}
	return rows.Err()
}
