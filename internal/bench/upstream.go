package main

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"sallyport/internal/bench/contender"
)

// secret is what both proxies inject and the upstream asks for.
const secret = "sk-bench-0123456789abcdef0123456789abcdef"

// document is 1 KB of JSON.
var document = []byte(`{"object":"list","data":"` + strings.Repeat("x", 997) + `"}`)

// bodySize is that of a large body, in bytes.
const bodySize = 64 << 20

// The paths of the upstreams.
const (
	documentPath = "/v1/models"
	bodyPath     = "/v1/body"
	unaryPath    = "/bench.Echo/Unary"
)

// upstreamName is what a sandbox calls the upstreams.
const upstreamName = "api.example.test"

// message is what a call of gRPC says and is answered: not compressed, and its
// length before it (gRPC over HTTP/2, Length-Prefixed-Message).
var message = append([]byte{0, 0, 0, 0, 100}, strings.Repeat("m", 100)...)

// upstreams are the addresses (host:port) of the servers behind the proxies.
type upstreams struct {
	secured     string // HTTP/1.1, asks for the secret
	open        string // HTTP/1.1, asks for none, and has none injected
	multiplexed string // HTTP/2, asks for the secret
}

func (u upstreams) String() string {
	text, _ := u.MarshalText()
	return string(text)
}

// MarshalText and UnmarshalText are for the command line.
func (u upstreams) MarshalText() ([]byte, error) {
	if u == (upstreams{}) {
		return nil, nil
	}
	return []byte(u.secured + "," + u.open + "," + u.multiplexed), nil
}

func (u *upstreams) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*u = upstreams{}
		return nil
	}
	list := strings.Split(string(text), ",")
	if len(list) != 3 {
		return errors.New("there are three upstreams")
	}
	*u = upstreams{list[0], list[1], list[2]}
	return nil
}

// startUpstream starts the upstreams and notes where they are.
func startUpstream(ctx context.Context, o *options) (*process, error) {
	p, err := start(ctx, *o, "upstream")
	if err != nil {
		return nil, err
	}
	if err := o.upstreams.UnmarshalText([]byte(p.ready)); err != nil {
		return nil, errors.Join(err, p.stop(nil))
	}
	return p, nil
}

// upstreamRole serves over TLS: the document, large bodies, and calls of gRPC.
func upstreamRole(ctx context.Context, o options) error {
	cert, root, err := contender.Certificate("upstream", o.listen, upstreamName)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.dir, "upstream.pem"), root, 0o644); err != nil {
		return err
	}
	var all upstreams
	servers := make(chan error, 3)
	for _, u := range []struct {
		address   *string
		protocols []string
		handler   http.Handler
	}{
		{&all.secured, []string{"http/1.1"}, guarded(content())},
		{&all.open, []string{"http/1.1"}, content()},
		{&all.multiplexed, []string{"h2", "http/1.1"}, guarded(content())},
	} {
		ln, err := net.Listen("tcp", net.JoinHostPort(o.listen, "0"))
		if err != nil {
			return err
		}
		*u.address = ln.Addr().String()
		s := &http.Server{TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: u.protocols}, Handler: u.handler}
		go func() { servers <- serve(ctx, s, func(ln net.Listener) error { return s.ServeTLS(ln, "", "") }, ln) }()
	}
	fmt.Println(all)
	for range cap(servers) {
		err = errors.Join(err, <-servers)
	}
	return err
}

// guarded serves requests that carry the secret.
func guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+secret {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func content() http.Handler {
	// Text of which any piece could begin a secret, as base64 is; the same at each run.
	raw := make([]byte, 3<<18)
	_, _ = mathrand.NewChaCha8([32]byte{}).Read(raw) // never fails
	piece := []byte(base64.StdEncoding.EncodeToString(raw))
	length := strconv.Itoa(bodySize)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case bodyPath:
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Content-Length", length)
			for range bodySize / len(piece) {
				if _, err := w.Write(piece); err != nil {
					return
				}
			}
		case unaryPath:
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return
			}
			w.Header().Set("Content-Type", "application/grpc")
			w.Header().Set("Trailer", "Grpc-Status")
			_, _ = w.Write(message)
			w.Header().Set("Grpc-Status", "0")
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(document)
		}
	})
}

// serve runs a server on ln until ctx is done.
func serve(ctx context.Context, s *http.Server, run func(net.Listener) error, ln net.Listener) error {
	s.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := run(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
