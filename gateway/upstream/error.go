package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"sallyport/gateway/http1"
)

// Kind is the step that failed. The zero Kind is a connection that broke.
type Kind uint8

const (
	KindBroken      Kind = iota // reset, cut short, or not HTTP
	KindLookup                  // the name has no address
	KindAddress                 // the address's class is denied; wraps *AddressError
	KindRefused                 // nobody listens
	KindUnreachable             // no way there
	KindTimeout                 // of lookup, connection, handshake or response header
	KindCertificate             // not verified
	KindTLS                     // the handshake failed otherwise
	KindRoots                   // the rule's roots file, or the system's, cannot be used
	KindRule                    // the rule's upstream settings cannot be used
	KindHost                    // not a host that could be looked up
	KindOther                   // the request is for another destination than its route
	KindBusy                    // the sandbox has too many connections open
	KindCanceled                // whoever asked went away
	KindClosed                  // the pool is closed, or the sandbox forgotten
	KindProxy                   // the proxy on the way did not open it; wraps *ProxyError
	KindLogin                   // the credential for the proxy could not be leased; wraps *LoginError
	KindMemory                  // there is no memory for the response's large head
)

// Error is the reason why a destination was not reached. Its text is for agents and
// operators: it has nothing that the upstream sent, which may echo a secret. Do not print
// what Unwrap returns, which may.
type Error struct {
	Kind Kind
	Host string
	Port uint16
	// Shown names the credential whose client certificate was shown, if any.
	Shown string
	Err   error
}

func (e *Error) Unwrap() error { return e.Err }

func (e *Error) Error() string {
	return fmt.Sprintf("reaching %s: %s", net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port))), e.hint())
}

func (e *Error) hint() string {
	if p := (*ProxyError)(nil); errors.As(e.Err, &p) {
		return p.Error()
	}
	switch e.Kind {
	case KindAddress, KindRoots, KindRule, KindHost, KindLogin:
		if e.Err != nil {
			return e.Err.Error() // our own words
		}
	case KindLookup:
		return lookupHint(e.Err)
	case KindRefused:
		return "connection refused: nothing listens on that port"
	case KindUnreachable:
		return "no route to the address it resolves to"
	case KindTimeout:
		return "no answer in time"
	case KindCertificate:
		return certificateHint(e.Err, e.Host, "roots")
	case KindTLS:
		if e.Shown != "" {
			return fmt.Sprintf("the TLS handshake failed: the upstream refuses the client certificate of credential %q, or does not speak TLS 1.2 or later", e.Shown)
		}
		return "the TLS handshake failed: the port does not speak TLS 1.2 or later, or it wants a client certificate"
	case KindOther:
		return "the request names another destination than the one that was decided on"
	case KindBusy:
		return fmt.Sprintf("the sandbox has %d connections open already: close some", maxConns)
	case KindBroken:
		if !errors.Is(e.Err, http1.ErrFields) && !errors.Is(e.Err, errInformational) {
			// In TLS 1.3 a server refuses a certificate after the handshake, and a reset can
			// overtake its alert (RFC 8446, section 4.4.2.4).
			if e.Shown != "" {
				return fmt.Sprintf("the connection broke before there was an answer: perhaps the upstream refuses the client certificate of credential %q", e.Shown)
			}
			break
		}
		return fmt.Sprintf("the answer's head has more than %d KiB or %d fields, or more than %d follow its body", maxResponseHeader>>10, http1.MaxFields, http1.MaxTrailers)
	case KindMemory:
		return http1.ErrBudget.Error()
	case KindCanceled:
		return "canceled"
	case KindClosed:
		return "the gateway is shutting down, or the sandbox is gone"
	}
	return "the connection broke, or the answer was not HTTP"
}

func lookupHint(err error) string {
	var d *net.DNSError
	switch {
	case errors.As(err, &d) && d.IsNotFound:
		return "no such host"
	case errors.As(err, &d) && d.IsTimeout:
		return "the resolver did not answer in time"
	}
	return "the resolver failed; an internal name may need upstream: {resolver: host:port} in its rule"
}

// certificateHint names the key of an upstream that would say whom to believe.
func certificateHint(err error, host, key string) string {
	var (
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		invalid x509.CertificateInvalidError
	)
	if why := certificateReason(err); why != "" {
		return "its certificate " + why
	}
	switch {
	case errors.As(err, &unknown):
		return "its certificate is signed by an unknown authority; a private one is named by upstream: {" + key + ": FILE} in the rule"
	case errors.As(err, &name):
		return "its certificate is for another name than " + host
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && invalid.Cert != nil:
		return fmt.Sprintf("its certificate is valid from %s to %s only",
			invalid.Cert.NotBefore.UTC().Format(time.RFC3339), invalid.Cert.NotAfter.UTC().Format(time.RFC3339))
	}
	return "its certificate is not acceptable"
}

// AddressError is a destination with an address that no rule names.
type AddressError struct {
	Host  string
	Addr  netip.Addr
	Class Class
}

func (e *AddressError) Error() string {
	switch e.Class {
	case Unspecified, Multicast, Broadcast:
		return fmt.Sprintf("%s is %s (%s), which is never dialled", e.Host, e.Addr, e.Class)
	}
	return fmt.Sprintf(`%s is %s (%s), which is not dialled unless its rule says upstream: {addresses: ["%s"]}`, e.Host, e.Addr, e.Class, e.Addr)
}

var errOther = errors.New("request for another destination")

// fail gives an error its kind.
func (d *destination) fail(err error) error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	e = &Error{Kind: kindOf(err), Host: d.route.Host, Port: d.route.Port, Err: err}
	if d.route.Certificate != nil {
		e.Shown = d.route.Credential
	}
	return e
}

func kindOf(err error) Kind {
	var (
		address *AddressError
		lookup  *net.DNSError
		verify  *tls.CertificateVerificationError
		refused certificateError
		record  tls.RecordHeaderError
		timeout net.Error
		op      *net.OpError
		login   *LoginError
		proxy   *ProxyError
	)
	switch {
	case errors.Is(err, errOther):
		return KindOther
	case errors.Is(err, http1.ErrBudget):
		return KindMemory
	case errors.As(err, &address):
		return KindAddress
	case errors.Is(err, errBusy):
		return KindBusy
	case errors.Is(err, errClosed):
		return KindClosed
	case errors.Is(err, context.Canceled):
		return KindCanceled
	case errors.As(err, &login):
		return KindLogin
	case errors.As(err, &proxy) && (proxy.Err == nil || kindOf(proxy.Err) != KindTimeout):
		return KindProxy
	case errors.As(err, &verify), errors.As(err, &refused):
		return KindCertificate
	case errors.As(err, &lookup):
		return KindLookup
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return KindTimeout
	case errors.Is(err, syscall.ECONNREFUSED):
		return KindRefused
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EADDRNOTAVAIL):
		return KindUnreachable
	case errors.Is(err, http.ErrSchemeMismatch), errors.As(err, &record):
		return KindTLS
	case errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error"): // a TLS alert
		return KindTLS
	}
	return KindBroken
}
