package audit

import (
	"cmp"
	"context"
)

type actorKey struct{}

// caller is an operator, and where from.
type caller struct {
	actor *Actor
	from  *Endpoint
}

// By returns a context whose events name an operator, and where the operator calls from;
// nil is this host.
func By(ctx context.Context, a *Actor, from *Endpoint) context.Context {
	if from == nil {
		from = local
	}
	return context.WithValue(ctx, actorKey{}, &caller{a, from})
}

// ByWhom is the identity of the context's operator; empty if there is none.
func ByWhom(ctx context.Context) string {
	c, ok := ctx.Value(actorKey{}).(*caller)
	if !ok {
		return ""
	}
	return c.actor.User.UID
}

// NameOf is the name of the context's operator, or the identity of one without a name.
func NameOf(ctx context.Context) string {
	c, ok := ctx.Value(actorKey{}).(*caller)
	if !ok {
		return ""
	}
	return cmp.Or(c.actor.User.Name, c.actor.User.UID)
}

// Attribute names the context's operator, if there is one, in lifecycle events that name
// none yet. Events of a sandbox's traffic are never an operator's.
func Attribute(ctx context.Context, events ...*Event) {
	for _, e := range events {
		if e.Unmapped.Sallyport.Kind != KindLifecycle || e.Actor != nil && e.Actor != daemon {
			continue
		}
		if c, ok := ctx.Value(actorKey{}).(*caller); ok {
			e.Actor = c.actor
			if e.ClassUID == ClassEntity || e.ClassUID == ClassAPI {
				e.Source = c.from
			}
		}
	}
}
