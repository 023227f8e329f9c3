package placeholder

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"

	"sallyport/policy"
)

// maxMeasured is the length in bytes, before and after, of the bodies whose length is told
// to the upstream although placeholders in them are replaced. Longer ones go in chunks.
const maxMeasured = 64 << 10

// Budget is the room of the bodies in memory.
type Budget interface {
	Take(sandboxID string, n int64) error
	Give(sandboxID string, n int64)
}

// SearchBody has placeholders in the body of a request that leaves replaced, or the
// request broken off. A body that is coded is not searched. A short one is read whole, in
// the sandbox's part of a budget, until Close. trailer returns the trailers that have come
// by the end of the body, which are searched too.
func (h *Request) SearchBody(r *http.Request, b Budget, sandboxID string, trailer func() http.Header) error {
	if h == nil || r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	if coding := r.Header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return nil
	}
	kind, spell, known := bodyKind(r.Header.Get("Content-Type"))
	if !known || !h.replacesBody() {
		r.Body = &searchedBody{Reader: NewReader(h.set.Stream(kind, nil), r.Body), of: h, trailer: trailer}
		return nil
	}
	body := &searchedBody{Reader: NewReader(h.set.Stream(kind, h.instead(policy.PlaceBody, "", spell)), r.Body), of: h, trailer: trailer}
	length := r.ContentLength
	r.Body, r.ContentLength = body, -1
	delete(r.Header, "Content-Length")
	if length < 0 || length > maxMeasured || b.Take(sandboxID, maxMeasured) != nil {
		return nil
	}
	h.release = func() { b.Give(sandboxID, maxMeasured) }
	text, err := io.ReadAll(io.LimitReader(body, maxMeasured+1))
	if err != nil {
		return err
	}
	delete(r.Header, "Expect")   // it is here, or begins to
	if len(text) > maxMeasured { // secrets are longer than their placeholders
		r.Body = &begunBody{io.MultiReader(bytes.NewReader(text), body), body}
		return nil
	}
	r.Body, r.ContentLength = &begunBody{bytes.NewReader(text), body}, int64(len(text))
	return nil
}

// begunBody is a body that has been read, or a part of it.
type begunBody struct {
	io.Reader
	io.Closer
}

// searchedBody is a body without placeholders. It also searches the trailers.
type searchedBody struct {
	*Reader
	of      *Request
	trailer func() http.Header
}

func (b *searchedBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == nil {
		return n, nil
	}
	if err == io.EOF {
		for _, values := range b.trailer() {
			for _, v := range values {
				if names := b.of.set.Of(v, Raw); len(names) > 0 {
					err = &FoundError{Credential: names[0]}
				}
			}
		}
	}
	b.of.note(err)
	return n, err
}

// replacesBody tells whether a credential takes its placeholder's place in bodies.
func (h *Request) replacesBody() bool {
	for _, in := range h.values {
		if slices.Contains(in.places, policy.PlaceBody) {
			return true
		}
	}
	return false
}
