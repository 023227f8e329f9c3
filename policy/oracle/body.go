package oracle

import (
	"slices"
	"strconv"
	"strings"
)

// Texts are the bodies that a random ask has. Large is more than the smaller size
// of a random file's.
const (
	Call  = `{"method": "ping"}`
	Query = `{"query": "{ viewer }"}`
	Torn  = `{"method": "ping", "Method": "ping"}` // which readers take differently
)

// Large is JSON.
var Large = `{"query": "{ viewer }"` + strings.Repeat(" ", 2000) + "}"

// sees tells whether the rule has to see a request's body.
func (r Rule) sees() bool { return r.Body.JSON != "" || r.Body.GraphQL != "" }

// blind are the rules that speak about a request and whose body they cannot see:
// whatever else is said of it, it is denied.
func (d Document) blind(a Ask) []Rule {
	if a.Phase != "request" {
		return nil
	}
	return those(slices.Concat(d.Egress, d.EgressAuth), func(r Rule) bool {
		return r.sees() && r.isFor(a) && r.carries(a) && r.speaks(a) && !r.shown(a.Body)
	})
}

// shown tells whether a body is one that the rule can see.
func (r Rule) shown(body string) bool {
	kib, err := strconv.Atoi(strings.TrimSuffix(r.Body.JSON+r.Body.GraphQL, "KiB"))
	if err != nil {
		panic(r.Body)
	}
	switch {
	case body == "" || body == Torn || len(body) > kib<<10:
		return false
	case r.Body.GraphQL != "":
		return body == Query || body == Large
	}
	return true
}
