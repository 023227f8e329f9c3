package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy"
)

func TestCertificates(t *testing.T) {
	t.Parallel()
	ca, stranger, z := newAuthority(t), newAuthority(t), newZone(t)
	z.set("api.example.test", []string{"127.0.0.1"})
	names := []string{"api.example.test"}
	for _, tt := range []struct {
		name string
		cert tls.Certificate
		max  uint16
		kind Kind
		says string
	}{
		{"expired", ca.host(t, names, func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
		}), 0, KindCertificate, "is valid from"},
		{"not yet valid", ca.host(t, names, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(30 * time.Minute) }), 0, KindCertificate, "is valid from"},
		{"another name", ca.host(t, []string{"evil.example.test"}, nil), 0, KindCertificate, "another name"},
		{"common name only", ca.host(t, nil, func(c *x509.Certificate) { c.Subject.CommonName = names[0] }), 0, KindCertificate, ""},
		{"unknown authority", stranger.host(t, names, nil), 0, KindCertificate, "upstream: {roots:"},
		{"self-signed", (&authority{}).host(t, names, nil), 0, KindCertificate, ""},
		{"client certificate", ca.host(t, names, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }), 0, KindCertificate, ""},
		{"TLS 1.1", ca.host(t, names, nil), tls.VersionTLS11, KindTLS, "TLS 1.2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			served := false
			s := newSite(t, "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{tt.cert}, MinVersion: tls.VersionTLS10, MaxVersion: tt.max},
				http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true }))
			p := newPool(t, Options{})
			_, err := get(t, p, Route{Sandbox: "a", Host: "api.example.test", Port: s.port, TLS: true, Upstream: loopback(z, ca.file(t))})
			if got := kind(t, err); got != tt.kind {
				t.Errorf("kind %v (%v), want %v", got, errors.Unwrap(err), tt.kind)
			}
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%q does not say %q", err, tt.says)
			}
			s.Close()
			if served {
				t.Error("a request reached an upstream that was not verified")
			}
		})
	}
}

func TestErrorKinds(t *testing.T) {
	t.Parallel()
	z := newZone(t)
	z.set("api.example.test", []string{"127.0.0.1"})
	closedPort := func() uint16 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must.OK(t, err)
		defer l.Close()
		return portOf(t, l.Addr())
	}()
	const secret = "s3cr3t-echo"
	raw := func(answer string) uint16 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must.OK(t, err)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.SetReadDeadline(time.Now().Add(patience))
				c.Read(make([]byte, 4096))
				io.WriteString(c, answer)
				if answer == "" {
					io.Copy(io.Discard, c) // until the client has enough
				}
				c.Close()
			}
		}()
		t.Cleanup(func() { l.Close(); <-done })
		return portOf(t, l.Addr())
	}
	z.hold(t, "slow.example.test")
	up := loopback(z, "")
	short := Options{DialTimeout: 300 * time.Millisecond, HandshakeTimeout: 300 * time.Millisecond, HeaderTimeout: 300 * time.Millisecond}
	for _, tt := range []struct {
		name  string
		route Route
		want  Kind
	}{
		{"no such name", Route{Host: "nobody.example.test", Port: 443, TLS: true, Upstream: up}, KindLookup},
		{"silent resolver", Route{Host: "slow.example.test", Port: 443, TLS: true, Upstream: up}, KindLookup},
		{"nobody listens", Route{Host: "api.example.test", Port: closedPort, Upstream: up}, KindRefused},
		{"silent TLS", Route{Host: "api.example.test", Port: raw(""), TLS: true, Upstream: up}, KindTimeout},
		{"silent HTTP", Route{Host: "api.example.test", Port: raw(""), Upstream: up}, KindTimeout},
		{"HTTP instead of TLS", Route{Host: "api.example.test", Port: raw("HTTP/1.1 400 " + secret + "\r\n\r\n"), TLS: true, Upstream: up}, KindTLS},
		{"noise instead of TLS", Route{Host: "api.example.test", Port: raw(secret + "\r\n"), TLS: true, Upstream: up}, KindTLS},
		{"noise instead of HTTP", Route{Host: "api.example.test", Port: raw(secret + "\r\n\r\n"), Upstream: up}, KindBroken},
		{"bad header", Route{Host: "api.example.test", Port: raw("HTTP/1.1 200 OK\r\n" + secret + "\r\n\r\n"), Upstream: up}, KindBroken},
		{"header of 2 MiB", Route{Host: "api.example.test", Port: raw("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2<<20) + "\r\n\r\n"), Upstream: up}, KindBroken},
		{"closed at once", Route{Host: "api.example.test", Port: raw("\r\n"), Upstream: up}, KindBroken},
		{"short spelling", Route{Host: "127.1", Port: 80, Upstream: up}, KindHost},
		{"hex spelling", Route{Host: "0x7f000001", Port: 80, Upstream: up}, KindHost},
		{"missing roots", Route{Host: "api.example.test", Port: 443, TLS: true, Upstream: loopback(z, "/nonexistent/roots.pem")}, KindRoots},
		{"bad address in the rule", Route{Host: "api.example.test", Port: 443, Upstream: &policy.Upstream{Addresses: []string{"x"}}}, KindRule},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.route.Sandbox = "a"
			var o Options
			if strings.HasPrefix(tt.name, "silent") {
				o = short
			}
			_, err := get(t, newPool(t, o), tt.route)
			if got := kind(t, err); got != tt.want {
				t.Errorf("kind %v, want %v: %v", got, tt.want, errors.Unwrap(err))
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%q repeats what the upstream sent", err)
			}
		})
	}
	t.Run("canceled", func(t *testing.T) {
		r := Route{Sandbox: "a", Host: "api.example.test", Port: raw(""), Upstream: up}
		rt, err := newPool(t, Options{}).RoundTripper(r)
		must.OK(t, err)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(50*time.Millisecond, func() { cancel(errors.New("the client went away")) })
		_, err = rt.RoundTrip(request(t, ctx, r))
		if got := kind(t, err); got != KindCanceled || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

func TestErrorWithoutCauseHasText(t *testing.T) {
	t.Parallel()
	for k := range KindMemory + 1 {
		e := &Error{Kind: k, Host: "api.example.test", Port: 443}
		if got := e.Error(); !strings.HasPrefix(got, "reaching api.example.test:443: ") {
			t.Errorf("%v: %q", k, got)
		}
	}
}
