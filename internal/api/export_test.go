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
