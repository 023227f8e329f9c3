// Package http1 speaks HTTP/1.1 (RFC 9112) for the gateway, as a server towards
// sandboxes and as a client towards upstreams, with the parsers of net/http.
//
// It serves a connection with one goroutine, where net/http's Server and Transport
// use several; only sending a request's body and watching a client that waits long
// have their own. A proxy that carries small requests spends a third of its time on
// the hand-offs between goroutines otherwise.
//
// Guarantees on requests: each is read in one way only. Anything that two readers
// could take differently is refused before it is parsed: bare CR or LF, folded lines,
// white space around a name, control characters, two lengths, a length and a transfer
// coding, two hosts, a fragment, a CONNECT with a body; in a chunked body, sizes with
// anything but digits, and trailers that are no fields. After a refused request, and
// after a body whose end was not found within a few hundred KiB and half a second
// beyond what the handler read, the connection carries no other request.
//
// Guarantees on responses: each belongs to its request. A connection to an upstream is
// reused only when request and response have both ended, nothing followed, and no
// deadline is left on it. A request that breaks off on its way in never looks complete
// on its way out, nor does a response, except to a client of HTTP/1.0 without TLS,
// which knows an end by no other sign.
//
// It limits the size of heads, the number of their fields and their time, and notices
// within about a second that a waiting client has gone. It does not limit the duration
// or the size of a body: a stream may go on for hours. It accepts the responses that
// net/http accepts, also with bare LF and folded lines; they are written anew.
//
// It knows no policy, credentials or TLS, and does not dial.
package http1
