package kubernetes

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

const (
	switchName = "switch"
	apiPort    = "6443"
	// ready is how long a part of the cluster may take until it serves.
	ready = 2 * time.Minute
)

// router is the address of the switch, of the API server, and the nodes' way out.
var router = netip.MustParsePrefix("192.0.2.1/24")

// ControlPlane is a cluster's.
type ControlPlane struct {
	machine
	parts
	ca    *testnet.CA
	group string // the cgroup that all of the nodes' are below
	nodes int
}

// Start starts a control plane that lasts as long as the test.
func Start(t testing.TB) *ControlPlane {
	t.Helper()
	testnet.Privileged(t)
	parts, err := made()
	if err != nil {
		t.Fatalf("what make test-kubernetes installs is missing: %v", err)
	}
	dir, err := newFolder()
	must.OK(t, err)
	c := &ControlPlane{parts: parts, group: filepath.Base(dir)}
	c.orphaned = syscall.SIGKILL
	c.name, c.disk = "control-plane", filepath.Join(dir, "control-plane")
	t.Cleanup(func() {
		if t.Failed() {
			c.showLogs(t)
		}
		must.OK(t, c.off())
		must.OK(t, removeFolder(dir))
	})
	must.OK(t, os.Mkdir(c.disk, 0o755))
	must.OK(t, c.makeSwitch())
	t.Cleanup(func() {
		if l, err := netlink.LinkByName(switchName); err == nil {
			must.OK(t, netlink.LinkDel(l))
		}
	})
	must.OK(t, c.on(func() error { return nil }))
	c.ca, err = testnet.NewCA()
	must.OK(t, err)
	must.OK(t, c.startAll())
	return c
}

// parts are what a cluster is made of.
type parts struct {
	programs    string // folders, as PATH has them
	runsc, base string // files
}

// made asks build.sh once.
var made = sync.OnceValues(func() (p parts, err error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return p, err
	}
	root := strings.TrimSpace(string(out))
	if p.runsc, err = filepath.EvalSymlinks(filepath.Join(root, "bin/runsc")); err != nil {
		return p, err
	}
	if p.base, err = filepath.EvalSymlinks(filepath.Join(root, "bin/base.tar")); err != nil {
		return p, err
	}
	cmd := exec.Command(filepath.Join(root, "internal/setup/kubernetes/build.sh"))
	cmd.Stderr = os.Stderr
	out, err = cmd.Output()
	p.programs = strings.TrimSpace(string(out))
	return p, err
})

// makeSwitch connects what is plugged in with the test's own network, and routes to its hosts.
func (c *ControlPlane) makeSwitch() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = switchName
	sw := &netlink.Bridge{LinkAttrs: attrs}
	if err := netlink.LinkAdd(sw); err != nil {
		return fmt.Errorf("making the switch (is the test in a network of its own, by testnet.Isolate?): %w", err)
	}
	if err := netlink.AddrAdd(sw, &netlink.Addr{IPNet: ipNet(router)}); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(sw); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644)
}

func (c *ControlPlane) startAll() error {
	server, err := c.certify("apiserver", pkix.Name{CommonName: "kube-apiserver", Organization: []string{"system:masters"}},
		router.Addr().String(), "127.0.0.1", "10.96.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	if err := writeKey(c.path("accounts.key"), key); err != nil {
		return err
	}
	if err := os.WriteFile(c.path("ca.crt"), c.ca.PEM(), 0o644); err != nil {
		return err
	}
	if _, err := c.Kubeconfig("admin", "system:masters"); err != nil {
		return err
	}
	err = c.StartDaemon("etcd", c.program("etcd"), "--data-dir="+c.path("etcd"), "--unsafe-no-fsync", "--log-level=error",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380", "--initial-cluster=default=http://127.0.0.1:2380")
	if err != nil {
		return err
	}
	if err := c.startAPIServer(server); err != nil {
		return err
	}
	for name, args := range map[string][]string{
		"kube-controller-manager": {"--service-account-private-key-file=" + c.path("accounts.key"), "--root-ca-file=" + c.path("ca.crt"), "--use-service-account-credentials", "--secure-port=10257"},
		"kube-scheduler":          {"--secure-port=10259"},
	} {
		config, err := c.Kubeconfig("system:" + name)
		if err != nil {
			return err
		}
		words := append([]string{c.program(name), "--kubeconfig=" + config, "--leader-elect=false", "--bind-address=127.0.0.1", "--cert-dir=" + c.path(name)}, args...)
		if err := c.StartDaemon(name, words...); err != nil {
			return err
		}
	}
	return nil
}

const apiServer = "kube-apiserver"

func (c *ControlPlane) startAPIServer(pair string) error {
	err := c.StartDaemon(apiServer, c.program(apiServer), "--etcd-servers=http://127.0.0.1:2379",
		"--advertise-address="+router.Addr().String(), "--secure-port="+apiPort, "--tls-cert-file="+pair+".crt", "--tls-private-key-file="+pair+".key",
		"--client-ca-file="+c.path("ca.crt"), "--kubelet-certificate-authority="+c.path("ca.crt"),
		"--kubelet-client-certificate="+pair+".crt", "--kubelet-client-key="+pair+".key",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+c.path("accounts.key"),
		"--service-account-signing-key-file="+c.path("accounts.key"), "--service-cluster-ip-range=10.96.0.0/16",
		"--kubelet-preferred-address-types=InternalIP", "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged=true")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), ready)
	defer cancel()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: c.ca.Pool()}}}
	return poll(ctx, "the API server", func() error {
		if err := c.ended(); err != nil {
			cancel()
			return err
		}
		res, err := client.Get("https://" + router.Addr().String() + ":" + apiPort + "/readyz") // for everybody to read
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != http.StatusOK {
			return errors.New(res.Status)
		}
		return nil
	})
}

// StopAPIServer ends the API server with SIGKILL.
func (c *ControlPlane) StopAPIServer() error { return c.KillDaemon(apiServer) }

// StartAPIServer starts the API server again and waits until it is ready.
func (c *ControlPlane) StartAPIServer() error { return c.startAPIServer(c.path("apiserver")) }

// Kubectl runs kubectl as the cluster's administrator and returns what it printed on stdout.
func (c *ControlPlane) Kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	words := append([]string{c.program("kubectl"), "--kubeconfig=" + c.path("admin.kubeconfig"), "--cache-dir=" + c.path("kubectl")}, args...)
	return c.exec(ctx, stdin, words)
}

// Apply creates or changes the objects of a document in YAML.
func (c *ControlPlane) Apply(ctx context.Context, document string) error {
	_, err := c.Kubectl(ctx, document, "apply", "--server-side", "-f", "-")
	return err
}

// Kubeconfig writes the configuration of a client with a certificate for this user of these
// groups, and returns its path.
func (c *ControlPlane) Kubeconfig(user string, groups ...string) (string, error) {
	name := strings.ReplaceAll(user, ":", "-")
	pair, err := c.certify(name, pkix.Name{CommonName: user, Organization: groups})
	if err != nil {
		return "", err
	}
	path := c.path(name + ".kubeconfig")
	return path, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "https://%s:%s", certificate-authority: %s}}]
users: [{name: user, user: {client-certificate: %s.crt, client-key: %s.key}}]
contexts: [{name: test, context: {cluster: test, user: user}}]
current-context: test
`, router.Addr(), apiPort, c.path("ca.crt"), pair, pair), 0o600)
}

// Sniff counts the frames that filter wants of those that nodes send to the switch.
func (c *ControlPlane) Sniff(t testing.TB, filter func(testnet.Frame) bool) *testnet.Capture {
	t.Helper()
	return testnet.CaptureBridge(t, switchName, filter)
}

func (c *ControlPlane) path(name string) string { return filepath.Join(c.disk, name) }

// program is the path of one of those that build.sh makes.
func (c *ControlPlane) program(name string) string {
	for _, dir := range filepath.SplitList(c.programs) {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	// The one program is another by each name.
	path := c.path("bin/" + name)
	dir, _, _ := strings.Cut(c.programs, ":")
	_ = os.Mkdir(filepath.Dir(path), 0o755)
	_ = os.Symlink(filepath.Join(dir, "kubernetes"), path)
	return path
}

// certify issues a certificate, and returns the path of it and its key but for the endings.
func (c *ControlPlane) certify(name string, subject pkix.Name, servers ...string) (string, error) {
	pair, err := c.ca.Issue(subject, servers...)
	if err != nil {
		return "", err
	}
	path := c.path(name)
	if err := writeKey(path+".key", pair.PrivateKey.(*ecdsa.PrivateKey)); err != nil {
		return "", err
	}
	return path, os.WriteFile(path+".crt", chain(pair), 0o644)
}

func chain(pair tls.Certificate) (text []byte) {
	for _, der := range pair.Certificate {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return text
}

// writeKey writes SEC 1's form: the API server reads the service accounts' public key from no
// other.
func writeKey(path string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}
