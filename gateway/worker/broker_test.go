package worker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"sallyport/gateway/credential"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
	"sallyport/internal/test/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The bounds of a lease here.
const (
	leaseUses = 256
	leaseFor  = time.Second
	bound     = "api.example.test"
	revision  = "r1"
)

// leasing is a supervisor that answers leases, and the worker's end of the
// connection to it.
type leasing struct {
	peer   *ipc.Peer
	secret atomic.Pointer[string]
	leases atomic.Int64
	lasts  atomic.Int64  // nanoseconds that a lease permits uses for
	hold   chan struct{} // of answers, nil: none
}

func newBrokerSupervisor(t *testing.T) *leasing {
	t.Helper()
	s := &leasing{}
	secret := "a-secret-of-some-length"
	s.secret.Store(&secret)
	s.lasts.Store(int64(leaseFor))
	here, f, err := ipc.Pair()
	must.OK(t, err)
	there, err := ipc.Inherited(f)
	must.OK(t, err)
	lease := func(_ context.Context, c workerapi.LeaseRequest) (workerapi.LeaseReply, error) {
		if c.Credential != "key" || c.Host != bound {
			return workerapi.LeaseReply{}, credential.ErrNotBound
		}
		s.leases.Add(1)
		token := *s.secret.Load()
		if s.hold != nil {
			<-s.hold
		}
		got := workerapi.LeaseReply{Mark: []byte(token), Uses: leaseUses, For: time.Duration(s.lasts.Load()), Cached: true}
		if string(c.Have) != token {
			got.Version, got.Accessor, got.Fields = token[:5], "of "+token, map[string]string{"token": token}
		}
		return got, nil
	}
	far := ipc.New(here, ipc.Options{Errors: workerapi.Errors, MaxFrame: workerapi.MaxFrame, MaxCalls: 256, Methods: map[ipc.Method]ipc.Handler{workerapi.MethodLease: ipc.Handle(lease)}})
	s.peer = ipc.New(there, ipc.Options{Files: true, Errors: workerapi.Errors, MaxFrame: workerapi.MaxFrame})
	done := make(chan struct{}, 2)
	for _, p := range []*ipc.Peer{far, s.peer} {
		go func() { _ = p.Serve(); done <- struct{}{} }()
	}
	t.Cleanup(func() { _, _ = far.Close(), s.peer.Close(); <-done; <-done })
	return s
}

func shared(string) bool { return false }

// A burst asks once; what is leased is used no more often than allowed, and not
// at all after it was revoked.
func TestLeaseUses(t *testing.T) {
	s := newBrokerSupervisor(t)
	to := credential.Binding{Host: bound, Port: 443, Verified: true, Policy: revision}
	b := newBroker(s.peer, func(name, host string, port uint16) bool { return name == "key" && host == bound }, nil, shared)
	token := func() string {
		l, err := b.Lease(t.Context(), "key", to)
		if err != nil {
			t.Error(err)
			return ""
		}
		if got := l.Values()[0].Reveal(); l.Accessor != "of "+got {
			t.Errorf("the accessor is %q", l.Accessor)
		}
		return l.Values()[0].Reveal()
	}
	began := time.Now()
	var burst errgroup.Group
	for range 3 * leaseUses {
		burst.Go(func() error { token(); return nil })
	}
	_ = burst.Wait()
	// One that a slow machine does not use up in time is followed by another.
	if n, late := s.leases.Load(), int64(time.Since(began)/leaseFor); n < 3 || n > 3+late {
		t.Errorf("%d uses were %d leases of %d", 3*leaseUses, n, leaseUses)
	}
	changed := "another-secret-of-some-length"
	s.secret.Store(&changed)
	b.clear(time.Time{}) // what MethodRevoke does
	if got := token(); got != changed {
		t.Errorf("after it was revoked: %q", got)
	}
	// And without: within a second.
	third := "a-third-secret-of-some-length"
	s.secret.Store(&third)
	time.Sleep(leaseFor)
	if got := token(); got != third {
		t.Errorf("a second later: %q", got)
	}
	if _, err := b.Lease(t.Context(), "other", to); !errors.Is(err, credential.ErrNotBound) {
		t.Errorf("a credential that the process itself knows is not bound: %v", err)
	}
	b.clear(time.Now().Add(keepLease))
	if len(b.leases) != 0 {
		t.Error("what is not used is kept")
	}
}

// Of a secret that is to be asked for each time, a request uses only what was asked for
// after it came, and those that wait together share an answer.
func TestLeaseForThoseThatWait(t *testing.T) {
	s := newBrokerSupervisor(t)
	s.lasts.Store(0)
	s.hold = make(chan struct{})
	to := credential.Binding{Host: bound, Port: 443, Verified: true, Policy: revision}
	b := newBroker(s.peer, func(string, string, uint16) bool { return true }, nil, shared)
	var leases sync.WaitGroup
	var came atomic.Int64
	lease := func(want string) {
		leases.Go(func() {
			came.Add(1)
			l, err := b.Lease(t.Context(), "key", to)
			if err != nil || l.Values()[0].Reveal() != want || !l.Cached() {
				t.Errorf("leased %+v, %v, want %q", l, err, want)
			}
		})
	}
	lease(*s.secret.Load())
	must.Soon(t, "the first question", func() bool { return s.leases.Load() == 1 })
	changed := "another-secret-of-some-length"
	s.secret.Store(&changed)
	const others = 100
	for range others {
		lease(changed)
	}
	must.Soon(t, "the others", func() bool { return came.Load() == 1+others })
	close(s.hold)
	leases.Wait()
	if n := s.leases.Load(); n > others/2 {
		t.Errorf("%d questions for %d requests at once", n, others+1)
	}
	again := "a-third-secret-of-some-length"
	s.secret.Store(&again)
	lease(again)
	leases.Wait()
}

// Sandboxes share what is the same for all, and nothing else.
func TestSandboxesWithTheirOwn(t *testing.T) {
	for name, tt := range map[string]struct {
		own  func(string) bool
		want int64
	}{
		"one for all":  {shared, 1},
		"one for each": {func(string) bool { return true }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := newBrokerSupervisor(t)
			b := newBroker(s.peer, func(string, string, uint16) bool { return true }, nil, tt.own)
			for _, sandbox := range []string{"a", "b", "a", "b"} {
				_, err := b.Lease(t.Context(), "key", credential.Binding{Host: bound, Port: 443, Verified: true, Policy: revision, Sandbox: sandbox})
				must.OK(t, err)
			}
			if n := s.leases.Load(); n != tt.want {
				t.Errorf("%d leases, want %d", n, tt.want)
			}
		})
	}
}

func TestRefresh(t *testing.T) {
	s := newBrokerSupervisor(t)
	to := credential.Binding{Host: bound, Port: 443, Verified: true, Policy: revision}
	b := newBroker(s.peer, func(name, _ string, _ uint16) bool { return name == "key" }, nil, shared)
	l, err := b.Lease(t.Context(), "key", to)
	must.OK(t, err)
	if changed, err := b.Refresh(t.Context(), "key", to, l.Version); changed || err != nil {
		t.Errorf("when there is no other: %v, %v", changed, err)
	}
	next := "another-secret-of-some-length"
	s.secret.Store(&next)
	if changed, err := b.Refresh(t.Context(), "key", to, l.Version); !changed || err != nil {
		t.Errorf("when there is another: %v, %v", changed, err)
	}
	if l, err = b.Lease(t.Context(), "key", to); err != nil || l.Values()[0].Reveal() != next {
		t.Errorf("then %v is leased, %v", l, err)
	}
	if _, err := b.Refresh(t.Context(), "other", to, "1"); !errors.Is(err, credential.ErrNotBound) {
		t.Errorf("of a credential that is not bound: %v", err)
	}
}

// Those who find nothing leased when somebody has just asked use what has come.
func TestBurstAsksOnce(t *testing.T) {
	s := newBrokerSupervisor(t)
	to := credential.Binding{Host: bound, Port: 443, Verified: true, Policy: revision}
	asked := int64(0)
	for range 50 {
		began := time.Now()
		b := newBroker(s.peer, func(string, string, uint16) bool { return true }, nil, shared)
		var burst errgroup.Group
		for range leaseUses {
			burst.Go(func() error { _, err := b.Lease(t.Context(), "key", to); return err })
		}
		must.OK(t, burst.Wait())
		n, late := s.leases.Load()-asked, int64(time.Since(began)/leaseFor)
		if asked += n; n > 1+late {
			t.Fatalf("%d uses at once were %d leases of %d", leaseUses, n, leaseUses)
		}
	}
}
