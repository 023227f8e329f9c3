package kubernetes

import (
	"bufio"
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"sallyport/internal/test/must"
)

const (
	uplink     = "eth0" // a node's device at the switch
	containerd = "containerd"
	kubelet    = "kubelet"
)

// Node is a machine of the cluster, with containerd and a kubelet.
type Node struct {
	machine
	c      *ControlPlane
	number int
	pid1   *exec.Cmd
	config string // of the kubelet's client
}

// Node adds a node with this name, and waits until it is ready. It lasts as long as the test.
func (c *ControlPlane) Node(t testing.TB, name string) *Node {
	t.Helper()
	c.nodes++
	n := &Node{c: c, number: c.nodes}
	n.name, n.disk = name, filepath.Join(filepath.Dir(c.disk), name)
	t.Cleanup(func() {
		if t.Failed() {
			n.showLogs(t)
		}
		must.OK(t, n.PowerCut())
	})
	must.OK(t, n.install())
	must.OK(t, n.PowerUp())
	must.OK(t, n.importImage(Image, c.base))
	ctx, cancel := context.WithTimeout(context.Background(), ready)
	defer cancel()
	must.OK(t, n.Ready(ctx))
	return n
}

// Name is the name of the node.
func (n *Node) Name() string { return n.name }

// Addr is the node's address at the switch.
func (n *Node) Addr() netip.Addr { return n.prefix().Addr() }

// MAC is the node's at the switch.
func (n *Node) MAC() net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 2, byte(n.number)} }

func (n *Node) port() string { return fmt.Sprintf("port%d", n.number) }

func (n *Node) prefix() netip.Prefix {
	a := router.Addr().As4()
	a[3] = byte(10 + n.number)
	return netip.PrefixFrom(netip.AddrFrom4(a), router.Bits())
}

// File is where the node's file of this path is on the machine, below /etc, /opt or /var.
func (n *Node) File(path string) string {
	for _, dir := range own {
		if rest, ok := strings.CutPrefix(path, "/"+dir); ok {
			return filepath.Join(n.disk, "own", dir, rest)
		}
	}
	return filepath.Join(n.disk, path)
}

// Write writes a file of the node, below /etc, /opt or /var, before it is switched on or while it is.
func (n *Node) Write(path, text string) error {
	if n.pid1 != nil {
		// Files written below a mounted overlay are not seen for sure.
		_, err := n.exec(context.Background(), text, []string{"sh", "-c", `mkdir -p "${0%/*}" && cat >"$0"`, path})
		return err
	}
	file := n.File(path)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), 0o644)
}

// install writes what is on the node's disk from the beginning.
func (n *Node) install() error {
	pair, err := n.c.certify(n.name, pkix.Name{CommonName: n.name}, n.name, n.Addr().String())
	if err != nil {
		return err
	}
	if n.config, err = n.c.Kubeconfig("system:node:"+n.name, "system:nodes"); err != nil {
		return err
	}
	group := n.c.group + "/" + n.name
	if err := makeGroup(group); err != nil {
		return err
	}
	for path, text := range map[string]string{
		"/etc/hosts":                            "127.0.0.1 localhost\n" + n.Addr().String() + " " + n.name + "\n",
		"/etc/resolv.conf":                      "",
		"/etc/containerd/config.toml":           fmt.Sprintf(containerdConfig, Image),
		"/etc/containerd/conf.d/sallyport.toml": handlerConfig,
		"/etc/cni/net.d/pods.conflist":          fmt.Sprintf(podsNetwork, n.number),
		"/etc/kubelet.yaml":                     fmt.Sprintf(kubeletConfig, n.c.path("ca.crt"), pair, pair, group),
	} {
		if err := n.Write(path, text); err != nil {
			return err
		}
	}
	for _, plugin := range []string{"bridge", "host-local", "loopback"} {
		file := n.File("/opt/cni/bin/" + plugin)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.Symlink(n.c.program(plugin), file)); err != nil {
			return err
		}
	}
	return nil
}

// PowerUp switches the node on and starts containerd and the kubelet.
func (n *Node) PowerUp() error {
	if err := n.on(n.boot); err != nil {
		return err
	}
	if err := n.startContainerd(); err != nil {
		return err
	}
	return n.StartKubelet()
}

// startContainerd waits until containerd answers: a kubelet ends where it does not.
func (n *Node) startContainerd() error {
	// Shims and their runtimes are found by PATH.
	path := "PATH=" + n.c.programs + ":" + filepath.Dir(n.c.runsc) + ":" + os.Getenv("PATH") + ":/usr/sbin:/sbin"
	if err := n.StartDaemon(containerd, "env", path, n.c.program(containerd)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), ready)
	defer cancel()
	return poll(ctx, "containerd", func() error {
		_, err := n.Exec(ctx, n.c.program("ctr"), "version")
		return errors.Join(err, n.ended())
	})
}

// RestartContainerd ends containerd and starts it again. Its containers go on.
func (n *Node) RestartContainerd() error {
	return errors.Join(n.KillDaemon(containerd), n.startContainerd())
}

// StartKubelet starts the kubelet, which PowerUp has done already.
func (n *Node) StartKubelet() error {
	path := "PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin"
	return n.StartDaemon(kubelet, "env", path, n.c.program(kubelet), "--config=/etc/kubelet.yaml", "--kubeconfig="+n.config,
		"--hostname-override="+n.name, "--node-ip="+n.Addr().String(), "--v=2")
}

// PowerCut ends all processes at once and unplugs the node. Its disk stays.
func (n *Node) PowerCut() error {
	if n.pid1 == nil {
		return nil
	}
	n.pid1.Process.Kill()
	// The kernel keeps PID 1 until the others are reaped.
	err := n.off()
	n.pid1.Wait()
	n.pid1 = nil
	// The kernel takes its time with the devices of a namespace that is gone.
	if port, found := netlink.LinkByName(n.port()); found == nil {
		err = errors.Join(err, netlink.LinkDel(port))
	}
	return err
}

// Ready waits until the API server says that the node is.
func (n *Node) Ready(ctx context.Context) error {
	return poll(ctx, "node "+n.name, func() error {
		if err := n.ended(); err != nil {
			return err
		}
		_, err := n.c.Kubectl(ctx, "", "wait", "--for=condition=Ready", "--timeout=30s", "node/"+n.name)
		return err
	})
}

// boot starts PID 1 and moves the calling thread into its namespaces.
func (n *Node) boot() (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	const namespaces = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC
	cmd := exec.Command(self)
	cmd.Args = []string{initName, n.name, n.disk}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces, Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	}()
	if line, err := bufio.NewReader(out).ReadString('\n'); line != booted+"\n" {
		return fmt.Errorf("PID 1 says %q: %w", line, err)
	}
	if err := n.plugIn(cmd.Process.Pid); err != nil {
		return err
	}
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// A thread that shares its working directory with others cannot enter mounts.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	n.pid1 = cmd
	return unix.Setns(fd, namespaces)
}

// plugIn connects the node with the switch.
func (n *Node) plugIn(pid int) error {
	sw, err := netlink.LinkByName(switchName)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = n.port(), sw.Attrs().Index
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerHardwareAddr, veth.PeerNamespace = uplink, n.MAC(), netlink.NsPid(pid)
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("plugging it in: %w", err)
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		return err
	}
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return err
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	up, err := h.LinkByName(uplink)
	if err != nil {
		return err
	}
	return errors.Join(h.LinkSetUp(lo), h.LinkSetUp(up),
		h.AddrAdd(up, &netlink.Addr{IPNet: ipNet(n.prefix())}),
		h.RouteAdd(&netlink.Route{LinkIndex: up.Attrs().Index, Gw: router.Addr().AsSlice()}))
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
