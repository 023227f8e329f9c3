package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport/audit"
	"sallyport/internal/durable"
	"sallyport/policy/approval"
)

// Errors of keys.
var (
	errNoKey     = errors.New("no such key")
	errKeyExists = errors.New("there is a key of this name")
	errKeysFull  = errors.New("there are too many keys: remove one that is of no use any more")
)

// Bounds of keys.
const (
	maxKeys = 1024
	// usedEvery is how often the last use of a key is written down at most.
	usedEvery = time.Minute
)

// Key is what is known of an API key: not the key.
type Key struct {
	Name    string    `json:"name"`
	ID      string    `json:"id"` // part of the key, and of its holder's name in events
	Scopes  []Scope   `json:"scopes"`
	Tenant  string    `json:"tenant,omitempty"` // empty: the host's own
	Created time.Time `json:"created"`
	By      string    `json:"by"`
	Expires time.Time `json:"expires,omitzero"`
	Used    time.Time `json:"used,omitzero"` // to the minute
}

type keyRecord struct {
	Key
	// Hash is the SHA-256 of the key, in hex. A slow hash is for what people
	// choose: of 256 random bits not one in 2^200 can be tried, so that a slow one
	// would only slow down who has the key, on each request.
	Hash string `json:"sha256"`

	life context.Context // nil while nobody has asked; ended with the key
	end  context.CancelFunc
}

// Keys is the store of API keys, a file of hashes. It is safe for concurrent use.
type Keys struct {
	path string
	log  *slog.Logger
	now  func() time.Time

	mu      sync.Mutex
	keys    map[string]*keyRecord // by ID
	written time.Time             // the last use that is in the file
}

// OpenKeys reads the store at path, which need not be there.
func OpenKeys(path string, log *slog.Logger) (*Keys, error) {
	k := &Keys{path: path, log: log, now: time.Now, keys: map[string]*keyRecord{}}
	var list []*keyRecord
	if _, err := durable.ReadJSON(path, &list); err != nil {
		return nil, err
	}
	for _, r := range list {
		k.keys[r.ID] = r
	}
	return k, nil
}

// keyName is what a key's and a tenant's name look like.
var keyName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Create makes a key and returns its text, which is nowhere else.
func (k *Keys) Create(want Key) (made Key, text string, err error) {
	for what, name := range map[string]string{"key": want.Name, "tenant": cmp.Or(want.Tenant, "x")} {
		if !keyName.MatchString(name) {
			return Key{}, "", fmt.Errorf("%w: %s %q: use 1 to 63 lower-case letters, digits and hyphens, beginning and ending with a letter or digit", errBadRequest, what, name)
		}
	}
	now := k.now().UTC().Truncate(time.Second)
	if !want.Expires.IsZero() && !want.Expires.After(now) {
		return Key{}, "", fmt.Errorf("%w: the key would have expired at %s", errBadRequest, want.Expires.Format(time.RFC3339))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.named(want.Name) != nil {
		return Key{}, "", fmt.Errorf("%w: %s: remove it first, or choose another", errKeyExists, want.Name)
	}
	if len(k.keys) >= maxKeys {
		return Key{}, "", errKeysFull
	}
	var random [8 + 32]byte
	rand.Read(random[:]) // never fails
	want.ID, want.Created, want.Used = hex.EncodeToString(random[:8]), now, time.Time{}
	text = "sp_" + want.ID + "_" + base64.RawURLEncoding.EncodeToString(random[8:])
	k.keys[want.ID] = &keyRecord{Key: want, Hash: hashOf(text)}
	if err := k.write(); err != nil {
		delete(k.keys, want.ID)
		return Key{}, "", err
	}
	return want, text, nil
}

// Remove voids a key at once.
func (k *Keys) Remove(name string) (Key, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.named(name)
	if r == nil {
		return Key{}, fmt.Errorf("%w: %q: `sallyport key ls` shows those there are", errNoKey, name)
	}
	delete(k.keys, r.ID)
	if err := k.write(); err != nil {
		k.keys[r.ID] = r
		return Key{}, err
	}
	if r.end != nil {
		r.end()
	}
	return r.Key, nil
}

// List returns the keys by name.
func (k *Keys) List() []Key {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := []Key{}
	for _, r := range k.sorted() {
		list = append(list, r.Key)
	}
	return list
}

// Verify returns whose key a text is. The comparison takes as long for any text
// that names a key, and for any that names none.
func (k *Keys) Verify(text string) (Key, bool) {
	rest, _ := strings.CutPrefix(text, "sp_")
	id, _, _ := strings.Cut(rest, "_")
	got, want := hashOf(text), strings.Repeat("0", 2*sha256.Size)
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.keys[id]
	if r != nil {
		want = r.Hash
	}
	if subtle.ConstantTimeCompare([]byte(got), []byte(want)) != 1 || r == nil {
		return Key{}, false
	}
	now := k.now().UTC()
	if !r.Expires.IsZero() && !now.Before(r.Expires) {
		return Key{}, false
	}
	r.Used = now.Truncate(usedEvery)
	if now.Sub(k.written) >= usedEvery {
		k.written = now
		if err := k.write(); err != nil {
			k.log.Warn("the last use of an API key cannot be written down", "error", err)
		}
	}
	return r.Key, true
}

func (k *Keys) named(name string) *keyRecord {
	for _, r := range k.keys {
		if r.Name == name {
			return r
		}
	}
	return nil
}

func (k *Keys) write() error { return durable.WriteJSON(k.path, k.sorted()) }

func (k *Keys) sorted() []*keyRecord {
	return slices.SortedFunc(maps.Values(k.keys), func(a, b *keyRecord) int { return strings.Compare(a.Name, b.Name) })
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// KeyRequest is what a key shall be.
type KeyRequest struct {
	Scopes  []string  `json:"scopes"`
	Tenant  string    `json:"tenant,omitempty"`
	Expires time.Time `json:"expires,omitzero"`
}

// KeyText is the only time that a key is shown.
type KeyText struct {
	Key
	Text string `json:"key"`
}

func (h *handler) keys(*http.Request) ([]Key, error) { return h.opt.Keys.List(), nil }

func (h *handler) createKey(r *http.Request, in KeyRequest) (k KeyText, err error) {
	scopes, err := ParseScopes(in.Scopes)
	if err != nil {
		return k, err
	}
	k.Key, k.Text, err = h.opt.Keys.Create(Key{
		Name: r.PathValue("name"), Scopes: scopes, Tenant: in.Tenant, Expires: in.Expires.UTC(),
		By: PrincipalOf(r.Context()).Operator.Name,
	})
	if err != nil {
		return k, err
	}
	if err = h.opt.Recorder.Append(r.Context(), keyEvent(k.Key, "created")); err != nil {
		_, gone := h.opt.Keys.Remove(k.Name) // nobody has seen it
		err = errors.Join(err, gone)
	}
	return k, err
}

func (h *handler) removeKey(r *http.Request, _ none) (none, error) {
	gone, err := h.opt.Keys.Remove(r.PathValue("name"))
	if err == nil {
		err = h.opt.Recorder.Append(context.WithoutCancel(r.Context()), keyEvent(gone, "removed"))
	}
	return none{}, err
}

func keyEvent(k Key, state string) *audit.Event {
	e := audit.Change("key/"+k.Name, state)
	e.Message, e.Resources[0].UID = "API key "+k.Name+" ("+k.ID+") "+state, k.ID
	e.Detail = "scopes " + join(k.Scopes)
	e.Unmapped.Sallyport.Owner = k.Tenant
	return e
}

// principal is whom a key stands for.
func (k Key) principal() Principal {
	return Principal{
		ID:       "key:" + k.ID,
		Operator: approval.Operator{Name: "key " + k.Name, UID: "key:" + k.ID},
		Scopes:   k.Scopes, Tenant: k.Tenant, key: k.ID,
	}
}

// errRevoked is why what goes on with a key ends.
var errRevoked = errors.New("the API key was removed, or has expired")

// life is until when a key is valid. The caller ends it again.
func (k *Keys) life(id string) (context.Context, context.CancelFunc) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r := k.keys[id]
	if r == nil {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return ctx, cancel
	}
	if r.life == nil {
		r.life, r.end = context.WithCancel(context.Background())
	}
	if r.Expires.IsZero() {
		return context.WithCancel(r.life)
	}
	return context.WithDeadline(r.life, r.Expires)
}

// lasting serves a call of a route that may take as long as its caller likes, for as
// long as the caller's key is valid: then its context is done, and the connection
// ends whatever is being read or written, also where it has been taken over.
func (h *handler) lasting(to route, who Principal, w http.ResponseWriter, r *http.Request) {
	life, done := h.opt.Keys.life(who.key)
	defer done()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	control := http.NewResponseController(w)
	stop := context.AfterFunc(life, func() {
		cancel(errRevoked)
		past := time.Unix(1, 0)
		_ = errors.Join(control.SetReadDeadline(past), control.SetWriteDeadline(past)) // a connection without them is a test's
	})
	defer stop() // before done, which is no end of the key's
	to.serve(w, r.WithContext(ctx))
}

// lasts tells which calls take as long as the caller likes: those that read what
// comes, those that feed, and commands.
func (r route) lasts() bool { return !r.changes() || r.maxBody > maxBuffered || r.hijacks }
