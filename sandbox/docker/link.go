package docker

import (
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// hostVeth returns the interface index of the host's end of the veth that joins
// the network namespace of process pid to the bridge. gVisor takes the address
// off the inner end but leaves the pair as it is.
func hostVeth(pid int, bridge string) (int, error) {
	br, err := netlink.LinkByName(bridge)
	if err != nil {
		return 0, fmt.Errorf("finding bridge %s: %w", bridge, err)
	}
	ns, err := netns.GetFromPath(filepath.Join("/proc", strconv.Itoa(pid), "ns/net"))
	if err != nil {
		return 0, fmt.Errorf("entering the network of process %d: %w", pid, err)
	}
	defer ns.Close()
	inner, err := netlink.NewHandleAt(ns)
	if err != nil {
		return 0, fmt.Errorf("entering the network of process %d: %w", pid, err)
	}
	defer inner.Close()
	links, err := inner.LinkList()
	if err != nil {
		return 0, fmt.Errorf("listing the interfaces of process %d: %w", pid, err)
	}
	for _, l := range links {
		if l.Type() != "veth" {
			continue
		}
		// A veth's parent is its peer, numbered as in the peer's namespace.
		outer, err := netlink.LinkByIndex(l.Attrs().ParentIndex)
		if err == nil && outer.Type() == "veth" && outer.Attrs().MasterIndex == br.Attrs().Index {
			return outer.Attrs().Index, nil
		}
	}
	return 0, fmt.Errorf("process %d has no interface on bridge %s", pid, bridge)
}
