package credential

import "net/http"

// grants are the headers by which a server gives its client what is as good as the
// credential of its request (RFC 6265, RFC 2965, RFC 9110, section 11.6.3).
var grants = set("set-cookie", "set-cookie2", "authentication-info", "proxy-authentication-info")

// StripGrants removes from the head or the trailers of an answer to a request with an injected
// credential what its sender could use in the credential's place: cookies, and the headers in
// which credentials travel, which [StripCarriers] would remove from the next request.
//
// It does not look into the body, nor into URLs.
func StripGrants(h http.Header) {
	var space [64]byte
	for name := range h {
		if n := appendFold(space[:0], name); grants[string(n)] || carriers[string(n)] {
			delete(h, name)
		}
	}
}

// StripTrailers removes from the names of a request's trailers those that StripCarriers removes
// from its header, and the one that a credential is injected under: servers that merge
// trailers into the header would have two.
func StripTrailers(trailer, header http.Header) {
	var space [64]byte
	for name := range trailer {
		n := string(appendFold(space[:0], name))
		if leaves[n] {
			delete(trailer, name)
			continue
		}
		for other := range header {
			if string(appendFold(space[:0], other)) == n {
				delete(trailer, name)
				break
			}
		}
	}
}
