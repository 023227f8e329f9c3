package keeper

import (
	"cmp"
	"context"
	"strings"

	"sallyport/memory"
	"sallyport/memory/layer"
	"sallyport/memory/search"
)

// Search finds places in the files.
func (k *Keeper) Search(ctx context.Context, o memory.Owner, q Question) (Results[Found], error) {
	return asking(ctx, k, o, q, func(ctx context.Context, u *use) (Results[Found], error) {
		asked := search.Query{Text: q.Query, Limit: q.Limit, Since: q.Since, Until: q.Until}
		if q.Type != "" {
			asked.Types = []string{q.Type}
		}
		if q.Trusted {
			asked.Allow = func(path string) bool { return u.untrusted(ctx, path) == "" }
		}
		hits, err := u.layers(ctx, "").Find(ctx, asked)
		found := []Found{}
		for _, h := range hits {
			found = append(found, Found{h, u.mark(ctx, h.Path)})
		}
		return Results[Found]{found, u.unsearched()}, err
	})
}

// unsearched says what a search has not searched, or "".
func (u *use) unsearched() string {
	if u.incomplete == nil {
		return ""
	}
	return strings.ReplaceAll(u.incomplete.Error(), "\n", "; ")
}

// Store adds an entry.
func (k *Keeper) Store(ctx context.Context, o memory.Owner, r StoreRequest) (layer.Entry, error) {
	return changing(ctx, k, o, memory.ByAPI, func(ctx context.Context, u *use) (layer.Entry, error) {
		return u.layers(ctx, r.Session).Store(ctx, r.Text, cmp.Or(r.Type, layer.Observation), r.Metadata)
	}, func(ctx context.Context, u *use, e *layer.Entry) { e.Marks = u.mark(ctx, e.Path) })
}

// Retrieve finds entries and turns, with a score of relevance.
func (k *Keeper) Retrieve(ctx context.Context, o memory.Owner, q Question) (Results[layer.Scored], error) {
	return asking(ctx, k, o, q, func(ctx context.Context, u *use) (Results[layer.Scored], error) {
		found, err := u.layers(ctx, "").Retrieve(ctx, q.Query, cmp.Or(q.Limit, 10), q.options())
		return Results[layer.Scored]{found, u.unsearched()}, err
	})
}

func (q Question) options() layer.RetrieveOptions {
	return layer.RetrieveOptions{Type: q.Type, TrustedOnly: q.Trusted, Since: q.Since, Until: q.Until}
}

// FormatForContext is Retrieve as text for a model.
func (k *Keeper) FormatForContext(ctx context.Context, o memory.Owner, q Question) (Text, error) {
	return asking(ctx, k, o, q, func(ctx context.Context, u *use) (Text, error) {
		text, err := u.layers(ctx, "").FormatForContext(ctx, q.Query, cmp.Or(q.Budget, 2000), q.options())
		return Text{text, u.unsearched()}, err
	})
}

// Prompt is text for a system prompt.
func (k *Keeper) Prompt(ctx context.Context, o memory.Owner) (Text, error) {
	return reading(ctx, k, o, func(ctx context.Context, u *use) (Text, error) {
		text, err := u.layers(ctx, "").Prompt(ctx)
		return Text{Text: text}, err
	})
}

// AppendTurn adds a turn to the conversations.
func (k *Keeper) AppendTurn(ctx context.Context, o memory.Owner, r TurnRequest) error {
	return writing(ctx, k, o, layer.TurnsFile, func(ctx context.Context, u *use) error {
		return u.layers(ctx, r.Session).AppendTurn(ctx, r.Role, r.Content)
	})
}
