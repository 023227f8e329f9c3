package worker

import (
	"context"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"sallyport/gateway/credential"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
	"sallyport/internal/periodic"
)

// keepLease is how long unused material is kept at least; at most half as long again.
const keepLease = 10 * time.Second

// broker leases credentials from the supervisor. It has a credential.Broker for each
// credential in use, whose source is the supervisor: values derived from a secret are made
// once.
type broker struct {
	peer  *ipc.Peer
	bound func(credential, host string, port uint16) bool
	short func(credential, field string) bool
	own   func(credential string) bool // each sandbox has a secret of its own

	mu     sync.Mutex
	leases map[leaseKey]*cachedLease
}

// leaseKey is a credential, and the sandbox that has its own secret of it.
type leaseKey struct{ credential, sandbox string }

// cachedLease is one secret in use.
type cachedLease struct {
	source *source
	broker *credential.Broker
	used   time.Time
}

func newBroker(p *ipc.Peer, bound func(string, string, uint16) bool, short func(string, string) bool, own func(string) bool) *broker {
	return &broker{peer: p, bound: bound, short: short, own: own, leases: map[leaseKey]*cachedLease{}}
}

// Lease takes one use of a cached lease, or asks the supervisor, which checks the binding.
// The binding is checked here first, to spare the supervisor calls that it would refuse.
func (b *broker) Lease(ctx context.Context, name string, to credential.Binding) (*credential.Lease, error) {
	h, to := b.cached(name, to)
	if h == nil {
		return credential.New(credential.Options{Bound: b.bound}).Lease(ctx, name, to) // says why not
	}
	return h.broker.Lease(context.WithValue(ctx, bindingKey{}, to), name, to)
}

// Refresh is [credential.Broker.Refresh], asked of the supervisor.
func (b *broker) Refresh(ctx context.Context, name string, to credential.Binding, version string) (changed bool, err error) {
	h, to := b.cached(name, to)
	if h == nil {
		_, err := b.Lease(ctx, name, to)
		return false, err
	}
	return h.source.refresh(ctx, to, version)
}

// cached returns what is there for a credential that is bound, and the binding to lease
// it with.
func (b *broker) cached(name string, to credential.Binding) (*cachedLease, credential.Binding) {
	if !b.own(name) {
		to.Sandbox = "" // one lease for all
	}
	key := leaseKey{name, to.Sandbox}
	b.mu.Lock()
	defer b.mu.Unlock()
	h := b.leases[key]
	if h == nil && b.bound(name, to.Host, to.Port) { // which bounds the names too
		from := &source{peer: b.peer, name: name}
		h = &cachedLease{source: from, broker: credential.New(credential.Options{
			Sources: map[string]credential.Source{name: from}, Bound: b.bound, AllowShort: b.short,
		})}
		b.leases[key] = h
	}
	if h != nil {
		h.used = time.Now()
	}
	return h, to
}

// Login implements upstream.Logins. It asks the supervisor each time that a proxy is
// dialled; nothing is kept.
func (b *broker) Login(ctx context.Context, name, proxy string) (username, password credential.Secret, err error) {
	var got workerapi.LoginReply
	if err := b.peer.Call(ctx, workerapi.MethodLogin, workerapi.LoginRequest{Credential: name, Proxy: proxy}, &got); err != nil {
		return credential.Secret{}, credential.Secret{}, err
	}
	return credential.NewSecret(got.Username), credential.NewSecret(got.Password), nil
}

// clear drops leases that were last used 10 seconds before now, or all of them if now is
// zero, as a new policy needs.
func (b *broker) clear(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.leases, func(_ leaseKey, h *cachedLease) bool { return now.IsZero() || now.Sub(h.used) >= keepLease })
}

// run clears until ctx is done.
func (b *broker) run(ctx context.Context) { _ = periodic.Run(ctx, keepLease/2, b.clear) }

// bindingKey is the context key of the binding that a lease is for.
type bindingKey struct{}

// source leases one credential from the supervisor, a number of uses at a time.
type source struct {
	peer   *ipc.Peer
	name   string
	flight singleflight.Group // one question for all that wait

	mu     sync.Mutex
	mark   []byte
	last   credential.Material
	grants map[credential.Binding]*grant
}

// grant is what is left of a lease.
type grant struct {
	uses  int
	until time.Time
	since time.Time // for requests that came until then alone; zero: for all
}

// maxGrants bounds source.grants; there is one for each destination that the
// credential is bound to and in use at.
const maxGrants = 256

// Read implements credential.Source.
func (s *source) Read(ctx context.Context) (credential.Material, error) {
	to, _ := ctx.Value(bindingKey{}).(credential.Binding)
	came := time.Now()
	for { // those who come late to a burst find everything used up again
		if m, ok := s.use(to, came); ok {
			return m, nil
		}
		// The question outlives the request that asks it: others wait for it.
		answer := s.flight.DoChan(to.Host+" "+to.String()+" "+to.Policy, func() (any, error) {
			if s.has(to, came) { // since another question has just been answered
				return nil, nil
			}
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), workerapi.AnswerWithin)
			defer cancel()
			return nil, s.ask(ctx, to, "")
		})
		select {
		case <-ctx.Done():
			return credential.Material{}, ctx.Err()
		case r := <-answer:
			if r.Err != nil {
				return credential.Material{}, r.Err
			}
		}
	}
}

// use takes one use, if one is left.
func (s *source) use(to credential.Binding, came time.Time) (credential.Material, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.grants[to]
	if !g.usable(came) {
		return credential.Material{}, false
	}
	g.uses--
	return s.last, true
}

// has reports whether a use is left.
func (s *source) has(to credential.Binding, came time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grants[to].usable(came)
}

// usable reports whether a use is left for a request that came at a time.
func (g *grant) usable(came time.Time) bool {
	return g != nil && g.uses > 0 && time.Now().Before(g.until) && (g.since.IsZero() || !came.After(g.since))
}

// refresh leases more after a destination did not take a version.
func (s *source) refresh(ctx context.Context, to credential.Binding, refused string) (bool, error) {
	_, err, _ := s.flight.Do("refresh "+to.String()+" "+refused, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), workerapi.AnswerWithin)
		defer cancel()
		return nil, s.ask(ctx, to, refused)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	return err == nil && s.last.Version != refused, err
}

// ask leases more, and says which version is no good, if one is.
func (s *source) ask(ctx context.Context, to credential.Binding, refused string) error {
	s.mu.Lock()
	have := s.mark
	s.mu.Unlock()
	asked := time.Now()
	var got workerapi.LeaseReply
	if err := s.peer.Call(ctx, workerapi.MethodLease, workerapi.LeaseRequest{Credential: s.name, Host: to.Host, Port: to.Port, Verified: to.Verified, Sandbox: to.Sandbox, Policy: to.Policy, Have: have, Refused: refused}, &got); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if got.Fields != nil {
		m := credential.Material{Fields: make(map[string]credential.Secret, len(got.Fields)), Version: got.Version, Accessor: got.Accessor, Expires: got.Expires, Ends: got.Ends, Cached: got.Cached}
		for k, v := range got.Fields {
			m.Fields[k] = credential.NewSecret(v)
		}
		s.mark, s.last = got.Mark, m
	}
	if s.grants == nil || len(s.grants) >= maxGrants {
		s.grants = map[credential.Binding]*grant{}
	}
	g := &grant{uses: got.Uses, until: asked.Add(got.For)}
	if got.For == 0 {
		g.since, g.until = asked, asked.Add(workerapi.AnswerWithin)
	}
	if e := s.last.Expires; !e.IsZero() && e.Before(g.until) {
		g.until = e
	}
	s.grants[to] = g
	return nil
}
