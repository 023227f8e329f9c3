package tree

import (
	"fmt"
	"strings"
	"time"
)

// Kind is what a finding is about.
type Kind string

const (
	Changed    Kind = "changed"    // records are not as they were written
	Missing    Kind = "missing"    // numbers without a record
	Misplaced  Kind = "misplaced"  // records stand elsewhere than they were written, or twice
	Truncated  Kind = "truncated"  // the end is gone
	Forked     Kind = "forked"     // two histories were signed with one key
	Gap        Kind = "gap"        // the log itself says that events were lost
	Clock      Kind = "clock"      // the clock went back
	Unanchored Kind = "unanchored" // more records than usual without a checkpoint
	Tree       Kind = "tree"       // the stored hashes are wrong, the records are right
)

// Finding is something wrong with a log or an export.
type Finding struct {
	Kind  Kind   `json:"kind"`
	First uint64 `json:"first,omitempty"` // numbers of the records
	Last  uint64 `json:"last,omitempty"`
	Where string `json:"where,omitempty"` // file and offset, or line of the export
	Text  string `json:"text"`            // what it is, and what to look at
}

func (f Finding) String() string {
	s := string(f.Kind)
	switch {
	case f.First == 0:
	case f.First == f.Last || f.Last == 0:
		s += fmt.Sprintf(", record %d", f.First)
	default:
		s += fmt.Sprintf(", records %d to %d", f.First, f.Last)
	}
	if f.Where != "" {
		s += ", " + f.Where
	}
	return s + ": " + f.Text
}

// Anchor is what covers a range of records.
type Anchor string

const (
	ByNothing    Anchor = "nothing"            // unanchored
	ByCheckpoint Anchor = "checkpoint"         // one of the log or the export itself
	ByOutside    Anchor = "outside checkpoint" // one of another copy
)

// Range is records with the same anchor, which are as they were when it was signed.
type Range struct {
	First  uint64 `json:"first"`
	Last   uint64 `json:"last"`
	Anchor Anchor `json:"anchor"`
}

// Incomplete is an allowed decision without its completion.
type Incomplete struct {
	ID     string `json:"id"`
	Number uint64 `json:"number"`
}

// Report is the outcome of a verification.
type Report struct {
	Log         string    `json:"log"`
	Records     uint64    `json:"records"`
	Checkpoints uint64    `json:"checkpoints"`
	Newest      time.Time `json:"newest_checkpoint,omitzero"`
	Ranges      []Range   `json:"ranges"`
	// Deleted are the ranges that were deleted from a log, as it says. That is no finding.
	Deleted  []Deleted `json:"deleted,omitempty"`
	Findings []Finding `json:"findings"`
	// Further is how many findings there are beyond those that are listed.
	Further uint64 `json:"further_findings,omitempty"`
	// Incomplete are the first decisions without completions: those that were under way
	// when the log ends, or when the daemon was killed. That is no finding.
	Incomplete      []Incomplete `json:"incomplete,omitempty"`
	IncompleteCount uint64       `json:"incomplete_count"`
	// Gaps are the records that say which others a sink lacks: an export of that sink
	// lacks them.
	Gaps uint64 `json:"gaps,omitempty"`
	// Of an export, which may be in any order, and have a record more than once.
	Duplicates uint64 `json:"duplicates,omitempty"`
	Unordered  uint64 `json:"unordered,omitempty"`
	Foreign    uint64 `json:"foreign_lines,omitempty"` // lines that are no record
}

// maxListed bounds each list of a Report.
const maxListed = 1000

func (r *Report) find(f Finding) {
	if len(r.Findings) == maxListed {
		r.Further++
		return
	}
	r.Findings = append(r.Findings, f)
}

// mark says what the records up to last, after those that were marked, are covered by.
func (r *Report) mark(first, last uint64, by Anchor) {
	if first > last {
		return
	}
	if n := len(r.Ranges); n > 0 && r.Ranges[n-1].Anchor == by && r.Ranges[n-1].Last+1 == first {
		r.Ranges[n-1].Last = last
		return
	}
	if len(r.Ranges) < maxListed {
		r.Ranges = append(r.Ranges, Range{first, last, by})
	}
}

// raise says that an outside checkpoint covers the records from first to the end.
func (r *Report) raise(first, last uint64) {
	for n := len(r.Ranges); n > 0 && r.Ranges[n-1].Last >= first; n = len(r.Ranges) {
		if r.Ranges[n-1].First < first {
			r.Ranges[n-1].Last = first - 1
			break
		}
		r.Ranges = r.Ranges[:n-1]
	}
	r.mark(first, last, ByOutside)
}

// String is the report for a person.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d records, %d checkpoints", r.Log, r.Records, r.Checkpoints)
	if !r.Newest.IsZero() {
		fmt.Fprintf(&b, ", the newest of %s", r.Newest.UTC().Format(time.RFC3339))
	}
	b.WriteString("\n")
	for _, d := range r.Deleted {
		fmt.Fprintf(&b, "records %d to %d: deleted, as record %d says\n", d.First, d.Last, d.By)
	}
	for _, g := range r.Ranges {
		text := "anchored by an " + string(g.Anchor)
		switch g.Anchor {
		case ByNothing:
			text = "unanchored"
		case ByCheckpoint:
			text = "anchored by a checkpoint"
		}
		fmt.Fprintf(&b, "records %d to %d: %s\n", g.First, g.Last, text)
	}
	for _, n := range []struct {
		count uint64
		text  string
	}{
		{r.Duplicates, "records are there more than once, without a difference"},
		{r.Unordered, "records are not in order"},
		{r.Foreign, "lines are no records of this log"},
		{r.Gaps, "records say that a sink lacks records"},
		{r.IncompleteCount, "decisions have no completion"},
	} {
		if n.count > 0 {
			fmt.Fprintf(&b, "%d %s\n", n.count, n.text)
		}
	}
	for _, i := range r.Incomplete {
		fmt.Fprintf(&b, "  no completion: record %d, decision %s\n", i.Number, i.ID)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "FOUND %s\n", f)
	}
	if r.Further > 0 {
		fmt.Fprintf(&b, "FOUND %d more\n", r.Further)
	}
	if len(r.Findings) == 0 {
		b.WriteString("nothing wrong was found\n")
	}
	return b.String()
}
