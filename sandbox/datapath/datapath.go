package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// Config names the sandboxes' bridge and network.
type Config struct {
	// Bridge is the device's name, at most 15 bytes. It is made when missing.
	Bridge string
	// Subnet is the sandboxes' IPv4 network; its first address is the gateway's.
	Subnet netip.Prefix
	// Pins is the folder on a bpffs that holds programs and maps.
	// Default: /sys/fs/bpf/sallyport/BRIDGE.
	Pins string
	// Logger gets operational messages. Default: none.
	Logger *slog.Logger
}

// Gateway is the host's address in the subnet.
func (c Config) Gateway() netip.Addr { return c.Subnet.Masked().Addr().Next() }

func (c Config) complete() (Config, error) {
	if c.Bridge == "" || len(c.Bridge) > 15 {
		return c, fmt.Errorf("bridge name %q: want 1 to 15 bytes", c.Bridge)
	}
	if c.Bridge == "." || c.Bridge == ".." || strings.ContainsAny(c.Bridge, "/: \t\r\n") {
		return c, fmt.Errorf("bridge name %q: want one that an interface can have", c.Bridge)
	}
	if !c.Subnet.IsValid() || !c.Subnet.Addr().Is4() || c.Subnet.Bits() > 29 {
		return c, fmt.Errorf("sandbox subnet %q: want an IPv4 prefix of at most 29 bits", c.Subnet)
	}
	c.Subnet = c.Subnet.Masked()
	c.Pins = cmp.Or(c.Pins, filepath.Join(bpffs, "sallyport", c.Bridge))
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Datapath is the guard of one bridge. It implements manager.Network and is
// safe for concurrent use.
type Datapath struct {
	config Config
	bridge int // interface index
	mac    net.HardwareAddr

	watching sync.WaitGroup
	stop     func() // ends the watch

	mu   sync.Mutex // guards what follows, endpoints, ports and their links
	objs guardObjects
}

// Open makes the bridge and its guard, or takes over those of an earlier process. The
// bridge has its default-deny program before it has an address. A takeover leaves no
// moment without a program.
func Open(config Config) (_ *Datapath, err error) {
	config, err = config.complete()
	if err != nil {
		return nil, err
	}
	bridge, err := findBridge(config.Bridge)
	if err != nil {
		return nil, err
	}
	if err := mountPins(config.Pins); err != nil {
		return nil, err
	}
	if err := filter(config); err != nil {
		return nil, err
	}
	if bridge == nil {
		if bridge, err = makeBridge(config.Bridge); err != nil {
			return nil, err
		}
	}
	d := &Datapath{config: config, bridge: bridge.Attrs().Index, mac: bridgeMAC(config.Bridge)}
	if err := d.load(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.objs.Close()
		}
	}()
	if err := d.takeOver(); err != nil {
		return nil, err
	}
	if err := attach(GuardPin(config.Pins, d.bridge), d.bridge, d.objs.BridgeIn, ebpf.AttachTCXIngress); err != nil {
		return nil, fmt.Errorf("guarding bridge %s: %w", config.Bridge, err)
	}
	if err := raise(config, bridge); err != nil {
		return nil, err
	}
	if err := route(config); err != nil {
		return nil, err
	}
	if err := d.watch(); err != nil {
		return nil, err
	}
	return d, nil
}

// load loads the programs of this build over the pinned maps.
func (d *Datapath) load() error {
	spec, err := loadGuard()
	if err != nil {
		return fmt.Errorf("reading the eBPF object: %w", err)
	}
	c := guardConfig{
		Gateway: wire(d.config.Gateway()),
		Subnet:  wire(d.config.Subnet.Addr()),
		Mask:    wire(netip.AddrFrom4([4]byte(net.CIDRMask(d.config.Subnet.Bits(), 32)))),
		Mark:    routeMark,
		Opening: openMark,
		Link:    uint32(d.bridge),
	}
	copy(c.Bridge.Addr[:], d.mac)
	if err := spec.Variables["cfg"].Set(c); err != nil {
		return fmt.Errorf("configuring the eBPF programs: %w", err)
	}
	err = spec.LoadAndAssign(&d.objs, &ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: d.config.Pins}})
	switch {
	case errors.Is(err, ebpf.ErrMapIncompatible):
		return fmt.Errorf("the maps in %s are another version's; stop its sandboxes and remove the datapath first: %w", d.config.Pins, err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("this kernel cannot run the guard, Linux 6.6 or newer is needed: %w", err)
	case err != nil:
		return fmt.Errorf("loading the eBPF programs: %w", err)
	}
	return nil
}

// takeOver puts this build's programs into the links of an earlier process, and removes
// links whose interface is gone.
func (d *Datapath) takeOver() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.align(); err != nil {
		return err
	}
	pins, err := listPins(d.config.Pins)
	if err != nil {
		return err
	}
	for _, p := range pins {
		program := d.objs.PortIn
		switch p.hook {
		case hookBridge:
			program = d.objs.BridgeIn
		case hookOut:
			program = d.objs.PortOut
		}
		if err := replace(p.path, p.link, program); err != nil && !errors.Is(err, errGone) {
			return fmt.Errorf("taking over %s: %w", p.path, err)
		}
	}
	return d.sweep()
}

// Close closes the datapath. All that is pinned stays and drops packets; once the
// listener's socket is closed, its packets too.
func (d *Datapath) Close() error {
	if d.stop != nil {
		d.stop()
	}
	d.watching.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.objs.Close()
}

// attach pins a link of the program at the interface, ahead of other programs. A link that
// is pinned already gets the program.
func attach(pin string, ifindex int, program *ebpf.Program, hook ebpf.AttachType) error {
	err := replace(pin, ifindex, program)
	if err == nil {
		return nil
	}
	if errors.Is(err, errGone) {
		err = os.Remove(pin)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: program, Attach: hook, Anchor: link.Head()})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return fmt.Errorf("this kernel has no tcx links, Linux 6.6 or newer is needed: %w", err)
	}
	if err != nil {
		return fmt.Errorf("attaching to interface %d: %w", ifindex, err)
	}
	defer l.Close()
	return l.Pin(pin)
}

// Remove undoes all that Open did on the host, and removes the bridge. It refuses while
// the bridge has ports: without the bridge, their packets would reach the host's network
// stack.
func Remove(config Config) error {
	config, err := config.complete()
	if err != nil {
		return err
	}
	bridge, err := findBridge(config.Bridge)
	if err != nil {
		return err
	}
	if bridge != nil {
		links, err := netlink.LinkList()
		if err != nil {
			return fmt.Errorf("listing interfaces: %w", err)
		}
		for _, l := range links {
			if l.Attrs().MasterIndex == bridge.Attrs().Index {
				return fmt.Errorf("bridge %s still has port %s: stop its sandboxes first", config.Bridge, l.Attrs().Name)
			}
		}
		if err := netlink.LinkDel(bridge); err != nil {
			return fmt.Errorf("deleting bridge %s: %w", config.Bridge, err)
		}
	}
	return errors.Join(unroute(config), unfilter(config), os.RemoveAll(config.Pins))
}
