package gateway_test

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

func TestExplicitProxyCarries(t *testing.T) {
	t.Parallel()
	for _, secure := range []bool{true, false} {
		scheme := map[bool]string{true: "https", false: "http"}[secure]
		t.Run(scheme, func(t *testing.T) {
			l := newEnv(t)
			l.policy(allow)
			l.upstream("api.example.test", secure, func(w http.ResponseWriter, r *http.Request) {
				io.WriteString(w, r.URL.Path+r.Header.Get("Proxy-Authorization"))
			})
			client, token, err := l.clients.Add("ci", map[string]string{"team": "build"})
			must.OK(t, err)
			c := l.elsewhere("ci", token)
			for range 3 {
				if resp, body := get(t, c, scheme+"://api.example.test/x"); resp.StatusCode != 200 || body != "/x" {
					t.Fatalf("%d %s", resp.StatusCode, body)
				}
			}
			e := l.await(6)[0]
			if s := e.Unmapped.Sallyport; s.Sandbox != "ci" || s.SandboxID != client.ID || s.Tags["team"] != "build" {
				t.Errorf("event of %+v", s)
			}
			if l.dials() != 1 {
				t.Errorf("%d dials", l.dials())
			}
		})
	}
}

func TestExplicitProxyAuthenticates(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	_, token, err := l.clients.Add("ci", nil)
	must.OK(t, err)
	basic := func(s string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(s)) }
	for name, header := range map[string]string{
		"none":           "",
		"another name":   basic("other:" + token),
		"another token":  basic("ci:" + token + "x"),
		"empty token":    basic("ci:"),
		"no colon":       basic("ci"),
		"not base64":     "Basic !!!",
		"another scheme": "Bearer " + token,
	} {
		for _, method := range []string{"CONNECT api.example.test:443", "GET http://api.example.test/"} {
			t.Run(name+" "+method[:3], func(t *testing.T) {
				c, err := net.Dial("tcp", l.proxy.Addr().String())
				must.OK(t, err)
				defer c.Close()
				request := method + " HTTP/1.1\r\nHost: api.example.test\r\n"
				if header != "" {
					request += "Proxy-Authorization: " + header + "\r\n"
				}
				resp, body := send(t, c, request+"\r\n")
				if resp.StatusCode != 407 || !strings.HasPrefix(resp.Header.Get("Proxy-Authenticate"), "Basic ") || !strings.Contains(body, "sallyport client add") {
					t.Errorf("%d %v %s", resp.StatusCode, resp.Header, body)
				}
			})
		}
	}
	if l.dials() != 0 {
		t.Error("dialled")
	}
}

// A wrong token is recorded, without it; that none was sent is how clients find
// out that one is wanted.
func TestImpostorIsRecorded(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	if _, _, err := l.clients.Add("ci", nil); err != nil {
		t.Fatal(err)
	}
	for _, header := range []string{"", "Proxy-Authorization: Basic Y2k6Z3Vlc3NlZA==\r\n"} { // ci:guessed
		c, err := net.Dial("tcp", l.proxy.Addr().String())
		must.OK(t, err)
		defer c.Close()
		send(t, c, "CONNECT api.example.test:443 HTTP/1.1\r\nHost: api.example.test\r\n"+header+"\r\n")
	}
	e := l.await(1)[0]
	if e.Action != audit.ActionDenied || e.Rule.Name != "proxy-authentication" || e.Source.IP != "127.0.0.1" {
		t.Errorf("%+v", e)
	}
	if line, err := json.Marshal(e); err != nil || strings.Contains(string(line), "guessed") || strings.Contains(string(line), "Y2k6") {
		t.Errorf("%s, %v", line, err)
	}
}

// A client that does not read holds an upstream's connection for a while only.
func TestStalledClientIsCutOff(t *testing.T) {
	t.Parallel()
	l := newEnv(t, func(o *gateway.Options) { o.StallTimeout = 300 * time.Millisecond })
	l.policy(allow)
	_, token, err := l.clients.Add("ci", nil)
	must.OK(t, err)
	ended := make(chan error, 1)
	l.upstream("api.example.test", false, func(w http.ResponseWriter, r *http.Request) {
		for piece := make([]byte, 64<<10); ; {
			if _, err := w.Write(piece); err != nil {
				ended <- err
				return
			}
		}
	})
	c, err := net.Dial("tcp", l.proxy.Addr().String())
	must.OK(t, err)
	defer c.Close()
	io.WriteString(c, "GET http://api.example.test/ HTTP/1.1\r\nHost: api.example.test\r\nProxy-Authorization: Basic "+
		base64.StdEncoding.EncodeToString([]byte("ci:"+token))+"\r\n\r\n")
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the upstream's connection is still held")
	}
	events := l.await(2)
	if c := events[1]; c.StatusID != audit.StatusFailure {
		t.Errorf("%+v", c)
	}
}

// Plain requests make connections of a client's too.
func TestPlainConnectionsOfAClientAreBounded(t *testing.T) {
	t.Parallel()
	const most = 4
	l := newEnv(t, func(o *gateway.Options) { o.ConnectionsPerSandbox = most })
	l.policy(allow)
	l.upstream("api.example.test", false, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "x") })
	_, token, err := l.clients.Add("ci", nil)
	must.OK(t, err)
	ask := func(c net.Conn) int {
		t.Helper()
		resp, _ := send(t, c, "GET http://api.example.test/ HTTP/1.1\r\nHost: api.example.test\r\nProxy-Authorization: Basic "+
			base64.StdEncoding.EncodeToString([]byte("ci:"+token))+"\r\n\r\n")
		return resp.StatusCode
	}
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", l.proxy.Addr().String())
		must.OK(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	var open []net.Conn
	for range most {
		c := dial()
		open = append(open, c)
		for range 2 { // one connection has one place
			if code := ask(c); code != 200 {
				t.Fatalf("within the bound: %d", code)
			}
		}
	}
	if code := ask(dial()); code != 429 {
		t.Errorf("one too many: %d", code)
	}
	open[0].Close()
	for deadline := time.Now().Add(patience); ask(dial()) != 200; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the place has not been given back")
		}
	}
}

func TestExplicitProxyDenies(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, url, want string
		decide          func(policy.Input) policy.Decision
	}{
		{"TLS", "https://api.example.test/", "no rule allows this", nil},
		{"HTTP", "http://api.example.test/", "no rule allows this", nil},
		{"tunnel in absolute-form", "http://api.example.test/", "needs CONNECT", tunnel},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := newEnv(t)
			if test.decide != nil {
				l.policy(test.decide)
			}
			_, token, _ := l.clients.Add("ci", nil)
			resp, body := get(t, l.elsewhere("ci", token), test.url)
			if resp.StatusCode != 403 || !strings.Contains(body, test.want) {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
			if e := l.await(1)[0]; e.Action != audit.ActionDenied || resp.Header.Get("Sallyport-Decision") != e.ID() {
				t.Errorf("event %+v", e)
			}
		})
	}
}

func TestExplicitProxyRefusesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	_, token, _ := l.clients.Add("ci", nil)
	auth := "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("ci:"+token)) + "\r\n\r\n"
	for _, line := range []string{
		"GET /origin-form HTTP/1.1\r\nHost: api.example.test",
		"GET https://api.example.test/ HTTP/1.1\r\nHost: api.example.test",
		"GET ftp://api.example.test/ HTTP/1.1\r\nHost: api.example.test",
		"CONNECT api.example.test HTTP/1.1\r\nHost: api.example.test",
		"CONNECT 127.1:443 HTTP/1.1\r\nHost: 127.1:443",
		"CONNECT a_b..c:443 HTTP/1.1\r\nHost: x",
		"GET http://u:p@api.example.test/ HTTP/1.1\r\nHost: api.example.test",
	} {
		t.Run(line, func(t *testing.T) {
			c, err := net.Dial("tcp", l.proxy.Addr().String())
			must.OK(t, err)
			defer c.Close()
			if resp, body := send(t, c, line+"\r\n"+auth); resp.StatusCode != 400 {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
		})
	}
	if l.dials() != 0 {
		t.Error("dialled")
	}
}

func TestConnectHostMustAgree(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	_, token, _ := l.clients.Add("ci", nil)
	c, err := net.Dial("tcp", l.proxy.Addr().String())
	must.OK(t, err)
	defer c.Close()
	io.WriteString(c, "CONNECT api.example.test:443 HTTP/1.1\r\nHost: other.example.test:443\r\nProxy-Authorization: Basic "+
		base64.StdEncoding.EncodeToString([]byte("ci:"+token))+"\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: "CONNECT"})
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	inner := tls.Client(c, &tls.Config{RootCAs: l.ca.pool, ServerName: "other.example.test"})
	if resp, body := send(t, inner, "GET / HTTP/1.1\r\nHost: other.example.test\r\n\r\n"); resp.StatusCode != 403 || !strings.Contains(body, "the connection is to api.example.test") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if l.dials() != 0 {
		t.Error("dialled")
	}
}

func TestRemovedClientIsCutOffOnItsOpenConnections(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	l.upstream("api.example.test", true, func(http.ResponseWriter, *http.Request) {})
	_, token, _ := l.clients.Add("ci", nil)
	client := l.elsewhere("ci", token)
	if resp, _ := get(t, client, "https://api.example.test/"); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
	must.OK(t, l.clients.Remove("ci"))
	if resp, body := get(t, client, "https://api.example.test/"); resp.StatusCode != 403 || !strings.Contains(body, "no longer good") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if l.dials() != 1 {
		t.Error("dialled")
	}
}

func TestConnectWithEarlyBytes(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(tunnel)
	l.hosts["db.example.test"] = echo(t, "")
	_, token, _ := l.clients.Add("ci", nil)
	c, err := net.Dial("tcp", l.proxy.Addr().String())
	must.OK(t, err)
	defer c.Close()
	io.WriteString(c, "CONNECT db.example.test:5432 HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic "+
		base64.StdEncoding.EncodeToString([]byte("ci:"+token))+"\r\n\r\n\x00early")
	r := bufio.NewReader(c)
	if resp, err := http.ReadResponse(r, &http.Request{Method: "CONNECT"}); err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	b := make([]byte, 6)
	if _, err := io.ReadFull(r, b); err != nil || string(b) != "\x00early" {
		t.Errorf("%q %v", b, err)
	}
}
