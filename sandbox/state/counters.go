package state

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"sallyport/internal/durable"
	"sallyport/sandbox"
)

// Counters hand out numbers that are never given twice: a generation for each endpoint
// and, until the subnet has been used up once, an address for each sandbox.
type Counters struct {
	path string

	Generation uint32 `json:"generation"`
	Address    uint32 `json:"address"` // offset into the subnet of the last one given
}

// ReadCounters reads the counters from a file; without the file they are new. It removes what
// a crash has left of a write: of the counters, and of records in the folders beside them.
func ReadCounters(path string) (Counters, error) {
	c := Counters{path: path, Address: firstHost - 1}
	dir := filepath.Dir(path)
	if err := errors.Join(durable.RemoveUnfinished(dir), durable.RemoveUnfinished(filepath.Join(dir, "*"))); err != nil {
		return c, err
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("reading %s: %w", path, err)
	}
	return c, nil
}

func (c *Counters) save() error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return durable.WriteFile(c.path, append(data, '\n'), 0o600)
}

// NextGeneration returns a generation that is durable already, so that a crash skips
// numbers and never repeats one.
func (c *Counters) NextGeneration() (uint32, error) {
	c.Generation++
	return c.Generation, c.save()
}

// NextAddress returns the first address after the last one given that is not used, so
// that a freed address rests as long as the subnet allows. The error is
// sandbox.ErrNoAddress.
func (c *Counters) NextAddress(subnet netip.Prefix, used func(netip.Addr) bool) (netip.Addr, error) {
	size := uint32(1) << (32 - subnet.Bits())
	for range size {
		c.Address++
		if c.Address >= size-1 { // the last one is the broadcast address
			c.Address = firstHost
		}
		if a := AddressAt(subnet, c.Address); !used(a) {
			return a, c.save()
		}
	}
	return netip.Addr{}, fmt.Errorf("%w %s: remove a sandbox or choose a larger network.subnet", sandbox.ErrNoAddress, subnet)
}

// firstHost is the offset of the first address that a sandbox can have: 0 is
// the network, 1 the gateway, 2 is kept free.
const firstHost = 3

// AddressAt is the nth address of a subnet; the first is 0.
func AddressAt(subnet netip.Prefix, n uint32) netip.Addr {
	b := subnet.Masked().Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+n)
	return netip.AddrFrom4(b)
}

// HardwareAddress is the locally administered MAC address that Docker derives from an IP
// address, so that no two sandboxes share one. Before API 1.44 an engine can give no
// other on a network of the user's.
func HardwareAddress(a netip.Addr) string {
	b := a.As4()
	return fmt.Sprintf("02:42:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}
