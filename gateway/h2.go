package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// maxStreams bounds the requests that a client has open on one connection.
const maxStreams = 128

// multiplexed serves connections that speak HTTP/2 (RFC 9113), by ALPN or by
// prior knowledge. The library bounds what a client can queue: resets,
// CONTINUATION frames, settings and pings.
type multiplexed struct {
	conf *http2.Server
	base *http.Server // for its limits, and to tell all connections of a shutdown
}

func newMultiplexed(idle, handshake time.Duration, logger *slog.Logger) (*multiplexed, error) {
	m := &multiplexed{
		conf: &http2.Server{MaxConcurrentStreams: maxStreams, IdleTimeout: idle},
		base: &http.Server{
			MaxHeaderBytes:    maxHeader,
			ReadHeaderTimeout: handshake,
			ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
		},
	}
	return m, http2.ConfigureServer(m.base, m.conf)
}

// preface is what a client of HTTP/2 begins with (RFC 9113, section 3.4).
var preface = []byte(http2.ClientPreface)

// speaksHTTP2 tells what a connection that is being read has agreed on, or
// begins with. A plain one has been waited for until that is sure.
func speaksHTTP2(c net.Conn) bool {
	switch c := c.(type) {
	case *tls.Conn:
		return c.ConnectionState().NegotiatedProtocol == http2.NextProtoTLS
	case *opening:
		return bytes.HasPrefix(c.seen, preface)
	}
	return false
}

// serveHTTP2 returns when the connection has ended and its requests have too.
func (g *Gateway) serveHTTP2(ctx context.Context, c net.Conn, f *flow) {
	var streams sync.WaitGroup
	defer streams.Wait()
	g.h2.conf.ServeConn(c, &http2.ServeConnOpts{
		Context:    ctx,
		BaseConfig: g.h2.base,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			streams.Add(1)
			defer streams.Done()
			if r.ContentLength == 0 {
				r.Body = http.NoBody // or a transport would have to find out
			}
			g.serveExchange(r.Context(), w, r, f)
		}),
	})
}
