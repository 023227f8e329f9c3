package keeper

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"path/filepath"

	"sallyport/internal/sqlite"
	"sallyport/memory"
	"sallyport/memory/search"
)

// Index records what the sandbox has changed, and brings the search index up to date,
// which the next search does otherwise. It tells step how far it is. The end of ctx breaks
// it off: what is indexed by then need not be again, and a search does the rest.
func (k *Keeper) Index(ctx context.Context, o memory.Owner, step func(Step) error) error {
	ctx, progress, cancel := told(ctx, step)
	defer cancel()
	done := Indexed{}
	err := k.in(ctx, o, func(ctx context.Context, u *use) error {
		u.progress = progress(FilesRecorded)
		defer func() { u.progress = nil }()
		if err := u.begin(ctx); err != nil {
			return err
		}
		err := partly(index{u}.Update(ctx, u.folder, progress(FilesIndexed)))
		if err = cmp.Or(err, ctx.Err()); err == nil {
			u.look, u.partly = rand.Text(), u.incomplete
		}
		done.Incomplete, done.Look = u.unsearched(), u.look
		return err
	})
	if err != nil {
		return err
	}
	return step(Step{Index: &done})
}

// partly is the error of an update of the index, if a search does not go on without it.
func partly(err error) error {
	if errors.Is(err, memory.ErrTruncated) || errors.Is(err, search.ErrFull) || errors.Is(err, search.ErrEmbedding) {
		return nil
	}
	return err
}

// index is the search index of the memory in use. It opens the file at the first question:
// a command, a snapshot and a fork only record.
type index struct{ *use }

// Update implements layer.Searcher.
func (x index) Update(ctx context.Context, f *memory.Folder, progress search.Progress) (err error) {
	if x.looked != "" {
		x.incomplete = x.partly
		return nil
	}
	if x.use.index == nil {
		x.use.index, err = search.Open(ctx, filepath.Join(x.keeper.o.Dir, x.owner.Name, memory.IndexFile), search.Options{
			Embedder: x.keeper.embedder(), MaxText: x.keeper.o.MaxText,
			// The sandbox may have changed a file since it was recorded: what is found has been
			// inspected, and is what its provenance is of.
			Inspect: func(ctx context.Context, path string, data []byte) string {
				if ok, err := x.history.Has(ctx, path, memory.DigestOf(data)); !ok || err != nil {
					return "not recorded yet"
				}
				return ""
			},
		})
	}
	if err != nil {
		return err
	}
	if x.scanned != nil {
		err = x.use.index.UpdateTo(ctx, f, x.scanned, x.cut, progress)
	} else {
		err = x.use.index.Update(ctx, f, progress)
	}
	if errors.Is(err, memory.ErrTruncated) || errors.Is(err, search.ErrFull) {
		x.incomplete = err
	}
	if full := errors.Is(err, search.ErrFull); full != x.full {
		if x.full = full; full {
			x.keeper.o.Logger.Warn("a memory is searched in part", "sandbox", x.owner.Name, "error", err)
		}
	}
	return err
}

// dropIndex removes the index, which is made of the files again. Rows removed from it would
// leave their words there.
func (k *Keeper) dropIndex(s *store) (err error) {
	if s.index != nil {
		err = s.index.Close()
		s.index = nil
	}
	return errors.Join(err, sqlite.Remove(filepath.Join(k.o.Dir, s.owner.Name, memory.IndexFile)))
}

// Search implements layer.Searcher. Update comes first.
func (x index) Search(ctx context.Context, q search.Query) ([]search.Hit, error) {
	return x.use.index.Search(ctx, q)
}

// embedder is the model of the embeddings, if there is one. The log has what it fails with:
// a search goes on without it.
func (k *Keeper) embedder() search.Embedder {
	if k.o.Embedder == nil {
		return nil
	}
	return embedder{k.o.Embedder, k.o.Logger}
}

type embedder struct {
	search.Embedder
	log *slog.Logger
}

func (e embedder) Embed(ctx context.Context, texts []string) ([][]float32, error) {
	vectors, err := e.Embedder.Embed(ctx, texts)
	if err != nil {
		e.log.Warn("a memory is searched by words alone: the model of memory.embeddings failed", "error", err)
	}
	return vectors, err
}
