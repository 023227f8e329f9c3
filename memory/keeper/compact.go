package keeper

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"sallyport/memory"
	"sallyport/memory/layer"
)

// Summarizer makes a summary of entries.
type Summarizer = func(context.Context, []layer.Entry) (string, error)

// Compact makes summaries of old entries. It calls step after each of them.
func (k *Keeper) Compact(ctx context.Context, o memory.Owner, r CompactRequest, step func(Step) error) error {
	age, err := time.ParseDuration(cmp.Or(r.OlderThan, "720h"))
	if err != nil || age < 0 {
		return fmt.Errorf("%w: older_than: %q: write a duration such as 720h", ErrBadRequest, r.OlderThan)
	}
	ctx, progress, cancel := told(ctx, step)
	defer cancel()
	plan, err := changing(ctx, k, o, memory.Compacted, func(ctx context.Context, u *use) (layer.Plan, error) {
		return u.layers(ctx, "").Compact(ctx, layer.CompactOptions{
			Before: time.Now().Add(-age), DryRun: r.DryRun, Summarize: k.o.Summarize, Progress: progress(EntriesCompacted), Written: u.summarized,
		})
	}, nil)
	if err != nil {
		return err
	}
	return step(Step{Plan: &plan})
}

// summarized records a summary, whose provenance is that of all its sources, also if the
// end of ctx has come: it is written.
func (u *use) summarized(ctx context.Context, s layer.Summary) error {
	ctx = context.WithoutCancel(ctx)
	by := u.by(ctx, memory.Compacted)
	for _, path := range s.Sources {
		p, err := u.history.Taint(ctx, path, 0)
		if err != nil {
			return err
		}
		by.Contacted, by.MoreContacted = append(by.Contacted, p.Contacted...), by.MoreContacted+p.MoreContacted
	}
	_, err := u.history.Record(ctx, u.folder, by)
	return err
}
