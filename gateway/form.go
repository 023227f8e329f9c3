package gateway

import (
	"cmp"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"sallyport/policy"
)

// wellFormed checks what a request by HTTP/2 can have in it that one by HTTP/1.1
// could not, and that would be read as something else when it is written as one:
// the library checks names and values for characters of control, :path for its
// first one, and that :authority and Host agree (RFC 9113, sections 8.2 and 8.3).
func wellFormed(r *http.Request) *misuse {
	if !httpguts.ValidHeaderFieldName(r.Method) { // a token, both
		return &misuse{http.StatusBadRequest, "method", "the method is not a token"}
	}
	if strings.ContainsFunc(r.RequestURI, func(c rune) bool { return c <= ' ' || c == '#' || c == 0x7f }) {
		return &misuse{http.StatusBadRequest, "request-target", "the request target has a space, a fragment or a control character in it"}
	}
	if r.ProtoMajor == 1 {
		return nil // the rest has been checked by its reader
	}
	for name, values := range r.Header {
		if name[0] == ':' {
			return &misuse{http.StatusBadRequest, "pseudo-header", "a pseudo-header that the method does not have"}
		}
		for _, v := range values {
			if v != "" && (space(v[0]) || space(v[len(v)-1])) {
				return &misuse{http.StatusBadRequest, "header", "a header's value begins or ends with white space"}
			}
		}
	}
	if !measured(r) {
		return &misuse{http.StatusBadRequest, "content-length", "the Content-Length is not one plain number, or not the body's"}
	}
	return nil
}

// canonicalTarget has the request's URL hold the path in the one form in which it is
// decided about and sent, and returns that as policy sees it. raw is as it came.
func canonicalTarget(r *http.Request) (path, raw string, m *misuse) {
	raw = cmp.Or(r.URL.EscapedPath(), "/")
	if raw[0] != '/' {
		return "", raw, &misuse{http.StatusBadRequest, "request-target", "the request target is not a path"}
	}
	path, sent, err := policy.CanonicalPath(raw)
	if err != nil {
		return "", raw, &misuse{http.StatusBadRequest, "path", "the path can be read in more than one way: " + err.Error()}
	}
	setPath(r.URL, sent)
	return path, raw, nil
}

// setPath has u.EscapedPath be path.
func setPath(u *url.URL, path string) {
	u.Path, _ = url.PathUnescape(path) // which has been checked
	u.RawPath = path
}

// measured tells whether a request by HTTP/2 has no Content-Length or one that is
// a plain number.
func measured(r *http.Request) bool {
	lengths := r.Header["Content-Length"]
	return len(lengths) == 0 || len(lengths) == 1 && lengths[0] == strconv.FormatInt(r.ContentLength, 10)
}

// open tells whether more of a request by HTTP/2 was to come after its head. The
// library does not say, but for this field of a body that has a length of 0.
func open(body io.ReadCloser) bool {
	v := reflect.Indirect(reflect.ValueOf(body))
	if v.Kind() != reflect.Struct {
		return true
	}
	field := v.FieldByName("pipe")
	return field.Kind() != reflect.Pointer || !field.IsNil()
}

// ours tells of a header's name that it speaks in Sallyport's: nobody's else is passed
// on, in either direction. CGI-like readers take an underscore for a hyphen.
func ours(name string) bool {
	const mark = "sallyport"
	return len(name) > len(mark) && (name[len(mark)] == '-' || name[len(mark)] == '_') && strings.EqualFold(name[:len(mark)], mark)
}

// dropOurs removes such headers.
func dropOurs(h http.Header) {
	for name := range h {
		if ours(name) {
			delete(h, name)
		}
	}
}

func space(c byte) bool { return c == ' ' || c == '\t' }
