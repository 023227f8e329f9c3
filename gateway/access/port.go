package access

import (
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// Errors to branch on.
var (
	ErrPortUnknown = errors.New("no such exposure")
	ErrPort        = errors.New("this cannot be exposed")
	ErrPortsFull   = errors.New("too many ports are exposed")
)

// Bounds of published ports.
const (
	maxPorts      = 1024
	maxPortsOfOne = 32             // sandbox
	MaxPublished  = 24 * time.Hour // of one port
	maxLabel      = 63             // bytes of a host name's first part (RFC 1035, section 2.3.4)
)

// Mark begins the token of a published port, PortToken is how long the token is, in bytes.
const (
	Mark      = "spe_"
	PortToken = len(Mark) + 43
)

// Port is a published port of a sandbox. Clients of this host that have its token may send
// requests to it, where the policy allows them, until it expires.
type Port struct {
	Sandbox   string    `json:"sandbox"`
	SandboxID string    `json:"sandboxID"`
	Owner     string    `json:"owner,omitempty"` // of the sandbox; none: the host's own
	Port      uint16    `json:"port"`
	Created   time.Time `json:"created"`
	Expires   time.Time `json:"expires"`
	Digest    string    `json:"digest"` // SHA-256 of the token in hex
}

// Host is the port's host name: a name below localhost is the host's own
// loopback address (RFC 6761, section 6.3), and an origin of its own. It has a part
// of its sandbox's ID in it, so that a later sandbox of the same name is another
// origin: browsers keep service workers, storage and cookies for longer than
// sandboxes are.
func (p Port) Host() string {
	id := sha256.Sum256([]byte(p.SandboxID))
	return fmt.Sprintf("%d--%s--%x.localhost", p.Port, path.Base(p.Sandbox), id[:4]) // of a pod without its namespace
}

// Live reports whether the port has not expired.
func (p Port) Live() bool { return time.Now().Before(p.Expires) }

// Accepts reports whether one of the tokens, of which it looks at eight, is the port's. It
// takes as long for each.
func (p Port) Accepts(tokens []string) bool {
	same := 0
	for _, token := range tokens[:min(len(tokens), 8)] {
		same |= subtle.ConstantTimeCompare([]byte(digestOf(token)), []byte(p.Digest))
	}
	return same == 1
}

// Ports are the published ports. The zero Ports has none and no file. One process at a time
// may have a file open. Ports is safe for concurrent use.
type Ports struct {
	entries[Port]
	byHost map[string]Port // guarded by mu
}

// OpenPorts reads the published ports in the JSON file at path. A file that is not
// there holds none; its folder must exist.
func OpenPorts(path string) (*Ports, error) {
	s := &Ports{entries: entries[Port]{path: path}}
	err := s.read("the exposures", func(p Port) (string, bool) {
		return p.Sandbox, isDigest(p.Digest) && p.Sandbox != "" && p.SandboxID != "" && p.Port != 0
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Replace makes the list all the published ports there are, in memory.
func (s *Ports) Replace(list []Port) {
	next := make(map[string]Port, len(list))
	for _, p := range list {
		next[p.Host()] = p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list, s.byHost = list, next
}

// Published returns the port of a host name, expired or not, as Replace has it.
func (s *Ports) Published(host string) (Port, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p, ok := s.byHost[host]
	return p, ok
}

// Add publishes a port and returns the token, which is not kept and cannot be shown
// again. A port that was published already has this token from now on.
//
// An owner has no more of them than are left for all others, so that each later owner
// finds some: half of all for one alone, a third for each of two.
func (s *Ports) Add(sandbox, id, owner string, port uint16, lasts time.Duration) (Port, string, error) {
	token := newToken(Mark)
	now := time.Now().UTC().Truncate(time.Second)
	p := Port{Sandbox: sandbox, SandboxID: id, Owner: owner, Port: port, Created: now, Expires: now.Add(lasts), Digest: digestOf(token)}
	host := p.Host()
	if label, _, _ := strings.Cut(host, "."); len(label) > maxLabel {
		return Port{}, "", fmt.Errorf("%w: %s is longer than a host name may be: the sandbox's name is too long", ErrPort, host)
	}
	if lasts < time.Second || lasts > MaxPublished {
		return Port{}, "", fmt.Errorf("%w: for %v: give a time from 1s to %v", ErrPort, lasts, MaxPublished)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	anew := false
	next := slices.DeleteFunc(slices.Clone(s.list), func(o Port) bool {
		anew = anew || o.Live() && o.Host() == host
		return !o.Live() || o.Host() == host
	})
	err := spare(next, p)
	if err == nil || anew { // which takes no room that it had not
		err = s.write(append(next, p))
	}
	if err != nil {
		return Port{}, "", fmt.Errorf("exposing port %d of %s: %w", port, sandbox, err)
	}
	return p, token, nil
}

// spare says why there is no room for another port, or nil.
func spare(list []Port, p Port) error {
	ofSandbox, ofOwner := 0, 0
	for _, o := range list {
		if o.SandboxID == p.SandboxID {
			ofSandbox++
		}
		if o.Owner == p.Owner {
			ofOwner++
		}
	}
	switch {
	case ofSandbox >= maxPortsOfOne:
		return fmt.Errorf("%w: a sandbox has at most %d, and this one does: unexpose some", ErrPortsFull, maxPortsOfOne)
	case ofOwner >= maxPorts-len(list):
		return fmt.Errorf("%w: the sandboxes of one owner have at most as many as are left for others, of %d in all, and this one's have %d: unexpose some, or let some expire",
			ErrPortsFull, maxPorts, ofOwner)
	}
	return nil
}

// Remove ends a published port. Connections by it end once the gateway knows. The error
// is ErrPortUnknown where there is none.
func (s *Ports) Remove(id string, port uint16) error {
	return s.drop(func(p Port) bool { return p.SandboxID == id && p.Port == port })
}

// Forget ends all published ports of a sandbox. There need be none.
func (s *Ports) Forget(id string) error {
	err := s.drop(func(p Port) bool { return p.SandboxID == id })
	if errors.Is(err, ErrPortUnknown) {
		return nil
	}
	return err
}

func (s *Ports) drop(gone func(Port) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := false
	next := slices.DeleteFunc(slices.Clone(s.list), func(p Port) bool {
		is := gone(p)
		found = found || is && p.Live()
		return is || !p.Live()
	})
	if !found {
		return ErrPortUnknown
	}
	return s.write(next)
}

// List returns the ports that are published now, by sandbox and port.
func (s *Ports) List() []Port {
	s.mu.RLock()
	defer s.mu.RUnlock()
	list := slices.DeleteFunc(slices.Clone(s.list), func(p Port) bool { return !p.Live() })
	slices.SortFunc(list, func(a, b Port) int {
		return cmp.Or(strings.Compare(a.Sandbox, b.Sandbox), cmp.Compare(a.Port, b.Port))
	})
	return list
}
