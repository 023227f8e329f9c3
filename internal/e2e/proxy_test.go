package e2e

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// corporateAddress is the host whose proxies are the only way to the upstream.
const corporateAddress = "203.0.113.20"

const (
	corporateUser     = "gateway"
	corporatePassword = "pr0xy-e2e-s3cr3t"
	guessedPassword   = "pr0xy-e2e-guess"
)

// corporateRules are the same destinations by way of each proxy. %[1]s is the
// proxy's name, %[2]s its URL.
const corporateRules = `
- name: plain-%[1]s
  destination: plain-%[1]s.example.test
  plain: true
  upstream: &%[1]s {addresses: [198.51.100.10, 203.0.113.20], roots: ca.pem, resolver: "198.51.100.10:53", proxy: "%[2]s", proxyAuthRef: corporate}
- {name: pinned-%[1]s, destination: pinned-%[1]s.example.test, action: tunnel, upstream: *%[1]s}
- name: wrong-%[1]s
  destination: wrong-%[1]s.example.test
  upstream: {addresses: [198.51.100.10, 203.0.113.20], roots: ca.pem, resolver: "198.51.100.10:53", proxy: "%[2]s", proxyAuthRef: guess}
- name: unset-%[1]s
  destination: unset-%[1]s.example.test
  upstream: {addresses: [198.51.100.10, 203.0.113.20], roots: ca.pem, resolver: "198.51.100.10:53", proxy: "%[2]s", proxyAuthRef: unset}
- name: private-%[1]s
  destination: private-%[1]s.example.test
  upstream: {addresses: [203.0.113.20], roots: ca.pem, resolver: "198.51.100.10:53", proxy: "%[2]s", proxyAuthRef: corporate}
- name: itself-%[1]s
  destination: itself-%[1]s.example.test
  plain: true
  upstream: *%[1]s
`

const corporateAuthRules = `
- destination: api-%[1]s.example.test
  authRef: key
  upstream: *%[1]s
`

// Requests with an injected credential, plain ones and tunnels reach an upstream
// by way of the proxies of a corporate network, under their logins, and not
// past them.
func TestCorporateProxy(t *testing.T) {
	r := newRig(t, "")
	forward(t) // between the proxies' network and the upstream's
	corporate := testnet.NewHost(t, testnet.Config{Name: "corporate", Address: netip.MustParsePrefix(corporateAddress + "/24")})
	httpURL, httpEnd := startProxy(t, r, corporate, "tinyproxy", 3128)
	socksURL, socksEnd := startProxy(t, r, corporate, "microsocks", 1080)
	proxies := []struct {
		name, url string
		end       func()
	}{{"http", httpURL, httpEnd}, {"socks", socksURL, socksEnd}}
	egress, auth := "egress:", "egressAuth:"
	zone := map[string][]netip.Addr{}
	var names []string
	for _, p := range proxies {
		egress += fmt.Sprintf(corporateRules, p.name, p.url)
		auth += fmt.Sprintf(corporateAuthRules, p.name)
		for _, n := range []string{"api", "plain", "pinned", "wrong", "unset", "private"} {
			names = append(names, n+"-"+p.name+".example.test")
			zone[names[len(names)-1]] = []netip.Addr{r.host.Addr()}
		}
		zone["itself-"+p.name+".example.test"] = []netip.Addr{corporate.Addr()}
	}
	r.configure(strings.Replace(baseConfig, "engine: {runsc: %[2]s}", "engine: {kind: none} # not %[2]s", 1)+
		"proxy: {listen: \"127.0.0.1:3128\"}\n", egress+auth+"credentials: [{name: key}, {name: corporate}, {name: guess}, {name: unset}]\n")
	if _, err := r.host.DNS(zone); err != nil {
		t.Fatal(err)
	}
	if _, err := r.host.HTTPS(r.ca, 443, testnet.API(testnet.KeyOf(r.key)), names...); err != nil {
		t.Fatal(err)
	}
	if _, err := r.host.HTTP(80, testnet.API(testnet.KeyOf(r.key))); err != nil {
		t.Fatal(err)
	}
	// The last frames of a connection may come as the next begins.
	arrived, err := r.host.Capture(begins)
	must.OK(t, err)
	r.up()
	r.setKey()
	for credential, password := range map[string]string{"corporate": corporatePassword, "guess": guessedPassword} {
		if res := r.feed(corporateUser+"\n"+password+"\n", "secret", "set", credential, "--field", "username", "--field", "password"); res.code != 0 {
			t.Fatal(res)
		}
	}
	token := strings.TrimSpace(r.ok("client", "add", "platform"))
	r.write("platform.pem", r.ok("ca", "--client", "platform"))
	ask := func(t *testing.T, root, url string) result {
		t.Helper()
		return curl(t, "-sS", "-i", "-m", "60", "--proxy", "http://platform:"+token+"@127.0.0.1:3128", "--cacert", filepath.Join(r.dir, root), url)
	}
	saw := `"saw_key":true,"key_sha256":"` + r.keyID() + `"`
	var said strings.Builder
	for _, p := range proxies {
		for _, c := range []struct {
			name, root, url string
			want            []string
			reached         bool
		}{
			{"with a credential", "platform.pem", "https://api-%s.example.test/v1", []string{saw}, true},
			{"plain", "platform.pem", "http://plain-%s.example.test/v1", []string{`"saw_key":false,"key_sha256":""`}, true},
			{"over TLS", "platform.pem", "https://plain-%s.example.test/v1", []string{`"saw_key":false,"key_sha256":""`}, true},
			{"a tunnel", "ca.pem", "https://pinned-%s.example.test/v1", []string{`"saw_key":false`}, true},
			{"a wrong login", "platform.pem", "https://wrong-%s.example.test/v1", []string{" 502 ", p.url, "refused the login", "proxyAuthRef"}, false},
			{"a login that is not set", "platform.pem", "https://unset-%s.example.test/v1", []string{" 503 ", `"unset" for the proxy`, "sallyport secret set unset --field username --field password"}, false},
			{"an address that no rule names", "platform.pem", "https://private-%s.example.test/v1", []string{" 403 ", upstreamAddress, "upstream: {addresses:"}, false},
			{"the proxy itself", "platform.pem", "http://itself-%s.example.test/v1", []string{" 502 ", corporateAddress + " itself"}, false},
		} {
			t.Run(p.name+"/"+c.name, func(t *testing.T) {
				defer r.within(t)()
				before := count(t, arrived)
				res := ask(t, c.root, fmt.Sprintf(c.url, p.name))
				said.WriteString(res.stdout + res.stderr)
				for _, w := range c.want {
					if !strings.Contains(res.stdout, w) {
						t.Errorf("got %s, want %q", res, w)
					}
				}
				time.Sleep(50 * time.Millisecond) // for what is on its way
				if got := count(t, arrived) > before; got != c.reached {
					t.Errorf("a connection arrived: %v, want %v", got, c.reached)
				}
			})
		}
	}
	for _, f := range arrived.Seen() {
		if f.From.Addr() != corporate.Addr() {
			t.Errorf("a packet that went past the proxies: %v", f)
		}
	}
	for _, p := range proxies {
		t.Run(p.name+"/gone", func(t *testing.T) {
			defer r.within(t)()
			p.end()
			res := ask(t, "platform.pem", "https://api-"+p.name+".example.test/v1")
			if !strings.Contains(res.stdout, " 502 ") || !strings.Contains(res.stdout, p.url+" is not there") {
				t.Errorf("got %s, want a 502 that names the proxy", res)
			}
		})
	}
	t.Run("passwords", func(t *testing.T) {
		defer r.within(t)()
		h := newHunt(map[string]string{"the password": corporatePassword, "the guess": guessedPassword, "the secret": r.key})
		q := h.begin()
		q.tree(t, filepath.Join(r.dir, "data"))
		_ = q.read("the log", strings.NewReader(r.logged()))
		_ = q.read("what the client was told", strings.NewReader(said.String()))
		for _, v := range []string{"the password", "the guess", "the secret"} {
			if found := q.of(v); len(found) > 0 {
				t.Errorf("%s is kept or said in the clear: %v", v, found)
			}
		}
	})
}

// startProxy runs a proxy of Debian's on a host, with the login of the corporate
// network.
func startProxy(t *testing.T, r *rig, h *testnet.Host, name string, port int) (url string, end func()) {
	t.Helper()
	path := must.Program(t, name)
	scheme, args := "socks5", []string{"-i", h.Addr().String(), "-p", fmt.Sprint(port), "-u", corporateUser, "-P", corporatePassword}
	if name == "tinyproxy" {
		r.write("tinyproxy.conf", fmt.Sprintf("Port %d\nListen %s\nTimeout 60\nMaxClients 20\nLogLevel Warning\nBasicAuth %s %s\n", port, h.Addr(), corporateUser, corporatePassword))
		scheme, args = "http", []string{"-d", "-c", filepath.Join(r.dir, "tinyproxy.conf")}
	}
	c := exec.Command(path, args...)
	must.OK(t, h.Do(c.Start))
	end = func() { _ = c.Process.Kill(); _ = c.Wait() }
	t.Cleanup(end)
	at := netip.AddrPortFrom(h.Addr(), uint16(port))
	r.await(name, func() bool {
		l, err := h.Dial(t.Context(), "tcp", at.String())
		if err == nil {
			l.Close()
		}
		return err == nil
	})
	return scheme + "://" + at.String(), end
}
