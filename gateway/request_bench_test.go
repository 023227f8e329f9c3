package gateway

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sallyport/audit"
	"sallyport/gateway/credential"
	"sallyport/gateway/http1"
	"sallyport/gateway/placeholder"
	"sallyport/gateway/upstream"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
	"sallyport/policy"
	"sallyport/policy/engine"
)

// nowhere is where a benchmark's events, connections and secrets come and go.
type nowhere struct{ conn *http1.ClientConn }

func (nowhere) Append(context.Context, ...*audit.Event) error { return nil }
func (nowhere) Enqueue(*audit.Event) error                    { return nil }

func (n nowhere) RoundTripper(upstream.Route) (http.RoundTripper, error) { return n, nil }
func (nowhere) Dial(context.Context, upstream.Route) (net.Conn, error)   { return nil, net.ErrClosed }
func (nowhere) DialTLS(context.Context, upstream.Route, netip.Addr, func(net.Conn) error) (*tls.Conn, error) {
	return nil, net.ErrClosed
}
func (n nowhere) RoundTrip(r *http.Request) (*http.Response, error) { return n.conn.RoundTrip(r, nil) }
func (nowhere) ServerConfig(string, string) (*tls.Config, error)    { return nil, net.ErrClosed }
func (nowhere) TTL() time.Duration                                  { return time.Hour }
func (nowhere) Read(context.Context) (credential.Material, error) {
	return credential.Material{Fields: map[string]credential.Secret{"token": credential.NewSecret("s3cr3t-s3cr3t-s3cr3t")}, Version: "1"}, nil
}

// cpu is the time that this process has spent on processors, which other
// processes of a crowded machine do not lengthen as much as the wall's.
func cpu(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	must.OK(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkExchange is what a small request costs between its connection and the
// upstream's: all but TLS, system calls and the log.
func BenchmarkExchange(b *testing.B) {
	held := placeholder.New([]placeholder.Held{placeholder.Derive(nil, "sb-1", "key", policy.Shape{Prefix: "sk-proj-", Alphabet: "abcdefghijklmnop", Length: 40})})
	for _, c := range []struct{ cached, holding bool }{{false, false}, {true, false}, {true, true}} {
		cached := c.cached
		b.Run(fmt.Sprintf("cached=%t/placeholders=%t", cached, c.holding), func(b *testing.B) {
			doc := policy.Document{
				EgressAuth:  []policy.EgressAuthRule{{Name: "bench", Destination: "api.example.test", AuthRef: "key"}},
				Credentials: []policy.Credential{{Name: "key"}},
			}
			if !cached {
				doc.Policy.Cache = new(int)
			}
			compiled, err := engine.Compile(b.Context(), doc, engine.Options{})
			must.OK(b, err)
			engine := engine.NewEngine(compiled)
			body := strings.Repeat("a", 1024)
			out := nowhere{http1.NewClientConn(&testnet.Again{N: b.N, Text: fmt.Sprintf(
				"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nDate: Sun, 22 Nov 2026 01:02:03 GMT\r\nContent-Length: %d\r\n\r\n%s", len(body), body)},
				http1.ClientOptions{})}
			g, err := New(Options{
				Decider: engine, Recorder: out, Upstreams: out, Certificates: out,
				Metrics: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler),
				Broker: credential.New(credential.Options{Sources: map[string]credential.Source{"key": out}, Bound: engine.Bound}),
			})
			must.OK(b, err)
			if c.holding {
				g.Placeholders = func(string) *placeholder.Set { return held }
			}
			defer func() { _ = g.Shutdown(b.Context()) }()
			p := unknownPeer(netip.MustParseAddrPort("198.51.100.7:40000")).is(Identity{Sandbox: policy.Sandbox{Name: "agent", ID: "sb-1"}})
			p.secrets = g.secrets.Of("sb-1")
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			on := &session{peer: p, life: &lifetime{ctx: ctx, cancel: cancel}, target: target{
				host: "api.example.test", port: 443, protocol: policy.ProtocolTLS, sni: "api.example.test", authority: "api.example.test",
			}}
			b.ReportAllocs()
			before := cpu(b)
			in := &testnet.Again{N: b.N, Text: "GET /v1/models HTTP/1.1\r\nHost: api.example.test\r\nUser-Agent: Go-http-client/1.1\r\nAccept: application/json\r\n\r\n"}
			(&http1.Server{}).ServeConn(b.Context(), in, func(ctx context.Context, w http.ResponseWriter, r *http.Request) {
				g.serve(ctx, cancel, w, r, on, nil)
			})
			b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/op")
			if in.N > 0 {
				b.Fatalf("%d requests were not answered", in.N)
			}
		})
	}
}
