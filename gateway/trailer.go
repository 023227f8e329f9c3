package gateway

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"sallyport/gateway/form"
)

// What comes after a body that is in chunks (RFC 9112, section 7.1.2), of what a
// sandbox and its visitor say to each other. How much of it there can be is bounded
// by the parsers of heads.

// sending are the names of the trailers that go to a sandbox: those that were announced,
// which the policy has seen, and are none of ours. Nil: none.
func sending(r *http.Request) (t http.Header) {
	for _, name := range form.Announced(r) {
		if name == "Cookie" {
			continue
		}
		if t == nil {
			t = http.Header{}
		}
		t[name] = nil
	}
	return t
}

// tells says whether an answer of a sandbox may have a field after its body: one that
// tidy would take from the head, or look into, does not get by it there.
func tells(name string) bool {
	switch http.CanonicalHeaderKey(name) {
	case "Alt-Svc", "Set-Cookie":
		return false
	}
	return !form.Reserved(name) && form.AllowedTrailer(name)
}

// announce says in an answer's head what of its trailers will be passed on.
func announce(h http.Header, resp *http.Response) {
	names := slices.Sorted(maps.Keys(resp.Trailer))
	if names = slices.DeleteFunc(names, func(name string) bool { return !tells(name) }); len(names) > 0 {
		h["Trailer"] = []string{strings.Join(names, ", ")}
	}
}

// trail passes on the trailers of an answer that has been read to its end, those too
// that it had not announced. The head has been sent before, so that nothing of it
// is taken for one of them.
func trail(w http.ResponseWriter, resp *http.Response) error {
	if len(resp.Trailer) == 0 {
		return nil
	}
	err := http.NewResponseController(w).Flush()
	h := w.Header()
	clear(h)
	for name, values := range resp.Trailer {
		if tells(name) && len(values) > 0 {
			h[http.TrailerPrefix+name] = values
		}
	}
	return err
}
