package gatehouse

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"sallyport/audit"
	"sallyport/gateway/credential"
	"sallyport/gateway/mitm"
	"sallyport/gateway/resolver"
	"sallyport/internal/ipc"
	"sallyport/policy"
)

type plainSealer struct{}

func (plainSealer) Seal(b []byte) ([]byte, error) { return b, nil }
func (plainSealer) Open(b []byte) ([]byte, error) { return b, nil }

// vault is a source that counts.
type vault struct {
	value atomic.Pointer[string]
	reads atomic.Int64
}

func (v *vault) Read(context.Context) (credential.Material, error) {
	v.reads.Add(1)
	return credential.Material{Fields: map[string]credential.Secret{"token": credential.NewSecret(*v.value.Load())}, Version: "1"}, nil
}

// scene is a Warden and the far end of its link, which a test plays.
type scene struct {
	warden *Supervisor
	vault  *vault
	audit  string
	child  *ipc.Peer
	ended  <-chan error // of the Warden's side
}

const (
	bound    = "api.example.test"
	revision = "r1"
)

func newScene(t *testing.T) *scene {
	t.Helper()
	dir := t.TempDir()
	v := &vault{}
	secret := "a-secret-of-some-length"
	v.value.Store(&secret)
	authority, err := mitm.Open(mitm.Options{Dir: filepath.Join(dir, "ca"), Sealer: plainSealer{}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := authority.Root("box"); err != nil {
		t.Fatal(err)
	}
	table, err := resolver.OpenTable(filepath.Join(dir, "names"), resolver.TableOptions{PerSandbox: 8})
	if err != nil {
		t.Fatal(err)
	}
	trail := filepath.Join(dir, "audit")
	own, err := audit.Open(trail, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = own.Close() })
	w := New(Options{
		AuditDir: trail, Authority: authority, Names: table, Logger: slog.New(slog.DiscardHandler),
		Broker: credential.New(credential.Options{
			Sources: map[string]credential.Source{"key": v, "other": v}, Revision: revision,
			Bound: func(name, host string, port uint16) bool { return name == "key" && host == bound && port == 443 },
		}),
		Local: func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("198.51.100.1/32")} },
		Identities: func() map[netip.Addr]policy.Sandbox {
			return map[netip.Addr]policy.Sandbox{{}: {Name: "box", ID: "box"}}
		},
	})
	here, f, err := ipc.Pair()
	if err != nil {
		t.Fatal(err)
	}
	there, err := ipc.Inherited(f)
	if err != nil {
		t.Fatal(err)
	}
	side := ipc.New(here, w.link())
	child := ipc.New(there, ipc.Options{Files: true, Errors: Errors, MaxFrame: MaxFrame})
	ended, finished := make(chan error, 1), make(chan struct{})
	go func() { ended <- side.Serve() }()
	go func() { defer close(finished); _ = child.Serve() }()
	t.Cleanup(func() { _ = child.Close(); _ = side.Close(); <-finished })
	return &scene{w, v, trail, child, ended}
}

// Whatever the process asks for, it gets what its policy's rules give it.
func TestLeaseIsChecked(t *testing.T) {
	s := newScene(t)
	for name, tt := range map[string]struct {
		call LeaseRequest
		want error
	}{
		"what a rule binds":         {LeaseRequest{Credential: "key", Host: bound, Port: 443, TLS: true, Policy: revision}, nil},
		"another host":              {LeaseRequest{Credential: "key", Host: "evil.example.test", Port: 443, TLS: true, Policy: revision}, credential.ErrNotBound},
		"another port":              {LeaseRequest{Credential: "key", Host: bound, Port: 8443, TLS: true, Policy: revision}, credential.ErrNotBound},
		"no TLS":                    {LeaseRequest{Credential: "key", Host: bound, Port: 443, Policy: revision}, credential.ErrNotBound},
		"a credential without rule": {LeaseRequest{Credential: "other", Host: bound, Port: 443, TLS: true, Policy: revision}, credential.ErrNotBound},
		"no such credential":        {LeaseRequest{Credential: "../key", Host: bound, Port: 443, TLS: true, Policy: revision}, credential.ErrNotBound},
		"another policy":            {LeaseRequest{Credential: "key", Host: bound, Port: 443, TLS: true, Policy: "r0"}, credential.ErrStale},
		"no policy":                 {LeaseRequest{Credential: "key", Host: bound, Port: 443, TLS: true}, credential.ErrStale},
	} {
		t.Run(name, func(t *testing.T) {
			var got LeaseReply
			err := s.child.Call(t.Context(), MethodLease, tt.call, &got)
			if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if (got.Fields["token"] != "") != (tt.want == nil) {
				t.Errorf("got %d fields", len(got.Fields))
			}
		})
	}
	var got LoginReply
	if err := s.child.Call(t.Context(), MethodLogin, LoginRequest{"key", "http://proxy.example.test:3128"}, &got); !errors.Is(err, credential.ErrNotBound) || got.Password != "" {
		t.Errorf("a login that no rule has: %v", err)
	}
}

// A burst asks once; what is leased is used no more often than allowed, and not
// at all after it was revoked.
func TestLeaseUses(t *testing.T) {
	s := newScene(t)
	to := credential.Binding{Host: bound, Port: 443, TLS: true, Policy: revision}
	b := newBroker(s.child, func(name, host string, port uint16) bool { return name == "key" && host == bound }, nil)
	token := func() string {
		l, err := b.Lease(t.Context(), "key", to)
		if err != nil {
			t.Error(err)
			return ""
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
	if n, late := s.vault.reads.Load(), int64(time.Since(began)/leaseFor); n < 3 || n > 3+late {
		t.Errorf("%d uses were %d leases of %d", 3*leaseUses, n, leaseUses)
	}
	changed := "another-secret-of-some-length"
	s.vault.value.Store(&changed)
	b.clear(time.Time{}) // what MethodRevoke does
	if got := token(); got != changed {
		t.Errorf("after it was revoked: %q", got)
	}
	// And without: within a second.
	third := "a-third-secret-of-some-length"
	s.vault.value.Store(&third)
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

// Those who find nothing leased when somebody has just asked use what has come.
func TestBurstAsksOnce(t *testing.T) {
	s := newScene(t)
	to := credential.Binding{Host: bound, Port: 443, TLS: true, Policy: revision}
	asked := int64(0)
	for range 50 {
		began := time.Now()
		b := newBroker(s.child, func(string, string, uint16) bool { return true }, nil)
		var burst errgroup.Group
		for range leaseUses {
			burst.Go(func() error { _, err := b.Lease(t.Context(), "key", to); return err })
		}
		if err := burst.Wait(); err != nil {
			t.Fatal(err)
		}
		n, late := s.vault.reads.Load()-asked, int64(time.Since(began)/leaseFor)
		if asked += n; n > 1+late {
			t.Fatalf("%d uses at once were %d leases of %d", leaseUses, n, leaseUses)
		}
	}
}

func TestQuestions(t *testing.T) {
	s := newScene(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		method ipc.Method
		call   any
		out    any
		ok     bool
	}{
		"a leaf":                       {MethodSign, SignRequest{"box", bound, point}, &SignReply{}, true},
		"a leaf of no sandbox":         {MethodSign, SignRequest{"nobody", bound, point}, &SignReply{}, false},
		"a leaf of a path":             {MethodSign, SignRequest{"../../box", bound, point}, &SignReply{}, false},
		"a leaf for a wildcard":        {MethodSign, SignRequest{"box", "*.example.test", point}, &SignReply{}, false},
		"a leaf for no point":          {MethodSign, SignRequest{"box", bound, []byte("key")}, &SignReply{}, false},
		"a leaf for a point off curve": {MethodSign, SignRequest{"box", bound, append([]byte{4}, make([]byte, 64)...)}, &SignReply{}, false},
		"a name":                       {MethodAssign, NameRequest{Sandbox: "box", Name: bound}, &NameReply{}, true},
		"a name of no sandbox":         {MethodAssign, NameRequest{Sandbox: "nobody", Name: bound}, &NameReply{}, false},
		"a name of a path":             {MethodAssign, NameRequest{Sandbox: "../box", Name: bound}, &NameReply{}, false},
		"a name with a newline":        {MethodAssign, NameRequest{Sandbox: "box", Name: "a\nb"}, &NameReply{}, false},
		"the name behind an address":   {MethodName, NameRequest{Sandbox: "box", Address: resolver.Refusal}, &NameReply{}, true},
		"this host's addresses":        {MethodLocal, ipc.None{}, &LocalReply{}, true},
		"a segment before the first":   {MethodSegment, SegmentRequest{0}, &ipc.None{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := s.child.Call(t.Context(), tt.method, tt.call, tt.out); (err == nil) != tt.ok {
				t.Errorf("got %v", err)
			}
		})
	}
	// The table's bound holds for a process that asks without end.
	var full error
	for i := range 20 {
		full = s.child.Call(t.Context(), MethodAssign, NameRequest{Sandbox: "box", Name: fmt.Sprintf("n%d.example.test", i)}, &NameReply{})
	}
	if !errors.Is(full, resolver.ErrTableFull) {
		t.Errorf("the 20th name of 8: %v", full)
	}
	// What only the Warden may ask ends the link.
	if err := s.child.Call(t.Context(), MethodStop, StopRequest{}, &StopReply{}); !errors.Is(err, ipc.ErrClosed) {
		t.Errorf("the process stops the Warden: %v", err)
	}
	if err := <-s.ended; !errors.Is(err, ipc.ErrProtocol) {
		t.Errorf("the link ended with %v", err)
	}
}

// What a process says on its standard error cannot pass for anything else.
func TestRepeat(t *testing.T) {
	var said strings.Builder
	w := &Supervisor{o: Options{Logger: slog.New(slog.NewTextHandler(&said, nil))}}
	w.repeat([]byte(`{"time":"x","level":"WARN","msg":"hello","b":2,"a":"x\ny"}`))
	w.repeat([]byte("panic: \x1b[2Jtime=forged level=ERROR"))
	text := said.String()
	for _, want := range []string{`level=WARN msg=hello a="x\ny" b=2`, `msg=gateway said="panic: \x1b[2Jtime=forged level=ERROR"`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
	if strings.Contains(text, "\x1b") || strings.Count(text, "\n") != 2 {
		t.Errorf("it says %q", text)
	}
}

func TestCertificates(t *testing.T) {
	mixed := "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\nroot:x:0:0\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
	if got, want := string(certificates([]byte(mixed))), "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A process gets segments of the log as fast as a log may need them, and no
// number that would end the log.
func TestSegmentsAreBounded(t *testing.T) {
	s := newScene(t)
	if err := s.child.Call(t.Context(), MethodSegment, SegmentRequest{1 << 61}, &ipc.None{}); err == nil {
		t.Error("a segment that begins where numbers end")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var made atomic.Int64
	var calls errgroup.Group
	for range 4 * segmentBurst {
		calls.Go(func() error {
			f, err := s.child.CallFile(ctx, MethodSegment, SegmentRequest{1}, &ipc.None{})
			if err == nil {
				made.Add(1)
				return f.Close()
			}
			return nil
		})
	}
	if err := calls.Wait(); err != nil {
		t.Error(err)
	}
	if n := made.Load(); n < segmentBurst/2 || n > segmentBurst {
		t.Errorf("%d segments in 0.3 s, want at most %d", n, segmentBurst)
	}
	files, err := os.ReadDir(s.audit)
	if err != nil || len(files) > 2 {
		t.Errorf("%d files for one number, %v", len(files), err)
	}
}

// What a process may have the daemon hold is little: a call is as large as one
// of ours needs to be.
func TestCallsAreSmall(t *testing.T) {
	s := newScene(t)
	have := LeaseRequest{Credential: "key", Host: bound, Port: 443, TLS: true, Policy: revision, Have: make([]byte, 32)}
	if err := s.child.Call(t.Context(), MethodLease, have, &LeaseReply{}); err != nil {
		t.Fatal(err)
	}
	longest := NameRequest{Sandbox: "box", Name: strings.Repeat("\x01", 255)} // six bytes each
	if err := s.child.Call(t.Context(), MethodAssign, longest, &NameReply{}); errors.Is(err, ipc.ErrClosed) {
		t.Errorf("a name of 255 bytes: %v", err)
	}
	have.Have = make([]byte, 64<<10)
	if err := s.child.Call(t.Context(), MethodLease, have, &LeaseReply{}); !errors.Is(err, ipc.ErrClosed) {
		t.Fatalf("a call of 64 KiB: %v", err)
	}
	if err := <-s.ended; !errors.Is(err, ipc.ErrProtocol) {
		t.Errorf("the link ended with %v", err)
	}
}
