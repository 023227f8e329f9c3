package keeper_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/memory/keeper"
)

// A memory of a million files costs the host no more than the most that it records, is
// searched in part and says so, and can be broken off. SALLYPORT_FILES is how many.
func TestMillionFiles(t *testing.T) {
	if os.Getenv("SALLYPORT_SOAK") == "" {
		t.Skip("a million files take minutes: make soak")
	}
	files := 1_000_000
	if text := os.Getenv("SALLYPORT_FILES"); text != "" {
		n, err := strconv.Atoi(text)
		must.OK(t, err)
		files = n
	}
	const most = 100_000
	r := newRig(t)
	for i := range files {
		folder := r.path(fmt.Sprintf("memories/%04d", i/1000))
		if i%1000 == 0 {
			must.OK(t, os.MkdirAll(folder, 0o777))
		}
		must.OK(t, os.WriteFile(filepath.Join(folder, fmt.Sprintf("%06d.md", i)), []byte("apple "+strconv.Itoa(i)), 0o666))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := r.Index(ctx, r.o, func(s keeper.Step) error {
		if s.Total > most {
			t.Errorf("%d files are looked at", s.Total)
		}
		if s.What == keeper.FilesIndexed && s.Done > s.Total/2 {
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("broken off: %v", err)
	}
	for _, what := range []string{"first", "second"} {
		began := time.Now()
		list := value(r.Search(t.Context(), r.o, keeper.Question{Query: "apple", Limit: 1000}))(t)
		t.Logf("the %s search took %v", what, time.Since(began).Round(time.Millisecond))
		if len(list.Found) != 1000 || !strings.Contains(list.Incomplete, "more files and folders than are listed") {
			t.Errorf("the %s search found %d, incomplete: %q", what, len(list.Found), list.Incomplete)
		}
	}
	if c := r.commits()[0]; !c.Incomplete || len(c.Changes) > most {
		t.Errorf("the version has %d changes, incomplete: %v", len(c.Changes), c.Incomplete)
	}
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if m.HeapAlloc > 512<<20 {
		t.Errorf("%d MiB of heap are in use afterwards", m.HeapAlloc>>20)
	}
}
