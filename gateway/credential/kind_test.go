package credential_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"sallyport/gateway/credential"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

func cookie(name, value string) policy.Inject {
	return policy.Inject{Cookie: &policy.CookieInject{Name: name, Value: value}}
}

// A cookie takes the place of the sandbox's own of that name; others stay.
func TestCookie(t *testing.T) {
	for _, tt := range []struct{ name, sent, want string }{
		{"none", "", "session=tok-0123456789ab"},
		{"others", "a=1; b=2", "a=1; b=2; session=tok-0123456789ab"},
		{"its own", "a=1; session=mine; b=2", "a=1; b=2; session=tok-0123456789ab"},
		{"its own, twice and in other letters", "session=mine;SESSION = mine", "session=tok-0123456789ab"},
		{"one that begins so", "sessions=1", "sessions=1; session=tok-0123456789ab"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := request(t, "https://api.example.com/")
			if tt.sent != "" {
				r.Header["cookie"] = []string{tt.sent}
			}
			must.OK(t, lease(t, fields{"token": "tok-0123456789ab"}).Apply(r, cookie("session", "{{ .token }}")))
			if got := r.Header["Cookie"]; len(got) != 1 || got[0] != tt.want || len(r.Header) != 1 {
				t.Errorf("%v, want Cookie: %s", r.Header, tt.want)
			}
		})
	}
	for _, value := range []string{"tok 0123456789abcdef", "tok;0123456789abcdef", "tok,0123456789abcdef", "tok\n0123456789abcdef", `tok"0123456789abcdef`} {
		r := request(t, "https://api.example.com/")
		if err := lease(t, fields{"token": value}).Apply(r, cookie("session", "{{ .token }}")); err == nil || strings.Contains(err.Error(), "0123456789") || len(r.Header) != 0 {
			t.Errorf("%q: %v, %v", value, err, r.Header)
		}
	}
}

// A sandbox's own value in the injected place is noticed however it is spelt.
func TestOwn(t *testing.T) {
	for _, tt := range []struct {
		name, url, header string
		inject            policy.Inject
		own               bool
	}{
		{"bearer, none", "/", "", policy.Inject{}, false},
		{"bearer", "/", "authorization", policy.Inject{}, true},
		{"basic", "/", "AUTHORIZATION", basic("a", "{{ .token }}"), true},
		{"header, none", "/?x-api-key=1", "Authorization", header("X-Api-Key", "{{ .token }}"), false},
		{"header", "/", "x_api_key", header("X-Api-Key", "{{ .token }}"), true},
		{"query, none", "/?keys=1&q=;", "Key", query("key", "{{ .token }}"), false},
		{"query", "/?q=1&%6bey=2", "", query("key", "{{ .token }}"), true},
		{"query behind a semicolon", "/?q=1;key[]=2", "", query("key", "{{ .token }}"), true},
		{"cookie, none", "/?session=1", "", cookie("session", "{{ .token }}"), false},
		{"cookie of another name", "/", "Cookie: a=session", cookie("session", "{{ .token }}"), false},
		{"cookie", "/", "cookie: a=1; session=2", cookie("session", "{{ .token }}"), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := request(t, "https://api.example.com"+tt.url)
			if name, value, _ := strings.Cut(tt.header, ": "); name != "" {
				r.Header[name] = []string{value}
			}
			if got := credential.Own(tt.inject, r); got != tt.own {
				t.Errorf("own: %v", got)
			}
		})
	}
}

// had is a source that has been read, as the worker's is.
type had credential.Material

func (m had) Read(context.Context) (credential.Material, error) { return credential.Material(m), nil }

func pair(t testing.TB) (certificate, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	must.OK(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(k)
	must.OK(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
}

// The broker's part of a request with a lease that is there already: to check the binding,
// take the lease and put the credential in.
func BenchmarkWarm(b *testing.B) {
	certificate, key := pair(b)
	secret, err := fields{
		"token": "tok-0123456789abcdef", "user": "deploy", "accessKeyId": "AKIDEXAMPLE", "secretAccessKey": "wJalrXUtnFEMI/K7MDENG", "certificate": certificate, "key": key,
	}.Read(b.Context())
	must.OK(b, err)
	br := broker(map[string]credential.Source{"key": had(secret)})
	for name, inject := range map[string]policy.Inject{
		"bearer": {},
		"header": header("X-Api-Key", "{{ .token }}"),
		"basic":  basic("{{ .user }}", "{{ .token }}"),
		"query":  query("key", "{{ .token }}"),
		"cookie": cookie("session", "{{ .token }}"),
		"hmac": {HMAC: &policy.HMACInject{
			Key: "{{ .token }}", Sign: "{method}\n{path}\n{timestamp}", Headers: map[string]string{"X-Signature": "{signature}", "X-Timestamp": "{timestamp}"}}},
		"aws":               {AWS: &policy.AWSInject{Service: "s3", Region: "eu-central-1"}},
		"clientCertificate": {ClientCertificate: &policy.ClientCertificateInject{}},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			r := request(b, "https://api.example.com/v1?q=1")
			sent := r.Clone(b.Context())
			for b.Loop() {
				l, err := br.Lease(b.Context(), "key", api)
				must.OK(b, err)
				l.Signing = credential.Signing{Sent: sent, Now: time.Now()}
				must.OK(b, l.Apply(r, inject))
			}
		})
	}
}
