package search

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"

	"sallyport/memory"
	"sallyport/memory/model"
)

// ErrEmbedding is of an Embedder that failed.
var ErrEmbedding = errors.New("embedding failed: words alone were searched")

// Embedder turns texts into vectors whose direction is the texts' meaning.
type Embedder interface {
	// Name is the model's: vectors of one model do not fit those of another.
	Name() string
	// Embed returns a vector for each text, all of one length.
	Embed(ctx context.Context, texts []string) ([][]float32, error)
}

const (
	// embedded is how many texts an Embedder gets at a time.
	embedded = 64
	// maxEmbedded is how much of a text it gets, in bytes.
	maxEmbedded = 8000
	// maxDimensions is how long a vector may be.
	maxDimensions = 16384
)

// embed is Embed with what it returns checked.
func embed(ctx context.Context, e Embedder, texts []string) ([][]float32, error) {
	some := make([]string, len(texts))
	for i, t := range texts {
		some[i] = memory.Clip(t, maxEmbedded)
	}
	vectors, err := e.Embed(ctx, some)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEmbedding, err)
	}
	if len(vectors) != len(texts) {
		return nil, fmt.Errorf("%w: %d vectors for %d texts", ErrEmbedding, len(vectors), len(texts))
	}
	for _, v := range vectors {
		if len(v) == 0 || len(v) > maxDimensions || len(v) != len(vectors[0]) {
			return nil, fmt.Errorf("%w: a vector of %d dimensions", ErrEmbedding, len(v))
		}
		for _, f := range v {
			if math.IsNaN(float64(f)) || math.IsInf(float64(f), 0) {
				return nil, fmt.Errorf("%w: a vector that is not of numbers", ErrEmbedding)
			}
		}
	}
	return vectors, nil
}

// embed makes the vectors that are missing. news says that units may have changed.
func (x *Index) embed(ctx context.Context, news bool, progress Progress) error {
	e := x.options.Embedder
	if e == nil {
		return nil
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, statement := range []string{
		"DELETE FROM vector WHERE NOT EXISTS (SELECT 1 FROM model WHERE name = ?1)",
		"DELETE FROM model WHERE name <> ?1",
		"INSERT INTO model(name) SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM model)",
	} {
		if _, err := x.db.ExecContext(ctx, statement, e.Name()); err != nil {
			return err
		}
	}
	if news {
		if _, err := x.db.ExecContext(ctx, "DELETE FROM vector WHERE digest NOT IN (SELECT digest FROM unit)"); err != nil {
			return err
		}
	}
	var total int
	if err := x.db.QueryRowContext(ctx, "SELECT count(DISTINCT digest) FROM unit WHERE digest NOT IN (SELECT digest FROM vector)").Scan(&total); err != nil {
		return err
	}
	for done := 0; done < total; {
		progress(done, total)
		n, err := x.embedSome(ctx, e)
		if n == 0 || err != nil {
			return err
		}
		done += n
	}
	return nil
}

func (x *Index) embedSome(ctx context.Context, e Embedder) (int, error) {
	var digests [][]byte
	var texts []string
	err := each(ctx, x.db, func(scan func(...any) error) error {
		var digest []byte
		var heading, text string
		err := scan(&digest, &heading, &text)
		digests, texts = append(digests, digest), append(texts, heading+": "+text)
		return err
	}, "SELECT digest, heading, text FROM unit WHERE digest NOT IN (SELECT digest FROM vector) GROUP BY digest LIMIT ?", embedded)
	if err != nil || len(texts) == 0 {
		return 0, err
	}
	vectors, err := embed(ctx, e, texts)
	if err != nil {
		return 0, err
	}
	w := &writer{ctx: ctx, index: x}
	return len(texts), w.do(func() error {
		for i, v := range vectors {
			if _, err := w.exec("INSERT INTO vector(digest, vector) VALUES(?,?)", digests[i], pack(v)); err != nil {
				return err
			}
		}
		return nil
	})
}

// pack keeps the direction of a vector, a byte a dimension.
func pack(v []float32) []byte {
	var most float64
	for _, f := range v {
		most = max(most, math.Abs(float64(f)))
	}
	b := make([]byte, len(v))
	for i, f := range v {
		if most > 0 {
			b[i] = byte(int8(math.Round(float64(f) / most * 127)))
		}
	}
	return b
}

// nearest are the units whose vectors have the least angles to v.
func (x *Index) nearest(ctx context.Context, v []float32, most int) ([]int64, error) {
	type scored struct {
		id     int64
		cosine float64
	}
	query := pack(v)
	var list []scored
	err := each(ctx, x.db, func(scan func(...any) error) error {
		var id int64
		var b []byte
		if err := scan(&id, &b); err != nil || len(b) != len(query) {
			return err
		}
		var dot, norm int64
		for i, c := range b {
			dot += int64(int8(c)) * int64(int8(query[i]))
			norm += int64(int8(c)) * int64(int8(c))
		}
		if dot > 0 {
			list = append(list, scored{id, float64(dot) / math.Sqrt(float64(norm))})
		}
		return nil
	}, "SELECT u.id, v.vector FROM unit u JOIN vector v ON v.digest = u.digest")
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b scored) int { return cmp.Or(cmp.Compare(b.cosine, a.cosine), cmp.Compare(b.id, a.id)) })
	ids := make([]int64, 0, min(len(list), most))
	for _, s := range list[:min(len(list), most)] {
		ids = append(ids, s.id)
	}
	return ids, nil
}

// HTTPEmbedder asks an OpenAI-compatible endpoint.
type HTTPEmbedder struct {
	URL    string // of the endpoint, such as https://api.openai.com/v1/embeddings
	Model  string
	Client *http.Client // what it can reach and with which credential is its own affair
}

// Name is the endpoint's and the model's.
func (e HTTPEmbedder) Name() string { return e.URL + " " + e.Model }

// Embed asks for the vectors of texts, all at once.
func (e HTTPEmbedder) Embed(ctx context.Context, texts []string) ([][]float32, error) {
	var list struct {
		Data []struct {
			Index     int       `json:"index"`
			Embedding []float32 `json:"embedding"`
		} `json:"data"`
	}
	answer, err := model.Ask(ctx, e.Client, e.URL, map[string]any{"model": e.Model, "input": texts}, 64<<20)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(answer, &list); err != nil {
		return nil, fmt.Errorf("%s answers what is not a list of embeddings: %w", e.URL, err)
	}
	vectors := make([][]float32, len(texts))
	for _, d := range list.Data {
		if d.Index < 0 || d.Index >= len(vectors) {
			return nil, fmt.Errorf("%s answers for text %d of %d", e.URL, d.Index, len(texts))
		}
		vectors[d.Index] = d.Embedding
	}
	return vectors, nil
}
