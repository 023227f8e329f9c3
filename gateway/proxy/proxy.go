// Package proxy carries requests with goproxy, and alone knows it. It reads a request off its
// caller, calls the [Transport] in the request's context, and copies the response, which may
// be a WebSocket. A request leaves no other way.
package proxy

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"

	"github.com/elazarl/goproxy"
)

var errNoRoute = errors.New("requests leave only by the route that their decision gave them")

// Transport sends a request on.
type Transport func(*http.Request) (*http.Response, error)

// TransportKey is the key of a Transport in the context of a request.
type TransportKey struct{}

// RoundTrip implements goproxy.RoundTripper.
func (t Transport) RoundTrip(r *http.Request, _ *goproxy.ProxyCtx) (*http.Response, error) {
	return t(r)
}

// New returns what serves requests that have a Transport in their context.
func New(logger *slog.Logger) http.Handler {
	proxy := newProxy(logger)
	proxy.OnRequest().DoFunc(func(r *http.Request, ctx *goproxy.ProxyCtx) (*http.Request, *http.Response) {
		ctx.RoundTripper = r.Context().Value(TransportKey{}).(Transport)
		return r, nil
	})
	return proxy
}

// newProxy returns a goproxy that carries nothing: what it would use when no handler
// says otherwise refuses. It never sees CONNECT, ends no TLS and signs nothing.
func newProxy(logger *slog.Logger) *goproxy.ProxyHttpServer {
	proxy := goproxy.NewProxyHttpServer()
	proxy.Logger = proxyLogger{logger}
	proxy.Verbose = false
	// The steps of a request decide which headers are sent. Without KeepHeader, goproxy
	// would remove hop-by-hop headers a second time and format each URL for its log.
	proxy.KeepHeader = true
	proxy.AllowHTTP2 = false
	proxy.Tr = &http.Transport{
		Proxy:              nil,
		DialContext:        noDial,
		DialTLSContext:     noDial,
		DisableCompression: true,
	}
	proxy.ConnectDial = nil // it may have come from the environment
	proxy.ConnectDialWithReq = func(*http.Request, string, string) (net.Conn, error) { return nil, errNoRoute }
	proxy.OnRequest().HandleConnectFunc(func(host string, _ *goproxy.ProxyCtx) (*goproxy.ConnectAction, string) {
		return &goproxy.ConnectAction{Action: goproxy.ConnectReject}, host
	})
	return proxy
}

func noDial(context.Context, string, string) (net.Conn, error) { return nil, errNoRoute }

// proxyLogger takes goproxy's warnings. Their arguments can quote a request, so the log
// gets the kind of warning only.
type proxyLogger struct{ *slog.Logger }

func (l proxyLogger) Printf(format string, _ ...any) {
	l.Debug("goproxy", "warning", strings.TrimSpace(strings.TrimPrefix(format, "[%03d] ")))
}
