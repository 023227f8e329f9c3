package search

import (
	"context"
	"errors"
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

func (x *Index) vectors(context.Context, Progress) error { return nil }
