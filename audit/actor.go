package audit

import "context"

type actorKey struct{}

// By returns a context whose events name an operator.
func By(ctx context.Context, a *Actor) context.Context {
	return context.WithValue(ctx, actorKey{}, a)
}

// ByWhom is the identity of the context's operator; empty if there is none.
func ByWhom(ctx context.Context) string {
	a, ok := ctx.Value(actorKey{}).(*Actor)
	if !ok {
		return ""
	}
	return a.User.UID
}

// Attribute names the context's operator, if there is one, in lifecycle events that name
// none yet. Events of a sandbox's traffic are never an operator's.
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
