// Package http1 speaks HTTP/1.1 (RFC 9112) for the gateway, as a server towards
// sandboxes and as a client towards upstreams, with the parsers of net/http.
//
// What net/http's own Server and Transport do with several goroutines for each
// connection, it does with the one that has the request, but for sending a
// request's body and for watching a client that waits long: there is no hand-off
// between the byte that came and the byte that goes. A proxy that carries a
// small request and its response spends a third of its time on such hand-offs
// otherwise.
//
// It guarantees that a request is read in one way only. What two readers could
// take differently is refused before it is parsed: bare CR or LF, folded lines,
// white space around a name, control characters, two lengths, a length and a
// coding, two hosts, a fragment, a CONNECT with a body; in a chunked body sizes
// with anything beside digits and trailers that are no fields. After what has
// been refused, and after a body whose end was not found in a few hundred KiB
// and half a second beyond what the handler wanted, the connection carries no
// other request.
//
// It guarantees that a response belongs to its request: a connection to an
// upstream is used again only when request and response have both ended, nothing
// was said beyond, and no deadline is left on it. A request that is broken off
// on its way in never looks whole on its way out, nor does a response, but to a
// client of HTTP/1.0 without TLS, which knows an end by no other sign.
//
// It limits the size of heads, the number of their fields, and the time that
// they take, and notices within about a second a client that goes away while it
// is waiting. It does not limit how long a request or response lasts or how large
// its body is: a stream may go on for hours. Of an upstream's responses it takes
// what net/http takes, bare LF and folded lines among it; they are written anew.
//
// It does not know of policy, credentials or TLS, and it dials nothing.
package http1
