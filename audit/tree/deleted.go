package tree

import (
	"cmp"
	"fmt"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit"
)

// Deleted is a range of records that were deleted, as a later record says.
type Deleted struct {
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
	By    uint64 `json:"by"` // number of that record
}

// deletion is a record that says that others were deleted.
type deletion struct {
	audit.Deletion
	number  uint64
	covered bool // by a checkpoint
}

// Root is the root of the tree of the first records, in base64.
func (s *Store) Root(size uint64) (string, error) {
	h, err := tlog.TreeHash(int64(size), s)
	return h.String(), err
}

// extend adds the stored hashes of records up to a number.
func (s *Store) extend(e *edge, to uint64) error {
	for e.size < to {
		h, err := s.Leaf(e.size + 1)
		if err != nil {
			return err
		}
		e.add(h, nil)
	}
	return nil
}

// deleted goes over records up to a number that are not there because they were deleted:
// the tree has their hashes. Those are before the first segment: what is missing after that
// was removed by somebody else, whatever a record says, which the log's writer can have
// written.
func (v *verifier) deleted(to uint64) {
	to = min(to, max(v.begins, 1)-1)
	for i := range v.deletions {
		d := &v.deletions[i]
		if d.Last <= v.last || d.Earliest > to || to <= v.last {
			continue
		}
		if d.Earliest > v.last+1 {
			v.missing(d.Earliest - 1)
		}
		first, last := v.last+1, min(to, d.Last)
		v.unanchored(v.last)
		if first == 1 {
			v.edge, v.base = &edge{}, 0
		}
		if v.store == nil || v.edge == nil || v.edge.size != v.last {
			v.edge = nil
		} else if err := v.store.extend(v.edge, last); err != nil {
			v.report.find(Finding{Kind: Tree, First: first, Last: last, Text: "they were deleted, and their hashes cannot be read: " + err.Error()})
			v.edge = nil
		} else if last == d.Last && v.edge.root().String() != d.Root {
			v.report.find(Finding{Kind: Tree, First: first, Last: last, Text: fmt.Sprintf("they were deleted, and the hashes that are stored for them are not those that record %d names", d.number)})
			v.edge = nil
		}
		v.last, v.marked = last, last
		if n := len(v.report.Deleted); n > 0 && v.report.Deleted[n-1].By == d.number && v.report.Deleted[n-1].Last+1 == first {
			v.report.Deleted[n-1].Last = last
		} else {
			v.report.Deleted = append(v.report.Deleted, Deleted{first, last, d.number})
		}
	}
}

// sortDeletions has them in the order of what they deleted: an earlier one tells more.
func (v *verifier) sortDeletions() {
	slices.SortFunc(v.deletions, func(a, b deletion) int { return cmp.Compare(a.Last, b.Last) })
}

// cover notes which deletions a checkpoint covers.
func (v *verifier) cover(first, last uint64) {
	for i, d := range v.deletions {
		v.deletions[i].covered = d.covered || first <= d.number && d.number <= last
	}
}

// undeleted finds what was deleted by records that no checkpoint covers: anybody could
// have written them.
func (v *verifier) undeleted() {
	for _, d := range v.report.Deleted {
		if i := slices.IndexFunc(v.deletions, func(of deletion) bool { return of.number == d.By }); !v.deletions[i].covered {
			v.report.find(Finding{Kind: Missing, First: d.First, Last: d.Last, Text: fmt.Sprintf("record %d says that they were deleted, and no checkpoint covers it", d.By)})
		}
	}
}
