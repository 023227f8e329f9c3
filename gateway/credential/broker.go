package credential

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Options configure a Broker.
type Options struct {
	// Sources holds the source of each credential by its name.
	Sources map[string]Source
	// Revision is that of the policy which the sources belong to; empty: any.
	Revision string
	// Bound says whether a rule sends the credential to host and port. Without
	// it nothing is bound.
	Bound func(credential, host string, port uint16) bool
	// AllowShort says whether a field of the credential may be injected although it
	// is shorter than MinSecret. Without it none may.
	AllowShort func(credential, field string) bool
	// Timeout bounds one read of a source. Default: 10 s.
	Timeout time.Duration
	// OnRead is told of each read of a Remote source, by the credential's name, and the
	// error if it failed. It must not block. Default: none.
	OnRead func(credential string, r Reading, err error)
	// Log gets what the Broker cannot return. Default: none.
	Log *slog.Logger
}

// Reading is what is told of a read of a source.
type Reading struct {
	Version, Accessor string
	// Sandbox is the ID of the sandbox that the secret is for, where each has its own.
	Sandbox string
	// Renewed says that the same secret was given a longer life.
	Renewed bool
}

// Broker leases credentials. It is safe for concurrent use.
//
// A Remote source's answer holds until its TTL (see [Lasting]) or the material's expiry is over. It is
// read again before, while the old one is still leased. While the source cannot be
// reached, the old one is leased until the credential's grace after the TTL is over too,
// but never past its expiry; then leases fail. A source that refuses ends what it gave.
type Broker struct {
	bound   func(credential, host string, port uint16) bool
	short   func(credential, field string) bool
	timeout time.Duration
	onRead  func(credential string, r Reading, err error)
	log     *slog.Logger
	current atomic.Pointer[generation]
}

// generation is the sources of one policy.
type generation struct {
	revision string
	entries  map[string]*entry
}

// entry returns what a credential has for a sandbox, nil for an unknown name.
func (g *generation) entry(name, sandbox string) *entry {
	e := g.entries[name]
	if e != nil && e.owned != nil {
		return e.owned.entry(sandbox)
	}
	return e
}

// New returns a Broker.
func New(o Options) *Broker {
	b := &Broker{bound: o.Bound, short: o.AllowShort, timeout: o.Timeout, onRead: o.OnRead, log: o.Log}
	if b.bound == nil {
		b.bound = func(string, string, uint16) bool { return false }
	}
	if b.short == nil {
		b.short = func(string, string) bool { return false }
	}
	if b.onRead == nil {
		b.onRead = func(string, Reading, error) {}
	}
	if b.timeout <= 0 {
		b.timeout = 10 * time.Second
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	b.Replace(o.Sources, o.Revision)
	return b
}

// Replace exchanges all sources for those of a policy's revision, as a reload
// does, and forgets what the old ones said. From then on a decision of another
// policy leases nothing: a name may stand for another secret now. Credentials that
// sandboxes have of their own stay where a name has the same PerSandbox source as before,
// and are given up elsewhere.
func (b *Broker) Replace(sources map[string]Source, revision string) {
	before := b.current.Load()
	entries := make(map[string]*entry, len(sources))
	for name, src := range sources {
		e := &entry{source: src, timeout: b.timeout, log: b.log.With("credential", name)}
		e.onRead = func(r Reading, err error) { b.onRead(name, r, err) }
		if l, ok := e.source.(Login); ok { // what it wraps may be Remote
			e.source, e.proxies, e.registries, e.sinks = l.Source, l.Proxies, l.Registries, l.Sinks
		}
		if l, ok := e.source.(Lasting); ok {
			e.source, e.grace, e.cache = l.Source, l.Grace, l.Cache
		}
		if each, ok := e.source.(PerSandbox); ok {
			e.owned = &owned{source: each, of: e, each: map[string]*entry{}}
			if before != nil {
				e.owned.takeOver(before.entries[name])
			}
		}
		entries[name] = e
	}
	b.current.Store(&generation{revision, entries})
	if before == nil {
		return
	}
	for _, e := range before.entries {
		e.stopDrop()
		e.owned.close()
	}
}

// Retain gives up what sandboxes have of their own of credentials, but for those that keep
// reports true of. The empty ID is the host's own.
func (b *Broker) Retain(keep func(credential, sandbox string) bool) {
	for name, e := range b.current.Load().entries {
		e.owned.end(func(sandbox string) bool { return keep(name, sandbox) })
	}
}

// Lease returns the right to put the named credential into one request to the
// destination. Its errors wrap ErrNotBound, ErrStale, ErrUnknown,
// ErrNoSecret, ErrUnavailable, ErrRefused or the context's error.
func (b *Broker) Lease(ctx context.Context, name string, to Binding) (*Lease, error) {
	e, err := b.bind(name, to)
	if err != nil {
		return nil, err
	}
	s, err := e.get(ctx)
	if err != nil {
		return nil, fmt.Errorf("leasing %q: %w", name, err)
	}
	return &Lease{
		Name: name, Version: s.material.Version, Accessor: s.material.Accessor, Fresh: e.freshUntil(),
		to: to, secret: s, short: b.short,
	}, nil
}

// Refresh has the source of a credential asked again because a destination did not take
// the version that was leased for it, and says whether there is another one now. The
// source of one secret is asked less and less often, from once in [RefreshEvery] to once in
// ten minutes: what a sandbox sends can have a destination refuse anything. Its errors are
// Lease's.
func (b *Broker) Refresh(ctx context.Context, name string, to Binding, version string) (changed bool, err error) {
	e, err := b.bind(name, to)
	if err != nil {
		return false, err
	}
	if changed, err = e.refresh(ctx, version); err != nil {
		return false, fmt.Errorf("refreshing %q: %w", name, err)
	}
	return changed, nil
}

// Forget has the source of a credential asked again from the next lease on, since the
// secret that it reads, or that it exchanges, has been changed.
func (b *Broker) Forget(name string) {
	if e := b.current.Load().entries[name]; e != nil && e.owned == nil {
		e.forget()
	}
}

// PerSandbox reports whether each sandbox has a secret of its own of a credential.
func (b *Broker) PerSandbox(name string) bool {
	e := b.current.Load().entries[name]
	return e != nil && e.owned != nil
}

// bind checks that a credential may go to a destination, and returns its entry.
func (b *Broker) bind(name string, to Binding) (*entry, error) {
	// Before anything is read: what is not bound must cost nothing.
	switch {
	case !to.Verified:
		return nil, fmt.Errorf("leasing %q for %s: %w: credentials go over verified connections only", name, to, ErrNotBound)
	case !b.bound(name, to.Host, to.Port):
		return nil, fmt.Errorf("leasing %q for %s: %w: no egressAuth rule with authRef %q has it as destination", name, to, ErrNotBound, name)
	}
	now := b.current.Load()
	if now.revision != "" && now.revision != to.Policy {
		return nil, fmt.Errorf("leasing %q for %s: %w: ask for a decision again", name, to, ErrStale)
	}
	switch e := now.entries[name]; {
	case e == nil:
		return nil, fmt.Errorf("leasing %q: %w: add it to credentials in sallyport.yaml", name, ErrUnknown)
	case len(e.sinks) > 0:
		return nil, fmt.Errorf("leasing %q for %s: %w: it is for sinks of the audit log alone", name, to, ErrNotBound)
	}
	return now.entry(name, to.Sandbox), nil
}

// Contains says whether value is, or holds in any spelling that a Scrubber
// finds, a secret of one of the credentials, and of which. It compares whole
// values in constant time. A credential that has no secret yet holds none; one
// that cannot be read now is an error, beside what was found in the others.
func (b *Broker) Contains(ctx context.Context, value string) (name string, found bool, err error) {
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(8)
	want := sha256.Sum256([]byte(strings.TrimSpace(value)))
	for n, e := range b.all() {
		group.Go(func() error {
			s, err := e.get(ctx)
			if errors.Is(err, ErrNoSecret) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("credential %q: %w", n, err)
			}
			equal := 0
			for _, field := range s.material.Fields {
				have := sha256.Sum256([]byte(strings.TrimSpace(field.Reveal())))
				equal |= subtle.ConstantTimeCompare(want[:], have[:])
			}
			if equal == 1 || s.scrubber().In(value) {
				mu.Lock()
				defer mu.Unlock()
				if !found || n < name { // the same answer each time
					name, found = n, true
				}
			}
			return nil
		})
	}
	err = group.Wait()
	return name, found, err
}

// all are the secrets that there are: of a credential that each sandbox has its own of,
// those that were given to one.
func (b *Broker) all() iter.Seq2[string, *entry] {
	return func(yield func(string, *entry) bool) {
		for name, e := range b.current.Load().entries {
			each := []*entry{e}
			if e.owned != nil {
				each = e.owned.list()
			}
			for _, e := range each {
				if !yield(name, e) {
					return
				}
			}
		}
	}
}
