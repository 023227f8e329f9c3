package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"sallyport/sandbox/datapath"
)

// pins is on the bpffs of this process's own mount namespace.
const pins = "/sys/fs/bpf/sallyport-bench"

// mode is a way to bring a sandbox's connections to the gateway's listener.
type mode struct {
	name string
	// rules of nftables, with the bridge, the listener's port and the mark of
	// the routing rule to fill in; none: our programs.
	rules string
}

// The two forms of Documentation/networking/tproxy.rst in the kernel's source:
// with its first rule, packets of open connections find their socket and go
// round the second one.
var modes = []mode{
	{"eBPF programs", ""},
	{"TPROXY rule", `table ip bench {
	chain prerouting {
		type filter hook prerouting priority mangle
		iifname %[1]q meta l4proto tcp tproxy to 127.0.0.1:%[2]d meta mark set %[3]d accept
	}
}`},
	{"TPROXY rule behind a socket rule", `table ip bench {
	chain prerouting {
		type filter hook prerouting priority mangle
		iifname %[1]q meta l4proto tcp socket transparent 1 meta mark set %[3]d accept
		iifname %[1]q meta l4proto tcp tproxy to 127.0.0.1:%[2]d meta mark set %[3]d accept
	}
}`},
}

// enter changes the mode. The bridge, its ports and their settings, the routes
// and the listener stay.
func (h *host) enter(m mode) error {
	if h.guard != nil {
		if err := errors.Join(h.guard.Close(), os.RemoveAll(pins)); err != nil {
			return err
		}
		h.guard = nil
		if err := h.bare(); err != nil {
			return err
		}
	}
	if err := nft("flush ruleset"); err != nil { // of this network namespace
		return err
	}
	if m.rules != "" {
		mark, err := h.mark()
		if err != nil {
			return err
		}
		return nft(fmt.Sprintf(m.rules, h.config.Bridge, h.sink.port(), mark))
	}
	var err error
	if h.guard, err = datapath.Open(h.config); err != nil {
		return err
	}
	for _, b := range h.boxes {
		if err := h.guard.Attach(b.end); err != nil {
			return err
		}
	}
	return h.guard.Steer(h.sink.listener)
}

// bare waits until no program is on the bridge and its ports: the kernel takes
// them away some time after their pins have gone.
func (h *host) bare() error {
	bridge, err := netlink.LinkByName(h.config.Bridge)
	if err != nil {
		return err
	}
	links := []int{bridge.Attrs().Index}
	for _, b := range h.boxes {
		links = append(links, b.end.Link)
	}
	deadline := time.Now().Add(5 * time.Second)
	for _, ifindex := range links {
		for _, hook := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			for {
				left, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: hook})
				if err != nil {
					return err
				}
				if len(left.Programs) == 0 {
					break
				}
				if time.Now().After(deadline) {
					return fmt.Errorf("interface %d keeps its programs", ifindex)
				}
				time.Sleep(time.Millisecond)
			}
		}
	}
	return nil
}

// mark is what the datapath's routing rule asks for; it serves TPROXY too.
func (h *host) mark() (uint32, error) {
	rules, err := netlink.RuleList(netlink.FAMILY_V4)
	if err != nil {
		return 0, err
	}
	for _, r := range rules {
		if r.IifName == h.config.Bridge {
			return r.Mark, nil
		}
	}
	return 0, fmt.Errorf("no routing rule for %s", h.config.Bridge)
}

func nft(commands string) error {
	c := exec.Command("nft", "-f", "-")
	c.Stdin = strings.NewReader(commands)
	out, err := c.CombinedOutput()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return errors.New("nft is not here: apt-get install nftables")
	case err != nil:
		return fmt.Errorf("nft (its kernel needs CONFIG_NFT_TPROXY and CONFIG_NFT_SOCKET): %w: %s", err, out)
	}
	return nil
}
