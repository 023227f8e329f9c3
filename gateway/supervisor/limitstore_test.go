package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
	"sallyport/policy/limit"
)

// counting is a worker that only counts, and the supervisor's connection to it.
type counting struct {
	counters *limit.Book
	peer     *ipc.Peer // the supervisor's
}

// noon is in the middle of a day that is not over for long.
var noon = time.Now().UTC().Truncate(24 * time.Hour).Add(12 * time.Hour)

func newCounting(t *testing.T, log *auditlog.Log, begins uint64) *counting {
	t.Helper()
	here, there := pair(t)
	book := limit.NewBook(func() time.Time { return noon })
	child := ipc.New(there, ipc.Options{MaxFrame: workerapi.MaxFrame, MaxOut: workerapi.MaxCall, Methods: map[ipc.Method]ipc.Handler{
		workerapi.MethodCounts: ipc.Handle(func(_ context.Context, c workerapi.CountsRequest) (workerapi.CountsReply, error) {
			position := begins - 1 + log.Stats().Events
			list, stamp := book.Changed(c.Since, c.Most)
			return workerapi.CountsReply{Position: position, Stamp: stamp, Counts: list}, nil
		}),
		workerapi.MethodRestore: ipc.Handle(func(_ context.Context, c workerapi.RestoreRequest) (ipc.None, error) {
			if left := book.Restore(c.Counts); left > 0 {
				t.Errorf("there is no room for %d counters", left)
			}
			return ipc.None{}, nil
		}),
		workerapi.MethodReset: ipc.Handle(func(_ context.Context, c workerapi.ResetRequest) (ipc.None, error) {
			book.Reset(c.Limit, c.Subject)
			return ipc.None{}, nil
		}),
	}})
	peer := ipc.New(here, ipc.Options{Errors: workerapi.Errors, MaxFrame: workerapi.MaxFrame, MaxIn: workerapi.MaxCall})
	done := make(chan struct{}, 2)
	for _, p := range []*ipc.Peer{child, peer} {
		go func() { _ = p.Serve(); done <- struct{}{} }()
	}
	t.Cleanup(func() { _, _ = child.Close(), peer.Close(); <-done; <-done })
	return &counting{book, peer}
}

func newLimitStore(t *testing.T, path, dir string) *LimitStore {
	t.Helper()
	l, err := OpenLimitStore(path, dir)
	if err != nil {
		t.Fatal(err)
	}
	l.now = func() time.Time { return noon }
	return l
}

func openLog(t *testing.T, dir string) *auditlog.Log {
	t.Helper()
	log, err := auditlog.Open(dir, auditlog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	return log
}

const day = 24 * time.Hour

func claimOf(name, subject string) limit.Claim {
	return limit.Claim{Key: limit.Key{Limit: name, Subject: subject}, Per: "sandbox", Every: day, Most: limit.Amount{Requests: 1000}}
}

// decided is the decision and the completion of a request.
func decided(subject string, uses, bytes int64) []*audit.Event {
	x := &audit.Exchange{}
	d := x.Decide(audit.ClassHTTP, 3)
	d.Time = noon.UnixMilli()
	d.Unmapped.Sallyport.Decision = "allow"
	d.Unmapped.Sallyport.Limits = []audit.LimitUse{
		{Name: "a", Subject: subject, Period: day.Milliseconds(), Uses: uses}, {Name: "size", Subject: subject},
	}
	c := x.Complete(3)
	c.Time = noon.UnixMilli()
	c.Traffic = &audit.Traffic{BytesIn: bytes - 1, BytesOut: 1}
	c.Unmapped.Sallyport.Tokens = &audit.Tokens{In: bytes, Out: 2 * bytes, Cost: "0.05"}
	return []*audit.Event{d, c}
}

func used(t *testing.T, list []limit.Count) (text []string) {
	t.Helper()
	limit.Sort(list)
	for _, n := range list {
		text = append(text, fmt.Sprintf("%s %s %d %d %d %d %v", n.Limit, n.Subject, n.Used.Requests, n.Used.Bytes, n.Used.Uses, n.Used.Tokens, n.Used.Cost))
	}
	return text
}

// A counter without a period is there after a restart, of the daemon too,
// although the policy has no limits; and gone after a reset.
func TestLimitStoreForever(t *testing.T) {
	base := t.TempDir()
	path, dir := filepath.Join(base, "limits.json"), filepath.Join(base, "audit")
	log := openLog(t, dir)
	claim := limit.Claim{Key: limit.Key{Limit: "found", Subject: "sb-1"}, Per: "sandbox", Every: limit.Forever, Most: limit.Amount{Requests: 2}}
	p := newCounting(t, log, 1)
	p.counters.Overdraw(claim).End()
	p.counters.Overdraw(claim).End()
	if err := newLimitStore(t, path, dir).sync(t.Context(), p.peer); err != nil {
		t.Fatal(err)
	}
	l, next := newLimitStore(t, path, dir), newCounting(t, log, 1)
	if err := l.recount(t.Context(), 1, false); err != nil {
		t.Fatal(err)
	}
	if err := l.restore(t.Context(), next.peer); err != nil {
		t.Fatal(err)
	}
	if n := next.counters.Used(claim.Key).Requests; n != 2 {
		t.Errorf("%d are left after a restart, want 2", n)
	}
	next.counters.Reset("found", limit.Every)
	if n := next.counters.Used(claim.Key).Requests; n != 0 {
		t.Errorf("%d are left after a reset", n)
	}
}

// The counts of one process are those the next one begins with, through the file too; and
// records after the last copy are counted again from the log.
func TestLimitStore(t *testing.T) {
	base := t.TempDir()
	path, dir := filepath.Join(base, "limits.json"), filepath.Join(base, "audit")
	log := openLog(t, dir)
	l := newLimitStore(t, path, dir)
	if err := l.recount(t.Context(), 1, true); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("nothing is read again after a crash before the first copy: %v", err)
	}
	first := newCounting(t, log, 1)
	const many = 2*maxPage + 7 // more than a page
	for i := range many {
		claim := claimOf("a", fmt.Sprint(i))
		claim.By.Sandbox = fmt.Sprint(i % 8) // one has no more than its share of counters
		u, err := first.counters.Take(0, claim)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			u.End()
		}
	}
	if err := log.Append(t.Context(), decided("0", 0, 10)...); err != nil { // counted by the process
		t.Fatal(err)
	}
	if err := l.sync(t.Context(), first.peer); err != nil {
		t.Fatal(err)
	}
	if len(l.counts) != many || l.position != 2 {
		t.Fatalf("%d counters at %d", len(l.counts), l.position)
	}
	// After the last copy: it is in the log only.
	after := append(decided("0", 2, 30), decided("1", 1, 5)...)
	denied := decided("0", 0, 7)[:1]
	denied[0].Unmapped.Sallyport.Decision = "deny"
	yesterday := decided("0", 0, 7)
	yesterday[0].Time, yesterday[1].Time = noon.Add(-day).UnixMilli(), noon.Add(-day).UnixMilli()
	if err := log.Append(t.Context(), append(append(after, denied...), yesterday...)...); err != nil {
		t.Fatal(err)
	}
	for _, from := range []string{"the one that has it", "a file"} {
		again := l
		if from == "a file" {
			again = newLimitStore(t, path, dir)
		}
		if err := again.recount(t.Context(), 10, true); err != nil {
			t.Fatal(err)
		}
		next := newCounting(t, log, 10)
		if err := again.restore(t.Context(), next.peer); err != nil {
			t.Fatal(err)
		}
		list, _ := next.counters.Changed(0, 10*maxPage)
		if text := used(t, list); len(text) != many || text[0] != "a 0 2 30 2 90 0.05" || text[1] != "a 1 2 5 1 15 0.05" || list[0].Used.Concurrent != 0 {
			t.Errorf("from %s: %d counters, %v", from, len(text), text[:2])
		}
	}
}

// A reset is in the log among what it resets.
func TestLimitStoreReset(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "audit")
	log := openLog(t, dir)
	l := newLimitStore(t, filepath.Join(base, "limits.json"), dir)
	if err := l.recount(t.Context(), 1, true); err != nil {
		t.Fatal(err)
	}
	reset := event()
	reset.Unmapped.Sallyport.State = stateReset
	reset.Unmapped.Sallyport.Limits = []audit.LimitUse{{Name: "a", Subject: "0"}}
	var events []*audit.Event
	for range 5 {
		events = append(events, append(decided("0", 0, 10), decided("1", 0, 10)...)...)
	}
	events = append(append(events, reset), decided("0", 0, 10)...)
	forged := event() // by whoever writes the log
	forged.Unmapped.Sallyport = reset.Unmapped.Sallyport
	events = append(events, forged, reset)
	if err := l.expect(reset.ID()); err != nil {
		t.Fatal(err)
	}
	l = newLimitStore(t, l.path, dir) // killed before the reset was done here
	if err := log.Append(t.Context(), events...); err != nil {
		t.Fatal(err)
	}
	if err := l.recount(t.Context(), uint64(len(events)+1), true); err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(used(t, l.list())); text != "[a 0 1 10 0 30 0.05 a 1 5 50 0 150 0.25]" {
		t.Errorf("got %s", text)
	}
}

// A process that was taken over uses limits up and makes no room in them.
func TestLimitStoreOfAHostileWorker(t *testing.T) {
	honest := limit.Count{Key: limit.Key{Limit: "a", Subject: "x"}, Every: day, Start: noon.Truncate(day), Used: limit.Amount{Requests: 50}}
	change := func(f func(*limit.Count)) []limit.Count {
		n := honest
		f(&n)
		return []limit.Count{n}
	}
	for name, tt := range map[string]struct {
		says   []limit.Count
		broken bool
		want   int64
	}{
		"the same":             {change(func(*limit.Count) {}), false, 50},
		"less":                 {change(func(n *limit.Count) { n.Used.Requests = 0 }), false, 50},
		"more":                 {change(func(n *limit.Count) { n.Used.Requests = 60 }), false, 60},
		"an earlier period":    {change(func(n *limit.Count) { n.Start = n.Start.Add(-day); n.Used.Requests = 0 }), false, 50},
		"a period far ahead":   {change(func(n *limit.Count) { n.Start = n.Start.Add(20 * day); n.Used.Requests = 1 << 60 }), false, 50},
		"a period of its own":  {change(func(n *limit.Count) { n.Start = noon; n.Used.Requests = 0 }), false, 50},
		"the next one already": {change(func(n *limit.Count) { n.Start = n.Start.Add(day); n.Used.Requests = 0 }), false, 50},
		"a shorter one": {change(func(n *limit.Count) {
			n.Every, n.Start, n.Used.Requests = time.Second, noon.Truncate(time.Second), 0
		}), false, 50},
		"one that is over": {change(func(n *limit.Count) { n.Every, n.Used.Requests = time.Second, 0 }), false, 50},
		"a longer one": {change(func(n *limit.Count) {
			n.Every, n.Used.Requests = 300*day, 0
			n.Start = noon.Truncate(n.Every)
		}), false, 50},
		"no period":           {change(func(n *limit.Count) { n.Every, n.Start, n.Used.Requests = 0, noon, 0 }), false, 50},
		"less than none":      {change(func(n *limit.Count) { n.Used.Bytes = -1 }), true, 50},
		"a period of a year":  {change(func(n *limit.Count) { n.Every = 1000 * day }), true, 50},
		"a long name":         {change(func(n *limit.Count) { n.Limit = strings.Repeat("x", maxName+1) }), true, 50},
		"more than was asked": {make([]limit.Count, maxPage+1), true, 50},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLimitStore(t, filepath.Join(t.TempDir(), "limits.json"), "")
			if err := l.merge([]limit.Count{honest}); err != nil {
				t.Fatal(err)
			}
			if err := l.merge(tt.says); errors.Is(err, errCounts) != tt.broken {
				t.Errorf("got %v", err)
			}
			// The next process's reading of it is what counts.
			l.prune()
			book := limit.NewBook(func() time.Time { return noon })
			book.Restore(l.list())
			var left int64
			for claim := claimOf("a", "x"); left <= claim.Most.Requests; left++ {
				if _, err := book.Take(0, claim); err != nil {
					break
				}
			}
			if got := claimOf("a", "x").Most.Requests - left; got != tt.want {
				t.Errorf("%d requests are used, want %d", got, tt.want)
			}
		})
	}
	// Nor does what it writes into the log.
	for _, period := range []time.Duration{time.Second, day, 300 * day, 0} {
		for _, at := range []time.Time{noon, noon.Add(day), noon.Add(-day)} {
			l := newLimitStore(t, filepath.Join(t.TempDir(), "limits.json"), "")
			if err := l.merge([]limit.Count{honest}); err != nil {
				t.Fatal(err)
			}
			e := decided("x", 0, 10)[0]
			e.Time, e.Unmapped.Sallyport.Limits[0].Period = at.UnixMilli(), period.Milliseconds()
			l.count(e)
			l.prune()
			if n := l.counts[honest.Key]; n.Used.Requests < 50 || n.Every != day || !n.Start.Equal(honest.Start) {
				t.Errorf("an event of %v with a period of %v: %+v", at, period, n)
			}
		}
	}
	// A limit that the policy in force has changed is another one.
	changed := newLimitStore(t, filepath.Join(t.TempDir(), "limits.json"), "")
	changed.every = func(string) time.Duration { return time.Hour }
	next := honest
	next.Every, next.Start, next.Used.Requests = time.Hour, noon, 1
	for _, n := range []limit.Count{honest, next} {
		if err := changed.merge([]limit.Count{n}); err != nil {
			t.Fatal(err)
		}
	}
	if n := changed.counts[honest.Key]; n.Used.Requests != 1 || n.Every != time.Hour {
		t.Errorf("another period by another policy: %+v", n)
	}
	l := newLimitStore(t, filepath.Join(t.TempDir(), "limits.json"), "")
	for i := range 3 * limit.MaxCounters {
		n := honest
		n.Subject = fmt.Sprint(i)
		if err := l.merge([]limit.Count{n}); err != nil {
			t.Fatal(err)
		}
	}
	if len(l.counts) > limit.MaxCounters {
		t.Errorf("%d counters", len(l.counts))
	}
}

func TestLimitStoreThatIsDamaged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits.json")
	if err := os.WriteFile(path, []byte(`{"position":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenLimitStore(path, ""); err == nil || !strings.Contains(err.Error(), "remove the file") {
		t.Errorf("got %v", err)
	}
}
