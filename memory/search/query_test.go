package search_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/memory/search"
)

func TestQuery(t *testing.T) {
	b := newBox(t, search.Options{})
	for i, kind := range []string{"observation", "preference", "task_outcome"} {
		b.plant(fmt.Sprintf("memories/%s/%d.md", kind, i), fmt.Sprintf("---\ntype: %s\ntime: 2026-01-0%dT00:00:00Z\n---\nThe apple is red.\n\nThe apple fell.\n", kind, i+1))
	}
	b.plant("plans/plan.md", "- [ ] eat an apple\n")
	b.plant("conversations.jsonl", `{"time":"2025-01-01T00:00:00Z","session":"a","content":"an apple"}`+"\n"+`{"time":"2025-01-02T00:00:00Z","session":"b","content":"two apples"}`+"\n")
	b.update()
	day := func(d int) time.Time { return time.Date(2026, 1, d, 0, 0, 0, 0, time.UTC) }
	entries := []string{"memories/observation/0.md", "memories/preference/1.md", "memories/task_outcome/2.md"}
	both := []string{"conversations.jsonl", "conversations.jsonl"}
	for _, tt := range []struct {
		name  string
		query search.Query
		want  []string // the paths of what is found, sorted
	}{
		{"distinct", search.Query{Text: "apple", Distinct: true}, slices.Concat(both, entries, []string{"plans/plan.md"})},
		{"all", search.Query{Text: "apple"}, slices.Concat(both, entries[:1], entries[:1], entries[1:2], entries[1:2], entries[2:], entries[2:], []string{"plans/plan.md"})},
		{"type", search.Query{Text: "apple", Types: []string{"preference", "plan"}, Distinct: true}, []string{entries[1], "plans/plan.md"}},
		{"time", search.Query{Text: "apple", Since: day(1), Until: day(3), Distinct: true}, entries[:2]},
		{"allow", search.Query{Text: "apple", Distinct: true, Allow: func(p string) bool { return strings.HasSuffix(p, "2.md") }}, entries[2:]},
		{"no words", search.Query{Text: "?! ", Until: day(9), Limit: 3, Distinct: true}, entries},
		{"words of no file", search.Query{Text: "pear"}, nil},
		{"a date", search.Query{Text: "in 2025", Distinct: true}, both},
	} {
		hits := b.search(tt.query)
		var got []string
		for i, h := range hits {
			got = append(got, h.Path)
			if i > 0 && h.Score > hits[i-1].Score {
				t.Errorf("%s: not sorted by score", tt.name)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	if hits := b.search(search.Query{Text: "apple", Limit: 2}); len(hits) != 2 {
		t.Errorf("limit: %d", len(hits))
	}
}

func TestWholeFile(t *testing.T) {
	b := newBox(t, search.Options{})
	rest := "\n\nOne.\n\nTwo.\n\nThree.\n\nFour.\n\n"
	b.plant("memories/1.md", "Apples are red."+rest+"Cherries are tiny.\n")
	b.plant("memories/2.md", "Apples are red."+rest+"Bananas are yellow.\n")
	b.plant("memories/3.md", "Dates are sweet."+rest+rest+"Bananas are yellow.\n") // the newest paragraph, in the file that fits least
	b.update()
	if hits := b.search(search.Query{Text: "apple banana", Distinct: true}); len(hits) != 3 || hits[0].Path != "memories/2.md" {
		t.Errorf("%+v", hits)
	}
}

func TestCommonWords(t *testing.T) {
	b := newBox(t, search.Options{})
	var turns strings.Builder
	for i := range 9000 {
		fmt.Fprintf(&turns, "{\"session\":\"%d\",\"content\":\"common words\"}\n", i)
	}
	turns.WriteString(`{"session":"rare","content":"common words and a zebra"}` + "\n")
	b.plant("conversations.jsonl", turns.String())
	b.update()
	if hits := b.search(search.Query{Text: "common words zebras"}); len(hits) == 0 || hits[0].Session != "rare" {
		t.Errorf("a rare word among common ones: %+v", hits)
	}
	if hits := b.search(search.Query{Text: "common words"}); len(hits) != 10 {
		t.Errorf("common words find %d", len(hits))
	}
	old := search.Query{Text: "zebra", Allow: func(string) bool { return false }}
	if hits := b.search(old); len(hits) != 0 {
		t.Errorf("what is not allowed: %+v", hits)
	}
}

func FuzzQuery(f *testing.F) {
	b := newBox(f, search.Options{})
	b.plant("memories/a.md", "# Heading\n\nThe apple's name is \"x AND y\".\n\n東京\n")
	b.plant("conversations.jsonl", `{"session":"a","content":"an apple"}`+"\n")
	b.update()
	for _, s := range []string{"", "apple", `"`, `""`, "a AND", "NEAR(a b", "text:apple", "heading : a", "*", "a*", "^a", "-a", "(", ")", "{a b}:c", "\x00", "\xff\xfe", "apple\x00apple", "'; DROP TABLE unit; --", "東京", "e\u0301", "\u200d", strings.Repeat("a ", 5000), strings.Repeat("x", 1<<17), "NOT", "OR", "\u202e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := b.index.Search(t.Context(), search.Query{Text: s}); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		if _, err := b.index.Search(t.Context(), search.Query{Text: "apple", Types: []string{s}}); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
	})
}
