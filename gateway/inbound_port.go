package gateway

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport/internal/durable"
)

// Errors to branch on.
var (
	ErrExposureUnknown = errors.New("no such exposure")
	ErrExposure        = errors.New("this cannot be exposed")
	ErrExposuresFull   = errors.New("too many ports are exposed")
)

// Bounds of exposures.
const (
	maxExposures       = 1024
	maxExposuresOfOne  = 32             // sandbox
	MaxExposure        = 24 * time.Hour // of one
	exposureLabel      = 63             // bytes of a host name's first part (RFC 1035, section 2.3.4)
	exposureMark       = "spe_"         // that tokens begin with
	exposureTokenBytes = len(exposureMark) + 43
)

// Exposure is a port of a sandbox. Clients that have its token may send requests to it, where the policy allows them, until it expires.
type Exposure struct {
	Sandbox   string    `json:"sandbox"`
	SandboxID string    `json:"sandboxID"`
	Owner     string    `json:"owner,omitempty"` // of the sandbox; none: the host's own
	Port      uint16    `json:"port"`
	Created   time.Time `json:"created"`
	Expires   time.Time `json:"expires"`
	// Digest is the SHA-256 of the token in hex. The token has 256 random bits,
	// so that nothing slower is needed.
	Digest string `json:"digest"`
}

// Host is the exposure's host name: a name below localhost is the host's own
// loopback address (RFC 6761, section 6.3), and an origin of its own. It has a part
// of its sandbox's ID in it, so that a later sandbox of the same name is another
// origin: browsers keep service workers, storage and cookies for longer than
// sandboxes are.
func (e Exposure) Host() string {
	id := sha256.Sum256([]byte(e.SandboxID))
	return fmt.Sprintf("%d--%s--%x.localhost", e.Port, e.Sandbox, id[:4])
}

// live tells whether it has not expired.
func (e Exposure) live() bool { return time.Now().Before(e.Expires) }

// ExposureStore keeps the exposures in one file. One process at a time may have it
// open. It is safe for concurrent use.
type ExposureStore struct {
	path string

	mu   sync.Mutex
	list []Exposure
}

// OpenExposures reads the exposures in the JSON file at path. A file that is not
// there holds none; its folder must exist.
func OpenExposures(path string) (*ExposureStore, error) {
	s := &ExposureStore{path: path}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &s.list)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the exposures: %s: %w: mend it or remove it, which ends them all", path, err)
	}
	for _, e := range s.list {
		if digest, err := hex.DecodeString(e.Digest); err != nil || len(digest) != sha256.Size || e.Sandbox == "" || e.SandboxID == "" || e.Port == 0 {
			return nil, fmt.Errorf("reading the exposures: %s: the entry of %q is damaged: remove it", path, e.Sandbox)
		}
	}
	return s, nil
}

// Add exposes a port and returns the token, which is not kept and cannot be shown
// again. One that was exposed already has this token from now on.
//
// An owner has no more of them than are left for all others, so that each one who
// comes finds some: half of all for one alone, a third for each of two.
func (s *ExposureStore) Add(sandbox, id, owner string, port uint16, lasts time.Duration) (Exposure, string, error) {
	host := Exposure{Sandbox: sandbox, SandboxID: id, Port: port}.Host()
	if label, _, _ := strings.Cut(host, "."); len(label) > exposureLabel {
		return Exposure{}, "", fmt.Errorf("%w: %s is longer than a host name may be: the sandbox's name is too long", ErrExposure, host)
	}
	if lasts < time.Second || lasts > MaxExposure {
		return Exposure{}, "", fmt.Errorf("%w: for %v: give a time from 1s to %v", ErrExposure, lasts, MaxExposure)
	}
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails (crypto/rand)
	token := exposureMark + base64.RawURLEncoding.EncodeToString(raw[:])
	now := time.Now().UTC().Truncate(time.Second)
	e := Exposure{Sandbox: sandbox, SandboxID: id, Owner: owner, Port: port, Created: now, Expires: now.Add(lasts), Digest: digestOf(token)}
	s.mu.Lock()
	defer s.mu.Unlock()
	anew := false
	next := slices.DeleteFunc(slices.Clone(s.list), func(o Exposure) bool {
		anew = anew || o.live() && o.Host() == host
		return !o.live() || o.Host() == host
	})
	if err := spare(next, e); err != nil && !anew { // which takes no room that it had not
		return Exposure{}, "", fmt.Errorf("exposing port %d of %s: %w", port, sandbox, err)
	}
	if err := s.write(append(next, e)); err != nil {
		return Exposure{}, "", fmt.Errorf("exposing port %d of %s: %w", port, sandbox, err)
	}
	return e, token, nil
}

// spare says whether there is some for another one.
func spare(list []Exposure, e Exposure) error {
	ofSandbox, ofOwner := 0, 0
	for _, o := range list {
		if o.SandboxID == e.SandboxID {
			ofSandbox++
		}
		if o.Owner == e.Owner {
			ofOwner++
		}
	}
	switch {
	case ofSandbox >= maxExposuresOfOne:
		return fmt.Errorf("%w: a sandbox has at most %d, and this one does: unexpose some", ErrExposuresFull, maxExposuresOfOne)
	case ofOwner >= maxExposures-len(list):
		return fmt.Errorf("%w: the sandboxes of one owner have at most as many as are left for others, of %d in all, and this one's have %d: unexpose some, or let some expire",
			ErrExposuresFull, maxExposures, ofOwner)
	}
	return nil
}

// Remove ends an exposure, and whatever goes on by it once the gateway knows.
func (s *ExposureStore) Remove(id string, port uint16) error {
	return s.drop(func(e Exposure) bool { return e.SandboxID == id && e.Port == port })
}

// Forget ends all exposures of a sandbox. There need be none.
func (s *ExposureStore) Forget(id string) error {
	err := s.drop(func(e Exposure) bool { return e.SandboxID == id })
	if errors.Is(err, ErrExposureUnknown) {
		return nil
	}
	return err
}

func (s *ExposureStore) drop(gone func(Exposure) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := false
	next := slices.DeleteFunc(slices.Clone(s.list), func(e Exposure) bool {
		is := gone(e)
		found = found || is && e.live()
		return is || !e.live()
	})
	if !found {
		return ErrExposureUnknown
	}
	return s.write(next)
}

// List returns what is exposed now, by sandbox and port.
func (s *ExposureStore) List() []Exposure {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := slices.DeleteFunc(slices.Clone(s.list), func(e Exposure) bool { return !e.live() })
	slices.SortFunc(list, func(a, b Exposure) int {
		if c := strings.Compare(a.Sandbox, b.Sandbox); c != 0 {
			return c
		}
		return int(a.Port) - int(b.Port)
	})
	return list
}

// write makes next the exposures, once it is on disk. s.mu is held.
func (s *ExposureStore) write(next []Exposure) error {
	raw, err := json.MarshalIndent(next, "", "  ")
	if err != nil {
		return err
	}
	if err := durable.WriteFile(s.path, append(raw, '\n'), 0o600); err != nil {
		return err
	}
	s.list = next
	return nil
}

// Exposed is a list of exposures in a process that cannot reach the file. The zero
// Exposed has none. It is safe for concurrent use.
type Exposed struct {
	mu     sync.RWMutex
	byHost map[string]Exposure
}

// Replace makes the list all the exposures there are.
func (x *Exposed) Replace(list []Exposure) {
	next := make(map[string]Exposure, len(list))
	for _, e := range list {
		next[e.Host()] = e
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.byHost = next
}

// Exposed returns the exposure of a host name, expired or not.
func (x *Exposed) Exposed(host string) (Exposure, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	e, ok := x.byHost[host]
	return e, ok
}

func digestOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}
