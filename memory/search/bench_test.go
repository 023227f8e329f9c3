package search_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/memory/search"
)

// prose makes texts whose words are as unequally frequent as those of a language.
type prose struct {
	random *rand.Rand
	zipf   *rand.Zipf
}

func newProse() prose {
	r := rand.New(rand.NewPCG(1, 2))
	return prose{r, rand.NewZipf(r, 1.1, 3, 60_000)}
}

func (p prose) words(n int) string {
	var b strings.Builder
	for range n {
		fmt.Fprintf(&b, "w%d ", p.zipf.Uint64())
	}
	return b.String()
}

// fill writes entries straight to the disk: the writes themselves are not measured.
func (b *box) fill(p prose, entries int) {
	b.t.Helper()
	dir := filepath.Join(b.dir, "memories", "observation")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		b.t.Fatal(err)
	}
	for i := range entries {
		text := "---\ntype: observation\ntime: 2026-11-26T18:28:05Z\n---\n" + p.words(20) + "\n"
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%06d.md", i)), []byte(text), 0o666); err != nil {
			b.t.Fatal(err)
		}
	}
}

// BenchmarkSearch asks an index of 100,000 entries. Run it with -benchtime 1x.
func BenchmarkSearch(b *testing.B) {
	box, p := newBox(b, search.Options{}), newProse()
	const entries = 100_000
	box.fill(p, entries)
	began := time.Now()
	box.update()
	b.ReportMetric(entries/time.Since(began).Seconds(), "entries/s")
	for _, n := range []int{1, 3, 8, 30} {
		var took, used []time.Duration
		for range 300 {
			q, began, before := search.Query{Text: p.words(n)}, time.Now(), processor(b)
			box.search(q)
			took, used = append(took, time.Since(began)), append(used, processor(b)-before)
		}
		slices.Sort(took)
		slices.Sort(used)
		b.Logf("%2d words: p50 %v, p95 %v, most %v; of the processor p50 %v, p95 %v", n, took[150], took[285], took[299], used[150], used[285])
		b.ReportMetric(float64(took[285].Microseconds())/1000, fmt.Sprintf("p95-ms/%dw", n))
	}
}

// processor is the processor time that the process has had, which other processes do not
// change as they do the time of the clock.
func processor(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkUpdate looks again at 10,000 files of which none has changed.
func BenchmarkUpdate(b *testing.B) {
	box := newBox(b, search.Options{})
	box.fill(newProse(), 10_000)
	time.Sleep(100 * time.Millisecond)
	box.update()
	before := processor(b)
	for b.Loop() {
		box.update()
	}
	b.ReportMetric(float64((processor(b)-before).Microseconds())/1000/float64(b.N), "processor-ms/op")
}
