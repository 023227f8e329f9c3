package upstream

import (
	"fmt"
	"net/netip"
)

// Permit checks an address that the daemon itself is about to connect to, host:port: it
// may if the configuration names the address, or if it is public and public is set.
func Permit(address string, named []netip.Prefix, public bool) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	ip := at.Addr().Unmap().WithZone("")
	for _, p := range named {
		if p.Contains(ip) {
			return nil
		}
	}
	class := Classify(ip)
	if class == Public && public {
		return nil
	}
	return fmt.Errorf("%s is a %v address that the configuration does not name: write it under addresses, if it is meant", ip, class)
}
