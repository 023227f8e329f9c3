package search_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"sallyport/memory/search"
)

// concepts embeds a text as which of a few things it speaks of.
type concepts struct {
	name   string
	texts  []string
	answer func([]string) ([][]float32, error) // in place of the concepts
}

func (c *concepts) Name() string { return c.name }

func (c *concepts) Embed(_ context.Context, texts []string) ([][]float32, error) {
	if c.answer != nil {
		return c.answer(texts)
	}
	c.texts = append(c.texts, texts...)
	var vectors [][]float32
	for _, t := range texts {
		v := []float32{0.01, 0, 0, 0}
		for i, words := range [][]string{{"car", "vehicle"}, {"dog", "puppy"}, {"money", "salary"}} {
			if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(t, w) }) {
				v[i+1] = 1
			}
		}
		vectors = append(vectors, v)
	}
	return vectors, nil
}

func TestEmbedder(t *testing.T) {
	e := &concepts{name: "one"}
	b := newBox(t, search.Options{Embedder: e})
	b.plant("memories/a.md", "She bought a car")
	b.plant("memories/b.md", "A puppy came")
	for i := range 100 {
		b.plant(fmt.Sprintf("memories/n%d.md", i), fmt.Sprintf("note %d", i))
	}
	b.update()
	if hits := b.search(search.Query{Text: "vehicle"}); len(hits) == 0 || hits[0].Path != "memories/a.md" {
		t.Errorf("by meaning: %+v", hits)
	}
	if hits := b.search(search.Query{Text: "which vehicle", Allow: func(p string) bool { return p != "memories/a.md" }}); len(hits) > 0 && hits[0].Path == "memories/a.md" {
		t.Errorf("not allowed, by meaning: %+v", hits)
	}
	e.texts = nil
	b.plant("memories/b.md", "A puppy came home")
	b.update()
	if len(e.texts) != 1 || !strings.Contains(e.texts[0], "came home") {
		t.Errorf("after one change %q are embedded", e.texts)
	}

	for name, answer := range map[string]func([]string) ([][]float32, error){
		"an error": func([]string) ([][]float32, error) { return nil, errors.New("no route") },
		"none":     func([]string) ([][]float32, error) { return nil, nil },
		"empty":    func(texts []string) ([][]float32, error) { return make([][]float32, len(texts)), nil },
		"not finite": func(texts []string) ([][]float32, error) {
			return slices.Repeat([][]float32{{1, float32(math.NaN())}}, len(texts)), nil
		},
	} {
		e.answer = answer
		b.plant("memories/c.md", "The dog of "+name)
		if err := b.index.Update(t.Context(), b.f, nil); !errors.Is(err, search.ErrEmbedding) {
			t.Errorf("%s: update: %v", name, err)
		}
		hits, err := b.index.Search(t.Context(), search.Query{Text: name + " dog"})
		if !errors.Is(err, search.ErrEmbedding) || len(hits) == 0 || hits[0].Path != "memories/c.md" {
			t.Errorf("%s: %+v, %v", name, hits, err)
		}
	}

	other := &concepts{name: "two"}
	if err := b.index.Close(); err != nil {
		t.Fatal(err)
	}
	b.open(search.Options{Embedder: other})
	b.update()
	if len(other.texts) < 103 {
		t.Errorf("another model embeds %d texts", len(other.texts))
	}
	other.answer = func(texts []string) ([][]float32, error) { return [][]float32{{1, 2}}, nil }
	if hits := b.search(search.Query{Text: "car"}); len(hits) == 0 || hits[0].Path != "memories/a.md" {
		t.Errorf("a vector of another length: %+v", hits)
	}
}

func TestHTTPEmbedder(t *testing.T) {
	answer := func(w http.ResponseWriter, texts []string) {
		var list []any
		for i := range texts { // in any order
			i = len(texts) - 1 - i
			list = append(list, map[string]any{"index": i, "embedding": []float32{float32(len(texts[i])), 1}})
		}
		json.NewEncoder(w).Encode(map[string]any{"data": list})
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			Model string
			Input []string
		}
		if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.Model != "m" || r.URL.Path != "/v1/embeddings" || r.Method != http.MethodPost {
			t.Errorf("%s %s %+v %v", r.Method, r.URL, asked, err)
		}
		answer(w, asked.Input)
	}))
	defer server.Close()
	e := search.HTTPEmbedder{URL: server.URL + "/v1/embeddings", Model: "m", Client: server.Client()}
	got, err := e.Embed(t.Context(), []string{"a", "bcd"})
	if err != nil || len(got) != 2 || got[0][0] != 1 || got[1][0] != 3 {
		t.Errorf("%v, %v", got, err)
	}
	for name, tt := range map[string]struct {
		answer func(w http.ResponseWriter, texts []string)
		want   string
	}{
		"status":  {func(w http.ResponseWriter, _ []string) { http.Error(w, "quota\x1b[2J", 429) }, `429 Too Many Requests: "quota\x1b`},
		"garbage": {func(w http.ResponseWriter, _ []string) { fmt.Fprint(w, "<html>") }, "not a list of embeddings"},
		"index":   {func(w http.ResponseWriter, _ []string) { fmt.Fprint(w, `{"data":[{"index":9,"embedding":[1]}]}`) }, "for text 9 of 1"},
	} {
		answer = tt.answer
		if _, err := e.Embed(t.Context(), []string{"a"}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
