package search_test

import (
	"path/filepath"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/memory"
	"sallyport/memory/search"
)

// box is a memory with an index of it.
type box struct {
	t     testing.TB
	dir   string
	path  string
	f     *memory.Folder
	index *search.Index
}

func newBox(t testing.TB, o search.Options) *box {
	b := &box{t: t, path: filepath.Join(t.TempDir(), "index.db")}
	var err error
	if b.dir, err = memory.Ensure(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if b.f, err = memory.Open(b.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.f.Close() })
	b.open(o)
	return b
}

func (b *box) open(o search.Options) {
	x, err := search.Open(b.t.Context(), b.path, o)
	must.OK(b.t, err)
	b.t.Cleanup(func() { x.Close() })
	b.index = x
}

func (b *box) write(name, text string) {
	b.t.Helper()
	old := memory.Digest("")
	if data, err := b.f.Read(name); err == nil {
		old = memory.DigestOf(data)
	}
	must.OK(b.t, b.f.Write(name, []byte(text), old))
}

func (b *box) update() {
	b.t.Helper()
	must.OK(b.t, b.index.Update(b.t.Context(), b.f, nil))
}

func (b *box) search(q search.Query) []search.Hit {
	b.t.Helper()
	hits, err := b.index.Search(b.t.Context(), q)
	if err != nil {
		b.t.Fatalf("%q: %v", q.Text, err)
	}
	return hits
}

func TestSearch(t *testing.T) {
	b := newBox(t, search.Options{})
	b.write("memories/preference/one.md", "---\nid: 20261126T182805Z-AAAAAA\ntype: preference\ntime: 2026-11-26T18:28:05Z\nsession: s1\n---\nThe user likes strong coffee.\n")
	b.write("memories/garden.md", "# Garden\n\nTomatoes want sun.\n\n## Tools\n\n- a spade\n- a watering can\n")
	b.write("conversations.jsonl", `{"time":"2026-01-02T03:04:05Z","session":"s2","role":"user","content":"I moved to Lisbon"}`+"\n")
	b.update()
	for _, tt := range []struct {
		text string
		want search.Hit
	}{
		{"which coffees?", search.Hit{ID: "20261126T182805Z-AAAAAA", Path: "memories/preference/one.md", Line: 7, Type: "preference", Session: "s1", Source: "paragraph", Heading: "one.md", Text: "The user likes strong coffee.", Time: time.Date(2026, 11, 26, 18, 28, 5, 0, time.UTC)}},
		{"spades", search.Hit{ID: "memories/garden.md", Path: "memories/garden.md", Line: 7, Type: "observation", Source: "paragraph", Heading: "Garden > Tools", Text: "- a spade"}},
		{"moving", search.Hit{ID: "conversations.jsonl", Path: "conversations.jsonl", Line: 1, Type: "turn", Session: "s2", Source: "turn", Heading: "user", Text: "I moved to Lisbon", Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}},
	} {
		hits := b.search(search.Query{Text: tt.text})
		if len(hits) == 0 {
			t.Errorf("%s: nothing", tt.text)
			continue
		}
		got := hits[0]
		if got.Score <= 0 || got.Score > 1 {
			t.Errorf("%s: score %v", tt.text, got.Score)
		}
		got.Score = 0
		if tt.want.Time.IsZero() {
			got.Time = time.Time{}
		}
		if got != tt.want {
			t.Errorf("%s:\ngot  %+v\nwant %+v", tt.text, got, tt.want)
		}
	}
}
