package tree_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/tree"
)

// deletion appends the event that says that the records up to the end of a segment are
// deleted.
func (s *sealed) deletion(t testing.TB, of auditlog.Segment) {
	t.Helper()
	s.forge(t, 1, of.Last)
}

// forge appends the event that says that records are deleted.
func (s *sealed) forge(t testing.TB, first, last uint64) {
	t.Helper()
	store, err := tree.OpenStore(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	root, err := store.Root(last)
	if err != nil {
		t.Fatal(err)
	}
	e := audit.New(audit.KindLifecycle, audit.ClassLifecycle, audit.ActivityOther)
	e.Unmapped.Sallyport.State = audit.StateDeleted
	e.Unmapped.Sallyport.Deleted = &audit.Deletion{Earliest: first, First: first, Last: last, Root: root}
	if err := s.log.Append(t.Context(), e); err != nil {
		t.Fatal(err)
	}
}

// reduced is a log whose first segments were deleted, with all the records that it had.
func reduced(t testing.TB) (s *sealed, of auditlog.Segment, records []string) {
	t.Helper()
	s = closed(t, 60)
	again := open(t, filepath.Dir(filepath.Dir(s.dir)))
	all, err := auditlog.Segments(s.dir)
	if err != nil || len(all) < 4 {
		t.Fatal(all, err)
	}
	of = all[1]
	again.deletion(t, of)
	again.end(t)
	if again.exchanges(t, 0); len(again.segments(t)) < 4 {
		t.Fatal("no segments")
	}
	records = again.records(t)
	if err := auditlog.Remove(s.dir, of.Last); err != nil {
		t.Fatal(err)
	}
	return again, of, records
}

// A range that the log says was deleted is no finding, and the rest is anchored as before.
func TestDeleted(t *testing.T) {
	s, of, records := reduced(t)
	r := s.verify(t)
	by := r.Deleted[0].By
	if len(r.Findings) > 0 || !slices.Equal(r.Deleted, []tree.Deleted{{First: 1, Last: of.Last, By: by}}) ||
		!slices.Equal(r.Ranges, []tree.Range{{First: of.Last + 1, Last: uint64(len(records)), Anchor: tree.ByCheckpoint}}) ||
		!strings.Contains(records[by-1], audit.StateDeleted) || !strings.Contains(r.String(), "deleted, as record ") {
		t.Fatal(r)
	}
	// Old checkpoints of an outside copy still count, and show another history.
	outside, err := tree.VerifyLog(t.Context(), s.dir, s.publicKey(t), s.outside(t, export(records[:of.Last])))
	if err != nil || len(outside.Findings) > 0 {
		t.Error(outside, err)
	}
	// Without the tree the rest is anchored from its first checkpoint on.
	if err := os.Rename(filepath.Join(tree.Dir(s.dir), "hashes"), filepath.Join(tree.Dir(s.dir), "gone")); err != nil {
		t.Fatal(err)
	}
	if r := s.verify(t); slices.Contains(kinds(r), "missing") || len(r.Deleted) != 1 || r.Ranges[len(r.Ranges)-1].Anchor != tree.ByCheckpoint {
		t.Error(r)
	}
}

func TestDeletedOtherwise(t *testing.T) {
	t.Run("more than was said", func(t *testing.T) {
		s, of, _ := reduced(t)
		all, _ := auditlog.Segments(s.dir)
		if err := auditlog.Remove(s.dir, all[0].Last); err != nil {
			t.Fatal(err)
		}
		r := s.verify(t)
		if f := r.Findings[0]; f.Kind != tree.Missing || f.First != of.Last+1 || f.Last != all[0].Last || len(r.Deleted) != 1 {
			t.Error(r)
		}
	})
	t.Run("without a word", func(t *testing.T) {
		s := closed(t, 60)
		all, _ := auditlog.Segments(s.dir)
		if err := auditlog.Remove(s.dir, all[0].Last); err != nil {
			t.Fatal(err)
		}
		if r := s.verify(t); !found(r, tree.Missing) || len(r.Deleted) > 0 {
			t.Error(r)
		}
	})
	t.Run("by a record that nothing covers", func(t *testing.T) {
		s := closed(t, 60)
		all, _ := auditlog.Segments(s.dir)
		again := open(t, filepath.Dir(filepath.Dir(s.dir)))
		again.deletion(t, all[0])
		if err := again.log.Close(); err != nil {
			t.Fatal(err)
		}
		if r := s.verify(t); len(r.Findings) > 0 || len(r.Deleted) > 0 {
			t.Error("before: ", r)
		}
		if err := auditlog.Remove(s.dir, all[0].Last); err != nil {
			t.Fatal(err)
		}
		if r := s.verify(t); !slices.Equal(kinds(r), []string{"missing"}) || !strings.Contains(r.String(), "no checkpoint covers it") {
			t.Error(r)
		}
	})
	// The log's writer can write the event, too, and cut a segment that it has begun the
	// next one after: the end of one, or all of the first.
	for name, of := range map[string]struct{ segment, cut int }{"at the end of a segment": {1, 3}, "all of the first segment": {0, 0}} {
		t.Run(name, func(t *testing.T) {
			s := closed(t, 60)
			again := open(t, filepath.Dir(filepath.Dir(s.dir)))
			all, _ := auditlog.Segments(s.dir)
			last := all[of.segment].Last
			path := s.segments(t)[of.segment]
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			lines := bytes.SplitAfter(b, []byte("\n"))
			left := len(lines) - 1 - of.cut
			if of.cut == 0 {
				left = 0
			}
			first := all[of.segment].First + uint64(left)
			again.forge(t, first, last)
			again.end(t)
			if err := os.WriteFile(path, bytes.Join(lines[:left], nil), 0o600); err != nil {
				t.Fatal(err)
			}
			if r := s.verify(t); !slices.ContainsFunc(r.Findings, func(f tree.Finding) bool {
				return f.Kind == tree.Missing && f.First == first && f.Last == last
			}) || len(r.Deleted) > 0 {
				t.Error(r)
			}
		})
	}
	t.Run("with other hashes", func(t *testing.T) {
		s, _, _ := reduced(t)
		f, err := os.OpenFile(filepath.Join(tree.Dir(s.dir), "hashes"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt(bytes.Repeat([]byte{7}, 32), 0); err != nil {
			t.Fatal(err)
		}
		if r := s.verify(t); !slices.Equal(kinds(r), []string{"tree"}) {
			t.Error(r)
		}
	})
}

// A copy of records that were deleted is checked against checkpoints of much later, by
// the hashes that the tree keeps. Proofs of before still hold.
func TestDeletedCopy(t *testing.T) {
	s, of, records := reduced(t)
	last := int(of.Last)
	for strings.Contains(records[last-1], `"state":"checkpoint"`) {
		last--
	}
	verify := func(lines []string) *tree.Report {
		r, err := tree.VerifyExport(t.Context(), strings.NewReader(export(lines)), s.publicKey(t), 1, nil, s.dir)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	whole(t, verify(records[:last]), last)
	if r := s.verifyExport(t, export(records[:last]), 1, nil); r.Ranges[len(r.Ranges)-1].Anchor != tree.ByNothing {
		t.Error("the control: nothing is unanchored", r)
	}
	changed := slices.Clone(records[:last])
	changed[last-1] = strings.Replace(changed[last-1], `"severity_id":1`, `"severity_id":3`, 1)
	if r := verify(changed); !slices.Equal(kinds(r), []string{"changed"}) {
		t.Error(r)
	}
	if _, err := tree.Prove(t.Context(), s.dir, 3); err == nil || !strings.Contains(err.Error(), "deleted") {
		t.Error(err)
	}
	if p, err := tree.Prove(t.Context(), s.dir, of.Last+1); err != nil || p.Index != of.Last {
		t.Error(p, err)
	}
}
