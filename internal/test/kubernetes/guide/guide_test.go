//go:build kubernetes

package guide

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sallyport/internal/test/doctest"
	"sallyport/internal/test/kubernetes"
	"sallyport/internal/test/kubernetes/kubeapi"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

var update = flag.Bool("update", false, "write what the commands of the document print into it")

func TestMain(m *testing.M) {
	if err := testnet.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

const (
	root     = "../../../.."
	document = root + "/docs/kubernetes.md"
	upstream = "198.51.100.10"
	// secret is what the document puts into the cluster.
	secret = "not-in-any-sandbox"
)

// reader does what the document says: commands for nodes on the node, all others beside the
// cluster, in a folder that has the examples.
type reader struct {
	t        *testing.T
	c        *kubernetes.ControlPlane
	api      *kubeapi.Client
	node     *kubernetes.Node
	dir      string
	env      []string
	programs string // folders, as PATH has them
	failed   bool   // then nothing more is run
}

// Write puts a file in place. The rule gets the way to the test's own upstream.
func (r *reader) Write(file, text string) error {
	text = strings.Replace(text, "authRef: example\n", "authRef: example\n  upstream: {addresses: ["+upstream+"], resolver: \""+upstream+":53\", roots: /credentials/upstream.pem}\n", 1)
	return os.WriteFile(filepath.Join(r.dir, file), []byte(text), 0o644)
}

func (r *reader) Run(command string) (shown string, err error) {
	if r.failed {
		return "", errors.New("not run")
	}
	defer func() {
		r.failed = err != nil || r.failed
		r.t.Logf("$ %s\n%s", command, shown)
	}()
	ctx, cancel := context.WithTimeout(r.t.Context(), 8*time.Minute)
	defer cancel()
	switch {
	case strings.HasPrefix(command, "ctr "), strings.HasPrefix(command, "install "):
		command, restarts := strings.CutSuffix(command, " && systemctl restart containerd")
		out, err := r.node.Exec(ctx, "sh", "-c", "cd "+r.dir+" && PATH="+r.programs+":$PATH && "+command)
		if err == nil && restarts {
			err = r.node.RestartContainerd()
		}
		return out, err
	case strings.HasPrefix(command, "make "):
		command = "cd " + root + " && " + command + " && cp bin/sallyport-image.tar " + r.dir
	default:
		command = "cd " + r.dir + " && " + strings.Replace(command, "--from-literal=", "--from-file=upstream.pem --from-literal=", 1)
	}
	c := exec.CommandContext(ctx, "bash", "-c", "set -o pipefail; "+command)
	c.Env = r.env
	out, err := c.CombinedOutput()
	if strings.HasPrefix(command, "cd "+r.dir+" && kubectl run other") && err != nil {
		err = nil // it is refused, and says so
	}
	return string(out), err
}

func TestGuide(t *testing.T) {
	c := kubernetes.Start(t)
	forwardService(t)
	n := c.Node(t, "worker-1")
	build, err := exec.Command(root + "/internal/setup/kubernetes/build.sh").Output()
	must.OK(t, err)
	r := &reader{t: t, c: c, node: n, dir: t.TempDir(), programs: strings.TrimSpace(string(build))}
	config, err := c.Kubeconfig("admin", "system:masters")
	must.OK(t, err)
	r.api, err = kubeapi.Open(config)
	must.OK(t, err)
	t.Cleanup(r.api.Close)
	bin := t.TempDir()
	folder, _, _ := strings.Cut(r.programs, ":")
	must.OK(t, os.Symlink(filepath.Join(folder, "kubernetes"), filepath.Join(bin, "kubectl")))
	r.env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "KUBECONFIG="+config)
	for from, to := range map[string]string{"examples": "examples", "examples/kubernetes/containerd/10-sallyport.toml": "10-sallyport.toml"} {
		abs, err := filepath.Abs(filepath.Join(root, from))
		must.OK(t, err)
		must.OK(t, os.Symlink(abs, filepath.Join(r.dir, to)))
	}
	must.OK(t, os.WriteFile(filepath.Join(r.dir, "upstream.pem"), serve(t), 0o644))
	base, err := filepath.EvalSymlinks(root + "/bin/base.tar")
	must.OK(t, err)
	n.Import(t, "registry.example.com/agent:1", base)

	t.Cleanup(func() {
		if t.Failed() {
			for _, args := range [][]string{{"get", "pods", "-A", "-o", "wide"}, {"-n", "sallyport", "describe", "pods"}, {"describe", "pod", "box"},
				{"-n", "sallyport", "logs", "ds/sallyport", "-c", "install"}, {"-n", "sallyport", "logs", "ds/sallyport"},
				{"-n", "sallyport", "logs", "ds/sallyport", "--previous"}} {
				out, err := c.Kubectl(context.Background(), "", args...)
				t.Logf("%v %v\n%s", args, err, out)
			}
		}
	})
	text, err := os.ReadFile(document)
	must.OK(t, err)
	faults, mended, ran := doctest.Follow(string(text), r)
	for _, fault := range faults {
		if !errors.Is(fault, doctest.ErrUnused) { // other files are for readers to copy from
			t.Error(fault)
		}
	}
	if ran < 13 {
		t.Errorf("%d commands", ran)
	}
	if *update && mended != string(text) {
		must.OK(t, os.WriteFile(document, []byte(mended), 0o644))
	}
	if r.failed {
		return
	}
	t.Run("Upgrade", r.upgrade)
	t.Run("Rotation", r.rotation)
	t.Run("Vault", r.vault)
	t.Run("AgentSandbox", r.agentSandbox)
}

// kubectl runs kubectl, and ends the test if it fails.
func (r *reader) kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := r.c.Kubectl(t.Context(), "", args...)
	must.OK(t, err)
	return out
}

// nudge has the kubelet look at pods' volumes again, as it does when a pod changes, and else
// within about a minute.
func (r *reader) nudge(t *testing.T, args ...string) {
	t.Helper()
	r.kubectl(t, append(args, "annotate", "--overwrite", "pods", "--all", "seen="+time.Now().Format("150405.000000"))...)
}

// served waits until a pod's request gets the credential.
func (r *reader) served(t *testing.T, pod string) {
	t.Helper()
	must.Soon(t, pod+" to be served", func() bool {
		out, err := r.c.Kubectl(t.Context(), "", "exec", pod, "--", "curl", "-sS", "--max-time", "10", "https://api.example.com/")
		return err == nil && strings.Contains(out, `"saw_key":true`)
	})
}

// upgrade replaces the daemon's pod while a sandbox runs. The next daemon has other
// containers, and takes the sandbox over from what is on the node.
func (r *reader) upgrade(t *testing.T) {
	before := r.kubectl(t, "get", "pod", "box", "-o", "jsonpath={.status.containerStatuses[0].containerID} {.status.podIP}")
	r.kubectl(t, "-n", "sallyport", "rollout", "restart", "ds/sallyport")
	r.kubectl(t, "-n", "sallyport", "rollout", "status", "ds/sallyport", "--timeout=3m")
	r.served(t, "box")
	if after := r.kubectl(t, "get", "pod", "box", "-o", "jsonpath={.status.containerStatuses[0].containerID} {.status.podIP}"); after != before {
		t.Errorf("the sandbox is another one: %s, before %s", after, before)
	}
	records := r.kubectl(t, "-n", "sallyport", "exec", "ds/sallyport", "--", "sallyport", "audit", "tail")
	if n := strings.Count(records, "sallyport started"); n != 2 {
		t.Errorf("the audit has %d starts of a daemon, want 2:\n%s", n, records)
	}
}

// rotation follows "To replace the root": the sandbox that runs trusts both, then the new one.
func (r *reader) rotation(t *testing.T) {
	roots := func() int {
		return strings.Count(r.kubectl(t, "exec", "box", "--", "cat", "/etc/sallyport/ca.crt"), "BEGIN CERTIFICATE")
	}
	if n := roots(); n != 1 {
		t.Fatalf("%d roots to begin with", n)
	}
	first, err := os.ReadFile(filepath.Join(r.dir, "ca/root.pem"))
	must.OK(t, err)
	// A second authority, as ca.sh makes one.
	out, err := exec.Command(filepath.Join(root, "examples/kubernetes/ca.sh"), filepath.Join(r.dir, "new")).Output()
	must.OK(t, err)
	second, err := os.ReadFile(filepath.Join(r.dir, "new/root.pem"))
	must.OK(t, err)
	_, issuer, _ := strings.Cut(string(out), "\n---\n")
	bundle := func(roots ...[]byte) {
		t.Helper()
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"trustBundle": string(bytes.Join(roots, nil))}})
		must.OK(t, err)
		r.kubectl(t, "patch", "clustertrustbundle", "sallyport", "--type=merge", "-p", string(patch))
	}
	bundle(first, second)
	must.Soon(t, "both roots in the sandbox", func() bool { r.nudge(t); return roots() == 2 })
	r.served(t, "box")
	// The chain that the sandbox is shown ends in the node's intermediate.
	intermediate := func() string {
		chain := r.kubectl(t, "exec", "box", "--", "sh", "-c", "echo | openssl s_client -connect api.example.com:443 -servername api.example.com -showcerts 2>/dev/null; true")
		from, to := strings.LastIndex(chain, "-----BEGIN CERTIFICATE-----\n"), strings.LastIndex(chain, "-----END CERTIFICATE-----")
		if from < 0 || to < from {
			return ""
		}
		return chain[from:to]
	}
	is := strings.ReplaceAll(issuer, "    ", "")
	if shown := intermediate(); shown == "" || strings.Contains(is, shown) {
		t.Fatalf("before the node has the new intermediate, the chain ends in %q", shown)
	}
	must.OK(t, r.c.Apply(t.Context(), issuer))
	must.Soon(t, "the new intermediate on the node", func() bool {
		r.nudge(t, "-n", "sallyport")
		shown := intermediate()
		return shown != "" && strings.Contains(is, shown)
	})
	r.served(t, "box")
	bundle(second)
	must.Soon(t, "the new root alone in the sandbox", func() bool { r.nudge(t); return roots() == 1 })
	r.served(t, "box")
}

// serve starts the upstream, which answers to the secret alone, and returns its authority.
func serve(t *testing.T) []byte {
	t.Helper()
	host := testnet.NewHost(t, testnet.Config{Name: "upstream", Address: netip.MustParsePrefix(upstream + "/24")})
	ca, err := testnet.NewCA()
	must.OK(t, err)
	_, err = host.DNS(map[string][]netip.Addr{"api.example.com": {netip.MustParseAddr(upstream)}})
	must.OK(t, err)
	_, err = host.HTTPS(ca, 443, testnet.API(testnet.KeyOf(secret)), "api.example.com")
	must.OK(t, err)
	return ca.PEM()
}

// forwardService does for one service what kube-proxy does: the API server's address, by which
// pods find it.
func forwardService(t *testing.T) {
	t.Helper()
	l, err := netlink.LinkByName("switch")
	must.OK(t, err)
	addr, err := netlink.ParseAddr("10.96.0.1/32")
	must.OK(t, err)
	must.OK(t, netlink.AddrAdd(l, addr))
	listener, err := net.Listen("tcp", "10.96.0.1:443")
	must.OK(t, err)
	forward(t, listener, "192.0.2.1:6443")
}

// forward carries a listener's connections to another address, until the test ends.
func forward(t *testing.T, listener net.Listener, address string) {
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer from.Close()
				to, err := net.Dial("tcp", address)
				if err != nil {
					return
				}
				defer to.Close()
				go func() {
					defer to.Close()
					io.Copy(to, from)
				}()
				io.Copy(from, to)
			}()
		}
	}()
}
