package gateway_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/exchange"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// Vault goes away under load and comes back: requests with a lease that lives, or in their
// grace, go on; the others fail, with a reason for the operator and none for the sandbox; and
// nothing stays broken. In make soak it is away for a minute.
func TestVaultAway(t *testing.T) {
	away := 2 * time.Second
	if os.Getenv("SALLYPORT_SOAK") != "" {
		away = time.Minute
	}
	v := newVaultSide(t)
	root := v.Write("pki/root/generate/internal", map[string]any{"common_name": "agents", "ttl": "24h"}).Data["certificate"].(string)
	v.Write("pki/roles/agent", map[string]any{"allow_any_name": true, "generate_lease": true, "ttl": "1h", "key_type": "ec", "key_bits": 256})
	w := newNetEnv(t)
	w.quiet = true
	w.asks = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: x509.NewCertPool()}
	w.asks.ClientCAs.AppendCertsFromPEM([]byte(root))
	second := time.Second
	kv := func(grace time.Duration) credential.Source {
		s, err := v.client.Source(policy.VaultSource{Path: "secret/data/openai", Field: "token"})
		must.OK(t, err)
		return credential.Lasting{Source: s, Grace: grace, Cache: &second}
	}
	w.broker = v.broker(t, map[string]credential.Source{
		"lease": v.engine(t, "lease", "pki/issue/agent", map[string]string{"common_name": "agent.example.test"}),
		"grace": kv(time.Hour), "none": kv(0), "new": kv(0),
	})
	w.policy(func(in policy.Input) policy.Decision {
		d := w.allow(in)
		if in.Request == nil {
			return d
		}
		name := strings.TrimPrefix(in.Request.Path, "/")
		d.Rule, d.RuleType = "rule-of-"+name, policy.TypeEgressAuth
		d.Inject = []policy.Injection{{Credential: name}}
		if name == "lease" {
			d.Inject[0].Inject.ClientCertificate = &policy.ClientCertificateInject{}
		}
		return d
	})
	o := w.origin("api.example.test", "h1", true)
	var bare atomic.Int64 // requests without their credential
	o.handle("/", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/lease" && len(r.TLS.PeerCertificates) == 0 || r.URL.Path != "/lease" && r.Header.Get("Authorization") != "Bearer "+token {
			bare.Add(1)
		}
	})
	agent := w.agent("h1", true, w.steer, false)
	ask := func(name string) (int, string) {
		resp, err := agent.Get(o.url("https", "/"+name))
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		return resp.StatusCode, string(body)
	}
	works := func(name string) bool { code, _ := ask(name); return code == 200 }
	load := func(d time.Duration, fail ...string) {
		t.Helper()
		refused := map[string]bool{}
		for _, name := range fail {
			refused[name] = true
		}
		end := time.Now().Add(d)
		var clients sync.WaitGroup
		for range 8 {
			clients.Go(func() {
				for time.Now().Before(end) {
					for _, name := range []string{"lease", "grace", "none", "new"} {
						switch code, body := ask(name); {
						case !refused[name] && code != 200:
							t.Errorf("%s: %d %s", name, code, body)
						case !refused[name]:
						case code != 503 || !strings.Contains(body, fmt.Sprintf("credential %q: the secret's source cannot be reached", name)):
							t.Errorf("%s: %d %s, want a 503 that says that its source cannot be reached", name, code, body)
						case strings.Contains(body, "127.0.0.1") || strings.Contains(body, "secret/data") || strings.Contains(body, "vault.address"):
							t.Errorf("the sandbox is told of Vault: %s", body)
						}
					}
					time.Sleep(25 * time.Millisecond)
				}
			})
		}
		clients.Wait()
	}

	for _, name := range []string{"lease", "grace", "none"} {
		if !works(name) {
			t.Fatalf("%s does not work", name)
		}
	}
	v.Stop()
	must.Soon(t, "the end of what has no grace", func() bool { return !works("none") })
	load(away, "none", "new")
	v.Again()
	for _, name := range []string{"lease", "grace", "none", "new"} {
		must.Soon(t, name, func() bool { return works(name) })
	}
	load(away / 4)
	if n := bare.Load(); n > 0 {
		t.Errorf("%d requests have left without their credential", n)
	}

	decisions, completions := w.settled(t)
	told := map[string]bool{}
	for _, d := range decisions {
		c := completions[d.ID()]
		if c == nil || c.HTTPResponse == nil || c.HTTPResponse.Code != 503 {
			continue
		}
		name := c.Unmapped.Sallyport.Credentials[0].Name
		told[name] = true
		if c.Rule.Name != "rule-of-"+name || c.Detail != fmt.Sprintf("credential %q: %v", name, credential.ErrUnavailable) {
			t.Fatalf("the operator is told of rule %q: %s", c.Rule.Name, c.Detail)
		}
		v.mu.Lock()
		if cause := fmt.Sprint(v.failed[name]); !strings.Contains(cause, "reading secret/data/openai: Vault at "+v.Address) {
			t.Errorf("the operator is told of the cause %q", cause)
		}
		v.mu.Unlock()
	}
	if len(told) != 2 || !told["none"] || !told["new"] {
		t.Errorf("the operator is told of %v, want none and new", told)
	}
	v.ends(t, w.broker)
}

// However many requests find that a token has expired, its endpoint is asked for one.
func TestExpiredTokenIsHadOnce(t *testing.T) {
	const requests = 1000
	var issued, decided atomic.Int64
	endpoint := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, life := issued.Add(1), 3600
		if n == 1 {
			life = 1
		} else { // when all of them wait
			for end := time.Now().Add(8 * time.Second); decided.Load() < requests && time.Now().Before(end); time.Sleep(time.Millisecond) {
			}
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"short-lived-token-%d","token_type":"Bearer","expires_in":%d}`, n, life)
	}))
	defer endpoint.Close()
	roots := filepath.Join(t.TempDir(), "roots.pem")
	must.OK(t, os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: endpoint.Certificate().Raw}), 0o600))
	source, err := exchange.New(exchange.Options{
		Credential: "client", Secret: fields{"clientSecret": "a-secret-of-the-client"},
		Exchange: policy.Exchange{OAuth2: &policy.OAuth2Exchange{TokenURL: endpoint.URL, ClientID: "agent", Roots: roots}},
	})
	must.OK(t, err)
	defer source.Close()

	w := newNetEnv(t)
	w.quiet = true
	w.broker = credential.New(credential.Options{Sources: map[string]credential.Source{"client": source}, Bound: func(string, string, uint16) bool { return true }})
	w.policy(func(in policy.Input) policy.Decision {
		d := w.allow(in)
		if in.Request != nil {
			d.Inject = []policy.Injection{{Credential: "client"}}
			if in.Request.Path == "/expired" {
				decided.Add(1)
			}
		}
		return d
	})
	o := w.origin("api.example.test", "h2", true)
	var second atomic.Int64
	o.handle("/", func(_ http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "Bearer short-lived-token-2" {
			second.Add(1)
		}
	})
	agent := w.agent("h2", true, w.steer, false)
	if resp, body := get(t, agent, o.url("https", "/")); resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	time.Sleep(time.Second) // for which the first token lives
	var all sync.WaitGroup
	for range requests {
		all.Go(func() {
			resp, err := agent.Get(o.url("https", "/expired"))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if resp.StatusCode != 200 {
				t.Errorf("status %d", resp.StatusCode)
			}
		})
	}
	all.Wait()
	if issued.Load() != 2 || second.Load() != requests || decided.Load() != requests {
		t.Errorf("%d tokens were issued, want 2; %d of %d requests have the second", issued.Load(), second.Load(), decided.Load())
	}
}
