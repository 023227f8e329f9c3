// Package h1 speaks HTTP/1.1 (RFC 9112) for the gateway, as a server towards
// sandboxes and as a client towards upstreams, with the parsers of net/http.
//
// What net/http's own Server and Transport do with several goroutines for each
// connection, it does with the one that has the request: there is no hand-off
// between the byte that came and the byte that goes. A proxy that carries a
// small request and its response spends a third of its time on such hand-offs
// otherwise.
//
// It guarantees that a request is read in one way only: a head that two readers
// could take differently (bare CR or LF, folded lines, white space around a
// name, control characters, two lengths, a length and a coding, two hosts) is
// refused before it is parsed. It limits the size of heads and the time that
// they take, and notices a client that goes away while it is waiting. It does
// not limit how long a request or response lasts or how large its body is: a
// stream may go on for hours.
//
// It does not know of policy, credentials or TLS, and it dials nothing.
package h1
