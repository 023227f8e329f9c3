//go:build kubernetes

package kubernetes

import (
	"bufio"
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// sandboxNetwork is a chain without Sallyport's plugin, and a bridge that nobody guards.
const sandboxNetwork = `{"cniVersion": "1.0.0", "name": "sallyport", "plugins": [
  {"type": "bridge", "bridge": "sallyport0", "isGateway": true, "ipam": {
    "type": "host-local", "ranges": [[{"subnet": "10.231.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}}
]}`

const runtimeClass = `{apiVersion: node.k8s.io/v1, kind: RuntimeClass, metadata: {name: sallyport}, handler: sallyport}`

// pod is one of this runtime class, "" for the default one, that runs a shell's script.
func pod(name, class, script string) string {
	if class != "" {
		class = "runtimeClassName: " + class
	}
	return strings.NewReplacer("NAME", name, "CLASS", class, "IMAGE", Image, "SCRIPT", script).Replace(`
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  CLASS
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: IMAGE, imagePullPolicy: Never, command: [sh, -c, "SCRIPT"]}
`)
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestCluster(t *testing.T) {
	ctx := limited(t)
	begun := time.Now()
	since := func(what string) {
		t.Logf("%s: %s", what, time.Since(begun).Round(100*time.Millisecond))
		begun = time.Now()
	}
	c := Start(t)
	since("control plane ready")
	n := c.Node(t, "n1")
	since("node ready")
	kubectl := func(args ...string) string {
		t.Helper()
		out, err := c.Kubectl(ctx, "", args...)
		must.OK(t, err)
		return strings.TrimSpace(out)
	}
	running := func(names ...string) {
		t.Helper()
		kubectl(append([]string{"wait", "--for=condition=Ready", "--timeout=3m"}, names...)...)
	}
	must.OK(t, n.Write("/etc/cni/sallyport.d/sallyport.conflist", sandboxNetwork))
	must.OK(t, c.Apply(ctx, runtimeClass))

	// A packet to no host of the test is seen at the switch, and goes nowhere.
	nobody := netip.MustParseAddr("203.0.113.9")
	seen := c.Sniff(t, func(f testnet.Frame) bool { return f.To.Addr() == nobody })
	const flood = "while :; do echo x >/dev/udp/203.0.113.9/9; sleep 0.1; done"
	must.OK(t, c.Apply(ctx, pod("guarded", "sallyport", "sleep infinity")))
	must.OK(t, c.Apply(ctx, pod("plain", "", "exec bash -c '"+flood+"'")))
	running("pod/guarded", "pod/plain")
	since("two pods ready")

	if out := kubectl("exec", "guarded", "--", "dmesg"); !strings.Contains(out, "gVisor") {
		t.Errorf("the pod of the RuntimeClass is not in gVisor: %s", out)
	}
	if ip := kubectl("get", "pod", "guarded", "-o", "jsonpath={.status.podIP}"); !strings.HasPrefix(ip, "10.231.") {
		t.Errorf("its address %s is not of the handler's network", ip)
	}
	if ip := kubectl("get", "pod", "plain", "-o", "jsonpath={.status.podIP}"); !strings.HasPrefix(ip, "10.244.1.") {
		t.Errorf("the address %s of a pod of no class is not of the node's default network", ip)
	}
	must.Soon(t, "packets of a pod that nothing guards", func() bool {
		return len(seen.Seen()) > 0
	})
	if f := seen.Seen()[0]; f.Source.String() != n.MAC().String() {
		t.Errorf("the sniffer saw %s, and not from the node", f)
	}

	// Pods go on without the API server.
	must.OK(t, c.StopAPIServer())
	before := len(seen.Seen())
	must.Soon(t, "packets of a pod without the API server", func() bool { return len(seen.Seen()) > before })
	must.OK(t, c.StartAPIServer())
	begun = time.Now()

	// A power cut ends everything on the node but its disk.
	_, err := n.Exec(ctx, "sh", "-c", "echo kept >/var/lib/kept; echo lost >/run/lost; touch /sys/fs/bpf; ip link show sallyport0")
	must.OK(t, err)
	must.OK(t, n.PowerCut())
	since("power cut")
	if _, err := n.Exec(ctx, "true"); err == nil {
		t.Error("a command ran on a node that is off")
	}
	must.OK(t, n.PowerUp())
	out, err := n.Exec(ctx, "sh", "-c", "cat /var/lib/kept; ls /run/lost; ip link show sallyport0; pgrep sleep; true")
	must.OK(t, err)
	if strings.TrimSpace(out) != "kept" {
		t.Errorf("after a power cut the node has %q", out)
	}
	must.Soon(t, "the pods to run again", func() bool {
		out, err := c.Kubectl(ctx, "", "exec", "guarded", "--", "echo", "again")
		return err == nil && out == "again\n"
	})
	since("served again after power up")
}

// The process that runs a cluster is killed; nothing of it is left.
func TestNothingIsLeft(t *testing.T) {
	const role = "SALLYPORT_TEST_KILLED"
	ctx := limited(t)
	if os.Getenv(role) != "" {
		c := Start(t)
		n := c.Node(t, "killed")
		must.OK(t, c.Apply(ctx, pod("plain", "", "sleep infinity")))
		_, err := c.Kubectl(ctx, "", "wait", "--for=condition=Ready", "--timeout=3m", "pod/plain")
		must.OK(t, err)
		os.Stdout.WriteString("\nready " + n.disk + "\n")
		<-ctx.Done()
		return
	}
	self, err := os.Executable()
	must.OK(t, err)
	cmd := exec.Command(self, "-test.run=^TestNothingIsLeft$", "-test.v")
	cmd.Env = append(os.Environ(), role+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	must.OK(t, err)
	must.OK(t, cmd.Start())
	var dir string
	lines := bufio.NewScanner(out)
	for dir == "" && lines.Scan() {
		if disk, ok := strings.CutPrefix(lines.Text(), "ready "); ok {
			dir = filepath.Dir(disk)
		} else {
			t.Log(lines.Text())
		}
	}
	must.OK(t, cmd.Process.Kill())
	cmd.Wait()
	if dir == "" {
		t.Fatal("the cluster to kill did not start")
	}
	must.Soon(t, "its processes to end", func() bool {
		return exec.Command("pgrep", "-f", dir).Run() != nil
	})
	mine, err := newFolder()
	must.OK(t, err)
	defer removeFolder(mine)
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s is left", dir)
	}
	roots, err := groupRoots()
	must.OK(t, err)
	for _, root := range roots {
		if _, err := os.Stat(filepath.Join(root, filepath.Base(dir))); err == nil {
			t.Errorf("cgroup %s is left in %s", filepath.Base(dir), root)
		}
	}
}
