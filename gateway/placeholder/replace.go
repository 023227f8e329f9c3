package placeholder

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"sallyport/gateway/credential"
	"sallyport/gateway/form"
	"sallyport/gateway/http1"
	"sallyport/policy"
)

// ReplaceHead puts credentials into the head where their placeholders stand.
func (h *Request) ReplaceHead(r *http.Request, kept Kept) (err error) {
	if h == nil || len(h.values) == 0 {
		return nil
	}
	for name, values := range kept.header {
		if name == socketProtocol { // others stay
			values = append(slices.Clone(r.Header[name]), values...)
			values = []string{strings.Join(values, ", ")}
		}
		r.Header[name] = values
	}
	for _, part := range kept.query {
		if r.URL.RawQuery != "" {
			r.URL.RawQuery += "&"
		}
		r.URL.RawQuery += part
	}
	h.grown = 0
	for name, values := range r.Header {
		for i, v := range values {
			if values[i], err = h.replaceHeader(name, v); err != nil {
				return err
			}
		}
	}
	if r.URL.RawQuery, err = h.replaceQuery(r.URL.RawQuery); err != nil {
		return err
	}
	path, err := h.set.Replace(r.URL.EscapedPath(), Form, h.inHead(policy.PlacePath, "", segment))
	if err != nil {
		return err
	}
	if path != r.URL.EscapedPath() {
		form.SetPath(r.URL, path)
	}
	if _, size := http1.Measure(r.Header); h.grown > 0 && size+len(path)+len(r.URL.RawQuery) > h.maxHead {
		return h.largeHead()
	}
	return nil
}

// largeHead is the error of a head that is too large with the credentials in it.
func (h *Request) largeHead() error {
	return &credential.RequestError{
		Status: http.StatusRequestHeaderFieldsTooLarge,
		Reason: fmt.Sprintf("with the credentials in the place of their placeholders the head is larger than %d KiB", h.maxHead>>10),
	}
}

// inHead is instead for a place in the head, whose length is bounded.
func (h *Request) inHead(place, name string, spell spelling) func(string) ([]byte, error) {
	instead := h.instead(place, name, spell)
	return func(of string) ([]byte, error) {
		text, err := instead(of)
		if h.grown += len(text); h.grown > h.maxHead {
			return nil, h.largeHead()
		}
		return text, err
	}
}

// replaceQuery replaces placeholders in a query, by its parameters.
func (h *Request) replaceQuery(query string) (string, error) {
	var out strings.Builder
	for query != "" {
		part := query
		if i := strings.IndexAny(query, "&;"); i >= 0 {
			part = query[:i+1]
		}
		query = query[len(part):]
		key, _, _ := strings.Cut(strings.TrimRight(part, "&;"), "=")
		name, _ := url.QueryUnescape(key) // "" for none
		part, err := h.set.Replace(part, Form, h.inHead(policy.PlaceQuery, name, formed))
		if err != nil {
			return "", err
		}
		out.WriteString(part)
	}
	return out.String(), nil
}

func (h *Request) replaceHeader(name, value string) (string, error) {
	if pair, ok := basic(name, value); ok {
		changed, err := h.set.Replace(pair, Raw, h.inHead(policy.PlaceHeader, name, raw))
		if err != nil || changed == pair {
			return value, err
		}
		return value[:len("basic ")] + base64.StdEncoding.EncodeToString([]byte(changed)), nil
	}
	spell := raw
	if name == socketProtocol {
		spell = token
	}
	changed, err := h.set.Replace(value, Raw, h.inHead(policy.PlaceHeader, name, spell))
	if err != nil || changed != value || !strings.Contains(value, "%") {
		return changed, err
	}
	return h.set.Replace(value, Form, h.inHead(policy.PlaceHeader, name, formed))
}

// instead returns what takes the place of placeholders in a place, or in the header or
// query parameter of a name.
func (h *Request) instead(place, named string, spell spelling) func(string) ([]byte, error) {
	return func(name string) ([]byte, error) {
		in, ok := h.values[name]
		if !ok || !listed(in.places, place, named) {
			return nil, &FoundError{Credential: name}
		}
		text, err := spell(in.secret.Reveal())
		if err != nil {
			return nil, &SpellingError{Credential: name, Err: err}
		}
		h.used(name)
		return text, nil
	}
}
