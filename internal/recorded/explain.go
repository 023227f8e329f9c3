package recorded

import (
	"context"

	"sallyport/policy"
	"sallyport/policy/engine"
)

// Explanation says what a policy makes today of a decision that was made once.
type Explanation struct {
	policy.Explanation
	// Recorded is the decision as it was made.
	Recorded policy.Recorded
	// Differs lists what today's answer has other than the recorded one: action,
	// rule, credentials. It is empty for one that cannot be made again.
	Differs []string
}

// Explain finds a decision and explains what p makes of the same input, by the
// time that it was made at.
func Explain(ctx context.Context, p *engine.Policy, dir, id string) (Explanation, error) {
	r, err := Find(ctx, dir, id)
	if err != nil {
		return Explanation{}, err
	}
	r = p.Fit(r)
	x := Explanation{Recorded: r}
	switch r.Unfit {
	case policy.UnfitFolded, policy.UnfitIncomplete:
		return x, nil
	}
	x.Explanation = p.ExplainAt(ctx, r.Input, r.At)
	if r.Unfit == "" {
		x.Differs = r.Differs(x.Decision)
	}
	return x, nil
}
