package testnet

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	maxFrames = 65536 // kept; beyond it they are counted
	snap      = 256   // bytes kept of each
)

// Capture sees every frame that arrives at a device, whatever its addresses,
// before the network stack there does (packet(7)). Frames that the device sends are not in
// it.
type Capture struct {
	filter  func(Frame) bool
	dropped func() (uint64, error) // frames that the cable lost; nil: there is no cable
	before  uint64                 // of them at the start
	stop    chan struct{}
	done    chan struct{}

	mu     sync.Mutex
	fd     int
	frames []Frame
	count  int
	lost   int
	err    error
}

// Capture counts the arriving frames that filter wants; nil wants all. It ends
// with the host.
func (h *Host) Capture(filter func(Frame) bool) (*Capture, error) {
	c := &Capture{filter: filter, dropped: h.dropped}
	if err := h.Do(func() error { return c.open(device) }); err != nil {
		return nil, fmt.Errorf("capturing on test host %s: %w", h.cfg.Name, err)
	}
	var err error
	if c.before, err = h.dropped(); err != nil {
		unix.Close(c.fd)
		return nil, err
	}
	go c.run()
	h.onClose(c.close)
	return c, nil
}

// CaptureBridge counts the frames that filter wants of those that arrive at any port of a
// bridge in the caller's network. It ends with the test.
func CaptureBridge(t testing.TB, bridge string, filter func(Frame) bool) *Capture {
	t.Helper()
	c := &Capture{filter: filter}
	if err := c.open(bridge); err != nil {
		t.Fatalf("capturing on %s: %v", bridge, err)
	}
	go c.run()
	t.Cleanup(c.close)
	return c
}

// open makes the socket, in the network of the calling thread.
func (c *Capture) open(device string) error {
	all := uint16(unix.ETH_P_ALL)<<8 | uint16(unix.ETH_P_ALL)>>8 // network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	c.fd, c.stop, c.done = fd, make(chan struct{}), make(chan struct{})
	index, err := net.InterfaceByName(device)
	if err == nil {
		// A burst must not be lost before it is read: the count is a proof.
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	}
	if err == nil {
		// Promiscuous: a frame for another's MAC arrives too. A bridge passes up what it forwards.
		err = unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
			&unix.PacketMreq{Ifindex: int32(index.Index), Type: unix.PACKET_MR_PROMISC})
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index.Index})
	}
	if err != nil {
		unix.Close(fd)
	}
	return err
}

func (c *Capture) run() {
	defer close(c.done)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-c.stop:
			return
		case <-tick.C:
			c.mu.Lock()
			c.drain()
			c.mu.Unlock()
		}
	}
}

func (c *Capture) close() {
	close(c.stop)
	<-c.done
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drain()
	unix.Close(c.fd)
	c.fd = -1
}

// drain reads what the kernel holds. The caller holds mu.
func (c *Capture) drain() {
	if c.fd < 0 {
		return
	}
	var buf [snap]byte
	for {
		n, _, err := unix.Recvfrom(c.fd, buf[:], 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			stats, err := unix.GetsockoptTpacketStats(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
			if err != nil {
				c.err = err
				return
			}
			c.lost += int(stats.Drops)
			return
		case err != nil:
			c.err = err
			return
		}
		f := parse(bytes.Clone(buf[:n]))
		if c.filter != nil && !c.filter(f) {
			continue
		}
		c.count++
		if len(c.frames) < maxFrames {
			c.frames = append(c.frames, f)
		}
	}
}

// Seen lists what has arrived until now, the first 65,536 frames of it.
func (c *Capture) Seen() []Frame {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drain()
	return append([]Frame(nil), c.frames...)
}

// Count is how many frames have arrived. The error says why the count is not
// to be trusted: frames were lost or the socket failed.
func (c *Capture) Count() (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drain()
	if c.lost > 0 {
		return c.count, fmt.Errorf("the kernel had no room for %d frames", c.lost)
	}
	if c.err != nil || c.fd < 0 {
		return c.count, c.err
	}
	if c.dropped == nil {
		return c.count, nil
	}
	if now, err := c.dropped(); err != nil || now > c.before {
		return c.count, errors.Join(err, fmt.Errorf("the cable dropped %d frames", now-c.before))
	}
	return c.count, nil
}

// dropped is how many frames were sent to the host and lost on the cable: a
// veth queues them on a CPU's backlog (net.core.netdev_max_backlog).
func (h *Host) dropped() (uint64, error) {
	l, err := netlink.LinkByName(h.link)
	if err != nil {
		return 0, err
	}
	s := l.Attrs().Statistics
	if s == nil {
		return 0, fmt.Errorf("device %s has no statistics", h.link)
	}
	return s.TxDropped, nil
}
