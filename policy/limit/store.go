// Package limit counts what limits bound: requests, bytes, uses of credentials,
// tokens of LLM APIs and what these cost over periods, and what is under way at a
// time.
//
// A [Book] has a counter for each limit and subject. An amount is taken from all counters
// or from none, and a [Use] is what takes bytes as they flow and
// gives its place back. Periods are aligned to UTC, and a clock that is set back
// begins none again. A Book has a bound on its counters; when it is full of those
// that still count, what needs a new one is refused.
//
// Counters can be copied to where they last and be put back. It neither writes
// them nor knows policies; what is lost with a process that is killed is for who
// writes the copies to count again.
package limit

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"sallyport/internal/quota"
)

// Bounds of a Book: of its counters, and of those of one limit, which cannot keep
// others from counting. Whichever sandbox needed a counter first has it in its share, of
// either, by the rules of package share; leastOfOne of a limit it always has.
const (
	MaxCounters = 16384
	maxOfLimit  = MaxCounters / 2
	maxOfOne    = maxOfLimit / 4
	leastOfOne  = 16
)

// Key names a counter.
type Key struct {
	Limit   string `json:"limit"`
	Subject string `json:"subject"`
}

// By is the sandbox that needed a counter first.
type By struct {
	Sandbox string `json:"sandbox,omitempty"` // ID
	Owner   string `json:"owner,omitempty"`   // the tenant, or empty
}

// Amount is how much of each kind: a bound, where zero is none, or what is used.
type Amount struct {
	Requests   int64 `json:"requests,omitempty"`
	Bytes      int64 `json:"bytes,omitempty"`
	Uses       int64 `json:"uses,omitempty"`
	Concurrent int64 `json:"concurrent,omitempty"`
	Tokens     int64 `json:"tokens,omitempty"` // of LLM APIs
	Cost       Money `json:"cost,omitzero"`    // of these
}

// Claim is what one request or tunnel takes of one limit.
type Claim struct {
	Key
	By
	Per   string        // what subjects are; a copy has it
	Every time.Duration // of the period; zero where nothing is counted over one
	Most  Amount
	Uses  int64
}

// ExceededError is a claim that a limit has no room for.
type ExceededError struct {
	Limit string
	What  string        // requests, bytes, uses, tokens, cost, concurrent, or counters
	Most  int64         // of What, a Money for cost; zero for counters
	Every time.Duration // zero for concurrent and counters
	Retry time.Duration // how long to wait
}

func (e *ExceededError) Error() string {
	switch e.What {
	case "counters":
		return fmt.Sprintf("limit %s: there are too many counters", e.Limit)
	case "concurrent":
		return fmt.Sprintf("limit %s: %d are under way at a time at most", e.Limit, e.Most)
	case "cost":
		return fmt.Sprintf("limit %s: a cost of %v within %v is used up", e.Limit, Money(e.Most), e.Every)
	}
	return fmt.Sprintf("limit %s: %d %s within %v are used up", e.Limit, e.Most, e.What, e.Every)
}

// counter is guarded by its Book's mutex.
type counter struct {
	key   Key
	by    By
	per   string
	every time.Duration
	start time.Time // of the period
	used  Amount    // Concurrent is what is under way
	most  Amount    // as claimed last
	stamp uint64    // of the last change
}

// over tells whether nothing hangs on the counter any more.
func (c *counter) over(now time.Time) bool {
	return c.used.Concurrent == 0 && (!now.Before(c.start.Add(c.every)) || c.every == Forever && c.used == (Amount{}))
}

// turn begins a new period where that is due: never one before the last.
func (c *counter) turn(now time.Time) {
	if start := begin(now, c.every); start.After(c.start) {
		c.start = start
		c.used = c.used.kept()
	}
}

// kept is what is used after a period's end: what is under way.
func (a Amount) kept() Amount { return Amount{Concurrent: a.Concurrent} }

// Forever is a period that nobody sees the end of: the one of now is from 1999 to
// 2248. There is always room for a counter with it.
const Forever = 250 * 365 * 24 * time.Hour

// begin is the start of the period that now is in.
func begin(now time.Time, every time.Duration) time.Time { return now.UTC().Truncate(every) }

// left is how long the period still is.
func (c *counter) left(now time.Time) time.Duration {
	return max(c.start.Add(c.every).Sub(now), time.Second)
}

// Book has the counters. It is safe for concurrent use.
type Book struct {
	now func() time.Time

	mu       sync.Mutex
	counters map[Key]*counter
	all      *quota.Places
	of       map[string]*quota.Places // by limit
	swept    time.Time
	stamp    uint64
	copied   uint64 // stamp of what Changed has given and was asked on from
}

// NewBook returns one without counters. now tells the time; default: time.Now.
func NewBook(now func() time.Time) *Book {
	if now == nil {
		now = time.Now
	}
	return &Book{now: now, counters: map[Key]*counter{}, all: quota.New(MaxCounters, 2*maxOfOne).Least(4 * leastOfOne), of: map[string]*quota.Places{}}
}

// Used is what a counter has, nothing where there is none.
func (b *Book) Used(k Key) Amount {
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.counters[k]; c != nil {
		return c.used
	}
	return Amount{}
}

// Now is the time that the Book goes by.
func (b *Book) Now() time.Time { return b.now() }

// errFull says that a claim would need one counter too many.
var errFull = errors.New("full")

// Take takes a request or tunnel from all of the counters that it claims, or from
// none: then the error is an *ExceededError, of the limit that denies the longest.
// size is how many bytes it is known to bring.
func (b *Book) Take(size int64, claims ...Claim) (*Use, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	if err := b.judge(now, size, claims); err != nil {
		return nil, err
	}
	return b.take(claims), nil
}

// Overdraw takes what there may be no room for, from all counters that there can
// be.
func (b *Book) Overdraw(claims ...Claim) *Use {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	for _, cl := range claims {
		_, _ = b.counter(now, cl) // one that there is no room for is not counted
	}
	return b.take(claims)
}

// take is Take where it has been judged. b.mu is held.
func (b *Book) take(claims []Claim) *Use {
	u := &Use{book: b, counters: make([]*counter, 0, len(claims)), most: make([]Amount, 0, len(claims))}
	for _, cl := range claims {
		c := b.counters[cl.Key]
		if c == nil {
			continue
		}
		u.counters, u.most = append(u.counters, c), append(u.most, cl.Most)
		u.metered = u.metered || cl.Most.Bytes > 0
		u.charged = u.charged || cl.Most.Tokens > 0 || cl.Most.Cost > 0
		c.used.Concurrent++
		if c.every > 0 {
			c.used.Requests++
			c.used.Uses += cl.Uses
		}
		b.touch(c)
	}
	return u
}

// Check says what Take would, and takes nothing.
func (b *Book) Check(size int64, claims ...Claim) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.judge(b.now(), size, claims)
}

// judge finds the counters, makes those that are missing, and says whether all
// have room. b.mu is held.
func (b *Book) judge(now time.Time, size int64, claims []Claim) error {
	var worst *ExceededError
	for _, cl := range claims {
		c, err := b.counter(now, cl)
		if err != nil {
			return &ExceededError{Limit: cl.Limit, What: "counters", Retry: time.Minute}
		}
		if e := c.exceeded(now, size, cl); e != nil && (worst == nil || e.Retry > worst.Retry) {
			worst = e
		}
	}
	if worst != nil {
		return worst
	}
	return nil
}

// exceeded is what keeps a claim from being taken.
func (c *counter) exceeded(now time.Time, size int64, cl Claim) *ExceededError {
	e := &ExceededError{Limit: cl.Limit, Every: cl.Every, Retry: c.left(now)}
	switch used, most := c.used, cl.Most; {
	case most.Requests > 0 && used.Requests >= most.Requests:
		e.What, e.Most = "requests", most.Requests
	case most.Uses > 0 && cl.Uses > 0 && used.Uses+cl.Uses > most.Uses:
		e.What, e.Most = "uses", most.Uses
	case most.Bytes > 0 && (used.Bytes >= most.Bytes || size > most.Bytes-used.Bytes):
		e.What, e.Most = "bytes", most.Bytes
	case most.Tokens > 0 && used.Tokens >= most.Tokens:
		e.What, e.Most = "tokens", most.Tokens
	case most.Cost > 0 && used.Cost >= most.Cost:
		e.What, e.Most = "cost", int64(most.Cost)
	case most.Concurrent > 0 && used.Concurrent >= most.Concurrent:
		e.What, e.Most, e.Every, e.Retry = "concurrent", most.Concurrent, 0, time.Second
	default:
		return nil
	}
	return e
}

// counter finds or makes a claim's. b.mu is held.
func (b *Book) counter(now time.Time, cl Claim) (*counter, error) {
	c := b.counters[cl.Key]
	if c == nil {
		c = &counter{key: cl.Key, by: cl.By, every: cl.Every, start: begin(now, cl.Every)}
		if !b.add(c) {
			b.sweep(now)
			if !b.add(c) {
				if cl.Every != Forever {
					return nil, errFull
				}
				b.force(c)
			}
		}
	}
	if c.per != cl.Per || c.every != cl.Every || c.most != cl.Most { // another policy
		c.per, c.every, c.most = cl.Per, cl.Every, cl.Most
		b.touch(c)
	}
	c.turn(now)
	return c, nil
}

// add makes a counter one of the Book's, where its sandbox has room for another.
func (b *Book) add(c *counter) bool {
	if !b.all.Enter(c.by.Sandbox, c.by.Owner) {
		return false
	}
	if !b.limit(c).Enter(c.by.Sandbox, c.by.Owner) {
		b.all.Leave(c.by.Sandbox, c.by.Owner)
		return false
	}
	b.counters[c.key] = c
	return true
}

// force is add whatever there is room for.
func (b *Book) force(c *counter) {
	b.counters[c.key] = c
	b.all.Restore(c.by.Sandbox, c.by.Owner)
	b.limit(c).Restore(c.by.Sandbox, c.by.Owner)
}

// limit has the places of a counter's limit.
func (b *Book) limit(c *counter) *quota.Places {
	p := b.of[c.key.Limit]
	if p == nil {
		p = quota.New(maxOfLimit, maxOfOne).Least(leastOfOne)
		b.of[c.key.Limit] = p
	}
	return p
}

func (b *Book) drop(c *counter) {
	delete(b.counters, c.key)
	b.all.Leave(c.by.Sandbox, c.by.Owner)
	p := b.limit(c)
	if p.Leave(c.by.Sandbox, c.by.Owner); p.Taken() == 0 {
		delete(b.of, c.key.Limit)
	}
}

// sweep drops what is over, once a second at most. The copier is told first that
// nothing is under way there.
func (b *Book) sweep(now time.Time) {
	if since := now.Sub(b.swept); since >= 0 && since < time.Second {
		return
	}
	b.swept = now
	for _, c := range b.counters {
		if c.over(now) && (b.copied == 0 || c.stamp <= b.copied) {
			b.drop(c)
		}
	}
}

func (b *Book) touch(c *counter) {
	b.stamp++
	c.stamp = b.stamp
}

// Use is what has been taken, until End. Its methods are safe for concurrent use
// and do nothing on nil.
type Use struct {
	book     *Book
	counters []*counter
	most     []Amount
	metered  bool // some counter bounds bytes
	charged  bool // some counter bounds tokens or cost

	// Guarded by book.mu.
	ended bool
	err   error
}

// Metered tells whether Spend needs to be called.
func (u *Use) Metered() bool { return u != nil && u.metered }

// Spend counts bytes that flow, whichever way. When a limit has no more, it
// returns an *ExceededError, then and ever after: what flows is to be broken off.
func (u *Use) Spend(n int) error {
	if !u.Metered() {
		return nil
	}
	b := u.book
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	for i, c := range u.counters {
		if n == 0 || u.most[i].Bytes == 0 {
			continue
		}
		c.turn(now)
		c.used.Bytes += int64(n)
		b.touch(c)
		if c.used.Bytes > u.most[i].Bytes {
			u.err = cmp.Or(u.err, error(&ExceededError{
				Limit: c.key.Limit, What: "bytes", Most: u.most[i].Bytes, Every: c.every, Retry: c.left(now),
			}))
		}
	}
	return u.err
}

// Charged tells whether Charge needs to be called.
func (u *Use) Charged() bool { return u != nil && u.charged }

// Charge counts tokens and their cost in the period that it is, in all counters
// that have one. Neither is less than nothing, and no counter goes beyond what it
// can hold. It returns an *ExceededError, now and from Spend ever after, where a
// limit had less than that: who is still using more is to be broken off.
func (u *Use) Charge(tokens int64, cost Money) error {
	if !u.Charged() {
		return nil
	}
	b := u.book
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	for i, c := range u.counters {
		if c.every == 0 {
			continue
		}
		c.turn(now)
		c.used.Tokens = plus(c.used.Tokens, max(tokens, 0))
		c.used.Cost = c.used.Cost.Plus(max(cost, 0))
		b.touch(c)
		e := &ExceededError{Limit: c.key.Limit, Every: c.every, Retry: c.left(now)}
		switch most := u.most[i]; {
		case most.Tokens > 0 && c.used.Tokens > most.Tokens:
			e.What, e.Most = "tokens", most.Tokens
		case most.Cost > 0 && c.used.Cost > most.Cost:
			e.What, e.Most = "cost", int64(most.Cost)
		default:
			continue
		}
		u.err = cmp.Or(u.err, error(e))
	}
	return u.err
}

// Err is what Spend or Charge has returned last.
func (u *Use) Err() error {
	if u == nil {
		return nil
	}
	u.book.mu.Lock()
	defer u.book.mu.Unlock()
	return u.err
}

// End gives the places back. Used amounts stay used.
func (u *Use) End() {
	if u == nil {
		return
	}
	b := u.book
	b.mu.Lock()
	defer b.mu.Unlock()
	if u.ended {
		return
	}
	u.ended = true
	for _, c := range u.counters {
		c.used.Concurrent--
		b.touch(c)
	}
}
