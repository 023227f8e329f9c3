package limit_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/test/must"
	"sallyport/policy/limit"
)

// clock is set by a test.
type clock struct{ at atomic.Int64 }

func newClock(text string) *clock {
	c := &clock{}
	c.set(text)
	return c
}

func (c *clock) now() time.Time { return time.Unix(0, c.at.Load()) }

func (c *clock) set(text string) {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		panic(err)
	}
	c.at.Store(t.UnixNano())
}

func (c *clock) add(d time.Duration) { c.at.Add(int64(d)) }

func claim(name, subject string, every time.Duration, most limit.Amount) limit.Claim {
	return limit.Claim{Key: limit.Key{Limit: name, Subject: subject}, Per: "sandbox", Every: every, Most: most}
}

// exceeded is "limit what retry" of an error, or empty.
func exceeded(err error) string {
	var e *limit.ExceededError
	if !errors.As(err, &e) {
		return fmt.Sprint(err)
	}
	return fmt.Sprintf("%s %s %v", e.Limit, e.What, e.Retry)
}

func TestPeriods(t *testing.T) {
	c := newClock("2026-03-02T22:00:00Z")
	b := limit.NewBook(c.now)
	day := claim("day", "a", 24*time.Hour, limit.Amount{Requests: 2})
	take := func() error {
		u, err := b.Take(0, day)
		u.End()
		return err
	}
	must.OK(t, errors.Join(take(), take()))
	if got := exceeded(take()); got != "day requests 2h0m0s" {
		t.Errorf("got %s", got)
	}
	if _, err := b.Take(0, claim("day", "b", 24*time.Hour, limit.Amount{Requests: 2})); err != nil {
		t.Errorf("another subject: %v", err)
	}
	// A clock that is set back begins no period, nor does coming back from there.
	c.set("2026-03-01T10:00:00Z")
	if got := exceeded(take()); got != "day requests 38h0m0s" {
		t.Errorf("with the clock set back: %s", got)
	}
	c.set("2026-03-02T23:59:59Z")
	if got := exceeded(take()); got != "day requests 1s" {
		t.Errorf("and forward: %s", got)
	}
	c.add(time.Second)
	if err := take(); err != nil {
		t.Errorf("at midnight: %v", err)
	}
	// Weeks begin on Mondays.
	week := claim("week", "a", 7*24*time.Hour, limit.Amount{Requests: 1})
	_, _ = b.Take(0, week)
	if _, err := b.Take(0, week); exceeded(err) != "week requests 144h0m0s" { // from Tuesday
		t.Errorf("got %v", err)
	}
}

func TestAllOrNothing(t *testing.T) {
	b := limit.NewBook(newClock("2026-03-02T22:00:00Z").now)
	wide := claim("wide", "a", time.Hour, limit.Amount{Requests: 10})
	narrow := claim("narrow", "a", time.Hour, limit.Amount{Requests: 1})
	for range 5 {
		_, _ = b.Take(0, wide, narrow)
	}
	list, _ := b.Changed(0, 10)
	limit.Sort(list)
	if len(list) != 2 || list[0].Used.Requests != 1 || list[1].Used.Requests != 1 {
		t.Errorf("got %+v", list)
	}
	if err := b.Check(0, wide, narrow); exceeded(err) != "narrow requests 1h0m0s" {
		t.Errorf("got %v", err)
	}
	// Of several that deny, the one that does for longest; whichever comes first.
	day := claim("day", "a", 24*time.Hour, limit.Amount{Requests: 1})
	_, _ = b.Take(0, day)
	for _, claims := range [][]limit.Claim{{narrow, day}, {day, narrow}} {
		if err := b.Check(0, claims...); exceeded(err) != "day requests 2h0m0s" {
			t.Errorf("got %v", err)
		}
	}
	if err := b.Check(0, wide); err != nil {
		t.Error(err)
	}
}

func TestKinds(t *testing.T) {
	c := newClock("2026-03-02T22:30:00Z")
	b := limit.NewBook(c.now)
	uses := claim("uses", "key", time.Hour, limit.Amount{Uses: 3})
	uses.Uses = 2
	if _, err := b.Take(0, uses); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Take(0, uses); exceeded(err) != "uses uses 30m0s" {
		t.Errorf("got %v", err)
	}
	uses.Uses = 0
	if _, err := b.Take(0, uses); err != nil {
		t.Errorf("a request without: %v", err)
	}

	two := claim("two", "a", 0, limit.Amount{Concurrent: 2})
	one, _ := b.Take(0, two)
	other, _ := b.Take(0, two)
	if _, err := b.Take(0, two); exceeded(err) != "two concurrent 1s" {
		t.Errorf("got %v", err)
	}
	one.End()
	one.End() // gives no second place
	if _, err := b.Take(0, two); err != nil {
		t.Error(err)
	}
	if _, err := b.Take(0, two); err == nil {
		t.Error("a third one")
	}
	other.End()

	bytes := claim("bytes", "a", time.Hour, limit.Amount{Bytes: 1000})
	if _, err := b.Take(1001, bytes); exceeded(err) != "bytes bytes 30m0s" {
		t.Errorf("known to be too large: %v", err)
	}
	u, err := b.Take(-1, bytes)
	if err != nil || !u.Metered() {
		t.Fatal(err)
	}
	if err := errors.Join(u.Spend(400), u.Spend(600)); err != nil {
		t.Errorf("all of it: %v", err)
	}
	if err := u.Spend(1); exceeded(err) != "bytes bytes 30m0s" || u.Err() == nil {
		t.Errorf("more: %v", err)
	}
	if _, err := b.Take(0, bytes); err == nil {
		t.Error("the next one")
	}
	exact := claim("bytes", "exact", time.Hour, limit.Amount{Bytes: 1000})
	if e, err := b.Take(0, exact); err != nil || e.Spend(1000) != nil {
		t.Error("just as many")
	}
	if _, err := b.Take(0, exact); exceeded(err) != "bytes bytes 30m0s" {
		t.Errorf("where none are left: %v", err)
	}
	c.add(time.Hour)
	if err := u.Spend(0); err == nil {
		t.Error("what was broken off goes on")
	}
	long, err := b.Take(0, bytes)
	must.OK(t, err)
	_ = long.Spend(900)
	c.add(time.Hour) // a stream that goes on takes from the period that it is in
	if err := long.Spend(900); err != nil {
		t.Error(err)
	}
	var none *limit.Use
	if none.End(); none.Spend(1) != nil || none.Err() != nil || none.Metered() {
		t.Error("nil is no use")
	}
}

// Under concurrency no more is taken than there is.
func TestTogether(t *testing.T) {
	b := limit.NewBook(newClock("2026-03-02T22:00:00Z").now)
	var taken atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				u, err := b.Take(0, claim("a", "x", time.Hour, limit.Amount{Requests: 333, Concurrent: 5}), claim("b", "x", time.Hour, limit.Amount{Requests: 400}))
				if err == nil {
					taken.Add(1)
					u.End()
				}
			}
		})
	}
	wg.Wait()
	list, _ := b.Changed(0, 10)
	for _, n := range list {
		if n.Used.Requests != taken.Load() || n.Used.Requests > 333 || n.Used.Concurrent != 0 {
			t.Errorf("%d taken, %+v", taken.Load(), n)
		}
	}
}

func TestBookIsBounded(t *testing.T) {
	c := newClock("2026-03-02T22:00:00Z")
	b := limit.NewBook(c.now)
	full := 0
	for i := range limit.MaxCounters {
		if _, err := b.Take(0, claim("hosts", fmt.Sprint(i), time.Hour, limit.Amount{Requests: 1})); err != nil {
			full++
			if got := exceeded(err); got != "hosts counters 1m0s" {
				t.Fatal(got)
			}
		}
	}
	if full != limit.MaxCounters*7/8 {
		t.Errorf("%d were refused", full)
	}
	if _, err := b.Take(0, claim("other", "a", time.Hour, limit.Amount{Requests: 1})); err != nil {
		t.Errorf("one limit keeps another from counting: %v", err)
	}
	if _, err := b.Take(0, claim("hosts", "1", time.Hour, limit.Amount{Requests: 2})); err != nil {
		t.Errorf("a counter that is there: %v", err)
	}
	c.add(2 * time.Hour)
	if _, err := b.Take(0, claim("hosts", "new", time.Hour, limit.Amount{Requests: 1})); err == nil {
		t.Error("what is under way was forgotten") // none of them ended
	}
}

// One client that needs all the counters that it can get, and a host full of such, leave
// counters to everybody else.
func TestBookIsShared(t *testing.T) {
	c := newClock("2026-03-02T22:00:00Z")
	b := limit.NewBook(c.now)
	fill := func(sandbox, owner string) (n int) {
		for i := range limit.MaxCounters {
			cl := claim("hosts", fmt.Sprint(sandbox, "/", i), time.Hour, limit.Amount{Requests: 1})
			cl.By = limit.By{Sandbox: sandbox, Owner: owner}
			if _, err := b.Take(0, cl); err != nil {
				return n
			}
			n++
		}
		return n
	}
	for _, tt := range []struct {
		sandbox, owner string
		least          int
	}{
		{"greedy", "", 2048}, {"neighbour", "", 2000}, {"a tenant's", "acme", 2000}, {"another tenant's", "beta", 1000},
	} {
		if n := fill(tt.sandbox, tt.owner); n < tt.least || n > 2048 {
			t.Errorf("%s has %d counters", tt.sandbox, n)
		}
	}
	for i := range 100 {
		if n := fill(fmt.Sprint("more-", i), ""); n < 16 {
			t.Fatalf("sandbox %d has %d counters", i, n)
		}
	}
	// Copies carry whose share a counter is in: a restart changes nothing of that.
	list, _ := b.Changed(0, 4*limit.MaxCounters)
	next := limit.NewBook(c.now)
	if left := next.Restore(list); left != 0 {
		t.Errorf("%d counters were left out", left)
	}
	b = next
	if n := fill("after", ""); n < 16 || n > 64 {
		t.Errorf("after a restart, one more sandbox has %d counters", n)
	}
}

func TestCopies(t *testing.T) {
	c := newClock("2026-03-02T22:00:00Z")
	b := limit.NewBook(c.now)
	for i := range 10 {
		u, _ := b.Take(0, claim("a", fmt.Sprint(i), time.Hour, limit.Amount{Requests: 5, Bytes: 100}))
		_ = u.Spend(50)
		if i > 0 {
			u.End()
		}
	}
	var all []limit.Count
	stamp := uint64(0)
	for {
		list, next := b.Changed(stamp, 3)
		if len(list) > 3 {
			t.Fatalf("%d at once", len(list))
		}
		if all = append(all, list...); next == stamp {
			break
		}
		stamp = next
	}
	limit.Sort(all)
	if len(all) != 10 || all[0].Used != (limit.Amount{Requests: 1, Bytes: 50, Concurrent: 1}) {
		t.Fatalf("%d copies, %+v", len(all), all[0])
	}
	again := limit.NewBook(c.now)
	_, _ = again.Take(0, claim("a", "1", time.Hour, limit.Amount{Requests: 5}))
	_, _ = again.Take(0, claim("a", "1", time.Hour, limit.Amount{Requests: 5}))
	if n := again.Restore(all); n != 0 {
		t.Errorf("%d were left out", n)
	}
	list, _ := again.Changed(0, 100)
	limit.Sort(list)
	want := limit.Amount{Requests: 1, Bytes: 50} // what was under way is not
	if list[0].Used != want || list[1].Used.Requests != 2 || list[1].Used.Bytes != 50 {
		t.Errorf("got %+v, %+v", list[0], list[1])
	}
	if n := again.Reset("a", "3"); n != 1 || again.Reset("a", limit.Every) != 10 || again.Reset("b", limit.Every) != 0 {
		t.Errorf("%d were reset", n)
	}
	c.add(time.Hour)
	if late := limit.NewBook(c.now); late.Restore(all) != 0 {
		t.Error("left out")
	} else if list, _ := late.Changed(0, 100); len(list) != 0 {
		t.Errorf("what is over was put back: %v", list)
	}
}

func TestMergeAndAdd(t *testing.T) {
	start := newClock("2026-03-02T22:00:00Z").now()
	have := limit.Count{Every: time.Hour, Start: start, Used: limit.Amount{Requests: 5, Bytes: 10}}
	for _, tt := range []struct {
		name string
		do   func(*limit.Count)
		want limit.Amount
	}{
		{"less of the same period", func(n *limit.Count) {
			n.Merge(limit.Count{Start: start, Used: limit.Amount{Requests: 1, Bytes: 20}})
		}, limit.Amount{Requests: 5, Bytes: 20}},
		{"an earlier period", func(n *limit.Count) {
			n.Merge(limit.Count{Start: start.Add(-time.Hour), Used: limit.Amount{Requests: 9}})
		}, limit.Amount{Requests: 5, Bytes: 10}},
		{"a later period", func(n *limit.Count) {
			n.Merge(limit.Count{Start: start.Add(time.Hour), Used: limit.Amount{Requests: 1}})
		}, limit.Amount{Requests: 1}},
		{"a record", func(n *limit.Count) {
			n.Add(start.Add(time.Minute), start.Add(time.Minute), limit.Amount{Requests: 1})
		}, limit.Amount{Requests: 6, Bytes: 10}},
		{"a record of an earlier period", func(n *limit.Count) {
			n.Add(start.Add(-time.Minute), start.Add(time.Minute), limit.Amount{Requests: 1})
		}, limit.Amount{Requests: 5, Bytes: 10}},
		{"a record from when the clock was set back", func(n *limit.Count) {
			n.Add(start.Add(-time.Minute), start.Add(-time.Minute), limit.Amount{Requests: 1})
		}, limit.Amount{Requests: 6, Bytes: 10}},
		{"a record of a later period", func(n *limit.Count) {
			n.Add(start.Add(time.Hour), start.Add(time.Hour), limit.Amount{Requests: 1})
		}, limit.Amount{Requests: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := have
			tt.do(&n)
			if diff := cmp.Diff(n.Used, tt.want); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func Example() {
	book := limit.NewBook(nil)
	day := limit.Claim{
		Key: limit.Key{Limit: "openai-a-day", Subject: "sandbox"}, Every: 24 * time.Hour, Most: limit.Amount{Requests: 1},
	}
	use, err := book.Take(0, day)
	use.End()
	fmt.Println(err)
	_, err = book.Take(0, day)
	fmt.Println(err)
	// Output:
	// <nil>
	// limit openai-a-day: 1 requests within 24h0m0s are used up
}
