package gateway_test

import (
	"context"
	"crypto/x509"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// interop builds gRPC's own client and server, which takes a minute or two the
// first time.
var interop = sync.OnceValues(func() (string, error) {
	cmd := exec.Command("interop/build.sh")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
})

// interopCases are the test cases that gRPC for Go runs itself (interop_test.sh of
// its repository). Its client has others that need an account at Google or a
// machine there: compute_engine_creds, compute_engine_channel_credentials,
// service_account_creds, jwt_token_creds, per_rpc_creds, oauth2_auth_token,
// google_default_credentials; and pick_first_unary, for which its server lacks an
// answer.
var interopCases = []string{
	"empty_unary", "large_unary", "client_streaming", "server_streaming", "ping_pong", "empty_stream",
	"timeout_on_sleeping_server", "cancel_after_begin", "cancel_after_first_response",
	"status_code_and_message", "special_status_message", "custom_metadata",
	"unimplemented_method", "unimplemented_service",
	"orca_per_rpc", "orca_oob", "rpc_soak", "channel_soak",
}

// interopServer starts gRPC's server under a name.
func (w *netEnv) interopServer(name string, secure bool) *origin {
	w.t.Helper()
	dir, err := interop()
	if err != nil {
		w.t.Fatalf("building gRPC's server: %v", err)
	}
	port := 0 // below those that the kernel hands out to the tests beside this one
	for try := 0; port == 0 && try < 100; try++ {
		if ln, err := net.Listen("tcp", fmt.Sprintf(":%d", 20_000+rand.IntN(10_000))); err == nil {
			port = int(addrPort(ln.Addr()).Port())
			ln.Close()
		}
	}
	args := []string{"-port", fmt.Sprint(port)}
	if secure {
		leaf := w.public.leaf(name)
		key, err := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
		must.OK(w.t, err)
		args = append(args, "-use_tls", "-tls_cert_file", w.file("CERTIFICATE", leaf.Certificate[0]), "-tls_key_file", w.file("PRIVATE KEY", key))
	}
	cmd := exec.Command(filepath.Join(dir, "server"), args...)
	cmd.Stderr = os.Stderr
	must.OK(w.t, cmd.Start())
	w.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", fmt.Sprint("127.0.0.1:", port))
		if err == nil {
			c.Close()
			break
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("gRPC's server does not listen: %v", err)
		}
	}
	w.name(name)
	return &origin{name: name, port: uint16(port)}
}

func (w *netEnv) file(kind string, der []byte) string {
	w.t.Helper()
	path := filepath.Join(w.t.TempDir(), "x.pem")
	must.OK(w.t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
	return path
}

// front is a loopback address that leads a client of any kind through the
// gateway to an origin, as a sandbox's connection would be led.
func (w *netEnv) front(o *origin) netip.AddrPort {
	w.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(w.t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_ = w.listener.adopt(c, sandboxAddr, netip.AddrPortFrom(w.name(o.name), o.port))
		}
	}()
	w.t.Cleanup(func() { ln.Close(); <-done })
	return addrPort(ln.Addr())
}

// interopClient runs one test case and returns what the client has to say.
func (w *netEnv) interopClient(t *testing.T, o *origin, way string, secure bool, test string) (string, error) {
	t.Helper()
	dir, err := interop()
	if err != nil {
		t.Fatalf("building gRPC's client: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	host, port := o.name, o.port
	environment := append(os.Environ(), "NO_PROXY=", "GRPC_GO_LOG_SEVERITY_LEVEL=error")
	if way == "explicit" {
		environment = append(environment, fmt.Sprintf("HTTPS_PROXY=http://ci:%s@%s", w.token, w.proxy.Addr()))
	} else {
		front := w.front(o)
		host, port = front.Addr().String(), front.Port()
	}
	args := []string{"-server_host", host, "-server_port", fmt.Sprint(port), "-test_case", test, "-soak_per_iteration_max_acceptable_latency_ms", "10000", "-soak_overall_timeout_seconds", "50"}
	if secure {
		args = append(args, "-use_tls", "-use_test_ca", "-ca_file", w.file("CERTIFICATE", w.ca.cert.Raw), "-server_host_override", o.name)
	}
	if strings.HasPrefix(test, "orca") {
		args = append(args, "-service_config_json", `{"loadBalancingConfig": [{"test_backend_metrics_load_balancer": {}}]}`)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "client"), args...)
	cmd.Env = environment
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestInteroperabilityOfGRPC runs gRPC's own client against its own server
// through the gateway.
func TestInteroperabilityOfGRPC(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		way    string
		secure bool
		inject bool
	}{
		{"transparent", "transparent", true, false},
		{"transparent with a credential", "transparent", true, true},
		{"explicit", "explicit", true, false},
		{"explicit without TLS", "explicit", false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := newNetEnv(t)
			w.credential("key", token)
			w.policy(func(in policy.Input) policy.Decision {
				d := w.allow(in)
				if test.inject {
					d.Inject = inject("key")(in).Inject
				}
				return d
			})
			o := w.interopServer("api.example.test", test.secure)
			for _, name := range interopCases {
				t.Run(name, func(t *testing.T) {
					if out, err := w.interopClient(t, o, test.way, test.secure, name); err != nil {
						t.Errorf("%v: %s", err, out)
					}
				})
			}
			decisions, completions := w.settled(t)
			for _, d := range decisions {
				if c := completions[d.ID()]; d.Action != audit.ActionAllowed || c.Unmapped.Sallyport.Credentials != nil != test.inject {
					t.Errorf("%+v: %+v", d, c)
				}
			}
		})
	}
}

// A denied call has a status of gRPC's, which its client shows.
func TestDenialOfGRPC(t *testing.T) {
	t.Parallel()
	for _, phase := range []policy.Phase{policy.PhaseConnect, policy.PhaseRequest} {
		for _, way := range []string{"transparent", "explicit"} {
			t.Run(fmt.Sprint(way, " ", phase), func(t *testing.T) {
				w := newNetEnv(t)
				w.policy(func(in policy.Input) policy.Decision {
					if in.Phase == phase {
						return policy.Decision{Rule: "closed", Reason: "nobody calls that – yet"}
					}
					return w.allow(in)
				})
				w.name("api.example.test")
				o := &origin{name: "api.example.test", port: 443}
				out, err := w.interopClient(t, o, way, true, "empty_unary")
				e := w.await(1)[0]
				for _, want := range []string{"code = PermissionDenied", "nobody calls that – yet", "rule: closed", "decision: " + e.ID(), "ask an operator"} {
					if !strings.Contains(out, want) {
						t.Errorf("%v: the client does not say %q: %s", err, want, out)
					}
				}
			})
		}
	}
}

// call is one call of gRPC by hand.
func call(t *testing.T, client *http.Client, url string, header http.Header, messages ...string) (*http.Response, string) {
	t.Helper()
	var body []byte
	for _, m := range messages {
		body = append(binary.BigEndian.AppendUint32(append(body, 0), uint32(len(m))), m...)
	}
	r, err := http.NewRequestWithContext(t.Context(), "POST", url, strings.NewReader(string(body)))
	must.OK(t, err)
	r.ContentLength = -1
	for name, v := range header {
		r.Header[name] = v
	}
	r.Header.Set("Content-Type", "application/grpc+proto")
	r.Header.Set("Te", "trailers")
	resp, err := client.Do(r)
	must.OK(t, err)
	return resp, text(t, resp)
}

// TestCallOfGRPC looks at what the upstream gets of a call, and what the client
// gets of what goes wrong.
func TestCallOfGRPC(t *testing.T) {
	t.Parallel()
	w := newNetEnv(t)
	w.credential("key", token)
	w.policy(func(in policy.Input) policy.Decision {
		d := w.allow(in)
		if in.Request != nil && in.Request.Path == "/test.Service/Keyed" {
			d.Inject = inject("key")(in).Inject
		}
		return d
	})
	o := w.origin("api.example.test", "h2", true)
	o.handle("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc+proto")
		w.Header().Set("X-Te", r.Header.Get("Te"))
		w.Header().Set("X-Timeout", r.Header.Get("Grpc-Timeout"))
		w.Header().Set("X-Metadata", strings.Join(r.Header.Values("X-Bin-Bin"), ","))
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		b, _ := io.ReadAll(r.Body)
		_, _ = w.Write(b)
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "5")
		w.Header().Set(http.TrailerPrefix+"Grpc-Message", "not found: "+r.Header.Get("Authorization"))
		w.Header().Set(http.TrailerPrefix+"Grpc-Status-Details-Bin", "AAA")
	})
	o.handle("/test.Service/Breaks", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(200)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	client := w.agent("h2", true, w.steer, false)
	metadata := http.Header{"Authorization": {"Bearer mine"}, "Grpc-Timeout": {"10S"}, "X-Bin-Bin": {"AA", "BB"}}
	for path, auth := range map[string]string{"/test.Service/Plain": "Bearer mine", "/test.Service/Keyed": strings.Repeat("*", len("Bearer "+token))} {
		resp, body := call(t, client, o.url("https", path), metadata, "hello", "world")
		if resp.StatusCode != 200 || body != "\x00\x00\x00\x00\x05hello\x00\x00\x00\x00\x05world" ||
			resp.Trailer.Get("Grpc-Status") != "5" || resp.Trailer.Get("Grpc-Message") != "not found: "+auth || resp.Trailer.Get("Grpc-Status-Details-Bin") != "AAA" {
			t.Errorf("%s: %d %q %v", path, resp.StatusCode, body, resp.Trailer)
		}
		if resp.Header.Get("X-Te") != "trailers" || resp.Header.Get("X-Timeout") != "10S" || resp.Header.Get("X-Metadata") != "AA,BB" {
			t.Errorf("%s: the upstream got %v", path, resp.Header)
		}
	}
	for name, test := range map[string]struct {
		url, status string
		header      http.Header
	}{
		"no such host":       {"https://api.example.test:1/test.Service/Plain", "14", nil},
		"refused form":       {o.url("https", "/test.Service/../Plain"), "3", nil},
		"override":           {o.url("https", "/test.Service/Plain"), "7", http.Header{"X-Original-Url": {"/x"}}},
		"another host":       {o.url("https", "/test.Service/Plain"), "7", http.Header{"Host": {"other.example.test"}}},
		"no such credential": {o.url("https", "/test.Service/Keyed"), "14", nil},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "no such credential" {
				w.broker = nil
			}
			host := test.header.Get("Host")
			test.header.Del("Host")
			r, _ := http.NewRequestWithContext(t.Context(), "POST", test.url, http.NoBody)
			r.Host = host
			for k, v := range test.header {
				r.Header[k] = v
			}
			r.Header.Set("Content-Type", "application/grpc")
			resp, err := client.Do(r)
			must.OK(t, err)
			body := text(t, resp)
			if resp.StatusCode != 200 || body != "" || resp.Header.Get("Grpc-Status") != test.status || resp.Header.Get("Content-Type") != "application/grpc" ||
				resp.Header.Get("Sallyport-Decision") == "" || !strings.Contains(resp.Header.Get("Grpc-Message"), "decision: "+resp.Header.Get("Sallyport-Decision")) {
				t.Errorf("%d %v %q", resp.StatusCode, resp.Header, body)
			}
		})
	}
	// A call that breaks off has no status: its client must not take it for ended.
	r, _ := http.NewRequestWithContext(t.Context(), "POST", o.url("https", "/test.Service/Breaks"), http.NoBody)
	r.Header.Set("Content-Type", "application/grpc")
	resp, err := client.Do(r)
	if err == nil {
		_, err = io.ReadAll(resp.Body)
		resp.Body.Close()
	}
	if err == nil {
		t.Errorf("a call that broke off ended with %v", resp.Trailer)
	}
}
