package ondisk_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"sallyport/internal/test/must"
	"sallyport/internal/test/ondisk"
)

// Find finds a text in each place where one may be left.
func TestFind(t *testing.T) {
	const text = "open-Q3EGVZLP7N2XWKDB"
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "plain"), []byte("a "+text), 0o600))
	must.OK(t, os.WriteFile(filepath.Join(dir, "none"), []byte("a Q3EGVZLP"), 0o600))
	zip, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	must.OK(t, err)
	for name, statements := range map[string][]string{
		"words":      {"CREATE VIRTUAL TABLE w USING fts5(t, content='', tokenize='porter unicode61')", "INSERT INTO w(t) VALUES(CAST(? AS TEXT))"},
		"compressed": {"CREATE TABLE c(data BLOB) STRICT", "INSERT INTO c VALUES(?)"},
		"clean.db":   {"CREATE TABLE c(data BLOB) STRICT", "INSERT INTO c SELECT x'00' WHERE ? IS NULL"},
	} {
		db, err := sql.Open("sqlite", filepath.Join(dir, name))
		must.OK(t, err)
		value := []byte("a " + text)
		if name == "compressed" {
			value = zip.EncodeAll([]byte(strings.Repeat("much of it ", 100)+text), nil)
		}
		_, err = db.Exec(statements[0])
		must.OK(t, err)
		_, err = db.Exec(statements[1], value)
		must.OK(t, err)
		must.OK(t, db.Close())
	}
	var names []string
	for _, path := range ondisk.Find(t, dir, "another", text) {
		names = append(names, filepath.Base(path))
	}
	if want := []string{"compressed", "plain", "words"}; !slices.Equal(names, want) {
		t.Errorf("found in %q, want %q", names, want)
	}
}
