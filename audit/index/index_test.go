package index_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/index"
	"sallyport/internal/test/must"
)

// traffic makes up what sandboxes do, the same from the same seed.
type traffic struct {
	random *rand.Rand
	now    int64
	open   []*audit.Exchange
}

func newTraffic(seed uint64) *traffic {
	return &traffic{random: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
}

func (g *traffic) pick(list ...string) string { return list[g.random.IntN(len(list))] }

// some returns a number, the small ones more often.
func (g *traffic) some(n int) int {
	return int(float64(n) * g.random.Float64() * g.random.Float64() * g.random.Float64())
}

// next are the next events: a decision and often its completion, of this or an earlier
// decision, or a change of a sandbox.
func (g *traffic) next() (events []*audit.Event) {
	g.now += int64(g.random.IntN(40))
	if g.random.IntN(5000) == 0 {
		g.now -= 60_000 // the clock is set back
	}
	stamp := func(e *audit.Event) *audit.Event {
		e.Time = g.now
		return e
	}
	box := g.some(200)
	name, id := fmt.Sprintf("box-%d", box), fmt.Sprintf("0192f0c1-0000-7000-8000-%012d", box)
	if g.random.IntN(50) == 0 {
		e := stamp(audit.New(audit.KindLifecycle, audit.ClassLifecycle, audit.ActivityOther))
		state := g.pick("started", "stopped", "snapshot", "paused")
		e.Message, e.Detail = "sandbox "+name+" "+state, "at-20261201, 100 bytes, sealed"
		x := &e.Unmapped.Sallyport
		x.Sandbox, x.SandboxID, x.State, x.Owner = name, id, state, fmt.Sprint("tenant-", box%3)
		return append(events, e)
	}
	x := new(audit.Exchange)
	d := stamp(x.Decide(audit.ClassHTTP, audit.HTTPActivity("GET")))
	host := fmt.Sprintf("api-%d.example.test", g.some(3000))
	x.Destination = audit.Endpoint{Hostname: host, Port: 443}
	x.URL = audit.URL{Scheme: "https", Hostname: host, Port: 443, Path: fmt.Sprintf("/v1/%s/%d", g.pick("users", "chat", "files", "Ünïcode", "a'b\"c*"), g.some(100000))}
	x.Request = audit.HTTPRequest{Method: "GET", Version: "HTTP/1.1", URL: &x.URL}
	x.TLS = audit.TLS{SNI: host, Version: "1.3"}
	x.Rule = audit.Rule{Name: fmt.Sprint("rule-", g.some(300)), Type: "egress"}
	x.Policy = audit.Policy{Name: "sallyport", Version: "sha256:0123456789abcdef"}
	d.Source, d.Destination, d.HTTPRequest, d.TLS, d.Rule, d.Policy = &audit.Endpoint{IP: "10.231.0.7"}, &x.Destination, &x.Request, &x.TLS, &x.Rule, &x.Policy
	s := &d.Unmapped.Sallyport
	s.Sandbox, s.SandboxID, s.Session, s.Phase, s.Decision = name, id, id, "request", "allow"
	s.HeaderNames = []string{"Accept", "Content-Length", "Content-Type", "User-Agent"}
	s.Reason = "egress rule " + x.Rule.Name + " allows it"
	d.Action, d.Disposition, d.StatusID = audit.ActionAllowed, audit.DispositionAllowed, audit.StatusSuccess
	if g.random.IntN(3) == 0 {
		s.Credentials = []audit.CredentialUse{{Name: fmt.Sprint("key-", g.some(20))}}
	}
	if g.random.IntN(10) == 0 {
		s.Decision, s.Reason = "deny", "no rule allows it"
		d.Action, d.Disposition, d.StatusID, d.Rule = audit.ActionDenied, audit.DispositionBlocked, audit.StatusFailure, nil
		return append(events, d)
	}
	events = append(events, d)
	g.open = append(g.open, x)
	for len(g.open) > 20 || len(g.open) > 0 && g.random.IntN(2) == 0 {
		at := g.random.IntN(len(g.open))
		o := g.open[at]
		g.open = append(g.open[:at], g.open[at+1:]...)
		if g.random.IntN(200) == 0 {
			continue // the daemon ended meanwhile
		}
		c := stamp(o.Complete(o.Decision.ActivityID))
		o.Response, o.Traffic = audit.HTTPResponse{Code: 200, Length: 1024}, audit.Traffic{BytesIn: 1024, BytesOut: 300}
		c.HTTPResponse, c.Traffic = &o.Response, &o.Traffic
		c.Unmapped.Sallyport.Credentials = o.Decision.Unmapped.Sallyport.Credentials
		if g.random.IntN(100) == 0 {
			c.StatusID, c.Detail = audit.StatusFailure, "the upstream has closed the connection"
		}
		events = append(events, c)
	}
	return events
}

// write appends about n events to the log in dir.
func (g *traffic) write(t testing.TB, dir string, n int) {
	t.Helper()
	l, err := auditlog.Open(dir, auditlog.Options{SegmentSize: max(64<<10, int64(n)*60)})
	must.OK(t, err)
	defer l.Close()
	for n > 0 {
		var batch []*audit.Event
		for len(batch) < min(n, 250) {
			batch = append(batch, g.next()...)
		}
		n -= len(batch)
		must.OK(t, l.Append(context.Background(), batch...))
	}
}

func update(t testing.TB, dir, path string) {
	t.Helper()
	x, err := index.Open(context.Background(), dir, path)
	must.OK(t, err)
	defer x.Close()
	must.OK(t, x.Update(context.Background(), nil))
}

// answer are the numbers of what a search yields, and the damage.
func answer(t testing.TB, dir, path string, q index.Query) (all, damaged []string) {
	t.Helper()
	for e, err := range index.Search(context.Background(), dir, path, q) {
		var damage *auditlog.DamageError
		switch {
		case errors.As(err, &damage):
			damaged = append(damaged, damage.Error())
		case err != nil:
			t.Fatal(err)
		default:
			all = append(all, fmt.Sprint(e.Number, " ", e.Event.Unmapped.Sallyport.Kind))
		}
	}
	return all, damaged
}

var start = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

// queries are what is asked, each by the fields that it has.
var queries = map[string]index.Query{
	"all":               {},
	"sandbox":           {Sandbox: "box-3"},
	"sandbox by ID":     {Sandbox: "0192f0c1-0000-7000-8000-000000000003"},
	"destination":       {Destination: "API-7.example.test."},
	"rule":              {Rule: "rule-9"},
	"credential":        {Credential: "key-2"},
	"decision":          {Decision: "deny"},
	"denied":            {Denied: true, Sandbox: "box-0"},
	"kind":              {Kind: audit.KindCompletion, Sandbox: "box-1"},
	"class":             {Class: audit.ClassLifecycle},
	"text":              {Text: "users"},
	"words":             {Text: "v1/FILES example"},
	"detail":            {Text: "upstream closed"},
	"reason of it":      {Text: "rule-5 allows"},
	"another alphabet":  {Text: "ÜNÏCODE"},
	"operators of FTS5": {Text: `chat AND "users" OR NEAR(*) ^ {x}:`},
	"a number":          {Text: "20261201"},
	"no word":           {Text: "\"'*()-"},
	"no text at all":    {Text: "\xff\x00\xfe"},
	"none":              {Sandbox: "box-none"},
	"numbers":           {From: 1000, To: 1200},
	"time":              {Since: start.Add(8 * time.Second), Until: start.Add(12 * time.Second)},
	"later":             {Since: start.Add(24 * time.Hour)},
	"all of it":         {Sandbox: "box-1", Decision: "allow", Text: "chat", Since: start.Add(5 * time.Second), From: 100},
	"a tenant's":        {Tenant: &index.Tenant{Name: "tenant-1", Sandboxes: []string{"0192f0c1-0000-7000-8000-000000000001", "0192f0c1-0000-7000-8000-000000000004"}}},
	"a tenant's of another": {Sandbox: "box-0",
		Tenant: &index.Tenant{Name: "tenant-1", Sandboxes: []string{"0192f0c1-0000-7000-8000-000000000001"}}},
}

// empty are the queries that find nothing.
var empty = map[string]bool{"none": true, "no word": true, "no text at all": true, "later": true, "a tenant's of another": true, "operators of FTS5": true}

// same compares what is found by an index with what is in the log.
func same(t *testing.T, when, dir, path string) {
	t.Helper()
	for name, q := range queries {
		want, lost := answer(t, dir, "", q)
		got, told := answer(t, dir, path, q)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s: without and with the index:\n%s", when, name, diff)
		}
		if diff := cmp.Diff(lost, told); diff != "" {
			t.Errorf("%s: %s: damage without and with the index:\n%s", when, name, diff)
		}
		if (len(want) == 0) != empty[name] {
			t.Errorf("%s: %s: %d events", when, name, len(want))
		}
	}
}

// The same events with an index as without one, also while the index is behind.
func TestSearchIsScan(t *testing.T) {
	dir, path := filepath.Join(t.TempDir(), "audit"), filepath.Join(t.TempDir(), "audit.db")
	g := newTraffic(1)
	g.write(t, dir, 2500)
	same(t, "without an index", dir, path)
	update(t, dir, path)
	if last := index.Last(t.Context(), dir, path); last < 2500 {
		t.Errorf("it is indexed up to %d", last)
	}
	same(t, "with all of it", dir, path)
	g.write(t, dir, 200)
	same(t, "behind", dir, path)
	update(t, dir, path)
	g.write(t, dir, 200)
	same(t, "behind again", dir, path)
}

// Records that the log has lost are told of with an index too.
func TestDamage(t *testing.T) {
	dir, path := filepath.Join(t.TempDir(), "audit"), filepath.Join(t.TempDir(), "audit.db")
	newTraffic(2).write(t, dir, 1500)
	edit(t, dir, 1, func(lines []string) { lines[40], lines[41] = "{\n", "{}\n" })
	update(t, dir, path)
	same(t, "damaged", dir, path)
	if _, told := answer(t, dir, path, index.Query{Sandbox: "box-1"}); len(told) == 0 {
		t.Error("nothing is told of it")
	}
}

// However much of the log somebody has damaged, a search holds little of it at a time.
func TestMuchDamage(t *testing.T) {
	dir, path := filepath.Join(t.TempDir(), "audit"), filepath.Join(t.TempDir(), "audit.db")
	newTraffic(2).write(t, dir, 100)
	const pairs = 50_000
	edit(t, dir, 0, func(lines []string) {
		var b strings.Builder
		for range pairs {
			b.WriteString("x\n" + lines[0]) // a number that was passed, so that each is a place of its own
		}
		lines[50] = b.String()
	})
	update(t, dir, path)
	same := 0
	_, lost := answer(t, dir, "", index.Query{Sandbox: "box-1"})
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	most := uint64(0)
	for _, err := range index.Search(t.Context(), dir, path, index.Query{Sandbox: "box-1"}) {
		var damage *auditlog.DamageError
		if !errors.As(err, &damage) {
			continue
		}
		if same < len(lost) && damage.Error() != lost[same] {
			t.Fatalf("place %d: %v, want %s", same, err, lost[same])
		}
		if same++; same%20_000 == 0 {
			runtime.GC()
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapAlloc-min(before.HeapAlloc, now.HeapAlloc))
		}
	}
	if same < pairs || len(lost) < pairs || most > 8<<20 {
		t.Errorf("%d places of %d, %d bytes in use", same, len(lost), most)
	}
}

// edit changes the lines of a segment.
func edit(t *testing.T, dir string, segment int, change func(lines []string)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(files) <= segment {
		t.Fatalf("%v, %v", files, err)
	}
	data, err := os.ReadFile(files[segment])
	must.OK(t, err)
	lines := strings.SplitAfter(string(data), "\n")
	change(lines)
	must.OK(t, os.WriteFile(files[segment], []byte(strings.Join(lines, "")), 0o600))
}

// An index that does not fit the log is not used, and is made anew.
func TestUnfit(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, dir, path string){
		"garbage": func(t *testing.T, dir, path string) { put(t, path, "no database at all, but some text") },
		"empty":   func(t *testing.T, dir, path string) { put(t, path, "") },
		"another version": func(t *testing.T, dir, path string) {
			db, err := sql.Open("sqlite", path)
			must.OK(t, err)
			defer db.Close()
			if _, err := db.Exec("PRAGMA user_version = 7"); err != nil {
				t.Fatal(err)
			}
		},
		"another log": func(t *testing.T, dir, path string) {
			must.OK(t, os.RemoveAll(dir))
			newTraffic(4).write(t, dir, 1500)
		},
		"a log that was cut": func(t *testing.T, dir, path string) {
			files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
			if err != nil || len(files) < 3 {
				t.Fatalf("%v, %v", files, err)
			}
			must.OK(t, os.Remove(files[len(files)-1]))
		},
		"an older copy of the log": func(t *testing.T, dir, path string) {
			edit(t, dir, 0, func(lines []string) {
				for i, l := range lines {
					lines[i] = strings.Replace(strings.Replace(l, "Sallyport", "Sillyport", 1), `"sandbox":"box-1"`, `"sandbox":"box-3"`, 1)
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, path := filepath.Join(t.TempDir(), "audit"), filepath.Join(t.TempDir(), "audit.db")
			newTraffic(3).write(t, dir, 1500)
			update(t, dir, path)
			spoil(t, dir, path)
			if name != "an older copy of the log" { // whose end is the same
				same(t, "unfit", dir, path)
			}
			update(t, dir, path)
			same(t, "made anew", dir, path)
		})
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	for _, suffix := range []string{"-wal", "-shm"} {
		_ = os.Remove(path + suffix)
	}
	must.OK(t, os.WriteFile(path, []byte(text), 0o600))
}

// Segments that were deleted are not missed, and an index that is mostly of them is made
// anew.
func TestRetention(t *testing.T) {
	dir, path := filepath.Join(t.TempDir(), "audit"), filepath.Join(t.TempDir(), "audit.db")
	newTraffic(5).write(t, dir, 6000)
	update(t, dir, path)
	whole := size(t, path)
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%v, %v", files, err)
	}
	for i, f := range files[:len(files)-1] {
		must.OK(t, os.Remove(f))
		if i == 0 || i == len(files)-2 {
			for _, q := range []index.Query{{}, {Decision: "deny"}, {Text: "users"}} {
				want, _ := answer(t, dir, "", q)
				got, _ := answer(t, dir, path, q)
				if diff := cmp.Diff(want, got); diff != "" || len(want) == 0 {
					t.Errorf("without %d segments: %+v:\n%s", i+1, q, diff)
				}
			}
		}
	}
	update(t, dir, path)
	if now := size(t, path); now > whole/2 {
		t.Errorf("of %d bytes there are still %d", whole, now)
	}
}

func size(t testing.TB, path string) (n int64) {
	t.Helper()
	for _, suffix := range []string{"", "-wal"} {
		if info, err := os.Stat(path + suffix); err == nil {
			n += info.Size()
		}
	}
	return n
}

// Texts that a sandbox chose are found by any of their words, and take no more place than
// they may.
func TestHostileText(t *testing.T) {
	dir, path := filepath.Join(t.TempDir(), "audit"), filepath.Join(t.TempDir(), "audit.db")
	l, err := auditlog.Open(dir, auditlog.Options{})
	must.OK(t, err)
	texts := []string{`a" OR "b`, "x\x00y", "\xff\xfe", "*", strings.Repeat("ä", 500), strings.Repeat("word ", 5000) + "beyond", "§s626f78", "NEAR(one two)", "İstanbul K"}
	for _, text := range texts {
		e := audit.New(audit.KindDecision, audit.ClassHTTP, 3)
		e.HTTPRequest = &audit.HTTPRequest{Method: "GET", URL: &audit.URL{Hostname: text, Path: text}}
		e.Unmapped.Sallyport.Sandbox = text
		must.OK(t, l.Append(t.Context(), e))
	}
	must.OK(t, l.Close())
	update(t, dir, path)
	for text, want := range map[string]int{
		"b": 1, "OR": 1, "x": 1, "y": 1, strings.Repeat("ä", 400): 1, "ä": 0, "word": 1, "beyond": 0, "s626f78": 1, "§s626f78": 1, "two one near": 1, "İSTANBUL": 1, "k": 1,
	} {
		if got, _ := answer(t, dir, path, index.Query{Text: text}); len(got) != want {
			t.Errorf("%q: %v, want %d", text, got, want)
		}
	}
	for _, text := range texts {
		for _, q := range []index.Query{{Sandbox: text}, {Destination: text}, {Text: text}} {
			want, _ := answer(t, dir, "", q)
			got, _ := answer(t, dir, path, q)
			if diff := cmp.Diff(want, got); diff != "" || q.Text == "" && len(want) != 1 && utf8.ValidString(text) {
				t.Errorf("%+v: %v\n%s", q, want, diff)
			}
		}
	}
}

// Any bytes are a query.
func FuzzQuery(f *testing.F) {
	dir, path := filepath.Join(f.TempDir(), "audit"), filepath.Join(f.TempDir(), "audit.db")
	newTraffic(6).write(f, dir, 40)
	update(f, dir, path)
	for _, text := range []string{"users", `"a" AND b*`, "\x00", "\xff", "{x}:y", "-NOT", strings.Repeat("a ", 1000)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, q := range []index.Query{{Text: text}, {Sandbox: text}, {Destination: text, Rule: text}, {Credential: text, Decision: text, Text: "v1 " + text}} {
			want, _ := answer(t, dir, "", q)
			if got, _ := answer(t, dir, path, q); !cmp.Equal(want, got) {
				t.Errorf("%+v: %v with the index, %v without", q, got, want)
			}
		}
	})
}

// Follow indexes what comes, also after the log has become another one.
func TestFollow(t *testing.T) {
	dir, path := filepath.Join(t.TempDir(), "audit"), filepath.Join(t.TempDir(), "audit.db")
	synctest.Test(t, func(t *testing.T) {
		g := newTraffic(7)
		g.write(t, dir, 300)
		if err := os.Mkdir(filepath.Join(dir, "tree"), 0o700); err != nil { // of the log's checkpoints
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- index.Follow(ctx, dir, path, slog.New(slog.DiscardHandler)) }()
		indexed := func(what string, n uint64) {
			t.Helper()
			time.Sleep(3 * time.Second) // of this test's own time
			synctest.Wait()
			if last := index.Last(ctx, dir, path); last < n || last > n+20 {
				t.Errorf("%s: %d of %d", what, last, n)
			}
		}
		indexed("what was there", 300)
		g.write(t, dir, 300)
		indexed("what came", 600)
		time.Sleep(5 * time.Minute)
		g.write(t, dir, 10)
		indexed("what came much later", 610)
		must.OK(t, os.RemoveAll(dir))
		newTraffic(8).write(t, dir, 200)
		indexed("another log", 200)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
