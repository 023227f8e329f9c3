package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

const inboundConfig = `
inbound: {listen: "127.0.0.1:7080"}
expose:
- {name: previews, sandboxes: {names: [web]}, ports: [8000, 8001, 8002, 8003], methods: [GET]}
- {name: no admin, sandboxes: {names: [web]}, ports: [8000], paths: ["/admin/**"], action: deny}
`

// inside is a server of files beside one that echoes frames of WebSockets.
const inside = `
import base64, hashlib, http.server, socket, socketserver, struct, threading, os
os.makedirs("/tmp/www/admin", exist_ok=True)
os.chdir("/tmp/www")
open("hello.txt", "w").write("hello from inside\n")
open("admin/secret.txt", "w").write("hello from inside, too\n")

class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        head = {}
        self.rfile.readline()
        while (line := self.rfile.readline().strip()):
            name, _, value = line.decode().partition(":")
            head[name.lower()] = value.strip()
        if "cookie" in head or "authorization" in head or "sallyport-token" in head:
            return
        key = head["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.wfile.write(f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n".encode())
        while True:
            first = self.rfile.read(2)
            if len(first) < 2:
                return
            n = first[1] & 127
            mask = self.rfile.read(4)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(n)))
            self.wfile.write(bytes([first[0], n]) + data)

socketserver.ThreadingTCPServer.allow_reuse_address = True
threading.Thread(target=socketserver.ThreadingTCPServer(("0.0.0.0", 8001), Echo).serve_forever, daemon=True).start()
class Six(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6
class Own(http.server.SimpleHTTPRequestHandler): # as a development server does
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"11\r\nfor nobody else\r\n\r\n0\r\nX-Sum: 17\r\n\r\n")
for server, address in (http.server.ThreadingHTTPServer, ("127.0.0.1", 8002)), (Six, ("::1", 8003)):
    try:
        threading.Thread(target=server(address, Own).serve_forever, daemon=True).start()
    except OSError: # the host has no IPv6
        pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), http.server.SimpleHTTPRequestHandler).serve_forever()
`

// A port of a sandbox is reached from the host, by a name of its own, where the
// policy allows it, and by nobody else.
func TestInbound(t *testing.T) {
	r := newRig(t, inboundConfig)
	r.serve()
	r.up()
	r.ok("run", "web", "--", "true")
	r.ok("run", "other", "--", "true")
	r.ok("sandbox", "exec", "web", "-d", "--", "python3", "-c", inside)
	if res := r.sallyport("sandbox", "expose", "web", "9000"); res.code == 0 || !strings.Contains(res.stderr, "no expose rule") {
		t.Errorf("a port of no rule: %s", res)
	}
	if res := r.sallyport("sandbox", "expose", "other", "8000"); res.code == 0 || !strings.Contains(res.stderr, "no expose rule") {
		t.Errorf("a sandbox of no rule: %s", res)
	}
	var web, echo struct{ Token, Visit, URL string }
	for port, into := range map[string]any{"8000": &web, "8001": &echo} {
		must.OK(t, json.Unmarshal([]byte(r.ok("-o", "json", "sandbox", "expose", "web", port, "--for", "10m")), into))
	}
	host, ok := strings.CutPrefix(strings.TrimSuffix(web.URL, ":7080/"), "http://")
	if !ok || !strings.HasPrefix(host, "8000--web--") || !strings.HasSuffix(host, ".localhost") {
		t.Errorf("URL %s", web.URL)
	}
	r.await("the server inside", func() bool { status, _, _ := reach(t, "GET", web.URL+"hello.txt", web.Token); return status == 200 })

	// A browser: the token in its URL once, a cookie afterwards.
	status, header, _ := reach(t, "GET", strings.Replace(web.Visit, "/?", "/hello.txt?", 1), "")
	if status != 303 || header.Get("Location") != web.URL+"hello.txt" {
		t.Errorf("a first visit: %d %v", status, header)
	}
	cookie, _, _ := strings.Cut(header.Get("Set-Cookie"), ";")
	if status, _, body := reach(t, "GET", web.URL+"hello.txt", "", "Cookie", cookie); status != 200 || body != "hello from inside\n" {
		t.Errorf("with the cookie: %d %s", status, body)
	}
	for name, tt := range map[string]struct {
		method, url, token string
		status             int
	}{
		"no token":                    {"GET", web.URL + "hello.txt", "", 401},
		"the other exposure's token":  {"GET", web.URL + "hello.txt", echo.Token, 401},
		"a method of no rule":         {"POST", web.URL + "hello.txt", web.Token, 403},
		"a path that a rule denies":   {"GET", web.URL + "admin/secret.txt", web.Token, 403},
		"a sandbox without exposures": {"GET", "http://" + strings.Replace(host, "--web--", "--other--", 1) + ":7080/", web.Token, 421},
		"the listener's address":      {"GET", "http://127.0.0.1:7080/hello.txt", web.Token, 421},
	} {
		if status, _, body := reach(t, tt.method, tt.url, tt.token); status != tt.status || strings.Contains(body, "from inside") {
			t.Errorf("%s: %d %s, want %d", name, status, body, tt.status)
		}
	}
	testInboundSocket(t, echo.URL, echo.Token)
	testInboundInside(t, r)

	// Another sandbox: neither by the listener nor by the sandbox's own address.
	address := strings.Fields(strings.Split(r.ok("sandbox", "get", "web"), "\n")[1])[4]
	for _, to := range []string{address + ":8000", "127.0.0.1:7080", "10.232.0.1:7080", host + ":7080", "198.51.100.1:7080"} {
		script := fmt.Sprintf(`
import http.client
try:
    c = http.client.HTTPConnection(%q, timeout=5)
    c.request("GET", "/hello.txt", headers={"Host": "%s:7080", "Authorization": "Bearer %s"})
    print(c.getresponse().read())
except Exception as e:
    print("failed", e)
`, to, host, web.Token)
		if got := r.ok("run", "other", "--", "python3", "-c", script); strings.Contains(got, "from inside") || got == "" {
			t.Errorf("another sandbox at %s: %s", to, got)
		}
	}

	// A request wakes a sandbox that sleeps, and what listens in it goes on.
	r.ok("sandbox", "hibernate", "web")
	if status, _, body := reach(t, "GET", web.URL+"admin/secret.txt", web.Token); status != 403 || strings.Contains(r.ok("sandbox", "get", "web"), "running") {
		t.Errorf("a denied request wakes it: %d %s", status, body)
	}
	if status, _, body := reach(t, "GET", web.URL+"hello.txt", web.Token); status != 200 || body != "hello from inside\n" {
		t.Errorf("of a hibernated sandbox: %d %s", status, body)
	}

	testInboundInside(t, r)

	// Use runs a sandbox that was stopped; the server inside ended with it.
	r.ok("sandbox", "stop", "web")
	if status, _, body := reach(t, "GET", web.URL+"hello.txt", web.Token); status != 502 || !strings.Contains(body, "nothing listens") {
		t.Errorf("of a stopped sandbox: %d %s", status, body)
	}
	if got := r.ok("sandbox", "get", "web"); !strings.Contains(got, "running") {
		t.Errorf("after a request: %s", got)
	}

	// Without the rule nothing gets in, whatever is exposed; and an exposure's end is one.
	r.configure(baseConfig, ruleConfig+strings.ReplaceAll(inboundConfig, "previews, sandboxes: {names: [web]}", "previews, sandboxes: {names: [nobody]}"))
	r.ok("reload")
	if status, _, body := reach(t, "GET", web.URL+"hello.txt", web.Token); status != 403 || !strings.Contains(body, "no expose rule allows GET /hello.txt at port 8000 of web") {
		t.Errorf("without the rule: %d %s", status, body)
	}
	if got := r.ok("sandbox", "exposures", "web"); !strings.Contains(got, web.URL) || strings.Contains(got, "spe_") {
		t.Errorf("listed:\n%s", got)
	}
	r.ok("sandbox", "unexpose", "web", "8000")
	if status, _, _ := reach(t, "GET", web.URL+"hello.txt", web.Token); status != 421 {
		t.Errorf("after its end: %d", status)
	}
	testInboundAudit(t, r, web.Token)
}

// testInboundInside reaches what listens for the sandbox alone, by either of its
// loopback addresses.
func testInboundInside(t *testing.T, r *rig) {
	ports := []string{"8002", "8003"}
	if res := r.sallyport("run", "web", "--", "python3", "-c", `import socket; socket.socket(socket.AF_INET6).bind(("::1", 9003))`); res.code != 0 {
		t.Log("sandboxes have no ::1 here")
		ports = ports[:1]
	}
	for _, port := range ports {
		var at struct{ Token, URL string }
		must.OK(t, json.Unmarshal([]byte(r.ok("-o", "json", "sandbox", "expose", "web", port, "--for", "10m")), &at))
		status, header, body := reach(t, "GET", at.URL, at.Token)
		if status != 200 || body != "for nobody else\r\n" || header.Get(http.TrailerPrefix+"X-Sum") != "17" {
			t.Errorf("port %s: %d %v %q", port, status, header, body)
		}
		if status, _, body := reach(t, "GET", at.URL, "spe_"); status != 401 {
			t.Errorf("port %s without its token: %d %s", port, status, body)
		}
	}
}

// testInboundAudit looks for what was done, and for tokens.
func testInboundAudit(t *testing.T, r *rig, token string) {
	text := r.ok("audit", "query", "-o", "json")
	if strings.Contains(text, token) {
		t.Error("a token is in the audit")
	}
	for _, want := range []string{`"phase":"inbound"`, "port 8000 of sandbox web exposed", "port 8000 of sandbox web unexposed", "no admin", "inbound-token"} {
		if !strings.Contains(text, want) && !strings.Contains(strings.ReplaceAll(text, `": "`, `":"`), want) {
			t.Errorf("the audit does not say %s", want)
		}
	}
}

// testInboundSocket sends one frame and wants it back.
func testInboundSocket(t *testing.T, at, token string) {
	u, err := url.Parse(at)
	must.OK(t, err)
	for origin, want := range map[string]int{"http://" + u.Host: 101, "http://" + strings.Replace(u.Host, "8001--", "8000--", 1): 403} {
		c, err := net.Dial("tcp", "127.0.0.1:7080")
		must.OK(t, err)
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: %s\r\nCookie: sallyport-exposure=%s\r\n\r\n", u.Host, origin, token)
		in := bufio.NewReader(c)
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != want {
			t.Errorf("a WebSocket of %s: %v %v", origin, resp, err)
		} else if want == 101 {
			_, _ = c.Write([]byte{0x81, 0x85, 0, 0, 0, 0, 'h', 'e', 'l', 'l', 'o'})
			frame := make([]byte, 7)
			if _, err := io.ReadFull(in, frame); err != nil || string(frame[2:]) != "hello" {
				t.Errorf("echo: %q %v", frame, err)
			}
		}
		_ = c.Close()
	}
}

// reach asks the listener as a browser does, which takes names below localhost for
// the loopback address.
func reach(t *testing.T, method, to, token string, header ...string) (int, http.Header, string) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, Dial: func(string, string) (net.Conn, error) { return net.Dial("tcp", "127.0.0.1:7080") }}
	req, err := http.NewRequest(method, to, nil)
	must.OK(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := transport.RoundTrip(req)
	must.OK(t, err)
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	for name, values := range resp.Trailer {
		resp.Header[http.TrailerPrefix+name] = values
	}
	return resp.StatusCode, resp.Header, string(body)
}
