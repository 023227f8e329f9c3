//go:build kubernetes

package nodes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"sallyport/internal/test/must"
)

const (
	routerName  = "sallyport-router.sallyport.svc"
	agentsToken = "agents-0123456789abcdefghijklmnopq"
	teamsToken  = "teams-0123456789abcdefghijklmnopqr"
)

// routerFiles are those of pods.router, the same on each node.
func (r *rig) routerFiles() map[string]string {
	r.t.Helper()
	read := func(file string) string {
		text, err := os.ReadFile(filepath.Join(r.router, file))
		must.OK(r.t, err)
		return string(text)
	}
	if r.router == "" {
		r.router = r.t.TempDir()
		out, err := exec.Command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=sallyport-router",
			"-addext", "subjectAltName=DNS:"+routerName, "-keyout", filepath.Join(r.router, "tls.key"), "-out", filepath.Join(r.router, "tls.crt")).CombinedOutput()
		if err != nil {
			r.t.Fatalf("%v: %s", err, out)
		}
	}
	return map[string]string{"tls.crt": read("tls.crt"), "tls.key": read("tls.key"), "agents": agentsToken, "teams": teamsToken}
}

// A request with the headers of agent-sandbox's SDKs, and one as its router sends to a proxy,
// reach a sandbox of the other node. Others are refused, and recorded where they are.
func testRouter(r *rig, n *node) {
	n3 := r.node("n3")
	r.pod("serves", "exec python3 -m http.server 8888", on("n3"))
	r.ready("serves")
	url := "https://x:TOKEN@" + routerName + ":7443/"
	headers := func(namespace, name string, port int) string {
		return fmt.Sprintf("-H 'X-Sandbox-ID: %s' -H 'X-Sandbox-Namespace: %s' -H 'X-Sandbox-Port: %d'", name, namespace, port)
	}
	ask := func(to *node, args string) string {
		out, _ := n.Exec(r.ctx, "sh", "-c", "curl -sS --max-time 20 -w '\\n%{http_code}' --cacert /etc/sallyport/router/tls.crt --resolve "+routerName+":7443:"+to.Addr().String()+" "+args)
		return out
	}
	for _, tt := range []struct{ what, args, want string }{
		{"an SDK's request", strings.Replace(url, "TOKEN", agentsToken, 1) + " " + headers("agents", "serves", 8888), "Directory listing"},
		{"the router's", "--proxy-cacert /etc/sallyport/router/tls.crt --proxy " + strings.Replace(url, "TOKEN", agentsToken, 1) + " http://serves.agents.svc.cluster.local:8888/", "Directory listing"},
		{"one without a token", strings.Replace(url, "x:TOKEN@", "", 1) + " " + headers("agents", "serves", 8888), "router-token"},
		{"one of another namespace's client", strings.Replace(url, "TOKEN", teamsToken, 1) + " " + headers("agents", "serves", 8888), "router-namespace"},
		{"one for a port of no rule", strings.Replace(url, "TOKEN", agentsToken, 1) + " " + headers("agents", "serves", 22), "no expose rule allows"},
		{"one for a pod that is none", strings.Replace(url, "TOKEN", agentsToken, 1) + " " + headers("agents", "nobody", 8888), "router-sandbox"},
	} {
		for _, to := range []*node{n, n3} {
			var out string
			must.Soon(r.t, tt.what+" to "+to.Name(), func() bool { out = ask(to, tt.args); return strings.Contains(out, tt.want) })
		}
	}
	n3.recorded(`"decision":"allow"`, `"agents/serves"`, `"agents-api"`, `"phase":"inbound"`, "serves.agents.svc")
	n3.recorded(`"decision":"deny"`, `"agents/serves"`, `"agents-api"`, "no expose rule allows")
	for _, to := range []*node{n, n3} {
		to.recorded("router-token", `"phase":"inbound"`)
		to.recorded("router-namespace", `"teams-api"`, "agents/serves")
		// Neither node's listener is a sandbox's to reach, nor with the token.
		out, err := r.inside("box", "curl -sSk -f --max-time 5 https://x:"+agentsToken+"@"+to.Addr().String()+":7443/ "+headers("agents", "serves", 8888))
		if err == nil {
			r.t.Errorf("a sandbox reaches the listener of %s: %s", to.Name(), out)
		}
		n.recorded(`"agents/box"`, to.Addr().String(), `"decision":"deny"`)
	}
	r.remove("serves")
	r.kubectl("cordon", "n3")
}
