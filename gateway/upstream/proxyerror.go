package upstream

import (
	"errors"
	"fmt"
)

// ProxyError says what a proxy did instead of opening the way to a destination.
// Its text has nothing of what the proxy sent but a code.
type ProxyError struct {
	Proxy  string // scheme://host:port
	Status int    // of an HTTP proxy's answer, else 0
	Reply  byte   // of a SOCKS proxy's (RFC 1928, section 6), else 0
	Err    error  // what went wrong otherwise, or nil
	advice string
	// elsewhere says that another address of the destination may be reached.
	elsewhere bool
}

func (e *ProxyError) Unwrap() error { return e.Err }

func (e *ProxyError) Error() string { return "the proxy " + e.Proxy + " " + e.advice }

// LoginError says that a proxy asks for what could not be leased.
type LoginError struct {
	Credential string
	Err        error
}

func (e *LoginError) Unwrap() error { return e.Err }

func (e *LoginError) Error() string {
	return fmt.Sprintf("the proxy's credential %q could not be had", e.Credential)
}

// failed makes an error that was met on the way to the proxy, or from it, one of
// the proxy's. An error that is not its fault stays as it is.
func (h *hop) failed(err error) error {
	var (
		said  *ProxyError
		other *Error
	)
	switch {
	case errors.As(err, &said):
		said.Proxy = h.proxy.String()
		return err
	case errors.As(err, &other):
		return err
	}
	e := &ProxyError{Proxy: h.proxy.String(), Err: err}
	switch kind := kindOf(err); {
	case kind == KindAddress || kind == KindBusy || kind == KindClosed || kind == KindCanceled:
		return err
	case errors.Is(err, errProxyEarly):
		e.advice = "sent bytes of the destination before it was sent any"
	case kind == KindLookup:
		e.advice = "was not found: " + lookupHint(err)
	case kind == KindRefused:
		e.advice = "is not there: nothing listens on that port"
	case kind == KindUnreachable:
		e.advice = "is not there: no route to its address"
	case kind == KindTimeout:
		e.advice = "did not answer in time"
	case kind == KindCertificate:
		e.advice = "is not believed: " + certificateHint(err, h.proxy.Host, "proxyRoots")
	case kind == KindTLS:
		e.advice = "does not speak TLS 1.2 or later: write http:// if it speaks none"
	default:
		e.advice = "broke the connection off, or does not speak " + h.protocol()
	}
	return e
}
