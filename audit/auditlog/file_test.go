package auditlog_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// TestFile does to a file what the log can do, at random, and compares it with what was
// written.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "segment")
	random := rand.New(rand.NewPCG(1, 2))
	var want []byte
	f, err := auditlog.OpenFile(path, os.O_CREATE|os.O_EXCL)
	must.OK(t, err)
	for i := range 300 {
		switch n := random.IntN(20); n {
		case 0:
			must.OK(t, f.Close())
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("step %d: closed with %d bytes, want the %d that were written (%v)", i, len(got), len(want), err)
			}
			if f, err = auditlog.OpenFile(path, 0); err != nil {
				t.Fatal(err)
			}
		case 1:
			want = want[:len(want)-random.IntN(len(want)+1)]
			must.OK(t, f.Truncate(int64(len(want))))
		default:
			b := bytes.Repeat([]byte{byte('a' + i%26)}, []int{1, 100, 4096, 20_000}[n%4]+random.IntN(3000))
			if got, err := f.Write(b); err != nil || got != len(b) {
				t.Fatalf("step %d: %d of %d bytes: %v", i, got, len(b), err)
			}
			want = append(want, b...)
		}
		must.OK(t, f.Sync())
		got, err := os.ReadFile(path)
		must.OK(t, err)
		if !bytes.HasPrefix(got, want) || len(bytes.TrimRight(got[len(want):], "\x00")) > 0 {
			t.Fatalf("step %d: the file is not the %d bytes that were written, and zeros", i, len(want))
		}
	}
	must.OK(t, f.Close())
}
