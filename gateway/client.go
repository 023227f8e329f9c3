package gateway

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"sallyport/internal/durable"
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
	// Digest is the SHA-256 of the token in hex. The token has 256 random bits,
	// so that nothing slower is needed.
	Digest string `json:"digest"`
}

// ClientStore keeps the explicit proxy's clients in one file. One process at a
// time may have it open. It is safe for concurrent use.
type ClientStore struct {
	path string

	mu      sync.RWMutex
	clients map[string]Client
}

// OpenClients reads the clients in the JSON file at path. A file that is not
// there holds none; its folder must exist.
func OpenClients(path string) (*ClientStore, error) {
	s := &ClientStore{path: path, clients: make(map[string]Client)}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the explicit proxy's clients: %w", err)
	}
	var list []Client
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("reading the explicit proxy's clients: %s: %w: mend it or remove it, which revokes every token", path, err)
	}
	for _, c := range list {
		if digest, err := hex.DecodeString(c.Digest); err != nil || len(digest) != sha256.Size || !clientName.MatchString(c.Name) || c.ID == "" {
			return nil, fmt.Errorf("reading the explicit proxy's clients: %s: the entry of %q is damaged: remove it", path, c.Name)
		}
		s.clients[c.Name] = c
	}
	return s, nil
}

// Add makes a client and returns it with its token, which is not kept and
// cannot be shown again.
func (s *ClientStore) Add(name string, tags map[string]string) (Client, string, error) {
	if !clientName.MatchString(name) {
		return Client{}, "", fmt.Errorf("adding client %.64q: %w", name, ErrClientName)
	}
	var raw [32]byte
	_, _ = rand.Read(raw[:]) // never fails (crypto/rand)
	token := base64.RawURLEncoding.EncodeToString(raw[:])
	digest := sha256.Sum256([]byte(token))
	c := Client{
		Name:    name,
		ID:      "client-" + uuid.NewString(),
		Tags:    maps.Clone(tags),
		Created: time.Now().UTC().Truncate(time.Second),
		Digest:  hex.EncodeToString(digest[:]),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, taken := s.clients[name]; taken {
		return Client{}, "", fmt.Errorf("adding client %q: %w", name, ErrClientExists)
	}
	next := maps.Clone(s.clients)
	next[name] = c
	if err := s.write(next); err != nil {
		return Client{}, "", fmt.Errorf("adding client %q: %w", name, err)
	}
	return c, token, nil
}

// Remove revokes a client's token. What it has under way goes on until
// [Gateway.Redecide]; no other request on its connections does.
func (s *ClientStore) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.clients[name]; !ok {
		return fmt.Errorf("removing client %q: %w", name, ErrClientUnknown)
	}
	next := maps.Clone(s.clients)
	delete(next, name)
	if err := s.write(next); err != nil {
		return fmt.Errorf("removing client %q: %w", name, err)
	}
	return nil
}

// List returns the clients by name.
func (s *ClientStore) List() []Client {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return sorted(s.clients)
}

// Authenticate returns the identity that a name and token stand for. It takes
// as long for a name that is not there as for one that is.
func (s *ClientStore) Authenticate(name, token string) (Identity, bool) {
	s.mu.RLock()
	c, known := s.clients[name]
	s.mu.RUnlock()
	want := c.Digest
	if !known {
		want = strings.Repeat("0", 2*sha256.Size)
	}
	sum := sha256.Sum256([]byte(token))
	var got [2 * sha256.Size]byte
	hex.Encode(got[:], sum[:])
	same := subtle.ConstantTimeCompare(got[:], []byte(want)) == 1
	if !known || !same {
		return Identity{}, false
	}
	return Identity{Sandbox: policy.Sandbox{Name: c.Name, ID: c.ID, Tags: c.Tags}}, true
}

// Present tells whether an identity that Authenticate returned is a client's
// still. A client added again under the same name has another.
func (s *ClientStore) Present(i Identity) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	c, known := s.clients[i.Name]
	return known && c.ID == i.ID
}

// write makes next the clients, once it is on disk. s.mu is held.
func (s *ClientStore) write(next map[string]Client) error {
	raw, err := json.MarshalIndent(sorted(next), "", "  ")
	if err != nil {
		return err
	}
	if err := durable.WriteFile(s.path, append(raw, '\n'), 0o600); err != nil {
		return err
	}
	s.clients = next
	return nil
}

func sorted(clients map[string]Client) []Client {
	return slices.SortedFunc(maps.Values(clients), func(a, b Client) int { return strings.Compare(a.Name, b.Name) })
}

// Roster is a [ClientStore]'s clients in a process that cannot reach its file.
// The zero Roster has none. It is safe for concurrent use.
type Roster struct{ store ClientStore }

// Replace makes the list all the clients there are.
func (r *Roster) Replace(list []Client) {
	next := make(map[string]Client, len(list))
	for _, c := range list {
		c.Tags = maps.Clone(c.Tags)
		next[c.Name] = c
	}
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.store.clients = next
}

// List is [ClientStore.List].
func (r *Roster) List() []Client { return r.store.List() }

// Authenticate is [ClientStore.Authenticate].
func (r *Roster) Authenticate(name, token string) (Identity, bool) {
	return r.store.Authenticate(name, token)
}

// Present is [ClientStore.Present].
func (r *Roster) Present(i Identity) bool { return r.store.Present(i) }
