package tree

import (
	"fmt"
	"slices"
	"time"

	"golang.org/x/mod/sumdb/tlog"
)

// walk is where a verifier is, going through records and checkpoints in order.
type walk struct {
	edge   *edge  // of the tree up to last; nil if it is not known
	holes  bool   // edge has the leaves of lost records, which may have been others
	base   uint64 // since which edge goes on without a gap
	marked uint64 // up to which the report has ranges
	last   uint64 // number of the last record
	leaf   tlog.Hash
	at     uint64

	suspects []uint64 // records after marked whose hash is stored otherwise; the first of them
	suspect  uint64   // how many
	covered  uint64   // records that some checkpoint covers
	signed   *Checkpoint
	notes    []string // of the log's checkpoints with the size of signed
	split    bool     // a fork was found
	size     uint64   // of the checkpoint whose record was last
	clock    int64    // latest decision
	tail     [2]int64
}

// stored is a record as it was sorted.
type stored struct {
	leaf  tlog.Hash
	time  int64
	flags byte
	at    uint64
	size  uint64
}

func (v *verifier) record(number uint64, r stored) {
	if number == v.last {
		switch {
		case r.leaf != v.leaf:
			v.report.find(Finding{Kind: Changed, First: number, Last: number, Where: place(r.at), Text: "another record has the same number: compare the two"})
		case v.log:
			v.report.find(Finding{Kind: Misplaced, First: number, Last: number, Text: "it is there twice"})
		default:
			v.report.Duplicates++
		}
		return
	}
	if number > v.last+1 {
		v.absent(number - 1)
	}
	if v.last == 0 && (number == 1 || v.strict) {
		v.edge = &edge{}
	}
	v.guess(number - 1)
	if v.edge != nil && v.edge.size+1 == number {
		v.edge.add(r.leaf, nil)
	}
	v.report.Records++
	v.last, v.leaf, v.at = number, r.leaf, r.at

	if r.flags&differs != 0 {
		v.suspicious(number)
	} else if v.store != nil && number <= v.store.Size() {
		if h, err := v.store.Leaf(number); err != nil || h != r.leaf {
			v.suspicious(number)
		}
	}
	if r.flags&timed != 0 {
		if r.time < v.clock-slack.Milliseconds() {
			v.wentBack(number, time.UnixMilli(v.clock), time.UnixMilli(r.time))
			v.clock = 0
		}
		v.clock = max(v.clock, r.time)
	}
	if r.flags&proved != 0 {
		if r.size < v.size {
			v.report.find(Finding{Kind: Misplaced, First: number, Last: number, Text: "a checkpoint's record that is after those of later checkpoints"})
		} else if r.size > v.size && v.marked == number-1 && v.suspect == 0 { // once: the number is not signed
			v.cover(number, number)
			v.report.mark(number, number, ByCheckpoint)
			v.marked = number
		}
		v.size = max(v.size, r.size)
	}
	if v.marked == number-1 {
		v.tail[0] = r.time
	}
	v.tail[1] = r.time
}

// guess goes on behind missing records as if they had been lost before they were sealed.
func (v *verifier) guess(to uint64) {
	if v.edge != nil && v.edge.size < to && to-v.edge.size < maxTail {
		for v.edge.size < to {
			v.edge.add(lost, nil)
		}
		v.holes = true
	}
	if v.edge == nil || v.edge.size != to {
		v.unanchored(v.last)
		v.edge, v.marked = nil, to
	}
}

// missing goes over records up to a number that are not there.
func (v *verifier) missing(to uint64) {
	v.unanchored(v.last)
	v.absent(to)
	v.last, v.marked = to, to
}

// absent reports the records up to a number, unless those before them are not known.
func (v *verifier) absent(to uint64) {
	if v.last > 0 || v.strict {
		v.report.find(Finding{Kind: Missing, First: v.last + 1, Last: to, Text: "they were removed, or could not be read; see the records beside them"})
	}
}

func (v *verifier) suspicious(number uint64) {
	if v.suspect++; len(v.suspects) < 100 {
		v.suspects = append(v.suspects, number)
	}
}

func (v *verifier) wentBack(number uint64, from, to time.Time) {
	v.report.find(Finding{Kind: Clock, First: number, Last: number, Text: fmt.Sprintf(
		"the clock went back by %v, from %s: times after it can be earlier than they should be; the numbers are in order", from.Sub(to).Round(time.Millisecond), from.UTC().Format(time.RFC3339))})
}

// checkpoint compares the tree with one of the log's own. It comes after the last record
// that it covers.
func (v *verifier) checkpoint(c *Checkpoint) {
	if s := v.signed; s != nil {
		if s.Note == c.Note {
			return // exported twice
		}
		if s.Size == c.Size && s.Root != c.Root {
			v.fork(c, "two checkpoints of %d records were signed, with different roots: the log has two histories")
		}
		if c.Time.Before(s.Time.Add(-noteSlack)) {
			v.wentBack(c.Size, s.Time, c.Time)
		}
		if s.Size != c.Size {
			v.notes = v.notes[:0]
		}
	}
	v.signed, v.notes = c, append(v.notes, c.Note)
	v.report.Checkpoints++
	v.report.Newest = c.Time
	v.covered = max(v.covered, c.Size)
	switch {
	case c.Size > v.last || v.edge == nil || v.holes && v.edge.root() != c.Root:
		v.unanchored(v.last)
		v.base, v.marked = c.Size, c.Size
	case v.edge.root() == c.Root:
		v.anchored(c.Size)
	default:
		if n := len(v.report.Deleted); n > 0 && v.report.Deleted[n-1].Last == c.Size {
			v.report.find(Finding{Kind: Tree, First: v.base + 1, Last: c.Size, Text: "they were deleted, and the hashes that are stored for them are not those that were signed"})
		} else if v.suspect == 0 {
			v.report.find(Finding{Kind: Changed, First: v.marked + 1, Last: c.Size, Text: "at least one of them is not as it was signed: compare them with another copy"})
		}
		v.unanchored(v.last)
		v.base = c.Size
	}
	v.reset(c)
}

// reset goes on from a checkpoint.
func (v *verifier) reset(c *Checkpoint) {
	e := c.edge.clone()
	v.edge, v.holes = &e, false
}

// anchor compares the tree with a checkpoint that was not read from the records: the
// newest, or one of an outside copy. Its own record follows those that it covers.
func (v *verifier) anchor(c *Checkpoint, outside bool) {
	whole := v.log || outside // of an export, the tree's newest may be much newer
	if whole {
		v.covered = max(v.covered, c.Size+1)
	}
	switch {
	case c.Size > v.last:
		v.anchorLater(c, outside)
		return
	case v.edge == nil || v.holes && v.edge.root() != c.Root:
		v.unanchored(v.last)
		v.base = c.Size
		v.reset(c)
	case v.edge.root() != c.Root:
		v.fork(c, "a checkpoint of %d records was signed that is not of this history: one of the two was made later, with the same key")
		return
	default:
		v.anchored(c.Size)
		if outside {
			v.report.raise(v.base+1, c.Size)
		}
	}
	if v.strict && whole && !slices.Contains(v.notes, c.Note) {
		v.report.find(Finding{Kind: Truncated, First: c.Size + 1, Text: fmt.Sprintf("a checkpoint of %d records was recorded after them, and its record is gone", c.Size)})
	}
}

// anchorLater compares the records of an export with a checkpoint of more than it has, by
// a proof that the log's tree has: the checkpoint's tree goes on from that of the export.
func (v *verifier) anchorLater(c *Checkpoint, outside bool) {
	if v.log || v.store == nil || v.edge == nil || v.edge.size != v.last {
		return
	}
	p, err := tlog.ProveTree(int64(c.Size), int64(v.last), v.store)
	if err != nil || tlog.CheckTree(p, int64(c.Size), c.Root, int64(v.last), v.edge.root()) != nil {
		return // the export may be of another history, and be anchored by its own checkpoints
	}
	v.anchored(v.last)
	if outside {
		v.report.raise(v.base+1, v.last)
	}
}

// fork reports the first contradiction: all that follow it are the same.
func (v *verifier) fork(c *Checkpoint, text string) {
	if !v.split {
		v.split = true
		v.report.find(Finding{Kind: Forked, First: v.base + 1, Last: c.Size, Text: fmt.Sprintf(text, c.Size)})
	}
}

// anchored says that the records up to a number are as they were signed.
func (v *verifier) anchored(to uint64) {
	for _, n := range v.suspects {
		v.report.find(Finding{Kind: Tree, First: n, Last: n, Text: "the hash that is stored for it is wrong: the record is as it was signed"})
	}
	v.suspects, v.suspect = nil, 0
	v.cover(v.marked+1, to)
	v.report.mark(v.marked+1, to, ByCheckpoint)
	v.marked = max(v.marked, to)
}

// unanchored says that nothing covers the records up to a number.
func (v *verifier) unanchored(to uint64) {
	for _, n := range v.suspects {
		v.report.find(Finding{Kind: Changed, First: n, Last: n, Text: "it is not the record whose hash was stored: compare it with another copy"})
	}
	v.suspects, v.suspect = nil, 0
	v.report.mark(v.marked+1, to, ByNothing)
	v.marked = max(v.marked, to)
}

// A tail without a checkpoint is usual until the next is due.
const (
	maxTail     = 1 << 16 // records
	maxTailTime = time.Minute
)

func (v *verifier) end() {
	tail := v.last - min(v.marked, v.last)
	first := v.marked + 1
	v.unanchored(v.last)
	if v.log && v.store != nil {
		v.covered = max(v.covered, v.store.Size())
	}
	if v.covered > v.last {
		v.report.find(Finding{Kind: Truncated, First: v.last + 1, Last: v.covered, Text: "they were in the log, and the end of it is gone"})
	}
	if tail > maxTail || tail > 0 && v.tail[1]-v.tail[0] > maxTailTime.Milliseconds() {
		v.report.find(Finding{Kind: Unanchored, First: first, Last: v.last, Text: "no checkpoint covers them: see whether the daemon could seal (`sallyport status`), or whether the checkpoints were removed"})
	}
}
