package engine_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sallyport/internal/config"
	"sallyport/policy"
	"sallyport/policy/engine"
	"sallyport/policy/finding"
	"sallyport/policy/validate"
)

func TestValidate(t *testing.T) {
	const credentials = "\ncredentials: [{name: key}, {name: spare}]"
	use := "egressAuth: [{destination: used.example.com, authRef: key}, {destination: used2.example.com, authRef: spare}]" + credentials
	proxied := func(upstream string) string {
		return use + "\negress: [{destination: a.example.com, upstream: {" + upstream + "}}]"
	}
	for _, tt := range []struct {
		name string
		yaml string
		want string // "line: path: part of the message", or empty for no finding
		fix  string
	}{
		{"seed", seed, "", ""},
		{"a URL", `egress: [{destination: "https://example.com/x"}]`, "1: egress[0].destination: is a URL", "write the host only"},
		{"a path", `egress: [{destination: "example.com/x"}]`, "1: egress[0].destination: has a path", "under paths"},
		{"a bad prefix", "egress:\n- destination: 10.0.0.0/33", "2: egress[0].destination: is not a CIDR", "10.20.0.0/16"},
		{"bits beyond", "egress:\n- destination: 10.0.0.1/8", "2: egress[0].destination: bits set", "write 10.0.0.0/8"},
		{"v4 in v6", `egress: [{destination: "::ffff:10.0.0.0/104"}]`, "1: egress[0].destination: inside IPv6", ""},
		{"a port after a prefix", `egress: [{destination: "10.0.0.0/8:443"}]`, "1: egress[0].destination: port after a prefix", "under ports"},
		{"everything", `egress: [{destination: "*"}]`, "1: egress[0].destination: every host", "*.example.com"},
		{"everything on a port", `egress: [{destination: "*:443"}]`, "1: egress[0].destination: every host", ""},
		{"a star within", `egress: [{destination: "a*.example.com"}]`, "1: egress[0].destination: has a *", ""},
		{"a star twice", `egress: [{destination: "*.*.example.com"}]`, "1: egress[0].destination: has a *", ""},
		{"an empty label", `egress: [{destination: "a..example.com"}]`, "1: egress[0].destination: not a host", ""},
		{"an address cut short", `egress: [{destination: "127.1"}]`, "1: egress[0].destination: could be read as an IP", ""},
		{"no destination", `egress: [{name: x}]`, "1: egress[0]: destination is missing", "write a host"},
		{"a bad port", `egress: [{destination: "a.example.com:0"}]`, "1: egress[0].destination: has no port", ""},
		{"port zero", `egress: [{destination: "a.example.com", ports: [0]}]`, "1: egress[0].ports[0]: 0 is not a port", ""},
		{"the port twice", `egress: [{destination: "a.example.com:443", ports: [443]}]`, "1: egress[0].ports: already has a port", ""},
		{"a public suffix", `egress: [{destination: "*.co.uk"}]`, "1: egress[0].destination: anybody can register", ""},
		{"an unknown action", `egress: [{destination: a.example.com, action: alow}]`, "1: egress[0].action: not an action", "did you mean allow"},
		{"no ports", `egress: [{destination: a.example.com, ports: []}]`, "1: egress[0].ports: never match", "remove it"},
		{"no methods", `egress: [{destination: a.example.com, methods: []}]`, "1: egress[0].methods: never match", ""},
		{"no paths", `egress: [{destination: a.example.com, paths: []}]`, "1: egress[0].paths: never match", ""},
		{"no sandboxes", `egress: [{destination: a.example.com, sandboxes: {names: []}}]`, "1: egress[0].sandboxes.names: never match", ""},
		{"a method in lower case", `egress: [{destination: a.example.com, methods: [get]}]`, "1: egress[0].methods[0]: upper case", "write GET"},
		{"a path without slash", `egress: [{destination: a.example.com, paths: [repos]}]`, "1: egress[0].paths[0]: never match", `write "/repos"`},
		{"a path with a query", `egress: [{destination: a.example.com, paths: ["/a?b"]}]`, "1: egress[0].paths[0]: never match", ""},
		{"a path with dots", `egress: [{destination: a.example.com, paths: ["/a/../b"]}]`, "1: egress[0].paths[0]: never match", ""},
		{"a tunnel with paths", `egress: [{destination: 10.0.0.0/8, action: tunnel, paths: ["/a"]}]`, "1: egress[0]: never match", "action: allow"},
		{"a name twice", "egress:\n- {name: x, destination: a.example.com}\n- {name: x, destination: b.example.com}", "3: egress[1]: already that of egress[0]", "name:"},
		{"a default name twice", "egress:\n- {destination: a.example.com, methods: [GET]}\n- {destination: a.example.com, methods: [PUT]}", "3: egress[1]: already that of egress[0]", ""},
		{"a name with a line break", `egress: [{name: "a\nb", destination: a.example.com}]`, "1: egress[0].name: is not a name", ""},
		{"no credential", `egressAuth: [{destination: a.example.com, authRef: key}]`, "1: egressAuth[0].authRef: no credential", "add it under credentials"},
		{"a misspelled credential", "egressAuth: [{destination: a.example.com, authRef: kye}, {destination: b.example.com, authRef: key}]\ncredentials: [{name: key}]", "1: egressAuth[0].authRef: no credential", `did you mean "key"`},
		{"no authRef", `egressAuth: [{destination: a.example.com}]`, "1: egressAuth[0]: has no authRef", ""},
		{"a credential that nothing uses", `credentials: [{name: key}]`, "1: credentials[0]: no rule uses", ""},
		{"a short field", "egressAuth: [{destination: a.example.com, authRef: key}]\ncredentials: [{name: key, allowShort: [pin, token]}]", "", ""},
		{"what is no field may be short", "egressAuth: [{destination: a.example.com, authRef: key}]\ncredentials: [{name: key, allowShort: [pin, ' pin']}]", "2: credentials[0].allowShort[1]: \" pin\" is not a field", "allowShort: [pin]"},
		{"a credential twice", use + "\n# again\n", "", ""},
		{"the path of KV version 1", "egressAuth: [{destination: a.example.com, authRef: k}]\nvault: {address: 'https://v', auth: {tokenFile: /t}}\ncredentials: [{name: k, source: {vault: {path: secret/openai}}}]", "", ""},
		{"a path of Vault's with its version", "egressAuth: [{destination: a.example.com, authRef: k}]\nvault: {address: 'https://v', auth: {tokenFile: /t}}\ncredentials: [{name: k, source: {vault: {path: v1/secret/openai}}}]", "3: credentials[0].source.vault.path: \"v1/secret/openai\" is not an API path", "secret/data/k"},
		{"two places", `egressAuth: [{destination: a.example.com, authRef: key, inject: {header: {name: X, value: "{{.a}}"}, query: {name: x, value: "{{.a}}"}}}, {destination: b.example.com, authRef: spare}]` + credentials, "1: egressAuth[0].inject: names 2 kinds", "exactly one"},
		{"a bad template", `egressAuth: [{destination: a.example.com, authRef: key, inject: {header: {name: X, value: "{{.a"}}}, {destination: b.example.com, authRef: spare}]` + credentials, "1: egressAuth[0].inject.header.value: not a template", ""},
		{"the secret itself", `egressAuth: [{destination: a.example.com, authRef: key, inject: {header: {name: X, value: "sk-123"}}}, {destination: b.example.com, authRef: spare}]` + credentials, "1: egressAuth[0].inject.header.value: nothing of the secret", "secret set"},
		{"the password itself", `egressAuth: [{destination: a.example.com, authRef: key, inject: {postgres: {username: u, password: x}}}, {destination: b.example.com, authRef: spare}]` + credentials, "1: egressAuth[0].inject.postgres.password: has nothing of the secret", `password: "{{ .password }}"`},
		{"a header that frames", `egressAuth: [{destination: a.example.com, authRef: key, inject: {header: {name: host, value: "{{.a}}"}}}, {destination: b.example.com, authRef: spare}]` + credentials, "1: egressAuth[0].inject.header.name: how the request is carried", ""},
		{"overlap", "egressAuth:\n- {destination: a.example.com, authRef: key}\n- {destination: a.example.com, authRef: spare}" + credentials, "3: egressAuth[1]: overlaps with", ""},
		{"overlap with a wildcard", "egressAuth:\n- {destination: '*.example.com', authRef: key}\n- {destination: a.example.com, authRef: spare}" + credentials, "3: egressAuth[1]: overlaps with", "exclude each other"},
		{"overlap of one sandbox", "egressAuth:\n- {destination: '*.example.com', authRef: key, sandboxes: {names: [a, b]}}\n- {destination: a.example.com, authRef: spare, sandboxes: {names: [b, c]}}" + credentials, "3: egressAuth[1]: overlaps with", ""},
		{"overlap of globs", "egressAuth:\n- {destination: a.example.com, authRef: key, paths: ['/a/**']}\n- {destination: a.example.com, authRef: spare, paths: ['/*/b']}" + credentials, "3: egressAuth[1]: overlaps with", ""},
		{"no overlap of globs", "egressAuth:\n- {destination: a.example.com, authRef: key, paths: ['/a/*']}\n- {destination: a.example.com, authRef: spare, paths: ['/a/*/b']}" + credentials, "", ""},
		{"no overlap of methods", "egressAuth:\n- {destination: a.example.com, authRef: key, methods: [GET]}\n- {destination: a.example.com, authRef: spare, methods: [PUT]}" + credentials, "", ""},
		{"no overlap of ports", "egressAuth:\n- {destination: a.example.com, authRef: key}\n- {destination: 'a.example.com:8443', authRef: spare}" + credentials, "", ""},
		{"no overlap of tags", "egressAuth:\n- {destination: a.example.com, authRef: key, sandboxes: {tags: {t: a}}}\n- {destination: a.example.com, authRef: spare, sandboxes: {tags: {t: b}}}" + credentials, "", ""},
		{"no overlap of places", "egressAuth:\n- {destination: a.example.com, authRef: key}\n- {destination: a.example.com, authRef: spare, inject: {header: {name: X-Key, value: '{{.token}}'}}}" + credentials, "", ""},
		{"a rule without effect", "egressAuth:\n- {destination: a.example.com, authRef: key}\n- {destination: b.example.com, authRef: spare}" + credentials + "\negress:\n- {destination: a.example.com}", "6: egress[0]: has no effect", ""},
		{"a rule with some effect", "egressAuth:\n- {destination: a.example.com, authRef: key}\n- {destination: b.example.com, authRef: spare}" + credentials + "\negress:\n- {destination: a.example.com, plain: true}", "", ""},
		{"a bad upstream", `egress: [{destination: a.example.com, upstream: {addresses: [10.0.0.0/99]}}]`, "1: egress[0].upstream.addresses[0]: neither", ""},
		{"a bad resolver", `egress: [{destination: a.example.com, upstream: {resolver: 10.0.0.1}}]`, "1: egress[0].upstream.resolver: not host:port", "10.20.0.53:53"},
		{"a proxy", proxied("proxy: 'http://proxy.example.com:3128'"), "", ""},
		{"a proxy over TLS", proxied("proxy: 'https://Proxy.example.com:3129/', proxyAuthRef: spare"), "", ""},
		{"a proxy by address", proxied("proxy: 'socks5://[2001:db8::1]:1080'"), "", ""},
		{"a private proxy", proxied("proxy: 'socks5://10.0.0.5:1080', addresses: [10.0.0.0/24]"), "", ""},
		{"a private proxy that is not named", proxied("proxy: 'socks5://10.0.0.5:1080', addresses: [10.1.0.0/24]"), "3: egress[0].upstream.proxy: not a public address", `addresses: ["10.0.0.5"]`},
		{"a proxy that is no URL", proxied("proxy: 'proxy.example.com:3128'"), "3: egress[0].upstream.proxy: not a URL", "http://proxy.example.com:3128"},
		{"a proxy without port", proxied("proxy: 'http://proxy.example.com'"), "3: egress[0].upstream.proxy: no port", "http://proxy.example.com:3128"},
		{"a proxy on port zero", proxied("proxy: 'http://proxy.example.com:0'"), "3: egress[0].upstream.proxy: no port", ""},
		{"a proxy with a path", proxied("proxy: 'http://proxy.example.com:3128/wpad'"), "3: egress[0].upstream.proxy: more than a host", ""},
		{"a proxy of an unknown scheme", proxied("proxy: 'ftp://proxy.example.com:21'"), "3: egress[0].upstream.proxy: no scheme", "http, https or socks5"},
		{"curl's scheme", proxied("proxy: 'socks5h://proxy.example.com:1080'"), "3: egress[0].upstream.proxy: no scheme", "resolve: proxy"},
		{"a proxy cut short", proxied("proxy: 'http://127.1:3128'"), "3: egress[0].upstream.proxy: could be read as an IP", ""},
		{"a proxy with a password", proxied("proxy: 'http://someone:s3cr3t@proxy.example.com:3128'"), "3: egress[0].upstream.proxy: user or password", "proxyAuthRef"},
		{"a password without a URL", proxied("proxy: 'someone:s3cr3t@proxy.example.com'"), "3: egress[0].upstream.proxy: user or password", "proxyAuthRef"},
		{"a login without proxy", proxied("proxyAuthRef: spare"), "3: egress[0].upstream.proxyAuthRef: without a proxy", ""},
		{"roots without proxy", proxied("proxyRoots: p.pem"), "3: egress[0].upstream.proxyRoots: without a proxy", ""},
		{"roots without TLS", proxied("proxy: 'http://proxy.example.com:3128', proxyRoots: p.pem"), "3: egress[0].upstream.proxyRoots: without TLS", "https://proxy.example.com:3128"},
		{"an unknown login", proxied("proxy: 'https://proxy.example.com:3128', proxyAuthRef: spar"), "3: egress[0].upstream.proxyAuthRef: no credential", `did you mean "spare"`},
		{"a login in the clear", proxied("proxy: 'socks5://proxy.example.com:1080', proxyAuthRef: spare"), "3: egress[0].upstream.proxyAuthRef: in the clear", "https://"},
		{"a login in the clear for two rules", use + "\negress: [{destination: a.example.com, upstream: &p {proxy: 'http://proxy.example.com:3128', proxyAuthRef: spare}}, {destination: b.example.com, upstream: *p}]", "3: egress[0].upstream.proxyAuthRef: in the clear", ""},
		{"a login on this host", proxied("proxy: 'socks5://127.0.0.1:1080', addresses: [127.0.0.1], proxyAuthRef: spare"), "", ""},
		{"a login of one field", "egress: [{destination: a.example.com, upstream: {proxy: 'https://proxy.example.com:3128', proxyAuthRef: k}}]\nvault: {address: 'https://v', auth: {tokenFile: /t}}\ncredentials: [{name: k, source: {vault: {path: secret/data/k, field: token}}}]", "3: credentials[0].source.vault.field: username and password", "remove it"},
		{"a credential for a proxy only", "egress: [{destination: a.example.com, upstream: {proxy: 'https://proxy.example.com:3128', proxyAuthRef: k}}]\ncredentials: [{name: k}]", "", ""},
		{"the proxy resolves", proxied("proxy: 'http://proxy.example.com:3128', resolve: proxy"), "", ""},
		{"nobody resolves", proxied("proxy: 'http://proxy.example.com:3128', resolve: dns"), "3: egress[0].upstream.resolve: nobody", "write proxy"},
		{"no proxy resolves", proxied("resolve: proxy"), "3: egress[0].upstream.resolve: without a proxy", ""},
		{"the proxy resolves a wildcard", "egress: [{destination: '*.example.com', upstream: {proxy: 'http://proxy.example.com:3128', resolve: proxy}}]", "1: egress[0].upstream.resolve: is not one name", "whole name"},
		{"the proxy resolves a wildcard with a credential", "egressAuth: [{destination: '*.example.com', authRef: key, upstream: {proxy: 'http://proxy.example.com:3128', resolve: proxy}}]\ncredentials: [{name: key}]", "1: egressAuth[0].upstream.resolve: is not one name", "whole name"},
		{"the proxy resolves an address", "egress: [{destination: 203.0.113.0/24, upstream: {proxy: 'http://proxy.example.com:3128', resolve: proxy}}]", "1: egress[0].upstream.resolve: is not one name", "remove it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := config.Parse("sallyport.yaml", []byte(tt.yaml))
			findings := validate.Document(c.Document)
			if tt.want == "" {
				if err != nil || len(findings) > 0 {
					t.Fatalf("got %v, %v, want nothing", err, findings)
				}
				return
			}
			if len(findings) != 1 {
				t.Fatalf("got %v, want one finding", findings)
			}
			f := findings[0]
			if strings.Contains(f.Error(), "s3cr3t") {
				t.Errorf("%v repeats a password", f)
			}
			parts := strings.SplitN(tt.want, ": ", 3)
			if got := fmt.Sprint(f.Position.Line); got != parts[0] || f.Path != parts[1] || !strings.Contains(f.Message, parts[2]) || !strings.Contains(f.Fix, tt.fix) || f.Fix == "" {
				t.Errorf("got %v at %v, want %s and the fix %q", f, f.Position, tt.want, tt.fix)
			}
			if f.Severity == finding.Error {
				if _, err := engine.Compile(t.Context(), c.Document, engine.Options{}); err == nil || !strings.Contains(err.Error(), f.Message) {
					t.Errorf("Compile: got %v", err)
				}
			}
		})
	}
}

// TestValidateScales keeps the search for overlaps from comparing all with all.
func TestValidateScales(t *testing.T) {
	for _, tt := range []struct {
		name string
		rule func(i int, doc *policy.Document)
	}{
		{"credentials for many hosts", func(i int, doc *policy.Document) {
			doc.EgressAuth = append(doc.EgressAuth, policy.EgressAuthRule{Destination: fmt.Sprintf("a%d.b%d.example.com", i, i%100), AuthRef: "key"})
		}},
		{"many paths of one host", func(i int, doc *policy.Document) {
			doc.Egress = append(doc.Egress, policy.EgressRule{Name: fmt.Sprint(i), Destination: "a.example.com", Paths: []string{fmt.Sprintf("/a/%d/**", i)}})
		}},
		{"many hosts under a wildcard", func(i int, doc *policy.Document) {
			host := fmt.Sprintf("a%d.example.com", i)
			if i == 0 {
				host = "*.example.com"
			}
			doc.Egress = append(doc.Egress, policy.EgressRule{Destination: host, Methods: []string{[]string{"GET", "PUT"}[min(i, 1)]}})
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			doc := policy.Document{Credentials: []policy.Credential{{Name: "key"}}}
			for i := range 10_000 {
				tt.rule(i, &doc)
			}
			start := cpu(t)
			for _, f := range validate.Document(doc) {
				if f.Kind != finding.UnusedCredential {
					t.Fatal(f)
				}
			}
			if took := cpu(t) - start; took > 5*time.Second {
				t.Errorf("10,000 rules took %v", took)
			}
		})
	}
}
