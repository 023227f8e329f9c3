package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"sallyport/internal/containerd"
	"sallyport/internal/durable"
)

// Names of what install writes.
const (
	program  = "sallyport-cni"
	conflist = "10-sallyport.conflist"
)

// install copies this program and writes the conflist. Each file is replaced as a whole, so
// that it can run while pods come and go; a file that is as it should be is left alone.
func install(args []string) error {
	f := flag.NewFlagSet("sallyport-cni install", flag.ExitOnError)
	bin := f.String("bin", "/opt/cni/bin", "containerd's bin_dir of CNI plugins, where bridge and host-local are too")
	conf := f.String("conf", "/etc/cni/sallyport.d", "cni_conf_dir of containerd's runtime handler for Sallyport's RuntimeClass, and of no other")
	containerdConfig := f.String("containerd", "", "containerd's config.toml: nothing is installed unless the handler in it uses -conf. Default: it is not read")
	bridge := f.String("bridge", "sallyport0", "network.bridge of the daemon")
	subnet := f.String("subnet", "10.231.0.0/16", "network.subnet of the daemon, the same on all nodes")
	part := f.String("range", "", "the part of -subnet for this node's pods, as 10.231.16.0/20. Default: all of it; then pods of two nodes may have one address, which means something on their node alone")
	socket := f.String("socket", defaultSocket, "the daemon's socket, in its runDir on the host")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *containerdConfig != "" {
		if err := containerd.Check(*containerdConfig, *conf); err != nil {
			return err
		}
	}
	list, err := chain(*bridge, *subnet, *part, *socket)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	own, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	// The chain comes last: until then containerd knows no network for the class.
	if err := replace(filepath.Join(*bin, program), own, 0o755); err != nil {
		return err
	}
	return replace(filepath.Join(*conf, conflist), list, 0o644)
}

func replace(path string, data []byte, mode os.FileMode) error {
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return durable.WriteFile(path, data, mode)
}

// chain is the conflist: bridge and host-local give the pod an interface and an address,
// and sallyport-cni has the daemon vouch for them.
func chain(bridge, subnet, part, socket string) ([]byte, error) {
	whole, err := netip.ParsePrefix(subnet)
	if err != nil || !whole.Addr().Is4() || whole != whole.Masked() {
		return nil, fmt.Errorf("-subnet %q is not an IPv4 prefix as 10.231.0.0/16", subnet)
	}
	// The first address is the gateway's, and the next is kept free: see network.subnet.
	gateway := whole.Addr().Next()
	addresses := map[string]string{"subnet": whole.String(), "gateway": gateway.String(), "rangeStart": gateway.Next().Next().String()}
	if part != "" {
		p, err := netip.ParsePrefix(part)
		if err != nil || p != p.Masked() || !whole.Contains(p.Addr()) || p.Bits() < whole.Bits() || p.Bits() > 29 {
			return nil, fmt.Errorf("-range %q is not a part of %s with 8 addresses or more", part, whole)
		}
		if p.Addr() != whole.Addr() {
			addresses["rangeStart"] = p.Addr().Next().String()
		}
		addresses["rangeEnd"] = last(p).Prev().String()
	}
	return json.MarshalIndent(map[string]any{
		"cniVersion": "1.1.0", "name": "sallyport",
		"plugins": []any{
			map[string]any{
				"type": "bridge", "bridge": bridge, "isGateway": false, "ipMasq": false, "hairpinMode": false,
				"ipam": map[string]any{
					"type": "host-local", "ranges": []any{[]any{addresses}}, "routes": []any{map[string]any{"dst": "0.0.0.0/0", "gw": gateway.String()}},
				},
			},
			map[string]any{"type": program, "socket": socket},
		},
	}, "", "  ")
}

// last is the last address of an IPv4 prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(b)
}
