package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"sallyport/sandbox"
)

// Attach vouches for packets from the endpoint's interface with its MAC and IP address. It
// can be repeated; with another Link, the generation moves to that. An earlier endpoint of
// the interface is detached. An IP or MAC address of another live endpoint is an error.
func (d *Datapath) Attach(e sandbox.Endpoint) error {
	mac, err := d.check(e)
	if err != nil {
		return fmt.Errorf("attaching sandbox %q: %w", e.Sandbox, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	port, err := d.port(e.Link)
	if err != nil {
		return fmt.Errorf("attaching sandbox %q: %w", e.Sandbox, err)
	}
	if err := d.supersede(e, mac); err != nil {
		return fmt.Errorf("attaching sandbox %q: %w", e.Sandbox, err)
	}
	if err := d.install(e, mac, port); err != nil {
		return errors.Join(fmt.Errorf("attaching sandbox %q: %w", e.Sandbox, err), d.detach(e.Generation))
	}
	return nil
}

// Detach undoes Attach. An unknown generation is no error: its interface may be gone.
func (d *Datapath) Detach(generation uint32) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.detach(generation); err != nil {
		return fmt.Errorf("detaching generation %d: %w", generation, err)
	}
	return nil
}

// Endpoints lists the endpoints of interfaces that exist, those of earlier processes
// included, in no order.
func (d *Datapath) Endpoints() ([]sandbox.Endpoint, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all, err := d.endpoints()
	if err != nil {
		return nil, err
	}
	var attached []sandbox.Endpoint
	for _, e := range all {
		if d.live(e) {
			attached = append(attached, e)
		}
	}
	return attached, nil
}

// check refuses an endpoint without an address of its own, or with the host's.
func (d *Datapath) check(e sandbox.Endpoint) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(e.MAC)
	subnet := d.config.Subnet
	var v guardEndpoint
	switch {
	case e.Generation == 0:
		return nil, errors.New("generation 0 means no endpoint")
	case e.Link <= 0:
		return nil, errors.New("it has no interface on this host: is it running?")
	case err != nil:
		return nil, err
	case len(mac) != 6 || mac[0]&1 != 0 || bytes.Equal(mac, make([]byte, 6)) || bytes.Equal(mac, d.mac):
		return nil, fmt.Errorf("MAC address %s cannot be a sandbox's", e.MAC)
	case !subnet.Contains(e.Address) || e.Address == subnet.Addr() || e.Address == d.config.Gateway() || !subnet.Contains(e.Address.Next()):
		return nil, fmt.Errorf("address %s is not one for a sandbox in %s", e.Address, subnet)
	case e.Sandbox == "" || len(e.Sandbox) > len(v.Sandbox):
		return nil, fmt.Errorf("its name must have 1 to %d bytes", len(v.Sandbox))
	case len(e.ID) > len(v.Id):
		return nil, fmt.Errorf("its ID %q must have at most %d bytes", e.ID, len(v.Id))
	}
	return mac, nil
}

// port finds the interface and checks that it is a port of the bridge.
func (d *Datapath) port(ifindex int) (netlink.Link, error) {
	port, err := netlink.LinkByIndex(ifindex)
	if err != nil {
		return nil, fmt.Errorf("finding interface %d: %w", ifindex, err)
	}
	if port.Attrs().MasterIndex != d.bridge {
		return nil, fmt.Errorf("interface %s is not a port of bridge %s", port.Attrs().Name, d.config.Bridge)
	}
	return port, nil
}

// supersede detaches the endpoints that e replaces: of the same generation or interface,
// and of interfaces that are gone among those with its addresses.
func (d *Datapath) supersede(e sandbox.Endpoint, mac net.HardwareAddr) error {
	e.MAC = mac.String()
	all, err := d.endpoints()
	if err != nil {
		return err
	}
	for _, old := range all {
		switch {
		case old == e && d.live(old):
			continue
		case old.Generation == e.Generation, old.Link == e.Link:
		case old.Address != e.Address && old.MAC != e.MAC:
			continue
		case d.live(old):
			return fmt.Errorf("%s or %s belongs to sandbox %q, generation %d: detach it first", e.Address, e.MAC, old.Sandbox, old.Generation)
		}
		if err := d.detach(old.Generation); err != nil {
			return err
		}
	}
	return nil
}

// install guards the port, and writes the endpoint last.
func (d *Datapath) install(e sandbox.Endpoint, mac net.HardwareAddr, port netlink.Link) error {
	if err := d.guard(port); err != nil {
		return err
	}
	for _, n := range d.neighbours(e.Link, e.Address, mac) {
		if err := netlink.NeighSet(n); err != nil {
			return fmt.Errorf("making its address permanent: %w", err)
		}
	}
	var v guardEndpoint
	v.Face.Link, v.Face.Address = uint32(e.Link), wire(e.Address)
	copy(v.Face.Mac.Addr[:], mac)
	if e.Offline {
		v.Face.Offline = 1
	}
	copy(v.Sandbox[:], e.Sandbox)
	copy(v.Id[:], e.ID)
	if err := d.putProbePorts(e.Generation, e.ProbePorts); err != nil {
		return err
	}
	if err := d.objs.Endpoints.Put(e.Generation, v); err != nil {
		return fmt.Errorf("writing the endpoint: %w", err)
	}
	if err := d.objs.Ports.Put(uint32(e.Link), e.Generation); err != nil {
		return fmt.Errorf("writing the port: %w", err)
	}
	return d.bringNear(e.Generation, v)
}

// putProbePorts replaces the ports of a generation, which may have some that an end of the
// process in between has left.
func (d *Datapath) putProbePorts(generation uint32, ports sandbox.ProbePorts) error {
	var err error
	if ports == (sandbox.ProbePorts{}) {
		if err = d.objs.ProbePorts.Delete(generation); errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
	} else {
		var v guardProbes
		for i, p := range ports {
			v.Port[i] = wirePort(p)
		}
		err = d.objs.ProbePorts.Put(generation, v)
	}
	if err != nil {
		return fmt.Errorf("writing the probe ports: %w", err)
	}
	return nil
}

func (d *Datapath) probePorts(generation uint32) (ports sandbox.ProbePorts) {
	var v guardProbes
	if d.objs.ProbePorts.Lookup(generation, &v) == nil { // else it has none
		for i, p := range v.Port {
			ports[i] = unwirePort(p)
		}
	}
	return ports
}

// detach removes the endpoint. The programs stay on the port and refuse all packets.
func (d *Datapath) detach(generation uint32) error {
	var v guardEndpoint
	if err := d.objs.Endpoints.Lookup(generation, &v); errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("reading the endpoint: %w", err)
	}
	if err := d.takeAway(generation, v.Face.Link); err != nil {
		return err
	}
	if err := d.putProbePorts(generation, sandbox.ProbePorts{}); err != nil {
		return err
	}
	if err := d.objs.Endpoints.Delete(generation); err != nil {
		return fmt.Errorf("deleting the endpoint: %w", err)
	}
	var errs []error
	// The interface may have a later generation by now.
	var speaks uint32
	if err := d.objs.Ports.Lookup(v.Face.Link, &speaks); err == nil && speaks == generation {
		errs = append(errs, d.objs.Ports.Delete(v.Face.Link))
	}
	for _, n := range d.neighbours(int(v.Face.Link), unwire(v.Face.Address), v.Face.Mac.Addr[:]) {
		if err := netlink.NeighDel(n); err != nil && !missing(err) {
			errs = append(errs, fmt.Errorf("forgetting its address: %w", err))
		}
	}
	return errors.Join(errs...)
}

// sweep removes endpoints and pinned links whose interface is gone.
func (d *Datapath) sweep() error {
	all, err := d.endpoints()
	if err != nil {
		return err
	}
	for _, e := range all {
		if d.live(e) {
			continue
		}
		d.config.Logger.Info("forgetting an endpoint whose interface is gone", "sandbox", e.Sandbox, "generation", e.Generation)
		if err := d.detach(e.Generation); err != nil {
			return err
		}
	}
	pins, err := listPins(d.config.Pins)
	if err != nil {
		return err
	}
	for _, p := range pins {
		if live(p.path, p.link) {
			continue
		}
		if err := os.Remove(p.path); err != nil {
			return fmt.Errorf("forgetting %s: %w", p.path, err)
		}
	}
	return nil
}

// live reports whether the endpoint is of the interface that was attached.
func (d *Datapath) live(e sandbox.Endpoint) bool {
	var generation uint32
	if err := d.objs.Ports.Lookup(uint32(e.Link), &generation); err != nil || generation != e.Generation {
		return false
	}
	return d.guarded(e.Link)
}

func (d *Datapath) endpoints() ([]sandbox.Endpoint, error) {
	var (
		all        []sandbox.Endpoint
		generation uint32
		v          guardEndpoint
	)
	entries := d.objs.Endpoints.Iterate()
	for entries.Next(&generation, &v) {
		all = append(all, sandbox.Endpoint{
			Link:       int(v.Face.Link),
			Sandbox:    text(v.Sandbox[:]),
			ID:         text(v.Id[:]),
			Generation: generation,
			Address:    unwire(v.Face.Address),
			MAC:        net.HardwareAddr(v.Face.Mac.Addr[:]).String(),
			Offline:    v.Face.Offline != 0,
			ProbePorts: d.probePorts(generation),
		})
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("listing endpoints: %w", err)
	}
	return all, nil
}

func text(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// wire is the address as the kernel holds it: four bytes in network order.
func wire(a netip.Addr) uint32 {
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

func unwire(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.NativeEndian.AppendUint32(nil, n)))
}

// wirePort is the port as the kernel holds it, in network order.
func wirePort(p uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, p))
}

func unwirePort(p uint16) uint16 {
	return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, p))
}
