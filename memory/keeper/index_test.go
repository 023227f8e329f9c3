package keeper_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/memory/keeper"
)

// A memory with more text than is searched says so, once in the log and where a file is
// found by its name.
func TestMoreTextThanIsSearched(t *testing.T) {
	r := newRig(t)
	ctx := t.Context()
	for _, name := range []string{"a", "b"} {
		r.writes("memories/"+name+".md", "apple of "+name+strings.Repeat("\nAll is well.", 60_000))
	}
	for range 2 {
		found := value(r.Search(ctx, r.o, keeper.Question{Query: "b.md"}))(t).Found
		if len(found) == 0 || found[0].Path != "memories/b.md" || found[0].Note == "" {
			t.Errorf("found: %+v", found)
		}
	}
	if n := strings.Count(r.log.String(), "1 files are found by their names alone, as 1 MiB of text are the most: remove files that are not needed"); n != 1 {
		t.Errorf("%d warnings in %s", n, r.log.String())
	}
}

// The first index says how far it is. One that is broken off has nothing that is not so:
// the next question finds all files as they are.
func TestFirstIndexIsBrokenOff(t *testing.T) {
	for _, at := range []string{keeper.FilesRecorded, keeper.FilesIndexed} {
		t.Run(at, func(t *testing.T) {
			r := newRig(t)
			const files = 300
			for i := range files {
				r.writes(fmt.Sprintf("memories/%03d.md", i), fmt.Sprintf("apple number%d\n", i))
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			err := r.Index(ctx, r.o, func(s keeper.Step) error {
				if s.What == at && s.Done > 0 && s.Done < s.Total {
					cancel()
				}
				return nil
			})
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("broken off: %v", err)
			}
			r.writes("memories/000.md", "pear\n")
			must.OK(t, os.Remove(r.path("memories/001.md")))
			if found := value(r.Search(t.Context(), r.o, keeper.Question{Query: "apple", Limit: 1000}))(t).Found; len(found) != files-2 {
				t.Errorf("%d of %d files are found", len(found), files-2)
			}
			if found := value(r.Search(t.Context(), r.o, keeper.Question{Query: "pear"}))(t).Found; len(found) != 1 {
				t.Errorf("what was written then: %+v", found)
			}
			steps := 0
			must.OK(t, r.Index(t.Context(), r.o, func(keeper.Step) error { steps++; return nil }))
			if steps == 0 {
				t.Error("the end is not told")
			}
		})
	}
}

// An answer says that files were not searched for want of room, also one that is empty.
func TestAnswerIsIncomplete(t *testing.T) {
	r := newRig(t) // whose index has room for 1 MiB
	ctx := t.Context()
	r.writes("memories/a.md", "The first apple.\n")
	if list := value(r.Search(ctx, r.o, keeper.Question{Query: "apple"}))(t); len(list.Found) != 1 || list.Incomplete != "" {
		t.Errorf("all is searched: %+v", list)
	}
	for _, name := range []string{"b", "c"} {
		r.writes("memories/"+name+".md", "A mangosteen."+strings.Repeat(" ", 700<<10))
	}
	r.writes("memories/d.md", "A papaya."+strings.Repeat(" ", 700<<10))
	const want = "2 files are found by their names alone"
	for _, query := range []string{"papaya", "apple", "quince"} {
		q := keeper.Question{Query: query}
		if list := value(r.Search(ctx, r.o, q))(t); !strings.Contains(list.Incomplete, want) {
			t.Errorf("search of %s: %+v", query, list.Incomplete)
		}
		if list := value(r.Retrieve(ctx, r.o, q))(t); !strings.Contains(list.Incomplete, want) {
			t.Errorf("retrieve of %s: %+v", query, list.Incomplete)
		}
		if text := value(r.FormatForContext(ctx, r.o, q))(t); !strings.Contains(text.Incomplete, want) {
			t.Errorf("format_for_context of %s: %+v", query, text.Incomplete)
		}
	}
}
