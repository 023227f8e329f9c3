package echo

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"sallyport/gateway/credential/coding"
)

// ErrHidden says that a response cannot be searched, so it must not reach the
// sandbox.
var ErrHidden = errors.New("what the response says cannot be searched")

// Response scrubs an upstream's answer in place: its header now, its body while
// it is read, its trailer when the body has ended. hit, unless nil, is called for
// each occurrence, in the goroutine that calls or reads.
//
// A body with content codings is passed on without them. Content-Encoding and
// what else speaks of the coded bytes are removed then, Content-Length included,
// and an ETag becomes a weak one, of HEAD and 304 too: a sandbox never sees the
// coded body. Any other body stays as long as it is.
//
// The error wraps ErrHidden: for a coding that [coding.NewReader] does not know,
// an RPC's message encoding that is none of these either, and a part of a body
// (206), which may hold a part of a secret. The body is the caller's to close
// then. What turns out to be damaged ends in an error from the body's Read: the
// sandbox must not take it for complete.
//
// A response that switches protocols (101) has its header scrubbed only: see
// [Scrubber.Frames]. Pass the header of an informational response (1xx) to
// [Scrubber.Header].
func (s *Scrubber) Response(r *http.Response, hit func()) error {
	if s.none() {
		return nil
	}
	if hit == nil {
		hit = func() {}
	}
	s.header(r.Header, hit)
	s.header(r.Trailer, hit)
	if r.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}

	codings := coding.List(r.Header["Content-Encoding"])
	src := &body{Reader: r.Body, response: r, scrubber: s, hit: hit, coded: len(codings) > 0}
	decoded, err := coding.NewReader(src, codings)
	empty := bodyless(r)
	switch {
	case empty:
		if err == nil && src.coded {
			uncoded(r)
		}
		if r.Body != nil && r.Body != http.NoBody { // HTTP/2 has trailers of 204 and 304 too
			r.Body = readCloser{src, r.Body}
		}
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", ErrHidden, err)
	case r.StatusCode == http.StatusPartialContent:
		return fmt.Errorf("%w: it is a part of a body", ErrHidden)
	}
	if src.coded {
		uncoded(r)
	}
	scrubbed, err := s.content(r, decoded, hit)
	if err != nil {
		return err
	}
	r.Body = readCloser{scrubbed, r.Body}
	return nil
}

type readCloser struct {
	io.Reader
	io.Closer
}

// content scrubs a body by what it consists of.
func (s *Scrubber) content(r *http.Response, body io.Reader, hit func()) (io.Reader, error) {
	kind, ok := framingOf(r.Header["Content-Type"])
	if !ok {
		reader := s.reader(body, hit)
		return &reader, nil
	}
	codings := coding.List(r.Header[kind.header])
	if len(codings) > 0 {
		if _, err := coding.NewReader(nil, codings); err != nil || kind.text {
			return nil, fmt.Errorf("%w: its messages: %w", ErrHidden, coding.ErrUnknown)
		}
		// From here on none is compressed, and so they are longer.
		delete(r.Header, kind.header)
		delete(r.Header, "Content-Length")
		r.ContentLength = -1
	}
	if kind.text {
		reader := s.reader(body, hit)
		return &reader, nil
	}
	return s.messages(body, kind.flags, codings, hit), nil
}

func (s *Scrubber) header(h http.Header, hit func()) {
	for range s.Header(h) {
		hit()
	}
}

// bodyless says whether there is nothing to read. HEAD and 304 have a header as
// if there were.
func bodyless(r *http.Response) bool {
	return r.Body == nil || r.Body == http.NoBody || r.Request != nil && r.Request.Method == http.MethodHead ||
		r.StatusCode == http.StatusNoContent || r.StatusCode == http.StatusNotModified
}

// digests are the headers and trailers that are true of the coded body only
// (RFC 9530; RFC 3230; RFC 1864).
var digests = []string{"Content-Digest", "Repr-Digest", "Digest", "Content-Md5"}

// uncoded changes a header to that of the same response without its codings.
func uncoded(r *http.Response) {
	delete(r.Header, "Content-Encoding")
	delete(r.Header, "Content-Length")
	delete(r.Header, "Accept-Ranges")
	for _, name := range digests {
		delete(r.Header, name)
	}
	for i, tag := range r.Header["Etag"] {
		if !strings.HasPrefix(tag, "W/") {
			r.Header["Etag"][i] = "W/" + tag
		}
	}
	r.ContentLength = -1
	r.Uncompressed = true
}

// body is the upstream's. Its end is when the trailer is there.
type body struct {
	io.Reader
	response *http.Response
	scrubber *Scrubber
	hit      func()
	coded    bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		if b.coded {
			for _, name := range digests {
				delete(b.response.Trailer, name)
			}
		}
		b.scrubber.header(b.response.Trailer, b.hit)
	}
	return n, err
}
