package gateway_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"sallyport/policy"
)

// linked are headers of a request beside Host, and what comes of them, the same out of a
// sandbox and to one.
var linked = []struct {
	name, headers string
	status        int
	seen, arrived string // of X-Mine, Te, Upgrade, Keep-Alive and those of ours
}{
	{"none", "", 200, "", ""},
	{"a header of its own", "X-Mine: 1\r\n", 200, "X-Mine", "X-Mine"},
	{"Connection that names it", "Connection: X-Mine\r\nX-Mine: 1\r\n", 400, "", ""},
	{"Connection that names it among others, in other case", "Connection: close, x-MINE\r\nX-Mine: 1\r\n", 400, "", ""},
	{"a second Connection", "Connection: keep-alive\r\nX-Mine: 1\r\nConnection: x-mine\r\n", 400, "", ""},
	{"Connection that names it with a hyphen for its underscore", "Connection: x-mine\r\nX_Mine: 1\r\n", 400, "", ""},
	{"Proxy-Connection", "Proxy-Connection: X-Mine\r\nX-Mine: 1\r\n", 400, "", ""},
	{"Connection that names what is not there", "Connection: X-Other\r\nX-Mine: 1\r\n", 200, "X-Mine", "X-Mine"},
	{"Connection: close", "Connection: close\r\nX-Mine: 1\r\n", 200, "X-Mine", "X-Mine"},
	{"headers of a hop", "Connection: keep-alive, Upgrade\r\nKeep-Alive: timeout=5\r\nUpgrade: h2c\r\nX-Mine: 1\r\n", 200, "X-Mine", "X-Mine"},
	{"headers in our name", "Sallyport-Decision: x\r\nsallyport-foo: x\r\nSALLYPORT_BAR: x\r\nX-Mine: 1\r\n", 200, "X-Mine", "X-Mine"},
}

// names lists which of some headers are there.
func names(headers []string) string {
	var found []string
	for _, name := range headers {
		if slices.Contains([]string{"X-Mine", "X_mine", "Te", "Upgrade", "Keep-Alive", "Proxy-Connection"}, name) || strings.HasPrefix(strings.ToLower(name), "sallyport") {
			found = append(found, name)
		}
	}
	slices.Sort(found)
	return strings.Join(found, " ")
}

func fieldNames(h http.Header) (list []string) {
	for name := range h {
		list = append(list, name)
	}
	return list
}

// TestPolicySeesWhatLeaves: a header that a rule may ask for is there when the request
// leaves, whatever Connection says.
func TestPolicySeesWhatLeaves(t *testing.T) {
	t.Parallel()
	for _, tt := range linked {
		t.Run(tt.name, func(t *testing.T) {
			w := newNetEnv(t)
			seen, arrived := "", ""
			w.policy(func(in policy.Input) policy.Decision {
				if in.Request != nil {
					seen = names(in.Request.Headers)
				}
				return w.allow(in)
			})
			o := w.origin("api.example.test", "h1", true)
			o.handle("/", func(w http.ResponseWriter, r *http.Request) {
				arrived = names(fieldNames(r.Header))
				w.Header().Set("Sallyport-Foo", "forged")
				w.Header()["sallyport_bar"] = []string{"forged"}
			})
			status, h := w.spoken(t, o, "GET / HTTP/1.1\r\nHost: HOST\r\n"+tt.headers+"\r\n")
			if status != tt.status || seen != tt.seen || arrived != tt.arrived {
				t.Errorf("%d, the policy saw %q and %q arrived; want %d, %q and %q", status, seen, arrived, tt.status, tt.seen, tt.arrived)
			}
			if status == 200 && names(fieldNames(h)) != "" {
				t.Errorf("the upstream speaks in our name: %v", h)
			}
		})
	}
}

// TestInboundPolicySeesWhatArrives: the same on the way in, and cookies.
func TestInboundPolicySeesWhatArrives(t *testing.T) {
	t.Parallel()
	n, token := newInbound(t)
	seen := ""
	n.policy(func(in policy.Input) policy.Decision {
		seen = names(in.Request.Headers)
		return allow(in)
	})
	for _, tt := range linked {
		t.Run(tt.name, func(t *testing.T) {
			seen = ""
			n.mu.Lock()
			n.seen = nil
			n.mu.Unlock()
			r, _ := n.ask(t, "GET / HTTP/1.1\r\nHost: "+n.host("demo")+"\r\nAuthorization: Bearer "+token+"\r\n"+tt.headers+"\r\n")
			arrived := ""
			if len(n.seen) > 0 {
				arrived = names(fieldNames(n.seen[0].Header))
			}
			if r.StatusCode != tt.status || seen != tt.seen || arrived != tt.arrived {
				t.Errorf("%d, the policy saw %q and %q arrived; want %d, %q and %q", r.StatusCode, seen, arrived, tt.status, tt.seen, tt.arrived)
			}
			if r.StatusCode == 200 && names(fieldNames(r.Header)) != "" {
				t.Errorf("the sandbox speaks in our name: %v", r.Header)
			}
		})
	}
	for _, tt := range []struct{ cookie, arrives string }{
		{"a=1; b=2", "a=1; b=2"},
		{"a=1; Sallyport-Exposure=x; b=2", "a=1; b=2"},
		{"=sallyport-exposure=x; b=2", "b=2"},
		{"a=1, sallyport-exposure=" + token + "; b=2", "b=2"},
		{`a="` + token + `"; b=2`, "b=2"},
		{token + "; b=2", "b=2"},
		{"=1; b=2", "b=2"},
	} {
		n.mu.Lock()
		n.seen = nil
		n.mu.Unlock()
		n.ask(t, "GET / HTTP/1.1\r\nHost: "+n.host("demo")+"\r\nAuthorization: Bearer "+token+"\r\nCookie: "+tt.cookie+"\r\n\r\n")
		if got := strings.Join(n.seen[0].Header["Cookie"], "; "); got != tt.arrives {
			t.Errorf("the cookie %q arrived as %q, want %q", tt.cookie, got, tt.arrives)
		}
	}
}
