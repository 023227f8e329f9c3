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

// BenchmarkTaint asks where the contents of a file with 10,000 versions are from: first,
// and again.
func BenchmarkTaint(b *testing.B) {
	s, f, path := versioned(b, 10_000)
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			s, err := history.Open(b.Context(), path, history.Options{})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := s.Taint(b.Context(), "a", 0); err != nil {
				b.Fatal(err)
			}
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
	s, err := history.Open(b.Context(), path, history.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	defer f.Close()
	b.Run("again", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Taint(b.Context(), "a", 0); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// versioned is a memory whose file a has so many versions.
func versioned(b *testing.B, n int) (*history.Store, *memory.Folder, string) {
	sandbox := b.TempDir()
	dir, err := memory.Ensure(sandbox)
	if err != nil {
		b.Fatal(err)
	}
	f, err := memory.Open(dir)
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(sandbox, "history.db")
	s, err := history.Open(b.Context(), path, history.Options{})
	if err != nil {
		b.Fatal(err)
	}
	for i := range n {
		if err := os.WriteFile(filepath.Join(dir, "a"), []byte(fmt.Sprint(i)), 0o600); err != nil {
			b.Fatal(err)
		}
		if _, err := s.Record(b.Context(), f, history.Cause{Contacted: []string{fmt.Sprint(i%50, ".example")}}); err != nil {
			b.Fatal(err)
		}
	}
	return s, f, path
}
