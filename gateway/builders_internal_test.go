package gateway

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/gateway/form"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/regotest"
)

// wired is what the gateway makes of a request for a URL, as a client sends it:
// nil where it refuses the request before it asks for a decision.
func wired(t *testing.T, raw string) map[string]any {
	t.Helper()
	raw, _, _ = strings.Cut(raw, "#")
	raw = strings.NewReplacer("é", "%C3%A9", "ü", "%C3%BC").Replace(raw) // as clients do
	u, err := url.Parse(raw)
	if err != nil || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
		return nil
	}
	host, port, err := form.ParseAuthority(u.Host)
	if err != nil {
		return nil
	}
	f := &session{target: target{host: host, port: port, protocol: policy.ProtocolTLS, authority: u.Host}}
	if u.Scheme == "http" {
		f.protocol = policy.ProtocolHTTP
	}
	if port == 0 {
		f.port = map[string]uint16{"https": 443, "http": 80}[u.Scheme]
	}
	target := u.EscapedPath()
	if target == "" {
		target = "/"
	}
	if u.RawQuery != "" || u.ForceQuery {
		target += "?" + u.RawQuery
	}
	wire := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nx-b: 1\r\naccept: 2\r\n\r\n", target, u.Host)
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(wire)))
	if err != nil {
		return nil
	}
	q := &request{session: f}
	q.describe(r)
	if q.check(r) != nil {
		return nil
	}
	keys := q.form.seen.QueryKeys
	if keys == nil {
		keys = []string{}
	}
	return map[string]any{
		"phase": "request", "protocol": string(f.protocol),
		"sandbox":     map[string]any{"name": "test", "id": "test", "session": "test", "tags": map[string]any{}},
		"destination": map[string]any{"host": q.host, "port": q.port},
		"request": map[string]any{
			"method": q.form.seen.Method, "scheme": q.form.seen.Scheme, "path": q.form.seen.Path, "raw_path": q.form.seen.Path,
			"query_keys": keys, "headers": q.form.seen.Headers, "size": -1,
		},
	}
}

// TestBuildersReadAsTheGatewayDoes holds what testing.get makes of a URL against what the
// gateway reads from the wire. A URL that the gateway refuses is undefined.
func TestBuildersReadAsTheGatewayDoes(t *testing.T) {
	t.Parallel()
	urls := []string{
		"https://api.example.com", "https://api.example.com/", "http://api.example.com/x", "HTTPS://API.Example.com./x",
		"https://api.example.com:8443/x", "https://api.example.com:0443/x", "https://api.example.com:0/", "https://api.example.com:65536/",
		"https://api.example.com:/x", "https://u:p@api.example.com/", "https://203.0.113.1/", "https://203.0.113.01/", "https://127.1/", "https://0x7f.1/",
		"https://1.2.3.0x/", "https://[2001:DB8::0:1]/", "https://[::ffff:1.2.3.4]/", "https://[::ffff:102:304]/", "https://[2001:db8::1%25eth0]/", "https://_dmarc.example.com/", "https://a..b/",
		"https://" + strings.Repeat("a", 64) + ".com/", "https://h/a//b///c", "https://h//a", "https://h/..%20", "https://h/a/..%3fb", "https://h/..%23/b", "https://h/..+/b", "https://h/.%c2%ad./b", "https://h/a/%ef%bc%8e%ef%bc%8e", "https://h/%e2%80%a5", "https://h/a%ef%bc%8fb", "https://h/a%c2%a5b", "https://h/%20/b", "https://h/a/%e2%80%8b", "https://h/%ef%bc%852e./b", "https://h/.../b", "https://h/a%3fb", "https://h/..%cd%be", "https://h/%2e%2e/a", "https://h/a/..", "https://h/a/..b", "https://h/./a", "https://h/a%2Fb",
		"https://h/a%5Cb", "https://h/a;b", "https://h/a%3bb", "https://h/a+b%2Bc", "https://h/%C3%BC", "https://h/ü", "https://h/%ff", "https://h/%25zz", "https://h/%2541", "https://h/%00", "https://h/%7f",
		"https://h/a?b=1&c=2&b=3", "https://h/a?b;c=1", "https://h/a?%62=1&a+b=2", "https://h/a?%zz=1", "https://h/a?", "https://h?x=1", "https://h/a?&&=x&a%26b=1", "https://h/a?x=%2F..%2F", "https://h/a#b?c", "https://h/a?b#c",
		"https://h/" + strings.Repeat("a", 8190), "https://h/" + strings.Repeat("a", 8193),
	}
	r := rand.New(rand.NewPCG(4, 4))
	pieces := []string{"a", "B", "/", "/", ".", "..", "%2e", "%2F", "%41", "%c3%a9", "+", "%", ";", "?", "&", "=", "#", ":", "443", "-", "_", "~", "%3B", "%25", "é", "%3f", "%23", "%20", "%c2%ad", "%ef%bc%8e", "%ef%bc%8f"}
	for range 300 {
		var b strings.Builder
		b.WriteString([]string{"https://", "http://"}[r.IntN(2)])
		b.WriteString([]string{"h.example.com", "H", "203.0.113.9", "h:8443", "a_b.c"}[r.IntN(5)])
		b.WriteString("/")
		for range r.IntN(9) {
			b.WriteString(pieces[r.IntN(len(pieces))])
		}
		urls = append(urls, b.String())
	}
	var tests strings.Builder
	tests.WriteString("package sallyport.team.built_test\n\nimport data.sallyport.testing\n")
	refused := 0
	for i, raw := range urls {
		quoted, _ := json.Marshal(raw)
		built := fmt.Sprintf("testing.request(\"GET\", %s, {\"headers\": [\"accept\", \"X-B\"]})", quoted)
		want := wired(t, raw)
		if want == nil {
			refused++
			fmt.Fprintf(&tests, "\nmade_%d if %s\n\ntest_%d if not made_%d\n", i, built, i, i)
			continue
		}
		text, err := json.Marshal(want)
		must.OK(t, err)
		fmt.Fprintf(&tests, "\ntest_%d if %s == %s\n", i, built, text)
	}
	if refused < 20 || refused > len(urls)-100 {
		t.Fatalf("%d of %d are refused: that tells little", refused, len(urls))
	}
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "built_test.rego"), []byte(tests.String()), 0o600))
	report, err := regotest.Run(t.Context(), policy.Document{}, regotest.Options{Dirs: []string{dir}})
	must.OK(t, err)
	if report.Passed+report.Failed != len(urls) {
		t.Errorf("%d passed and %d failed, of %d", report.Passed, report.Failed, len(urls))
	}
	for _, result := range report.Results {
		if result.Outcome != regotest.Passed {
			var i int
			_, _ = fmt.Sscanf(result.Name, "sallyport.team.built_test.test_%d", &i)
			t.Errorf("%q is not built as it is read: %s %s\nwant %v", urls[i], result.Outcome, result.Error, wired(t, urls[i]))
			if result.Failure != nil {
				t.Log(result.Failure.Expression)
			}
		}
	}
}
