package audit

import "context"

type actorKey struct{}

// By says who is behind what is recorded with a context.
func By(ctx context.Context, a *Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// ByWhom is the operator that By has put into a context, by what identifies it; empty
// where nobody is known.
func ByWhom(ctx context.Context) string {
	a, ok := ctx.Value(actorKey{}).(*Actor)
	if !ok {
		return ""
	}
	return a.User.UID
}

// Attribute names the context's operator, if there is one, in lifecycle events
// that name none yet. What a sandbox sends is nobody's but its own.
func Attribute(ctx context.Context, events ...*Event) {
	for _, e := range events {
		if e.ClassUID != ClassLifecycle || e.Actor != nil {
			continue
		}
		if a, ok := ctx.Value(actorKey{}).(*Actor); ok {
			e.Actor = a
		}
	}
}
