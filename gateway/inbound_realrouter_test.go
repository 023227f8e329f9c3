package gateway_test

import (
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

var realRouter = flag.String("agent-sandbox-router", "", "agent-sandbox's sandbox_router.py, for TestRealRouter")

// agent-sandbox's own router, unchanged, reaches a sandbox on another node with the listener as
// its HTTP_PROXY.
func TestRealRouter(t *testing.T) {
	if *realRouter == "" {
		t.Skip("without -agent-sandbox-router, the stand-in in TestRouter takes the router's place: docs/kubernetes.md")
	}
	first, second, port := newRouted(t)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	must.OK(t, os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: first.tls.Certificate().Raw}), 0o644))
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	at := portOf(free.Addr())
	must.OK(t, free.Close())
	router := exec.CommandContext(t.Context(), "/usr/bin/python3", "-m", "uvicorn", "--host", "127.0.0.1", "--port", fmt.Sprint(at.Port()),
		"--app-dir", filepath.Dir(*realRouter), strings.TrimSuffix(filepath.Base(*realRouter), ".py")+":app")
	router.Env = append(os.Environ(), "ROUTER_AUTH_TOKEN=of-the-router", "SSL_CERT_FILE="+roots,
		fmt.Sprintf("HTTP_PROXY=https://x:%s@127.0.0.1:%d", agentsToken, portOf(first.ln.Addr()).Port()), "NO_PROXY=")
	router.Stdout, router.Stderr = os.Stderr, os.Stderr
	must.OK(t, router.Start())
	t.Cleanup(func() { _ = router.Process.Kill(); _ = router.Wait() })
	must.Soon(t, "the router", func() bool {
		r, err := http.Get("http://" + at.String() + "/healthz")
		if err == nil {
			_ = r.Body.Close()
		}
		return err == nil
	})
	for _, tt := range []struct {
		name, sandbox, namespace, ip string
		port                         uint16
		want                         string
	}{
		{"a sandbox by its name", "box", "agents", "", port, "200 POST /execute hi"},
		{"a sandbox by its address", "box", "agents", "10.231.0.7", port, "200 POST /execute hi"},
		{"another port", "box", "agents", "", 22, "403 "},
		{"another namespace", "box", "teams", "", port, "403 "},
		{"none", "boxes", "agents", "", port, "503 "},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+at.String()+"/execute", strings.NewReader("hi"))
		must.OK(t, err)
		for name, value := range map[string]string{
			"Authorization": "Bearer of-the-router", "X-Sandbox-ID": tt.sandbox, "X-Sandbox-Namespace": tt.namespace, "X-Sandbox-Port": fmt.Sprint(tt.port), "X-Sandbox-Pod-IP": tt.ip,
		} {
			r.Header.Set(name, value)
		}
		resp, err := http.DefaultClient.Do(r)
		must.OK(t, err)
		body, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if got := fmt.Sprintf("%d %s", resp.StatusCode, body); !strings.HasPrefix(got, tt.want) {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
	if second.seen.Load() == nil {
		t.Error("the sandbox got nothing")
	}
}
