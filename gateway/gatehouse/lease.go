package gatehouse

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"sallyport/gateway/credential"
	"sallyport/internal/ipc"
)

// How long the process keeps what it has leased after the last use, at least;
// half as much again at most.
const keepLease = 10 * time.Second

// broker leases from the Warden, in the process. It is a credential.Broker for
// each credential in use, whose source is the Warden: what they derive from a
// secret, they make once.
type broker struct {
	peer  *ipc.Peer
	bound func(credential, host string, port uint16) bool
	short func(credential, field string) bool

	mu     sync.Mutex
	leases map[string]*cachedLease // by credential
}

type cachedLease struct {
	broker *credential.Broker
	used   time.Time
}

func newBroker(p *ipc.Peer, bound func(string, string, uint16) bool, short func(string, string) bool) *broker {
	return &broker{peer: p, bound: bound, short: short, leases: map[string]*cachedLease{}}
}

// Lease takes one use of what the Warden has leased, or asks it. The Warden
// checks the binding; that it is checked here too, first, spares it what would be
// refused.
func (b *broker) Lease(ctx context.Context, name string, to credential.Binding) (*credential.Lease, error) {
	b.mu.Lock()
	h := b.leases[name]
	if h == nil && b.bound(name, to.Host, to.Port) { // which bounds the names too
		h = &cachedLease{broker: credential.New(credential.Options{
			Sources: map[string]credential.Source{name: &source{peer: b.peer, name: name}},
			Bound:   b.bound, AllowShort: b.short,
		})}
		b.leases[name] = h
	}
	if h == nil {
		b.mu.Unlock()
		return credential.New(credential.Options{Bound: b.bound}).Lease(ctx, name, to) // says why not
	}
	h.used = time.Now()
	b.mu.Unlock()
	return h.broker.Lease(context.WithValue(ctx, bindingKey{}, to), name, to)
}

// Login implements upstream.Logins. It is asked for when a proxy is dialled, and
// not kept.
func (b *broker) Login(ctx context.Context, name, proxy string) (username, password credential.Secret, err error) {
	var got LoginReply
	if err := b.peer.Call(ctx, MethodLogin, LoginRequest{name, proxy}, &got); err != nil {
		return credential.Secret{}, credential.Secret{}, err
	}
	return credential.NewSecret(got.Username), credential.NewSecret(got.Password), nil
}

// clear drops what has not been used for some time at a moment; all of it at
// the zero time, as a new policy wants.
func (b *broker) clear(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.leases, func(_ string, h *cachedLease) bool { return now.IsZero() || now.Sub(h.used) >= keepLease })
}

// run clears until ctx is done.
func (b *broker) run(ctx context.Context) {
	tick := time.NewTicker(keepLease / 2)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			b.clear(now)
		}
	}
}

// bindingKey carries what a lease is for to its source.
type bindingKey struct{}

// source leases from the Warden, a number of uses at a time.
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
}

// maxGrants bounds source.grants; there is one for each destination that the
// credential is bound to and in use at.
const maxGrants = 256

// Read implements credential.Source.
func (s *source) Read(ctx context.Context) (credential.Material, error) {
	to, _ := ctx.Value(bindingKey{}).(credential.Binding)
	for { // those who come late to a burst find everything used up again
		if m, ok := s.use(to); ok {
			return m, nil
		}
		// The question outlives the request that asks it: others wait for it.
		answer := s.flight.DoChan(to.Host+" "+to.String()+" "+to.Policy, func() (any, error) {
			if s.has(to) { // since another question has just been answered
				return nil, nil
			}
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), AnswerWithin)
			defer cancel()
			return nil, s.ask(ctx, to)
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

// use takes one use of what is leased.
func (s *source) use(to credential.Binding) (credential.Material, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.grants[to]
	if !g.usable() {
		return credential.Material{}, false
	}
	g.uses--
	return s.last, true
}

// has tells whether a use is left of what is leased.
func (s *source) has(to credential.Binding) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.grants[to].usable()
}

func (g *grant) usable() bool { return g != nil && g.uses > 0 && time.Now().Before(g.until) }

// ask leases more.
func (s *source) ask(ctx context.Context, to credential.Binding) error {
	s.mu.Lock()
	have := s.mark
	s.mu.Unlock()
	asked := time.Now()
	var got LeaseReply
	if err := s.peer.Call(ctx, MethodLease, LeaseRequest{s.name, to.Host, to.Port, to.TLS, to.Policy, have}, &got); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if got.Fields != nil {
		m := credential.Material{Fields: make(map[string]credential.Secret, len(got.Fields)), Version: got.Version, Expires: got.Expires}
		for k, v := range got.Fields {
			m.Fields[k] = credential.NewSecret(v)
		}
		s.mark, s.last = got.Mark, m
	}
	if s.grants == nil || len(s.grants) >= maxGrants {
		s.grants = map[credential.Binding]*grant{}
	}
	until := asked.Add(got.For)
	if e := s.last.Expires; !e.IsZero() && e.Before(until) {
		until = e
	}
	s.grants[to] = &grant{got.Uses, until}
	return nil
}

// A lease is for so many uses within so long a time. A question for each use was
// measured: it took two thirds more CPU time for a request than one process
// does, this takes an eighth more; and a process that has been taken over has
// seen the secret after one use. A change of the policy, or of a secret of the
// embedded store, ends all leases at once.
const (
	leaseUses = 256
	leaseFor  = time.Second
)

// leaseServer answers MethodLease, in the daemon.
type leaseServer struct {
	broker *credential.Broker
	key    [sha256.Size]byte // of the marks: they tell nobody whether two secrets are the same
}

func newLeaseServer(b *credential.Broker) *leaseServer {
	l := &leaseServer{broker: b}
	_, _ = rand.Read(l.key[:]) // never fails (crypto/rand)
	return l
}

func (l *leaseServer) lease(ctx context.Context, c LeaseRequest) (LeaseReply, error) {
	lease, err := l.broker.Lease(ctx, c.Credential, credential.Binding{Host: c.Host, Port: c.Port, TLS: c.TLS, Policy: c.Policy})
	if err != nil {
		return LeaseReply{}, err
	}
	m := lease.Material()
	got := LeaseReply{Mark: l.mark(m), Uses: leaseUses, For: leaseFor}
	if hmac.Equal(got.Mark, c.Have) {
		return got, nil
	}
	got.Version, got.Expires, got.Fields = m.Version, m.Expires, make(map[string]string, len(m.Fields))
	for k, v := range m.Fields {
		got.Fields[k] = v.Reveal()
	}
	return got, nil
}

func (l *leaseServer) login(ctx context.Context, c LoginRequest) (LoginReply, error) {
	username, password, err := l.broker.Login(ctx, c.Credential, c.Proxy)
	if err != nil {
		return LoginReply{}, err
	}
	return LoginReply{username.Reveal(), password.Reveal()}, nil
}

// mark is the same for the same material only.
func (l *leaseServer) mark(m credential.Material) []byte {
	h := hmac.New(sha256.New, l.key[:])
	write := func(s string) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	write(m.Version)
	write(m.Expires.Format(time.RFC3339Nano))
	for _, k := range slices.Sorted(maps.Keys(m.Fields)) {
		write(k)
		write(m.Fields[k].Reveal())
	}
	return h.Sum(nil)
}
