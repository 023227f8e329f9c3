package credential

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/singleflight"
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
type Reading struct{ Version, Accessor string }

// retryAfter is how long a Remote source's failure is remembered, so that a
// sandbox cannot drive the gateway to flood it.
const retryAfter = time.Second

// Broker leases credentials. It is safe for concurrent use.
//
// A Remote source's answer holds until its TTL or the material's expiry is
// over and never longer: while the source cannot be reached after that, leases
// fail.
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
// policy leases nothing: a name may stand for another secret now.
func (b *Broker) Replace(sources map[string]Source, revision string) {
	entries := make(map[string]*entry, len(sources))
	for name, src := range sources {
		e := &entry{source: src, onRead: func(r Reading, err error) { b.onRead(name, r, err) }}
		if l, ok := src.(Login); ok { // what it wraps may be Remote
			e.source, e.proxies, e.registries, e.sinks = l.Source, l.Proxies, l.Registries, l.Sinks
		}
		entries[name] = e
	}
	b.current.Store(&generation{revision, entries})
}

// Lease returns the right to put the named credential into one request to the
// destination. Its errors wrap ErrNotBound, ErrStale, ErrUnknown,
// ErrNoSecret, ErrUnavailable, ErrRefused or the context's error.
func (b *Broker) Lease(ctx context.Context, name string, to Binding) (*Lease, error) {
	// Before anything is read: what is not bound must cost nothing.
	switch {
	case !to.TLS:
		return nil, fmt.Errorf("leasing %q for %s: %w: credentials go over verified TLS only", name, to, ErrNotBound)
	case !b.bound(name, to.Host, to.Port):
		return nil, fmt.Errorf("leasing %q for %s: %w: no egressAuth rule with authRef %q has it as destination", name, to, ErrNotBound, name)
	}
	now := b.current.Load()
	if now.revision != "" && now.revision != to.Policy {
		return nil, fmt.Errorf("leasing %q for %s: %w: ask for a decision again", name, to, ErrStale)
	}
	e, ok := now.entries[name]
	if !ok {
		return nil, fmt.Errorf("leasing %q: %w: add it to credentials in sallyport.yaml", name, ErrUnknown)
	}
	if len(e.sinks) > 0 {
		return nil, fmt.Errorf("leasing %q for %s: %w: it is for sinks of the audit log alone", name, to, ErrNotBound)
	}
	s, err := e.get(ctx, b.timeout)
	if err != nil {
		return nil, fmt.Errorf("leasing %q: %w", name, err)
	}
	return &Lease{Name: name, Version: s.material.Version, Accessor: s.material.Accessor, to: to, secret: s, short: b.short}, nil
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
	for n, e := range b.current.Load().entries {
		group.Go(func() error {
			s, err := e.get(ctx, b.timeout)
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

// entry is one credential's source and what it last said.
type entry struct {
	source  Source
	proxies []string // that may be given it as a login
	// registries may be, too.
	registries []string
	sinks      []string // of the audit log, likewise
	flight     singleflight.Group
	onRead     func(r Reading, err error)

	mu    sync.Mutex
	last  *secret
	err   error
	until time.Time // last, or err, of a Remote source holds until then
}

// get returns what the source says now.
func (e *entry) get(ctx context.Context, timeout time.Duration) (*secret, error) {
	remote, ok := e.source.(Remote)
	if !ok {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		s, _, err := e.read(ctx, 0)
		return s, err
	}
	if s, err, ok := e.cached(); ok {
		return s, err
	}
	// The read outlives the request that began it: others wait for it too.
	result := e.flight.DoChan("", func() (any, error) {
		if s, err, ok := e.cached(); ok {
			return s, err
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		defer cancel()
		s, m, err := e.read(ctx, remote.TTL())
		e.onRead(Reading{m.Version, m.Accessor}, err)
		return s, err
	})
	select {
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for the source: %w", ctx.Err())
	case r := <-result:
		s, _ := r.Val.(*secret)
		return s, r.Err
	}
}

func (e *entry) cached() (*secret, error, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !time.Now().Before(e.until) {
		return nil, nil, false
	}
	return e.last, e.err, true
}

// read asks the source and remembers the answer for ttl.
func (e *entry) read(ctx context.Context, ttl time.Duration) (_ *secret, m Material, err error) {
	m, err = e.source.Read(ctx)
	now := time.Now()
	switch {
	case err == nil && len(m.Fields) == 0:
		err = fmt.Errorf("%w: its source has no field", ErrNoSecret)
	case err == nil && !m.Expires.IsZero() && !now.Before(m.Expires):
		err = fmt.Errorf("%w: its source returned one that has expired", ErrUnavailable)
	}

	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		e.last, e.err, e.until = nil, err, now.Add(min(ttl, retryAfter))
		return nil, m, err
	}
	// The same secret keeps what was derived from it.
	if e.last == nil || !same(e.last.material, m) {
		e.last = &secret{material: m}
	}
	e.err, e.until = nil, now.Add(ttl)
	if !m.Expires.IsZero() && m.Expires.Before(e.until) {
		e.until = m.Expires
	}
	return e.last, m, nil
}

// same compares two readings of one source in this process, whose timing no
// sandbox can see.
func same(a, b Material) bool {
	if a.Version != b.Version || len(a.Fields) != len(b.Fields) {
		return false
	}
	for name, v := range a.Fields {
		if w, ok := b.Fields[name]; !ok || v.Reveal() != w.Reveal() {
			return false
		}
	}
	return true
}
