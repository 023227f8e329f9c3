package testnet_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

const theKey = "sk-test-0123456789"

// client reaches name on the host whatever its name is, and trusts ca only.
func client(t *testing.T, h *testnet.Host, ca *testnet.CA) *http.Client {
	tr := &http.Transport{
		ForceAttemptHTTP2: true,
		TLSClientConfig:   &tls.Config{RootCAs: ca.Pool()},
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			_, port, _ := net.SplitHostPort(addr)
			return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(h.Addr().String(), port))
		},
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func newCA(t *testing.T) *testnet.CA {
	t.Helper()
	ca, err := testnet.NewCA()
	must.OK(t, err)
	return ca
}

func TestAPI(t *testing.T) {
	h := newHost(t, "api", "198.51.100.10/24")
	ca := newCA(t)
	if _, err := h.HTTPS(ca, 443, testnet.API(testnet.KeyOf(theKey)), "api.example.test"); err != nil {
		t.Fatal(err)
	}
	c := client(t, h, ca)
	tests := []struct {
		name   string
		query  string
		header http.Header
		want   testnet.APIAnswer
	}{
		{"no key", "", nil, testnet.APIAnswer{}},
		{"bearer", "", http.Header{"Authorization": {"Bearer " + theKey}}, testnet.APIAnswer{SawKey: true, KeySHA256: sum12(theKey)}},
		{"basic", "", http.Header{"Authorization": {"Basic dTpzay10ZXN0LTAxMjM0NTY3ODk="}}, testnet.APIAnswer{SawKey: true, KeySHA256: sum12(theKey)}},
		{"query", "?api_key=" + theKey, nil, testnet.APIAnswer{SawKey: true, KeySHA256: sum12(theKey)}},
		{"header", "", http.Header{"X-Api-Key": {theKey}}, testnet.APIAnswer{SawKey: true, KeySHA256: sum12(theKey)}},
		{"another key", "", http.Header{"Authorization": {"Bearer stolen"}}, testnet.APIAnswer{KeySHA256: sum12("stolen")}},
		{"another key and the key", "?key=" + theKey, http.Header{"X-Api-Key": {"stolen"}}, testnet.APIAnswer{SawKey: true, KeySHA256: sum12(theKey)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req, _ := http.NewRequest("POST", "https://api.example.test/v1/chat"+tt.query, strings.NewReader("12345"))
			for k, v := range tt.header {
				req.Header[k] = v
			}
			resp, err := c.Do(req)
			must.OK(t, err)
			defer resp.Body.Close()
			raw, _ := io.ReadAll(resp.Body)
			var got testnet.APIAnswer
			must.OK(t, json.Unmarshal(raw, &got))
			tt.want.Method, tt.want.Path, tt.want.Protocol, tt.want.BodyBytes = "POST", "/v1/chat", "HTTP/2.0", 5
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("answer (-want +got):\n%s", diff)
			}
			if strings.Contains(string(raw), theKey) {
				t.Errorf("the key is echoed: %s", raw)
			}
		})
	}
}

func sum12(s string) string {
	k := testnet.KeyOf(s)
	return strings.ToLower(hexOf(k[:6]))
}

func hexOf(b []byte) string {
	const digits = "0123456789abcdef"
	var sb strings.Builder
	for _, c := range b {
		sb.WriteByte(digits[c>>4])
		sb.WriteByte(digits[c&15])
	}
	return sb.String()
}

func TestTLSIsVerified(t *testing.T) {
	h := newHost(t, "api", "198.51.100.10/24")
	ca, other := newCA(t), newCA(t)
	if _, err := h.HTTPS(ca, 443, http.NotFoundHandler(), "api.example.test", "198.51.100.10"); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, url string
		ca        *testnet.CA
		ok        bool
	}{
		{"its name", "https://api.example.test/", ca, true},
		{"its address", "https://198.51.100.10/", ca, true},
		{"another name", "https://evil.example.test/", ca, false},
		{"another authority", "https://api.example.test/", other, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp, err := client(t, h, tt.ca).Get(tt.url)
			if err == nil {
				resp.Body.Close()
			}
			if (err == nil) != tt.ok {
				t.Errorf("err = %v, want success %t", err, tt.ok)
			}
		})
	}
}

func TestGit(t *testing.T) {
	h := newHost(t, "git", "198.51.100.10/24")
	root := t.TempDir()
	git := func(args ...string) (string, error) {
		cmd := exec.Command("git", args...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "GIT_TERMINAL_PROMPT=0", "HOME="+root,
			"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.test", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.test")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	run := func(args ...string) {
		t.Helper()
		if out, err := git(args...); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	run("init", "-q", "-b", "main", "work")
	run("-C", "work", "commit", "-q", "--allow-empty", "-m", "first")
	run("clone", "-q", "--bare", "work", "srv/repo.git")
	run("-C", "srv/repo.git", "config", "http.receivepack", "true")
	handler, err := testnet.Git(filepath.Join(root, "srv"))
	must.OK(t, err)
	if _, err := h.HTTP(80, testnet.RequireKey(testnet.KeyOf(theKey), handler)); err != nil {
		t.Fatal(err)
	}
	base := "198.51.100.10/repo.git"
	if out, err := git("clone", "http://"+base, "none"); err == nil {
		t.Errorf("cloned without the key:\n%s", out)
	}
	run("clone", "-q", "http://x:"+theKey+"@"+base, "copy")

	// Above http.postBuffer git sends a chunked body.
	big := filepath.Join(root, "copy", "big")
	random := make([]byte, 3<<20)
	for i := range random {
		random[i] = byte(i * i >> 7)
	}
	must.OK(t, os.WriteFile(big, random, 0o600))
	run("-C", "copy", "add", "big")
	run("-C", "copy", "commit", "-q", "-m", "second")
	run("-C", "copy", "-c", "http.postBuffer=1024", "push", "-q")
	if out, err := git("-C", "srv/repo.git", "log", "--format=%s"); err != nil || out != "second\nfirst\n" {
		t.Errorf("log after the push = %q, %v", out, err)
	}
}

func TestDNS(t *testing.T) {
	h := newHost(t, "dns", "198.51.100.53/24")
	zone, err := h.DNS(map[string][]netip.Addr{
		"api.example.test": {netip.MustParseAddr("198.51.100.10"), netip.MustParseAddr("2001:db8::10")},
	})
	must.OK(t, err)
	for _, network := range []string{"udp", "tcp"} {
		r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, "198.51.100.53:53")
		}}
		tests := []struct{ name, network, host, want string }{
			{"A", "ip4", "api.example.test.", "[198.51.100.10]"},
			{"AAAA", "ip6", "API.example.test.", "[2001:db8::10]"},
			{"no such name", "ip4", "none.example.test.", "[]"},
		}
		for _, tt := range tests {
			t.Run(network+" "+tt.name, func(t *testing.T) {
				got, err := r.LookupNetIP(context.Background(), tt.network, tt.host)
				if s := strings.ReplaceAll(strings.Trim(join(got), " "), "::ffff:", ""); s != tt.want {
					t.Errorf("got %s, %v, want %s", s, err, tt.want)
				}
			})
		}
	}
	zone.Set("api.example.test", netip.MustParseAddr("203.0.113.9"))
	if q := zone.Queries(); len(q) != 6 || q[0] != "A api.example.test" || q[1] != "AAAA api.example.test" {
		t.Errorf("queries = %q", q)
	}
}

func join(addrs []netip.Addr) string {
	var s []string
	for _, a := range addrs {
		s = append(s, a.Unmap().String())
	}
	return "[" + strings.Join(s, " ") + "]"
}
