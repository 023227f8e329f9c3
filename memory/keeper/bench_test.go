package keeper_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
	"sallyport/memory/keeper"
)

// BenchmarkSearch is what `sallyport memory search` asks for: an index, which looks at all
// files, of which none has changed, and the question. Run it with -benchtime 1x.
func BenchmarkSearch(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(random, 1.1, 3, 60_000) // as unequally frequent as the words of a language
	words := func(n int) string {
		var text bytes.Buffer
		for range n {
			fmt.Fprintf(&text, "w%d ", zipf.Uint64())
		}
		return text.String()
	}
	files := func(n int) func(r *rig) {
		return func(r *rig) {
			must.OK(r.t, os.MkdirAll(r.path("memories/observation"), 0o777))
			for i := range n {
				text := "---\ntype: observation\ntime: 2026-11-26T18:28:05Z\n---\n" + words(20) + "\n"
				must.OK(r.t, os.WriteFile(r.path(fmt.Sprintf("memories/observation/%06d.md", i)), []byte(text), 0o666))
			}
		}
	}
	turns := func(n int) func(r *rig) {
		return func(r *rig) {
			var text bytes.Buffer
			for i := range n {
				fmt.Fprintf(&text, `{"session":"s%d","role":"user","content":%q}`+"\n", i/40, words(20))
			}
			must.OK(r.t, os.WriteFile(r.path("conversations.jsonl"), text.Bytes(), 0o666))
		}
	}
	for _, tt := range []struct {
		name string
		fill func(r *rig)
	}{
		{"10000 files", files(10_000)}, {"100000 turns", turns(100_000)}, {"100000 files", files(99_000)}, // and their folders
	} {
		b.Run(tt.name, func(b *testing.B) {
			r := newRig(b, withText(64<<20))
			tt.fill(r)
			ask := func() {
				look := ""
				must.OK(b, r.Index(b.Context(), r.o, func(s keeper.Step) error {
					if s.Index != nil {
						look = s.Index.Look
					}
					return nil
				}))
				list := value(r.Search(b.Context(), r.o, keeper.Question{Query: words(8), Look: look}))(b)
				if list.Incomplete != "" {
					b.Fatal(list.Incomplete)
				}
			}
			for range 2 { // a file that has just changed is read again
				ask()
				time.Sleep(100 * time.Millisecond)
			}
			const rounds = 200
			for b.Loop() {
				var took, used []time.Duration
				for range rounds {
					began, before := time.Now(), processor(b)
					ask()
					took, used = append(took, time.Since(began)), append(used, processor(b)-before)
				}
				slices.Sort(took)
				slices.Sort(used)
				b.Logf("p50 %v, p95 %v; of the processor p50 %v, p95 %v", took[rounds/2], took[rounds*95/100], used[rounds/2], used[rounds*95/100])
				b.ReportMetric(float64(took[rounds*95/100].Microseconds())/1000, "p95-ms")
				b.ReportMetric(float64(used[rounds/2].Microseconds())/1000, "processor-ms")
			}
		})
	}
}

// processor is the processor time that the process has had, which other processes do not
// change as they do the time of the clock.
func processor(b *testing.B) time.Duration {
	var u unix.Rusage
	must.OK(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
