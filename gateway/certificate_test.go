package gateway_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/gateway/credential"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// client makes a client certificate and its key in PEM.
func (a *authority) client(t *testing.T, name string, until time.Time) (certificate, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: until.Add(-2 * time.Hour), NotAfter: until,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &k.PublicKey, a.key)
	must.OK(t, err)
	der8, err := x509.MarshalPKCS8PrivateKey(k)
	must.OK(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der8}))
}

// rotating is a source whose secret changes.
type rotating struct {
	mu      sync.Mutex
	fields  map[string]string
	version int
}

func (s *rotating) set(fields map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fields, s.version = fields, s.version+1
}

func (s *rotating) Read(context.Context) (credential.Material, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := credential.Material{Fields: map[string]credential.Secret{}, Version: fmt.Sprint(s.version)}
	for k, v := range s.fields {
		m.Fields[k] = credential.NewSecret(v)
	}
	return m, nil
}

// A client certificate is shown to its upstream alone, by each version of HTTP, and a
// connection with it serves only requests that it is for.
func TestClientCertificate(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"h1", "h2"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			w := newNetEnv(t)
			clients := newAuthority(t)
			w.asks = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: clients.pool}
			src := &rotating{}
			pair := func(name string) map[string]string {
				certificate, key := clients.client(t, name, time.Now().Add(time.Hour))
				return map[string]string{"certificate": certificate, "key": key}
			}
			src.set(pair("one"))
			other := &rotating{}
			certificate, key := clients.client(t, "other", time.Now().Add(time.Hour))
			other.set(map[string]string{"certificate": certificate, "private_key": key, "ca_chain": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: clients.cert.Raw}))})
			w.broker = credential.New(credential.Options{
				Sources: map[string]credential.Source{"client": src, "other": other},
				Bound:   func(string, string, uint16) bool { return true },
			})
			w.policy(func(in policy.Input) policy.Decision {
				d := w.allow(in)
				if in.Request != nil && in.Request.Path != "/plain" {
					d.Inject = []policy.Injection{{Credential: "client", Inject: policy.Inject{ClientCertificate: &policy.ClientCertificateInject{}}}}
					if in.Request.Path == "/other" {
						d.Inject[0].Credential = "other"
					}
				}
				return d
			})
			o := w.origin("api.example.test", version, true)
			o.handle("/", func(w http.ResponseWriter, r *http.Request) {
				for i, c := range r.TLS.PeerCertificates {
					fmt.Fprint(w, strings.Repeat("<", i), c.Subject.CommonName)
				}
			})
			o.handle("/test.Service/Call", func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.Header().Set("Content-Type", "application/grpc")
				w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
				w.Header().Set(http.TrailerPrefix+"Grpc-Message", r.TLS.PeerCertificates[0].Subject.CommonName)
			})
			agent := w.agent(version, true, w.steer, false)
			want := func(path, name string) {
				t.Helper()
				if resp, body := get(t, agent, o.url("https", path)); resp.StatusCode != 200 || body != name {
					t.Errorf("%s: %d, %q is shown, want %q", path, resp.StatusCode, body, name)
				}
			}
			for range 2 {
				want("/", "one")
				want("/plain", "")
				want("/other", "other<test authority")
			}
			if n := o.conns.Load(); n != 3 {
				t.Errorf("%d connections, want one for each", n)
			}
			if version == "h2" {
				if resp, _ := call(t, agent, o.url("https", "/test.Service/Call"), nil, "hello"); resp.Trailer.Get("Grpc-Message") != "one" {
					t.Errorf("a call of gRPC shows %v", resp.Trailer)
				}
			}
			src.set(pair("two"))
			want("/", "two") // by the next request
			want("/", "two")

			// A certificate that cannot be shown is not: the operator is told why, the sandbox
			// is not.
			late, lateKey := clients.client(t, "late", time.Now().Add(-time.Hour))
			for why, fields := range map[string]map[string]string{
				"expired on":     {"certificate": late, "key": lateKey},
				"not a pair":     {"certificate": late, "key": key},
				"key is not PEM": {"certificate": late, "key": strings.Repeat("no key", 9)},
				`no field "key"`: {"certificate": late},
			} {
				src.set(fields)
				resp, body := get(t, agent, o.url("https", "/"))
				if resp.StatusCode != 503 || strings.Contains(body, why) || !strings.Contains(body, `credential "client"`) {
					t.Errorf("%s: %d %s", why, resp.StatusCode, body)
				}
				m, err := src.Read(t.Context())
				must.OK(t, err)
				if err := credential.Check(policy.Inject{ClientCertificate: &policy.ClientCertificateInject{}}, m.Fields, time.Now()); err == nil || !strings.Contains(err.Error(), why) {
					t.Errorf("secret set says %v, want %s", err, why)
				}
			}
		})
	}
}

// An upstream that asks for a certificate and takes another's only says so in TLS.
func TestClientCertificateIsRefused(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"h1", "h2"} {
		w := newNetEnv(t)
		w.quiet = true
		w.asks = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: newAuthority(t).pool}
		certificate, key := newAuthority(t).client(t, "stranger", time.Now().Add(time.Hour))
		src := &rotating{}
		src.set(map[string]string{"certificate": certificate, "key": key})
		w.broker = credential.New(credential.Options{
			Sources: map[string]credential.Source{"client": src}, Bound: func(string, string, uint16) bool { return true },
		})
		w.policy(func(in policy.Input) policy.Decision {
			d := w.allow(in)
			if in.Request != nil && in.Request.Path == "/shown" {
				d.Inject = []policy.Injection{{Credential: "client", Inject: policy.Inject{ClientCertificate: &policy.ClientCertificateInject{}}}}
			}
			return d
		})
		o := w.origin("api.example.test", version, true)
		o.handle("/", func(http.ResponseWriter, *http.Request) { t.Error("a request was served") })
		agent := w.agent(version, true, w.steer, false)
		// A reset can overtake the upstream's alert.
		for path, why := range map[string]*regexp.Regexp{
			"/shown": regexp.MustCompile(`the upstream refuses the client certificate of credential "client"`),
			"/plain": regexp.MustCompile("it wants a client certificate|the connection broke"),
		} {
			if resp, body := get(t, agent, o.url("https", path)); resp.StatusCode != 502 || !why.MatchString(strings.ReplaceAll(body, `\"`, `"`)) {
				t.Errorf("%s %s: %d %s", version, path, resp.StatusCode, body)
			}
		}
	}
}
