package index_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"sallyport/audit/index"
	"sallyport/internal/test/must"
)

// BenchmarkMillion and BenchmarkTenMillion make a log of so many records and an index of it,
// and ask for what the benchmark's kinds of queries find first: up to 1000 records, each
// kind 40 times with other values. Run them with -benchtime 1x; a record takes 1.3 KB of
// the disk that has the temporary files.
func BenchmarkMillion(b *testing.B)    { benchmark(b, 1_000_000) }
func BenchmarkTenMillion(b *testing.B) { benchmark(b, 10_000_000) }

func benchmark(b *testing.B, records int) {
	dir, path := filepath.Join(b.TempDir(), "audit"), filepath.Join(b.TempDir(), "audit.db")
	g := newTraffic(1)
	g.write(b, dir, records)
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	must.OK(b, err)
	log := int64(0)
	for _, f := range files {
		log += size(b, f)
	}
	b.ResetTimer()
	began := time.Now()
	update(b, dir, path)
	took := time.Since(began)
	b.ReportMetric(float64(records)/took.Seconds(), "records/s")
	b.ReportMetric(float64(log)/float64(records), "log-B/record")
	b.ReportMetric(float64(size(b, path))/float64(records), "index-B/record")

	last := time.UnixMilli(g.now)
	span := last.Sub(start)
	kinds := map[string]func() index.Query{
		"sandbox": func() index.Query { return index.Query{Sandbox: fmt.Sprint("box-", g.random.IntN(200))} },
		"destination": func() index.Query {
			return index.Query{Destination: fmt.Sprintf("api-%d.example.test", g.random.IntN(3000))}
		},
		"rule":            func() index.Query { return index.Query{Rule: fmt.Sprint("rule-", g.random.IntN(300))} },
		"credential":      func() index.Query { return index.Query{Credential: fmt.Sprint("key-", g.random.IntN(20))} },
		"decision":        func() index.Query { return index.Query{Decision: "deny"} },
		"a common word":   func() index.Query { return index.Query{Text: "users"} },
		"a rare word":     func() index.Query { return index.Query{Text: fmt.Sprint(g.random.IntN(100000))} },
		"no such word":    func() index.Query { return index.Query{Text: fmt.Sprint("none", g.random.IntN(100000))} },
		"words":           func() index.Query { return index.Query{Text: fmt.Sprint("v1 chat api ", g.random.IntN(3000))} },
		"sandbox, denied": func() index.Query { return index.Query{Denied: true, Sandbox: fmt.Sprint("box-", g.random.IntN(200))} },
		"rule, destination": func() index.Query {
			return index.Query{Rule: fmt.Sprint("rule-", g.some(300)), Destination: fmt.Sprintf("api-%d.example.test", g.some(3000))}
		},
		"two that are common": func() index.Query {
			return index.Query{Sandbox: "box-0", Decision: "deny", Text: "files", Credential: fmt.Sprint("key-", g.random.IntN(20))}
		},
		"a minute": func() index.Query {
			since := start.Add(time.Duration(g.random.Int64N(int64(span))))
			return index.Query{Since: since, Until: since.Add(time.Minute)}
		},
		"a sandbox's last": func() index.Query {
			return index.Query{Sandbox: fmt.Sprint("box-", g.random.IntN(200)), Since: last.Add(-span / 100)}
		},
	}
	const times, first = 40, 1000
	var all []time.Duration
	for name, query := range kinds {
		var own []time.Duration
		found := 0
		for range times {
			q, began := query(), time.Now()
			n := 0
			for _, err := range index.Search(context.Background(), dir, path, q) {
				must.OK(b, err)
				if n++; n == first {
					break
				}
			}
			own, found = append(own, time.Since(began)), found+n
		}
		slices.Sort(own)
		b.Logf("%-20s p50 %8.2f ms  p95 %8.2f ms  most %8.2f ms  %d found", name, ms(own[times/2]), ms(own[times*95/100]), ms(own[times-1]), found/times)
		all = append(all, own...)
	}
	slices.Sort(all)
	b.ReportMetric(ms(all[len(all)/2]), "p50-ms")
	b.ReportMetric(ms(all[len(all)*95/100]), "p95-ms")
	b.ReportMetric(ms(all[len(all)-1]), "most-ms")
	b.ReportMetric(0, "ns/op")
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
