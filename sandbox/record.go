package sandbox

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"sallyport/audit"
	"sallyport/internal/durable"
)

// recordFile lies in the sandbox's folder, beside its memory.
const recordFile = "record.json"

// record is what survives the daemon: everything about a sandbox that cannot
// be asked of the runtime.
type record struct {
	Name       string     `json:"name"`
	ID         string     `json:"id"`
	Spec       Spec       `json:"spec"`
	Address    netip.Addr `json:"address"`
	MAC        string     `json:"mac"`
	Created    time.Time  `json:"created"`
	Session    string     `json:"session,omitempty"`    // of the run whose end has not been seen yet
	Generation uint32     `json:"generation,omitempty"` // of its last endpoint
	// Ready is false from before the container is asked for until it exists,
	// so that a crash in between is found and cleaned up.
	Ready bool `json:"ready"`
	// Made says of one that is not ready that its creation may be on record.
	Made bool `json:"made,omitempty"`
	// Next is the spec of the next session, where it is another one.
	Next *Spec `json:"next,omitempty"`
	// Reason is why the sandbox cannot run, or empty.
	Reason string `json:"reason,omitempty"`
	// Sleep is what has become of the session: see sleep.go.
	Sleep string    `json:"sleep,omitempty"`
	Slept time.Time `json:"slept,omitzero"`
	// Dozed says of one that is hibernating that it was paused before.
	Dozed bool `json:"dozed,omitempty"`
	// Untold is the event of the last change: see tell.go.
	Untold *audit.Event `json:"untold,omitempty"`
	// Flows are the connections that it sleeps with.
	Flows []Flow `json:"flows,omitempty"`
	// Began is when the container of the memory that is written was started: one
	// that was started later has been awake since.
	Began time.Time `json:"began,omitzero"`
	Wakes int       `json:"wakes,omitempty"` // that have failed
	// Boot is that of the host (random(4): boot_id) in which it wakes: of what began
	// in another nobody can tell.
	Boot string `json:"boot,omitempty"`
	// Lost is why the last session's memory is gone.
	Lost string `json:"lost,omitempty"`
	// Held is why the last session was ended to keep room for the host, or empty.
	Held string `json:"held,omitempty"`
	// Agent is the key of the agent in the session's memory, once it has been met.
	Agent []byte `json:"agent,omitempty"`
	// Lineage is of a fork.
	Lineage *Lineage `json:"lineage,omitempty"`
	// ImageID and ImageDigest are as Info has them.
	ImageID     string `json:"imageID,omitempty"`
	ImageDigest string `json:"imageDigest,omitempty"`
	// Restoring is the snapshot that its disk is being made of: until that is done
	// it cannot run.
	Restoring string `json:"restoring,omitempty"`
	// Aside is the snapshot that its disk becomes before.
	Aside string `json:"aside,omitempty"`
}

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// CheckName refuses what cannot be a sandbox name: it is a DNS label, because
// it is a folder, a container and a host name too.
func CheckName(name string) error {
	if !nameForm.MatchString(name) {
		return fmt.Errorf("%w: %q: use 1 to 63 lower-case letters, digits and hyphens, beginning and ending with a letter or digit", ErrBadName, name)
	}
	return nil
}

func readRecord(dir string) (record, error) {
	var r record
	data, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("reading %s: %w", filepath.Join(dir, recordFile), err)
	}
	return r, nil
}

func (r record) write(dir string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return durable.WriteFile(filepath.Join(dir, recordFile), append(data, '\n'), 0o600)
}

// counters hands out what is never given twice: a generation for each endpoint
// and, until the subnet has been used up once, an address for each sandbox.
type counters struct {
	path string

	Generation uint32 `json:"generation"`
	Address    uint32 `json:"address"` // offset into the subnet of the last one given
}

// firstHost is the offset of the first address that a sandbox can have: 0 is
// the network, 1 the gateway, 2 is kept free.
const firstHost = 3

func readCounters(path string) (counters, error) {
	c := counters{path: path, Address: firstHost - 1}
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

func (c *counters) write() error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return durable.WriteFile(c.path, append(data, '\n'), 0o600)
}

// nextGeneration is durable before it is used, so that a crash skips numbers
// and never repeats one.
func (c *counters) nextGeneration() (uint32, error) {
	c.Generation++
	return c.Generation, c.write()
}

// nextAddress gives the first address after the last one given that used does
// not hold, so that a freed address rests as long as the subnet allows.
func (c *counters) nextAddress(subnet netip.Prefix, used func(netip.Addr) bool) (netip.Addr, error) {
	size := uint32(1) << (32 - subnet.Bits())
	for range size {
		c.Address++
		if c.Address >= size-1 { // the last one is the broadcast address
			c.Address = firstHost
		}
		if a := offset(subnet, c.Address); !used(a) {
			return a, c.write()
		}
	}
	return netip.Addr{}, fmt.Errorf("%w %s: remove a sandbox or choose a larger network.subnet", ErrNoAddress, subnet)
}

func offset(subnet netip.Prefix, n uint32) netip.Addr {
	b := subnet.Masked().Addr().As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+n)
	return netip.AddrFrom4(b)
}

// hardwareAddress is locally administered and tells the IP address, so that
// two sandboxes never share one. It is what Docker gives that address: before
// API 1.44 an engine can give no other on a network of the user's.
func hardwareAddress(a netip.Addr) string {
	b := a.As4()
	return fmt.Sprintf("02:42:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}
