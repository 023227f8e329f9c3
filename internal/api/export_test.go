package api

// Routes lists the routes as METHOD PATTERN, with the scope and whether tenants'
// keys may call them.
func Routes() map[string]RouteFacts {
	all := map[string]RouteFacts{}
	for _, r := range newHandler(Options{}).routes() {
		all[r.method+" "+r.pattern] = RouteFacts{r.scope, r.shared}
	}
	return all
}

type RouteFacts struct {
	Scope  Scope
	Shared bool
}

// Document is the OpenAPI document.
func Document() []byte { return document }

// Kinds lists the ends of the types of problems.
func Kinds() []string {
	kinds := []string{"internal", "too-large"}
	for _, p := range problems {
		kinds = append(kinds, p.kind)
	}
	return kinds
}

// Do begins and ends a request with an idempotency key, and says whether it was done before.
func (o *Once) Do(who Principal, key string) (before bool, err error) {
	id := digest(who.ID, key)
	k, err := o.begin(id, "print", who)
	if k == nil && err == nil {
		o.end(id, &kept{Status: 200})
	}
	return k != nil, err
}
