package scrub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"sallyport/gateway/credential/decode"
)

// ErrHidden is the error for a response that cannot be searched, and so must not reach the
// sandbox.
var ErrHidden = errors.New("what the response says cannot be searched")

var errPart = errors.New("it is a part of a body")

// Response scrubs an upstream's answer in place: its header now, its body while
// it is read, its trailer when the body has ended. hit, unless nil, is called for
// each occurrence, in the goroutine that calls or reads.
//
// A body with content codings is passed on without them. Content-Encoding and
// what else speaks of the coded bytes are removed then, Content-Length included,
// and an ETag becomes a weak one, of HEAD and 304 too: a sandbox never sees the
// coded body. Any other body stays as long as it is.
//
// The error wraps ErrHidden, or [decode.ErrMemory]: for a coding that [decode.NewReader] does not know,
// an RPC's message encoding that is none of these either, and a part of a body
// (206), which may hold a part of a secret. The body is the caller's to close
// then. A body that turns out to be damaged ends in an error from the body's Read: the
// sandbox must not take it for complete.
//
// While there is nothing to look for, what cannot be searched is passed as by Pass.
//
// A response that switches protocols (101) has its header scrubbed only: see
// [Scrubber.Frames]. Pass the header of an informational response (1xx) to
// [Scrubber.Header].
func (s *Scrubber) Response(r *http.Response, hit func(Found)) error {
	return s.Pass(r, hit, func() bool { return !s.None() })
}

// Pass does the same for an answer that need not be searched, unless strict says
// so: what cannot be decoded is searched as it is. An RPC's message that cannot
// stays as it is too, while those beside it lose their compression.
//
// While there is nothing to look for, codings stay. A stream of events loses them
// all the same, and messages and their compression are kept apart: these last,
// and there may be something before they end.
//
// strict, unless nil, is asked now and after each piece that comes of what is
// passed unsearched: once it says yes, or there is something to look for in what
// was left in its coding for that there was nothing, the body ends in an error that
// wraps ErrHidden. Until then it was read before the secret can have been in it.
func (s *Scrubber) Pass(r *http.Response, hit func(Found), strict func() bool) error {
	if strict == nil {
		strict = never
	}
	return (&body{answer: answer{Scrubber: s, Response: r, hit: hit, strict: strict}}).scrub()
}

// Open is Pass that also removes every content coding that it can decode, for a caller
// that reads the body.
func (s *Scrubber) Open(r *http.Response, hit func(Found), strict func() bool) error {
	return (&body{answer: answer{Scrubber: s, Response: r, hit: hit, strict: strict, open: true}}).scrub()
}

func never() bool { return false }

// answer is a response that is being scrubbed.
type answer struct {
	*Scrubber
	*http.Response
	hit    func(Found)
	strict func() bool // what cannot be decoded is refused
	open   bool        // codings go, whatever there is to look for
}

// unsearchable is what is passed unsearched, while it may be.
type unsearchable struct {
	io.Reader
	over func() bool
}

var errUnsearchable = fmt.Errorf("%w: it began before that mattered", ErrHidden)

func (b unsearchable) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if n > 0 && b.over() {
		return 0, errUnsearchable
	}
	return n, err
}

func (b *body) scrub() error {
	a := &b.answer
	a.Scrubber.Header(a.Response.Header, a.hit)
	a.Scrubber.Header(a.Trailer, a.hit)
	if a.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	codings := decode.List(a.Response.Header["Content-Encoding"])
	b.Reader, b.coded = a.Body, len(codings) > 0
	hold := a.holding()
	decoded, err := decode.NewReader(b, codings, hold)
	part := a.StatusCode == http.StatusPartialContent
	switch {
	case bodyless(a.Response):
		if err == nil && b.coded && !a.idle() {
			uncoded(a.Response)
		}
		if a.Body != nil && a.Body != http.NoBody { // HTTP/2 has trailers of 204 and 304 too
			a.Body = readCloser{b, a.Body}
		}
		return nil
	case err != nil || part:
		if a.strict() {
			if err == nil {
				err = errPart
			}
			return fmt.Errorf("%w: %w", ErrHidden, err)
		}
		b.Reader = unsearchable{b.Reader, a.strict}
		if b.coded {
			b.coded = false // as far as anybody can tell
			a.Body = readCloser{a.plain(b), a.Body}
			return nil
		}
	case b.coded && a.idle():
		b.Reader = unsearchable{b.Reader, a.sought}
		b.coded = false
		a.Body = readCloser{a.plain(b), a.Body}
		return nil
	}
	if b.coded {
		// A body that has begun to come can still be refused in words.
		if ahead, ok := a.Body.(interface{ Buffered() int }); ok && ahead.Buffered() > 0 {
			if err := decode.Begin(decoded); err != nil {
				_ = hold.Close()
				return err
			}
		}
		uncoded(a.Response)
	}
	scrubbed, err := a.content(decoded, hold)
	if err != nil {
		_ = hold.Close()
		return err
	}
	a.Body = readCloser{scrubbed, a.Body}
	if hold != nil {
		a.Body = held{a.Body, hold}
	}
	return nil
}

// holding is for what is decoded of the answer, nil where that has no bound.
func (a *answer) holding() *decode.Hold {
	if len(a.Response.Header["Content-Encoding"]) == 0 && mediaType(a.Response.Header["Content-Type"]) == "" {
		return nil // the most by far
	}
	ctx := context.Background()
	if a.Request != nil {
		ctx = a.Request.Context()
	}
	return a.share.Hold(ctx)
}

// held is a body that gives back at its end what it held.
type held struct {
	io.ReadCloser
	hold *decode.Hold
}

func (h held) Close() error {
	defer h.hold.Close()
	return h.ReadCloser.Close()
}

// sought says that there is something to look for.
func (a *answer) sought() bool { return !a.None() }

// idle reports whether the answer has no secret to look for, now and until it ends, and
// no other reader.
func (a *answer) idle() bool {
	return !a.open && a.None() && mediaType(a.Response.Header["Content-Type"]) != "text/event-stream"
}

func (a *answer) plain(body io.Reader) io.Reader {
	r := a.reader(body, a.hit)
	return &r
}

type readCloser struct {
	io.Reader
	io.Closer
}

// content scrubs a body by what it consists of.
func (a *answer) content(body io.Reader, hold *decode.Hold) (io.Reader, error) {
	header := a.Response.Header
	kind, ok := framings[mediaType(header["Content-Type"])]
	lengths, stream := streamed(header["Content-Type"])
	switch {
	case !ok && stream:
		return a.stream(body, lengths), nil
	case !ok:
		return a.plain(body), nil
	}
	codings := decode.List(header[kind.header])
	if len(codings) > 0 {
		_, err := decode.NewReader(nil, codings, nil)
		switch {
		case err == nil && !kind.text:
		case a.strict():
			return nil, fmt.Errorf("%w: its messages: %w", ErrHidden, decode.ErrUnknown)
		default:
			return a.plain(unsearchable{body, a.strict}), nil
		}
		if a.strict() { // from here on none is compressed
			delete(header, kind.header)
		}
		delete(header, "Content-Length") // they get longer
		a.ContentLength = -1
	}
	if kind.text {
		return a.stream(body, lengths), nil
	}
	return a.messages(body, kind.flags, codings, hold), nil
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
	answer answer
	coded  bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF {
		if b.coded {
			for _, name := range digests {
				delete(b.answer.Trailer, name)
			}
		}
		b.answer.Scrubber.Header(b.answer.Trailer, b.answer.hit)
	}
	return n, err
}
