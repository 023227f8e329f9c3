package limit

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Count is a counter's copy.
type Count struct {
	Key
	By
	Per   string        `json:"per,omitempty"`
	Every time.Duration `json:"every,omitempty"` // nanoseconds
	Start time.Time     `json:"start,omitzero"`  // of the period
	Used  Amount        `json:"used"`            // Concurrent is not put back
	Most  Amount        `json:"most"`            // what the limit said when it was met last
}

// Changed lists up to most of the counters that have changed since a stamp, in the
// order in which they did, and the stamp to ask with next. Stamp 0 begins.
func (b *Book) Changed(since uint64, most int) (list []Count, stamp uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.copied = max(b.copied, min(since, b.stamp))
	if since == b.stamp {
		return nil, since
	}
	var changed []*counter
	for _, c := range b.counters {
		if c.stamp > since {
			changed = append(changed, c)
		}
	}
	if len(changed) <= most {
		stamp = b.stamp
	} else {
		slices.SortFunc(changed, func(x, y *counter) int { return cmp.Compare(x.stamp, y.stamp) })
		changed = changed[:most]
		stamp = changed[most-1].stamp
	}
	for _, c := range changed {
		list = append(list, Count{Key: c.key, By: c.by, Per: c.per, Every: c.every, Start: c.start, Used: c.used, Most: c.most})
	}
	return list, stamp
}

// maxRestored bounds what is put back: no more than a Book can have had.
const maxRestored = 2 * MaxCounters

// Restore puts copies back: a counter that is there keeps what is more of the two.
// Copies that the Book has no room for are left out, and their number is returned.
func (b *Book) Restore(list []Count) (left int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	for _, n := range list {
		c := b.counters[n.Key]
		if c == nil {
			if n.Every <= 0 || !now.Before(n.Start.Add(n.Every)) {
				continue
			}
			if len(b.counters) >= maxRestored {
				left++
				continue
			}
			c = &counter{key: n.Key, by: n.By, per: n.Per, every: n.Every, start: n.Start, most: n.Most}
			b.force(c)
		}
		held := Count{Start: c.start, Used: c.used}
		held.Merge(n)
		n.Used = held.Used
		under := c.used.Concurrent
		c.start, c.used = held.Start, n.Used
		c.used.Concurrent = under
		b.touch(c)
	}
	return left
}

// Reset empties the counters of a limit, of one subject or of all ("*"), and says
// how many. Requests under way stay.
func (b *Book) Reset(limit, subject string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for key, c := range b.counters {
		if key.Limit == limit && (subject == Every || subject == key.Subject) {
			c.used = c.used.kept()
			c.start = begin(b.now(), c.every) // also where the clock had been ahead
			b.touch(c)
			n++
		}
	}
	return n
}

// Every is the subject that stands for all.
const Every = "*"

// Merge takes what another copy of the same counter has more, of the later period:
// so that neither an old copy nor a wrong one makes less of what was used.
func (n *Count) Merge(o Count) {
	switch {
	case o.Start.After(n.Start):
		n.Start, n.Used = o.Start, o.Used
	case o.Start.Equal(n.Start):
		n.Used.Requests = max(n.Used.Requests, o.Used.Requests)
		n.Used.Bytes = max(n.Used.Bytes, o.Used.Bytes)
		n.Used.Uses = max(n.Used.Uses, o.Used.Uses)
		n.Used.Tokens = max(n.Used.Tokens, o.Used.Tokens)
		n.Used.Cost = max(n.Used.Cost, o.Used.Cost)
		n.Used.Concurrent = o.Used.Concurrent
	}
}

// Add counts what a record says was used at a time.
func (n *Count) Add(at, now time.Time, used Amount) {
	start := begin(at, n.Every)
	switch {
	case start.After(n.Start):
		n.Start, n.Used = start, Amount{}
	case start.Before(n.Start) && !n.Start.After(now): // else the clock was set back
		return // of a period that is over
	}
	n.Used.Requests += used.Requests
	n.Used.Bytes += used.Bytes
	n.Used.Uses += used.Uses
	n.Used.Tokens = plus(n.Used.Tokens, used.Tokens)
	n.Used.Cost = n.Used.Cost.Plus(used.Cost)
}

// Ends is when the period does.
func (n *Count) Ends() time.Time { return n.Start.Add(n.Every) }

// Sort orders copies by limit and subject.
func Sort(list []Count) {
	slices.SortFunc(list, func(a, b Count) int {
		return cmp.Or(strings.Compare(a.Limit, b.Limit), strings.Compare(a.Subject, b.Subject))
	})
}
