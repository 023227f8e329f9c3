package manager

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
	"sallyport/sandbox"
)

// refusals are the errors by which the manager refuses to make a sandbox that was
// asked for wrongly, or by a caller who may not have it.
var refusals = []error{sandbox.ErrBadName, sandbox.ErrBadSpec, sandbox.ErrImage, sandbox.ErrNoImage, sandbox.ErrTaken, sandbox.ErrQuota, sandbox.ErrCompared}

// recordIfRefused records that a sandbox is not made as it was asked for, if that is what an
// error says: the name and the reason, and no owner, since nothing is owned. The rate
// of these events is bounded; what is not recorded is counted in the next one.
func (m *Manager) recordIfRefused(ctx context.Context, name string, err error) {
	if !slices.ContainsFunc(refusals, func(r error) bool { return errors.Is(err, r) }) {
		return
	}
	var secret *sandbox.SecretError
	if errors.As(err, &secret) && secret.Err == nil {
		return // it is recorded already, with whose it is
	}
	m.recordRefusal(ctx, refusedEvent(name, err))
}

func refusedEvent(name string, err error) *audit.Event {
	ev := audit.Change("sandbox/"+clip(name), "refused")
	ev.StatusID, ev.SeverityID = audit.StatusFailure, audit.SeverityLow
	ev.Message, ev.Detail = "what was asked for of sandbox "+clip(name)+" is refused", err.Error()
	return ev
}

// recordRefusal records a refusal, and what it shows, if the bound allows.
func (m *Manager) recordRefusal(ctx context.Context, ev *audit.Event, shown ...*audit.Event) {
	n := m.refusals.Count(refusedFor(ctx))
	if n == 0 {
		return
	}
	if n > 1 {
		ev.Count = n
	}
	if err := m.opt.Recorder.Append(context.WithoutCancel(ctx), append([]*audit.Event{ev}, shown...)...); err != nil {
		m.opt.Logger.Error("an event was lost", "message", ev.Message, "error", err)
	}
}

// refusedFor is whose refusals are counted together: those of a tenant, or of an operator.
func refusedFor(ctx context.Context) string {
	if owner := sandbox.OwnerOf(ctx); owner != "" {
		return "tenant:" + owner
	}
	var e audit.Event
	e.Unmapped.Sallyport.Kind = audit.KindLifecycle
	audit.Attribute(ctx, &e)
	if e.Actor == nil {
		return ""
	}
	return "operator:" + e.Actor.User.Name
}

// clip bounds a name that may be none.
func clip(name string) string {
	const most = 64 // bytes
	if len(name) <= most {
		return name
	}
	return name[:most] + "…"
}

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

// refuseSecrets keeps promise 1 against a helpful user: a secret given as an
// environment value would be in the sandbox.
func (m *Manager) refuseSecrets(ctx context.Context, name string, env map[string]string) error {
	size := 0
	for k, v := range env {
		size += len(k) + len(v)
	}
	if len(env) > maxVariables || size > maxEnvironment {
		return fmt.Errorf("%w: an environment of %d variables and %d bytes: use at most %d and %d, and a file for what is larger", sandbox.ErrBadSpec, len(env), size, maxVariables, maxEnvironment)
	}
	if err := m.compared.admit(ctx, env); err != nil {
		return err
	}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		credential, found, err := m.opt.Secrets.Contains(ctx, env[k])
		if !found && err == nil {
			continue
		}
		refusal := &sandbox.SecretError{Variable: k, Credential: credential}
		if !found {
			refusal.Err = err
			m.opt.Logger.Warn("an environment cannot be compared with all secrets, and is refused", "sandbox", name, "error", err)
			return refusal
		}
		ev := refusedEvent(name, refusal)
		ev.Unmapped.Sallyport.Found = []audit.CredentialUse{{Name: credential}}
		m.recordRefusal(ctx, ev, audit.Finding(audit.FindingGiven, ev))
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
		// A caller's values tell another caller nothing.
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
		return fmt.Errorf("%w: %d bytes: at most %d are compared with secrets at once, and %d a second after that: try again later, or send what is large in a file", sandbox.ErrCompared, size, compareBurst, compareRate)
	}
	for _, d := range digests {
		c.known.Add(d, struct{}{})
	}
	return nil
}
