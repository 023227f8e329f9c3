package gateway_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/policy"
)

// targets are request targets, what is decided about each and what of it leaves, the
// same whether it comes out of a sandbox or to one, by HTTP/1.1 or HTTP/2. A target
// that is refused has a status in place of both.
var targets = []struct {
	target        string
	decided, sent string
	refused       int
}{
	{target: "/v1/x", decided: "/v1/x", sent: "/v1/x"},
	{target: "/v1/x?a=%2f&b=//", decided: "/v1/x", sent: "/v1/x?a=%2f&b=//"},
	{target: "/v1/x?", decided: "/v1/x", sent: "/v1/x?"},

	// A server that parses the target as a URL reads a host.
	{target: "//v1/x", refused: 400},
	{target: "//v1", refused: 400},
	{target: "///v1/x", refused: 400},
	{target: "//", refused: 400},
	{target: "/%2fv1/x", refused: 400},
	{target: `/\v1/x`, refused: 400},
	{target: "/%5cv1/x", refused: 400},

	// Doubled slashes: some servers make them one, some keep them. One leaves.
	{target: "/v1//x", decided: "/v1/x", sent: "/v1/x"},
	{target: "/v1///x//", decided: "/v1/x/", sent: "/v1/x/"},

	// Spellings of one path (RFC 3986, section 6.2.2): one leaves. A reserved character stays
	// as it is: an encoded + is not a + to each server.
	{target: "/%76%31/%7e", decided: "/v1/~", sent: "/v1/~"},
	{target: "/v1/a%2fb", decided: "/v1/a%2Fb", sent: "/v1/a%2Fb"},
	{target: "/v1/c%2b%2b+", decided: "/v1/c+++", sent: "/v1/c%2B%2B+"},
	{target: "/v1/%40x@y:z,w", decided: "/v1/@x@y:z,w", sent: "/v1/%40x@y:z,w"},
	{target: "/v1/%e2%82%ac", decided: "/v1/€", sent: "/v1/%E2%82%AC"},
	{target: "/v1/a%20b%25", decided: "/v1/a b%", sent: "/v1/a%20b%25"},
	{target: "/v1/C%23.cs%3f", decided: "/v1/C#.cs?", sent: "/v1/C%23.cs%3F"},

	// Dot segments, to a server that trims, cuts or folds before it resolves them.
	{target: "/v1/../admin", refused: 400},
	{target: "/v1/..%20/admin", refused: 400},
	{target: "/v1/%20../admin", refused: 400},
	{target: "/v1/..+/admin", refused: 400},
	{target: "/v1/..%3f/admin", refused: 400},
	{target: "/v1/..%23", refused: 400},
	{target: "/v1/..%c2%ad/admin", refused: 400},
	{target: "/v1/.%e2%80%8b./admin", refused: 400},
	{target: "/v1/%ef%bc%8e%ef%bc%8e/admin", refused: 400},
	{target: "/v1/%e2%80%a5/admin", refused: 400},
	{target: "/v1/..%ef%bc%8fadmin", refused: 400},
	{target: "/v1/..%c2%a0/admin", refused: 400},
	{target: "/v1/%ef%bc%852e%ef%bc%852e/admin", refused: 400},
	{target: "/v1/..%cd%be/admin", refused: 400}, // the Greek question mark, which is ; in NFC
	{target: "/v1/.../x", decided: "/v1/.../x", sent: "/v1/.../x"},
	{target: "/v1/..a/b..", decided: "/v1/..a/b..", sent: "/v1/..a/b.."},
	{target: "/v1/%ef%bc%a1%ef%bc%8e%e4%bb%80%e4%b9%88%ef%bc%9f", decided: "/v1/Ａ．什么？", sent: "/v1/%EF%BC%A1%EF%BC%8E%E4%BB%80%E4%B9%88%EF%BC%9F"},
}

// TestTargets: what is decided about a target is what leaves, and one that some server
// takes for another does not.
func TestTargets(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"http/1.1", "h2"} {
		t.Run(version, func(t *testing.T) {
			w := newNetEnv(t)
			var decided, sent string
			w.policy(func(in policy.Input) policy.Decision {
				if in.Request != nil {
					decided = in.Request.Path
				}
				return w.allow(in)
			})
			o := w.origin("api.example.test", "h1", true)
			o.handle("/", func(w http.ResponseWriter, r *http.Request) { sent = r.RequestURI })
			host := fmt.Sprintf("api.example.test:%d", o.port)
			for _, tt := range targets {
				t.Run(strings.ReplaceAll(tt.target, "/", "|"), func(t *testing.T) {
					decided, sent = "", ""
					status := 0
					if version == "h2" {
						a := w.frames(w.steer, o).ask(t, field{":method", "GET"}, field{":scheme", "https"}, field{":path", tt.target}, field{":authority", host})
						_, _ = fmt.Sscan(a.status, &status)
					} else {
						status = w.speak(t, o, "GET "+tt.target+" HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
					}
					checkTarget(t, tt.refused, status, tt.decided, decided, tt.sent, sent)
				})
			}
		})
	}
}

func checkTarget(t *testing.T, refused, status int, wantDecided, decided, wantSent, sent string) {
	t.Helper()
	if refused != 0 {
		if status != refused || sent != "" {
			t.Errorf("%d, decided %q, and %q left; want %d and nothing", status, decided, sent, refused)
		}
		return
	}
	if status != 200 || decided != wantDecided || sent != wantSent {
		t.Errorf("%d, decided %q, and %q left; want %q and %q", status, decided, sent, wantDecided, wantSent)
	}
}

// TestInboundTargets: the same, on the way in.
func TestInboundTargets(t *testing.T) {
	t.Parallel()
	n, token := newInbound(t)
	var decided string
	n.policy(func(in policy.Input) policy.Decision {
		decided = in.Request.Path
		return allow(in)
	})
	for _, tt := range targets {
		t.Run(strings.ReplaceAll(tt.target, "/", "|"), func(t *testing.T) {
			decided = ""
			n.mu.Lock()
			n.seen = nil
			n.mu.Unlock()
			resp, body := n.ask(t, "GET "+tt.target+" HTTP/1.1\r\nHost: "+n.host("demo")+"\r\nAuthorization: Bearer "+token+"\r\nConnection: close\r\n\r\n")
			sent := ""
			if resp.StatusCode == 200 {
				sent = strings.Fields(body)[1]
			}
			checkTarget(t, tt.refused, resp.StatusCode, tt.decided, decided, tt.sent, sent)
		})
	}
}

// TestAbsoluteTargets: a target that names a host names the one of the connection, and
// so does Host beside it.
func TestAbsoluteTargets(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t)
	var sent string
	w.policy(w.allow)
	o := w.origin("api.example.test", "h1", true)
	o.handle("/", func(w http.ResponseWriter, r *http.Request) { sent = r.Host + " " + r.RequestURI })
	host := fmt.Sprintf("api.example.test:%d", o.port)
	for _, tt := range []struct {
		target, host string
		status       int
		sent         string
	}{
		{"https://HOST/v1/x", "HOST", 200, "HOST /v1/x"},
		{"https://HOST/v1/x", "API.example.test.:PORT", 200, "HOST /v1/x"},
		{"HTTPS://HOST/v1/x?y", "HOST", 200, "HOST /v1/x?y"},
		{"https://HOST", "HOST", 200, "HOST /"},
		{"https://HOST?y", "HOST", 200, "HOST /?y"},
		{"https://denied.example.test/v1/x", "denied.example.test", 421, ""},
		{"https://denied.example.test/v1/x", "HOST", 421, ""},
		{"https://HOST/v1/x", "denied.example.test", 421, ""},
		{"https://HOST/v1/x", "api.example.test:1", 421, ""},
		{"https://HOST/v1/x", "", 421, ""},
		{"http://HOST/v1/x", "HOST", 421, ""},
		{"https://HOST//v1/x", "HOST", 400, ""},
		{"https:///v1/x", "HOST", 400, ""},
		{"https:/v1/x", "HOST", 400, ""},
		{"https:v1/x", "HOST", 400, ""},
		{"https://:443/v1/x", "HOST", 400, ""},
		{"https://?/v1/x", "HOST", 400, ""},
	} {
		t.Run(strings.ReplaceAll(tt.target, "/", "|")+" "+tt.host, func(t *testing.T) {
			sent = ""
			replace := strings.NewReplacer("HOST", host, "PORT", fmt.Sprint(o.port))
			status := w.speak(t, o, replace.Replace("GET "+tt.target+" HTTP/1.1\r\nHost: "+tt.host+"\r\n\r\n"))
			if want := replace.Replace(tt.sent); status != tt.status || sent != want {
				t.Errorf("%d, and %q left; want %d and %q", status, sent, tt.status, want)
			}
		})
	}
}

// speak sends bytes on a TLS connection to an origin, and returns the status.
func (w *netEnv) speak(t *testing.T, o *origin, request string) int {
	t.Helper()
	status, _ := w.spoken(t, o, request)
	return status
}

// spoken is speak, and returns the header too. HOST stands for the origin.
func (w *netEnv) spoken(t *testing.T, o *origin, request string) (int, http.Header) {
	t.Helper()
	host := fmt.Sprintf("%s:%d", o.name, o.port)
	raw, err := w.steer(t.Context(), "tcp", host)
	must.OK(t, err)
	c := tls.Client(raw, &tls.Config{RootCAs: w.ca.pool, ServerName: o.name})
	defer c.Close()
	resp, _ := send(t, c, strings.ReplaceAll(request, "HOST", host))
	return resp.StatusCode, resp.Header
}

// TestRawPath: a rule can have the path sent as it was written, but for doubled slashes,
// which have two readings then.
func TestRawPath(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t)
	raw, sent := true, ""
	w.policy(func(in policy.Input) policy.Decision {
		d := w.allow(in)
		d.RawPath = raw
		return d
	})
	o := w.origin("api.example.test", "h1", true)
	o.handle("/", func(w http.ResponseWriter, r *http.Request) { sent = r.RequestURI })
	for _, tt := range []struct {
		target string
		raw    bool
		status int
		sent   string
	}{
		{"/v1/%7ea%2fb?c=%7e", true, 200, "/v1/%7ea%2fb?c=%7e"},
		{"/v1/%7ea%2fb?c=%7e", false, 200, "/v1/~a%2Fb?c=%7e"},
		{"/v1//x", true, 403, ""},
		{"/v1//x", false, 200, "/v1/x"},
		{"//v1/x", true, 400, ""},
		{"/v1/..%20/x", true, 400, ""},
	} {
		raw, sent = tt.raw, ""
		status := w.speak(t, o, fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s:%d\r\n\r\n", tt.target, o.name, o.port))
		if status != tt.status || sent != tt.sent {
			t.Errorf("%s, raw %v: %d, and %q left; want %d and %q", tt.target, tt.raw, status, sent, tt.status, tt.sent)
		}
	}
}
