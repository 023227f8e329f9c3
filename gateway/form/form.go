// Package form checks the form of requests before the policy sees them: their
// method, target, host, header and trailers have one reading, whichever server reads
// them. Nothing in it depends on the policy's rules.
package form

import (
	"cmp"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"sallyport/policy/urlpath"
)

// Error says why a request is refused for its form, whatever the policy says.
type Error struct {
	Status int    // of the answer
	Rule   string // the name of the check
	Reason string
}

// Error implements error.
func (e *Error) Error() string { return e.Reason }

// Check refuses a request with a method or target that HTTP/1.1 cannot carry, and a
// request by HTTP/2 that would be read as something else when it is written as one by
// HTTP/1.1. The library checks names and values for control characters, the first
// character of :path, and that :authority and Host agree (RFC 9113, sections 8.2 and
// 8.3).
func Check(r *http.Request) *Error {
	if !httpguts.ValidHeaderFieldName(r.Method) { // a token, both
		return &Error{http.StatusBadRequest, "method", "the method is not a token"}
	}
	if strings.ContainsFunc(r.RequestURI, func(c rune) bool { return c <= ' ' || c == '#' || c == 0x7f }) {
		return &Error{http.StatusBadRequest, "request-target", "the request target has a space, a fragment or a control character in it"}
	}
	if r.ProtoMajor == 1 {
		return nil // the rest has been checked by its reader
	}
	for name, values := range r.Header {
		if name[0] == ':' {
			return &Error{http.StatusBadRequest, "pseudo-header", "a pseudo-header that the method does not have"}
		}
		for _, v := range values {
			if v != "" && (space(v[0]) || space(v[len(v)-1])) {
				return &Error{http.StatusBadRequest, "header", "a header's value begins or ends with white space"}
			}
		}
	}
	if !Measured(r) {
		return &Error{http.StatusBadRequest, "content-length", "the Content-Length is not one plain number, or not the body's"}
	}
	return nil
}

// CanonicalTarget has the request's URL hold the path in the one form in which it is
// decided about and sent, and returns that as policy sees it. raw is as it came.
func CanonicalTarget(r *http.Request) (path, raw string, m *Error) {
	raw = cmp.Or(r.URL.EscapedPath(), "/")
	if raw[0] != '/' {
		return "", raw, &Error{http.StatusBadRequest, "request-target", "the request target is not a path"}
	}
	path, sent, err := urlpath.Canonical(raw)
	if err != nil {
		return "", raw, &Error{http.StatusBadRequest, "path", "the path can be read in more than one way: " + err.Error()}
	}
	SetPath(r.URL, sent)
	return path, raw, nil
}

// SetPath has u.EscapedPath be path.
func SetPath(u *url.URL, path string) {
	u.Path, _ = url.PathUnescape(path) // which has been checked
	u.RawPath = path
}

// Measured tells whether a request by HTTP/2 has no Content-Length or one that is
// a plain number.
func Measured(r *http.Request) bool {
	lengths := r.Header["Content-Length"]
	return len(lengths) == 0 || len(lengths) == 1 && lengths[0] == strconv.FormatInt(r.ContentLength, 10)
}

// HasBody tells whether more of a request by HTTP/2 follows its head. The library says
// so only by this field of a body that has a length of 0.
func HasBody(body io.ReadCloser) bool {
	v := reflect.Indirect(reflect.ValueOf(body))
	if v.Kind() != reflect.Struct {
		return true
	}
	field := v.FieldByName("pipe")
	return field.Kind() != reflect.Pointer || !field.IsNil()
}

// Reserved tells whether a header's name begins with Sallyport-. Only Sallyport sets such
// headers: others' are dropped in both directions. CGI-like readers take an underscore
// for a hyphen.
func Reserved(name string) bool {
	const mark = "sallyport"
	return len(name) > len(mark) && (name[len(mark)] == '-' || name[len(mark)] == '_') && strings.EqualFold(name[:len(mark)], mark)
}

// DropReserved removes such headers.
func DropReserved(h http.Header) {
	for name := range h {
		if Reserved(name) {
			delete(h, name)
		}
	}
}

func space(c byte) bool { return c == ' ' || c == '\t' }
