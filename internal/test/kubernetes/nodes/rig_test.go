//go:build kubernetes

package nodes

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/env"
	"sallyport/internal/test/kubernetes"
	"sallyport/internal/test/kubernetes/kubeapi"
	"sallyport/internal/test/kubernetes/standin"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

const root = "../../../.."

// tools are the programs; TestMain builds them.
var tools *env.Programs

func TestMain(m *testing.M) {
	if err := testnet.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	if tools, err = env.Build("", root, root+"/cmd/sallyport-cni"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer tools.Remove()
	return m.Run()
}

const (
	upstreamAddress = "198.51.100.10"
	nobody          = "203.0.113.9" // no host has it: a packet to it is seen at the switch
	podSubnet       = "10.231.0.0/16"
)

// config is a daemon's, with the name of its node.
const config = `
engine: {kind: pods}
keyFile: /etc/sallyport/key/key
pods:
  node: %s
  cluster: test
  kubeconfig: /etc/sallyport/kubeconfig
  ca: {certificate: /etc/sallyport/ca/tls.crt, key: /etc/sallyport/ca/tls.key}
  router:
    listen: 0.0.0.0:7443
    certificate: router/tls.crt
    key: router/tls.key
    clients:
    - {name: agents-api, tokenFile: router/agents, namespaces: [agents]}
    - {name: teams-api, tokenFile: router/teams, namespaces: [teams]}
expose:
- {name: runtime, sandboxes: {tags: {sallyport.namespace: agents}}, ports: [8888]}
egressAuth:
- destination: api.example.test
  sandboxes: {tags: {sallyport.namespace: agents}}
  authRef: key
  upstream: {addresses: [198.51.100.10], roots: upstream.pem, resolver: "198.51.100.10:53"}
credentials:
- name: key
`

// rig is a cluster with the upstream.
type rig struct {
	*kubernetes.ControlPlane
	t         *testing.T
	ctx       context.Context
	key       string // the secret of the credential
	upstream  []byte // the upstream's authority
	authority string // the folder with the root that all nodes' intermediates are below
	router    string // folder of the nodes' certificate for a router's clients
	sandbox   *standin.Controller
	seen      *testnet.Capture // what pods have sent to the switch
}

func newRig(t *testing.T) *rig {
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	t.Cleanup(cancel)
	r := &rig{t: t, ctx: ctx, ControlPlane: kubernetes.Start(t), key: "sk-pods-" + rand.Text()}
	r.serve()
	manifests, err := os.ReadFile(root + "/examples/kubernetes/sallyport.yaml")
	must.OK(t, err)
	must.OK(t, r.Apply(ctx, string(manifests)))
	r.kubectl("-n", "sallyport", "delete", "daemonset", "sallyport")
	r.authority = t.TempDir()
	must.OK(t, r.Apply(ctx, `{apiVersion: v1, kind: Namespace, metadata: {name: agents}}`))
	must.Soon(t, "the namespace's service account", func() bool {
		_, err := r.Kubectl(ctx, "", "-n", "agents", "get", "serviceaccount", "default")
		return err == nil
	})
	admin, err := r.Kubeconfig("admin", "system:masters")
	must.OK(t, err)
	api, err := kubeapi.Open(admin)
	must.OK(t, err)
	t.Cleanup(api.Close)
	r.sandbox, err = standin.New(ctx, api, "agents")
	must.OK(t, err)
	return r
}

// intermediate has the cluster's root sign another intermediate, in the Secret sallyport-ca.
// Its certificate and key are for one node.
func (r *rig) intermediate() (certificate, key string) {
	r.t.Helper()
	objects, err := exec.Command(root+"/examples/kubernetes/ca.sh", r.authority).Output()
	must.OK(r.t, err)
	must.OK(r.t, r.Apply(r.ctx, string(objects)))
	secret := func(key string) string {
		raw, err := base64.StdEncoding.DecodeString(r.kubectl("-n", "sallyport", "get", "secret", "sallyport-ca", "-o", `jsonpath={.data.`+key+`}`))
		must.OK(r.t, err)
		return string(raw)
	}
	return secret(`tls\.crt`), secret(`tls\.key`)
}

// strange frames are a pod's, whose address a node may have changed on the way.
func (r *rig) strange(f testnet.Frame) bool {
	return f.To.Addr() == netip.MustParseAddr(nobody) || netip.MustParsePrefix(podSubnet).Contains(f.From.Addr())
}

// serve starts the upstream.
func (r *rig) serve() {
	host := testnet.NewHost(r.t, testnet.Config{Name: "upstream", Address: netip.MustParsePrefix(upstreamAddress + "/24")})
	ca, err := testnet.NewCA()
	must.OK(r.t, err)
	_, err = host.DNS(map[string][]netip.Addr{"api.example.test": {host.Addr()}, "vault.example.test": {host.Addr()}})
	must.OK(r.t, err)
	_, err = host.HTTPS(ca, 443, testnet.API(testnet.KeyOf(r.key)), "api.example.test", "vault.example.test")
	must.OK(r.t, err)
	r.upstream = ca.PEM()
}

func (r *rig) kubectl(args ...string) string {
	r.t.Helper()
	out, err := r.Kubectl(r.ctx, "", args...)
	must.OK(r.t, err)
	return strings.TrimSpace(out)
}

// node is one with a daemon.
type node struct {
	*kubernetes.Node
	r *rig
}

// node adds a node, installs the plugin and starts the daemon.
func (r *rig) node(name string) *node {
	r.t.Helper()
	n := &node{Node: r.Node(r.t, name), r: r}
	r.kubectl("label", "node", name, "sallyport.dev/node=")
	certificate, key := r.intermediate()
	for path, text := range map[string]string{
		"sallyport.yaml": fmt.Sprintf(config, name), "upstream.pem": string(r.upstream),
		"ca/tls.crt": certificate, "ca/tls.key": key, "kubeconfig": r.daemonAccess(name),
	} {
		must.OK(r.t, n.Write("/etc/sallyport/"+path, text))
	}
	for file, text := range r.routerFiles() {
		must.OK(r.t, n.Write("/etc/sallyport/router/"+file, text))
	}
	n.must("sh", "-c", "chmod 600 /etc/sallyport/ca/tls.key /etc/sallyport/kubeconfig /etc/sallyport/router/*")
	n.installPlugin()
	n.startDaemon()
	n.feed(r.key, "secret", "set", "key")
	return n
}

// daemonAccess is a kubeconfig of the daemon's service account, whose token is bound to the node
// as that of a pod on it is.
func (r *rig) daemonAccess(node string) string {
	uid := r.kubectl("get", "node", node, "-o", "jsonpath={.metadata.uid}")
	token := r.kubectl("-n", "sallyport", "create", "token", "sallyport", "--bound-object-kind=Node", "--bound-object-name="+node, "--bound-object-uid="+uid)
	text, err := r.Kubeconfig("daemon")
	must.OK(r.t, err)
	raw, err := os.ReadFile(text)
	must.OK(r.t, err)
	before, _, _ := strings.Cut(string(raw), "users:")
	_, after, _ := strings.Cut(string(raw), "contexts:")
	return before + "users: [{name: user, user: {token: " + token + "}}]\ncontexts:" + after
}

func (n *node) must(words ...string) string {
	n.r.t.Helper()
	out, err := n.Exec(n.r.ctx, words...)
	must.OK(n.r.t, err)
	return out
}

func (n *node) installPlugin() {
	n.r.t.Helper()
	n.must(filepath.Join(tools.Dir, "sallyport-cni"), "install")
}

const daemon = "sallyport"

// startDaemon starts the daemon and waits until it answers.
func (n *node) startDaemon() {
	n.r.t.Helper()
	must.OK(n.r.t, n.StartDaemon(daemon, "env", "SALLYPORT_CONFIG=/etc/sallyport/sallyport.yaml", filepath.Join(tools.Dir, "sallyport"), "up"))
	must.Soon(n.r.t, "the daemon of "+n.Name(), func() bool {
		_, err := n.sallyport("status")
		return err == nil
	})
}

func (n *node) sallyport(args ...string) (string, error) {
	return n.Exec(n.r.ctx, append([]string{"env", "SALLYPORT_CONFIG=/etc/sallyport/sallyport.yaml", filepath.Join(tools.Dir, "sallyport")}, args...)...)
}

func (n *node) feed(stdin string, args ...string) {
	n.r.t.Helper()
	script := `printf %s "$0" | SALLYPORT_CONFIG=/etc/sallyport/sallyport.yaml "$@"`
	n.must(append([]string{"sh", "-c", script, stdin, filepath.Join(tools.Dir, "sallyport")}, args...)...)
}

// idOf is the ID of the sandbox that a pod is.
func (n *node) idOf(pod string) string {
	n.r.t.Helper()
	out, err := n.sallyport("sandbox", "ls", "-o", "json")
	must.OK(n.r.t, err)
	var list []struct{ Name, ID string }
	must.OK(n.r.t, json.Unmarshal([]byte(out), &list))
	for _, s := range list {
		if s.Name == "agents/"+pod {
			return s.ID
		}
	}
	n.r.t.Fatalf("no agents/%s in %s", pod, out)
	return ""
}

// recorded waits until the daemon's audit shows all of these words in one line.
func (n *node) recorded(words ...string) {
	n.r.t.Helper()
	var out string
	defer func() {
		if n.r.t.Failed() {
			n.r.t.Log(out)
		}
	}()
	must.Soon(n.r.t, "an audit record of "+strings.Join(words, ", "), func() bool {
		out, _ = n.sallyport("audit", "query", "-o", "ndjson")
	lines:
		for line := range strings.Lines(out) {
			for _, word := range words {
				if !strings.Contains(line, word) {
					continue lines
				}
			}
			return true
		}
		return false
	})
}

// pod is one of the RuntimeClass that runs a script of bash, with more of its spec.
func (r *rig) pod(name, script string, more ...string) {
	r.t.Helper()
	must.OK(r.t, r.Apply(r.ctx, podOf(name, script, more...)))
}

func podOf(name, script string, more ...string) string {
	return strings.NewReplacer("NAME", name, "IMAGE", kubernetes.Image, "SCRIPT", script, "MORE", strings.Join(more, "\n  ")).Replace(`
apiVersion: v1
kind: Pod
metadata: {name: NAME, namespace: agents}
spec:
  MORE
  runtimeClassName: sallyport
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: IMAGE, imagePullPolicy: Never, command: [bash, -c, "SCRIPT"]}
`)
}

func on(node string) string { return "nodeSelector: {kubernetes.io/hostname: " + node + "}" }

const sleeps = "sleep infinity"

// floods sends TCP and UDP from its first instruction, past the gateway.
const floods = "while :; do (echo x >/dev/udp/203.0.113.9/9) 2>/dev/null; (echo x >/dev/tcp/203.0.113.9/9) 2>/dev/null & sleep 0.05; done"

func (r *rig) ready(names ...string) {
	r.t.Helper()
	for _, name := range names {
		r.kubectl("-n", "agents", "wait", "--for=condition=Ready", "--timeout=2m", "pod/"+name)
	}
}

// refused waits until a pod has no network because of the plugin.
func (r *rig) refused(pod string) {
	r.t.Helper()
	must.Soon(r.t, "the plugin's refusal", func() bool {
		out, err := r.Kubectl(r.ctx, "", "-n", "agents", "get", "events", "-o", "jsonpath={.items[*].message}",
			"--field-selector=involvedObject.name="+pod+",reason=FailedCreatePodSandBox")
		return err == nil && strings.Contains(out, "sallyport-cni")
	})
}

func (r *rig) remove(names ...string) {
	r.t.Helper()
	r.kubectl(append([]string{"-n", "agents", "delete", "pod", "--force", "--ignore-not-found"}, names...)...)
}

// inside runs a script in a pod.
func (r *rig) inside(pod, script string) (string, error) {
	return r.Kubectl(r.ctx, "", "-n", "agents", "exec", pod, "--", "bash", "-c", script)
}

// ask sends a request from a pod, which sends a key of its own. It answers whether the
// upstream got the credential.
const ask = "curl -sS --max-time 10 -H 'Authorization: Bearer own' https://api.example.test/v1"

// served waits until a pod's request gets the credential.
func (r *rig) served(pod string) {
	r.t.Helper()
	var out string
	var err error
	defer func() {
		if r.t.Failed() {
			r.t.Logf("%s: %s %v", pod, out, err)
		}
	}()
	must.Soon(r.t, "a request of "+pod, func() bool {
		out, err = r.inside(pod, ask)
		return err == nil && strings.Contains(out, `"saw_key":true`)
	})
}

// shownBy is the node's intermediate, with which the chain ends that a pod is shown.
func (r *rig) shownBy(pod string) string {
	r.t.Helper()
	chain, err := r.inside(pod, "echo | openssl s_client -connect api.example.test:443 -servername api.example.test -showcerts 2>/dev/null; true")
	must.OK(r.t, err)
	from := strings.LastIndex(chain, "-----BEGIN CERTIFICATE-----")
	if from < 0 {
		r.t.Fatalf("%s is shown no chain: %s", pod, chain)
	}
	certificate, _, _ := strings.Cut(chain[from:], "-----END CERTIFICATE-----")
	return certificate
}

// silent fails if a pod's packet has been seen at the switch.
func (r *rig) silent(when string) {
	r.t.Helper()
	n, err := r.seen.Count()
	if err != nil || n > 0 {
		r.t.Errorf("%s: %d packets of pods left their node: %v %v", when, n, r.seen.Seen(), err)
	}
}
