package config

import (
	"fmt"
	"net/netip"
)

// Inbound is the listener for requests to exposed ports of sandboxes.
type Inbound struct {
	// Listen is host:port of a loopback address: exposed ports are reached by names
	// below localhost, from this host alone. Default: none, and nothing can be
	// exposed.
	// Example: 127.0.0.1:7080
	Listen string `yaml:"listen"`
}

func (v *validator) inbound(in Inbound, engine string) {
	if in.Listen == "" {
		return
	}
	host, ok := v.listen("inbound.listen", in.Listen)
	if !ok {
		return
	}
	if addr, err := netip.ParseAddr(host); err != nil || !addr.IsLoopback() {
		v.fail("inbound.listen", fmt.Sprintf("%s can be reached from elsewhere, where tokens would pass in the clear", in.Listen), "write 127.0.0.1:7080, and put a proxy with TLS before it where others need it")
	}
	if engine == "none" {
		v.fail("inbound.listen", "is of no use without sandboxes here (engine.kind: none)", "remove it")
	}
}
