package history_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sallyport/memory"
	"sallyport/memory/history"
)

// BenchmarkRecordUnchanged looks at 10,000 files of which none has changed.
func BenchmarkRecordUnchanged(b *testing.B) {
	sandbox := b.TempDir()
	dir, err := memory.Ensure(sandbox)
	if err != nil {
		b.Fatal(err)
	}
	for i := range 10_000 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte(fmt.Sprint(i)), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	f, err := memory.Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	s, err := history.Open(b.Context(), filepath.Join(sandbox, "history.db"), history.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	time.Sleep(100 * time.Millisecond)
	if _, err := s.Record(b.Context(), f, history.Cause{}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if c, err := s.Record(b.Context(), f, history.Cause{}); c != nil || err != nil {
			b.Fatal(c, err)
		}
	}
}
