package placeholder

import (
	"errors"
	"net/http"
	"slices"
	"sync"

	"sallyport/audit"
	"sallyport/gateway/credential"
	"sallyport/policy"
)

// Rule is the rule of denials of requests that hold a placeholder where it is not
// replaced.
const Rule = "placeholder"

// Request is what a request has to do with the placeholders of its sandbox: which it has
// in its head, and what takes their place. The nil Request has none.
type Request struct {
	set     *Set
	spots   []spot
	values  map[string]standIn // by credential
	maxHead int                // bytes, with the credentials in it
	grown   int                // bytes of credentials in the head
	release func()             // gives the room of the body back, nil for none

	mu      sync.Mutex // the body is read by another goroutine
	through []string   // credentials that were used through their placeholders
	stolen  *FoundError
}

// standIn is what takes a placeholder's place, and where.
type standIn struct {
	secret credential.Secret
	places []string
}

// Find finds the placeholders in the head of a request to a host. With credentials in it the
// head may have maxHead bytes. Find returns nil for the nil Set.
func Find(set *Set, r *http.Request, host string, maxHead int) *Request {
	if set == nil {
		return nil
	}
	h := &Request{set: set, maxHead: maxHead}
	text := make([]byte, 0, 2048)
	text = append(text, r.URL.Path...)
	text = append(append(text, '\n'), r.URL.RawQuery...)
	for name, values := range r.Header {
		for _, v := range values {
			text = append(append(text, '\n'), v...)
			if pair, ok := basic(name, v); ok {
				text = append(append(text, '\n'), pair...)
			}
		}
	}
	// The forms in which some have their texts are those of all.
	if set.In(text, Form) || set.OfName(host) != "" {
		h.search(r, host)
	}
	return h
}

// InHead reports whether a placeholder stands in the request's head.
func (h *Request) InHead() bool { return h != nil && len(h.spots) > 0 }

// Close gives back the room that the request's body had in the budget.
func (h *Request) Close() {
	if h != nil && h.release != nil {
		h.release()
		h.release = nil
	}
}

// Needs reports whether the request may have the placeholder of a credential that is to take
// its place.
func (h *Request) Needs(i policy.Injection, hasBody bool) bool {
	if h == nil {
		return false
	}
	return hasBody && slices.Contains(i.Inject.Placeholder, policy.PlaceBody) ||
		slices.ContainsFunc(h.spots, func(s spot) bool { return s.credential == i.Credential })
}

// Put has a value take the place of a credential's placeholder, where an injection says so.
func (h *Request) Put(i policy.Injection, value credential.Secret) {
	if h.values == nil {
		h.values = make(map[string]standIn)
	}
	h.values[i.Credential] = standIn{value, i.Inject.Placeholder}
}

// Mark marks those uses of credentials that the sandbox had asked for by a placeholder, and
// returns all.
func (h *Request) Mark(used []audit.CredentialUse) []audit.CredentialUse {
	if h == nil {
		return used
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range used {
		used[i].Placeholder = slices.Contains(h.through, used[i].Name) || slices.ContainsFunc(h.spots, func(s spot) bool { return s.credential == used[i].Name })
	}
	return used
}

func (h *Request) used(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Contains(h.through, name) {
		h.through = append(h.through, name)
	}
}

// Stolen returns the placeholder that was found in the body, nil for none.
func (h *Request) Stolen() *FoundError {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.stolen
}

// note keeps the error of a body that was broken off.
func (h *Request) note(err error) {
	if found := new(FoundError); errors.As(err, &found) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.stolen = found
	}
}
