package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"sallyport/policy"
)

// Errors to branch on.
var (
	ErrClientName    = errors.New("not a client name: 1 to 63 of a-z, 0-9 and -, beginning with a letter or digit")
	ErrClientExists  = errors.New("a client of that name exists: remove it first, which revokes its token")
	ErrClientUnknown = errors.New("no such client")
)

var clientName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// Client is a sandbox elsewhere that may use the explicit proxy.
type Client struct {
	Name string `json:"name"`
	// ID stands for the client where a sandbox's ID would: its authority, its
	// pool, its events. A client added again under the same name has another.
	ID      string            `json:"id"`
	Tags    map[string]string `json:"tags,omitempty"`
	Created time.Time         `json:"created"`
	Digest  string            `json:"digest"` // SHA-256 of the token in hex
}

// Clients are the explicit proxy's clients, by name. The zero Clients has none and no file.
// One process at a time may have a file open. Clients is safe for concurrent use.
type Clients struct{ entries[Client] }

// OpenClients reads the clients in the JSON file at path. A file that is not
// there holds none; its folder must exist.
func OpenClients(path string) (*Clients, error) {
	s := &Clients{entries[Client]{path: path}}
	err := s.read("the explicit proxy's clients", func(c Client) (string, bool) {
		return c.Name, isDigest(c.Digest) && clientName.MatchString(c.Name) && c.ID != ""
	})
	if err != nil {
		return nil, err
	}
	sortClients(s.list)
	return s, nil
}

func sortClients(list []Client) {
	slices.SortFunc(list, func(a, b Client) int { return strings.Compare(a.Name, b.Name) })
}

// find returns where a client is, or would be. s.mu is held.
func (s *Clients) find(name string) (int, bool) {
	return slices.BinarySearchFunc(s.list, name, func(c Client, name string) int { return strings.Compare(c.Name, name) })
}

// Replace makes the list all the clients there are, in memory.
func (s *Clients) Replace(list []Client) {
	next := slices.Clone(list)
	sortClients(next)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = next
}

// Add makes a client and returns it with its token, which is not kept and
// cannot be shown again.
func (s *Clients) Add(name string, tags map[string]string) (Client, string, error) {
	if !clientName.MatchString(name) {
		return Client{}, "", fmt.Errorf("adding client %.64q: %w", name, ErrClientName)
	}
	token := newToken("")
	c := Client{Name: name, ID: "client-" + uuid.NewString(), Tags: maps.Clone(tags), Created: time.Now().UTC().Truncate(time.Second), Digest: digestOf(token)}
	s.mu.Lock()
	defer s.mu.Unlock()
	at, taken := s.find(name)
	if taken {
		return Client{}, "", fmt.Errorf("adding client %q: %w", name, ErrClientExists)
	}
	if err := s.write(slices.Insert(slices.Clone(s.list), at, c)); err != nil {
		return Client{}, "", fmt.Errorf("adding client %q: %w", name, err)
	}
	return c, token, nil
}

// Remove revokes a client's token. No other request on its connections is carried; what
// is under way goes on until the policy is asked about it again.
func (s *Clients) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, known := s.find(name)
	if !known {
		return fmt.Errorf("removing client %q: %w", name, ErrClientUnknown)
	}
	if err := s.write(slices.Delete(slices.Clone(s.list), at, at+1)); err != nil {
		return fmt.Errorf("removing client %q: %w", name, err)
	}
	return nil
}

// List returns the clients by name.
func (s *Clients) List() []Client {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Clone(s.list)
}

// client returns a client, the zero Client where there is none of that name.
func (s *Clients) client(name string) (c Client, known bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if at, known := s.find(name); known {
		return s.list[at], true
	}
	return c, false
}

// Authenticate returns the sandbox that a name and token stand for. It takes
// as long for a name that is not there as for one that is.
func (s *Clients) Authenticate(name, token string) (policy.Sandbox, bool) {
	c, known := s.client(name)
	want := c.Digest
	if !known {
		want = strings.Repeat("0", 2*sha256.Size)
	}
	if same := subtle.ConstantTimeCompare([]byte(digestOf(token)), []byte(want)) == 1; !known || !same {
		return policy.Sandbox{}, false
	}
	return policy.Sandbox{Name: c.Name, ID: c.ID, Tags: c.Tags}, true
}

// Present reports whether a sandbox that Authenticate returned is a client's still. A
// client added again under the same name has another ID.
func (s *Clients) Present(i policy.Sandbox) bool {
	c, known := s.client(i.Name)
	return known && c.ID == i.ID
}
