package sandbox

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"sallyport/audit"
)

// Comparing what a caller sends with secrets answers a guess. So the answer names no
// credential, a hit is an event, and a caller has so much text compared and no more.

// Bounds of an environment, and of what is compared of one caller.
const (
	maxVariables   = 256
	maxEnvironment = 256 << 10 // bytes of names and values

	compareBurst = 1 << 20 // bytes of values at once
	compareRate  = 8 << 10 // bytes a second after that
	maxCompared  = 8192    // values that are known to be compared already, of all callers
	maxComparers = 2048    // callers; there are at most 1024 keys
)

// ErrCompared refuses a caller who has had too many new values compared with secrets.
var ErrCompared = errors.New("too many new environment values")

// Secrets says whether a value is a known secret, and which credential's.
type Secrets interface {
	// An error says that some credential could not be compared with.
	Contains(ctx context.Context, value string) (credential string, found bool, err error)
}

// SecretError refuses an environment variable that holds a secret, or of which that
// cannot be told now. It is an ErrBadSpec. Its text names no credential: those are for
// callers who may list them.
type SecretError struct {
	Variable   string
	Credential string // whose secret it holds
	Err        error  // why it cannot be told, which names credentials; nil: it holds one
}

func (e *SecretError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%v: whether environment variable %s holds a secret cannot be told now: leave it out, or try again when all sources of secrets answer", ErrBadSpec, e.Variable)
	}
	return fmt.Sprintf("%v: environment variable %s holds a secret: leave it out, the gateway injects it", ErrBadSpec, e.Variable)
}

func (*SecretError) Unwrap() error { return ErrBadSpec }

// Whose names the credential, or says why values cannot be compared now.
func (e *SecretError) Whose() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return fmt.Sprintf("the secret is that of credential %q", e.Credential)
}

// refuseSecrets keeps promise 1 against a helpful user: a secret given as an
// environment value would be in the sandbox.
func (m *Manager) refuseSecrets(ctx context.Context, name string, env map[string]string) error {
	size := 0
	for k, v := range env {
		size += len(k) + len(v)
	}
	if len(env) > maxVariables || size > maxEnvironment {
		return fmt.Errorf("%w: an environment of %d variables and %d bytes: use at most %d and %d, and a file for what is larger", ErrBadSpec, len(env), size, maxVariables, maxEnvironment)
	}
	if err := m.compared.admit(ctx, env); err != nil {
		return err
	}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		credential, found, err := m.opt.Secrets.Contains(ctx, env[k])
		if !found && err == nil {
			continue
		}
		refusal := &SecretError{Variable: k, Credential: credential}
		if !found {
			refusal.Err = err
			m.opt.Logger.Warn("an environment cannot be compared with all secrets, and is refused", "sandbox", name, "error", err)
			return refusal
		}
		ev := refusedEvent(name, refusal)
		ev.Unmapped.Sallyport.Found = []audit.CredentialUse{{Name: credential}}
		m.recordRefusal(ctx, ev)
		return refusal
	}
	return nil
}

// comparisons bounds the new values that are compared of each caller. The same value
// again is no other guess.
type comparisons struct {
	mu      sync.Mutex
	key     [32]byte // of digests, since values may be private
	known   *lru.Cache[[32]byte, struct{}]
	callers *lru.Cache[string, *rate.Limiter]
}

func newComparisons() *comparisons {
	c := new(comparisons)
	_, _ = rand.Read(c.key[:]) // never fails
	c.known, _ = lru.New[[32]byte, struct{}](maxCompared)
	c.callers, _ = lru.New[string, *rate.Limiter](maxComparers) // they fail for no size only
	return c
}

// admit says whether an environment of the context's operator may be compared.
func (c *comparisons) admit(ctx context.Context, env map[string]string) error {
	by := audit.ByWhom(ctx)
	size := 0
	var digests [][32]byte
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range env {
		mac := hmac.New(sha256.New, c.key[:])
		// What one caller has sent tells another nothing.
		fmt.Fprintf(mac, "%d %s%s", len(by), by, v)
		d := [32]byte(mac.Sum(nil))
		if _, ok := c.known.Get(d); !ok {
			size += len(v)
			digests = append(digests, d)
		}
	}
	l, ok := c.callers.Get(by)
	if !ok {
		l = rate.NewLimiter(compareRate, compareBurst)
		c.callers.Add(by, l)
	}
	if !l.AllowN(now(), size) {
		return fmt.Errorf("%w: %d bytes: at most %d are compared with secrets at once, and %d a second after that: try again later, or send what is large in a file", ErrCompared, size, compareBurst, compareRate)
	}
	for _, d := range digests {
		c.known.Add(d, struct{}{})
	}
	return nil
}
