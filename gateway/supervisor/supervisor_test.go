package supervisor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"sallyport/audit/auditlog"
	"sallyport/gateway/ca"
	"sallyport/gateway/credential"
	"sallyport/gateway/resolver"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
	"sallyport/internal/test/must"
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
	return credential.Material{Fields: map[string]credential.Secret{"token": credential.NewSecret(*v.value.Load())}, Version: "1", Accessor: "reading-1"}, nil
}

// each is a source of a secret for each sandbox.
type each struct{ *vault }

func (e each) For(string) credential.OwnSource { return e }
func (each) TTL() time.Duration                { return time.Minute }
func (each) End()                              {}

// kept is a source that is asked now and then.
type kept struct{ *vault }

func (kept) TTL() time.Duration { return time.Minute }

// scene is a Supervisor and the far end of its connection, which a test plays.
type scene struct {
	supervisor *Supervisor
	vault      *vault
	audit      string
	child      *ipc.Peer
	ended      <-chan error // of the supervisor's side
}

const (
	bound    = "api.example.test"
	revision = "r1"
)

// pair is both ends of a connection to a process.
func pair(t *testing.T) (here, there *net.UnixConn) {
	t.Helper()
	here, f, err := ipc.Pair()
	if err != nil {
		t.Fatal(err)
	}
	there, err = ipc.Inherited(f)
	if err != nil {
		t.Fatal(err)
	}
	return here, there
}

func newScene(t *testing.T) *scene {
	t.Helper()
	dir := t.TempDir()
	v := &vault{}
	secret := "a-secret-of-some-length"
	v.value.Store(&secret)
	authority, err := ca.Open(ca.Options{Dir: filepath.Join(dir, "ca"), Sealer: plainSealer{}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := authority.Root("box"); err != nil {
		t.Fatal(err)
	}
	table, err := resolver.OpenNameTable(filepath.Join(dir, "names"), resolver.NameTableOptions{PerSandbox: 8})
	if err != nil {
		t.Fatal(err)
	}
	trail := filepath.Join(dir, "audit")
	own, err := auditlog.Open(trail, auditlog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = own.Close() })
	w := New(Options{
		AuditDir: trail, Authority: authority, Names: table, Logger: slog.New(slog.DiscardHandler),
		Broker: credential.New(credential.Options{
			Sources: map[string]credential.Source{
				"key": v, "other": v, "each": each{v}, "kept": kept{v}, "uncached": credential.Lasting{Source: kept{v}, Cache: new(time.Duration)},
			},
			Revision: revision,
			Bound: func(name, host string, port uint16) bool {
				return slices.Contains([]string{"key", "each", "kept", "uncached"}, name) && host == bound && port == 443
			},
		}),
		Local: func() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("198.51.100.1/32")} },
		Identities: func() map[netip.Addr]policy.Sandbox {
			return map[netip.Addr]policy.Sandbox{{}: {Name: "box", ID: "box"}}
		},
	})
	here, there := pair(t)
	side := ipc.New(here, w.peerOptions())
	child := ipc.New(there, ipc.Options{Files: true, Errors: workerapi.Errors, MaxFrame: workerapi.MaxFrame})
	ended, finished := make(chan error, 1), make(chan struct{})
	go func() { ended <- side.Serve() }()
	go func() { defer close(finished); _ = child.Serve() }()
	t.Cleanup(func() { _ = child.Close(); _ = side.Close(); <-finished })
	return &scene{w, v, trail, child, ended}
}

// A process uses a secret no longer than its source need not be asked again.
func TestLeaseIsAsFreshAsTheSecret(t *testing.T) {
	s := newScene(t)
	for name, want := range map[string]workerapi.LeaseReply{
		"key": {For: leaseFor}, "kept": {For: leaseFor, Cached: true}, "uncached": {Cached: true},
	} {
		for n := range 2 {
			before := s.vault.reads.Load()
			var got workerapi.LeaseReply
			must.OK(t, s.child.Call(t.Context(), workerapi.MethodLease, workerapi.LeaseRequest{Credential: name, Host: bound, Port: 443, Verified: true, Policy: revision}, &got))
			if got.For != want.For || got.Cached != want.Cached {
				t.Errorf("%s: permitted for %v, cached %v, want %v, %v", name, got.For, got.Cached, want.For, want.Cached)
			}
			if reads := s.vault.reads.Load() - before; reads != 1 && (name != "kept" || n == 0) {
				t.Errorf("%s: the source was read %d times", name, reads)
			}
		}
	}
}

// Whatever the process asks for, it gets what its policy's rules give it.
func TestLeaseIsChecked(t *testing.T) {
	s := newScene(t)
	for name, tt := range map[string]struct {
		call workerapi.LeaseRequest
		want error
	}{
		"what a rule binds":         {workerapi.LeaseRequest{Credential: "key", Host: bound, Port: 443, Verified: true, Policy: revision}, nil},
		"another host":              {workerapi.LeaseRequest{Credential: "key", Host: "evil.example.test", Port: 443, Verified: true, Policy: revision}, credential.ErrNotBound},
		"another port":              {workerapi.LeaseRequest{Credential: "key", Host: bound, Port: 8443, Verified: true, Policy: revision}, credential.ErrNotBound},
		"no TLS":                    {workerapi.LeaseRequest{Credential: "key", Host: bound, Port: 443, Policy: revision}, credential.ErrNotBound},
		"a credential without rule": {workerapi.LeaseRequest{Credential: "other", Host: bound, Port: 443, Verified: true, Policy: revision}, credential.ErrNotBound},
		"no such credential":        {workerapi.LeaseRequest{Credential: "../key", Host: bound, Port: 443, Verified: true, Policy: revision}, credential.ErrNotBound},
		"another policy":            {workerapi.LeaseRequest{Credential: "key", Host: bound, Port: 443, Verified: true, Policy: "r0"}, credential.ErrStale},
		"a sandbox's own":           {workerapi.LeaseRequest{Credential: "each", Host: bound, Port: 443, Verified: true, Policy: revision, Sandbox: "box"}, nil},
		"one that does not run":     {workerapi.LeaseRequest{Credential: "each", Host: bound, Port: 443, Verified: true, Policy: revision, Sandbox: "gone"}, credential.ErrNotBound},
		"the host's own":            {workerapi.LeaseRequest{Credential: "each", Host: bound, Port: 443, Verified: true, Policy: revision}, credential.ErrNotBound},
		"no policy":                 {workerapi.LeaseRequest{Credential: "key", Host: bound, Port: 443, Verified: true}, credential.ErrStale},
	} {
		t.Run(name, func(t *testing.T) {
			var got workerapi.LeaseReply
			err := s.child.Call(t.Context(), workerapi.MethodLease, tt.call, &got)
			if !errors.Is(err, tt.want) || (err == nil) != (tt.want == nil) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if (got.Fields["token"] != "") != (tt.want == nil) || (got.Accessor == "reading-1") != (tt.want == nil) {
				t.Errorf("got %d fields, of %q", len(got.Fields), got.Accessor)
			}
		})
	}
	var got workerapi.LoginReply
	if err := s.child.Call(t.Context(), workerapi.MethodLogin, workerapi.LoginRequest{Credential: "key", Proxy: "http://proxy.example.test:3128"}, &got); !errors.Is(err, credential.ErrNotBound) || got.Password != "" {
		t.Errorf("a login that no rule has: %v", err)
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
	// An Ed25519 key as SSH has it (RFC 8709, section 4).
	hostKey := append([]byte("\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20"), make([]byte, 32)...)
	for name, tt := range map[string]struct {
		method ipc.Method
		call   any
		out    any
		ok     bool
	}{
		"a leaf":                       {workerapi.MethodSign, workerapi.SignRequest{Sandbox: "box", Name: bound, Public: point}, &workerapi.SignReply{}, true},
		"a leaf of no sandbox":         {workerapi.MethodSign, workerapi.SignRequest{Sandbox: "nobody", Name: bound, Public: point}, &workerapi.SignReply{}, false},
		"a leaf of a path":             {workerapi.MethodSign, workerapi.SignRequest{Sandbox: "../../box", Name: bound, Public: point}, &workerapi.SignReply{}, false},
		"a leaf for a wildcard":        {workerapi.MethodSign, workerapi.SignRequest{Sandbox: "box", Name: "*.example.test", Public: point}, &workerapi.SignReply{}, false},
		"a leaf for no point":          {workerapi.MethodSign, workerapi.SignRequest{Sandbox: "box", Name: bound, Public: []byte("key")}, &workerapi.SignReply{}, false},
		"a leaf for a point off curve": {workerapi.MethodSign, workerapi.SignRequest{Sandbox: "box", Name: bound, Public: append([]byte{4}, make([]byte, 64)...)}, &workerapi.SignReply{}, false},
		"an SSH host":                  {workerapi.MethodCertify, workerapi.CertifyRequest{Sandbox: "box", Name: bound, Public: hostKey}, &workerapi.CertifyReply{}, true},
		"an SSH host of no sandbox":    {workerapi.MethodCertify, workerapi.CertifyRequest{Sandbox: "nobody", Name: bound, Public: hostKey}, &workerapi.CertifyReply{}, false},
		"any SSH host":                 {workerapi.MethodCertify, workerapi.CertifyRequest{Sandbox: "box", Name: "*", Public: hostKey}, &workerapi.CertifyReply{}, false},
		"an SSH host of another key":   {workerapi.MethodCertify, workerapi.CertifyRequest{Sandbox: "box", Name: bound, Public: point}, &workerapi.CertifyReply{}, false},
		"a name":                       {workerapi.MethodAssign, workerapi.NameRequest{Sandbox: "box", Name: bound}, &workerapi.NameReply{}, true},
		"a name of no sandbox":         {workerapi.MethodAssign, workerapi.NameRequest{Sandbox: "nobody", Name: bound}, &workerapi.NameReply{}, false},
		"a name of a path":             {workerapi.MethodAssign, workerapi.NameRequest{Sandbox: "../box", Name: bound}, &workerapi.NameReply{}, false},
		"a name with a newline":        {workerapi.MethodAssign, workerapi.NameRequest{Sandbox: "box", Name: "a\nb"}, &workerapi.NameReply{}, false},
		"the name behind an address":   {workerapi.MethodName, workerapi.NameRequest{Sandbox: "box", Address: resolver.Refusal}, &workerapi.NameReply{}, true},
		"this host's addresses":        {workerapi.MethodLocal, ipc.None{}, &workerapi.LocalReply{}, true},
		"a segment before the first":   {workerapi.MethodSegment, workerapi.SegmentRequest{First: 0}, &ipc.None{}, false},
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
		full = s.child.Call(t.Context(), workerapi.MethodAssign, workerapi.NameRequest{Sandbox: "box", Name: fmt.Sprintf("n%d.example.test", i)}, &workerapi.NameReply{})
	}
	if !errors.Is(full, resolver.ErrTableFull) {
		t.Errorf("the 20th name of 8: %v", full)
	}
	// A question that only the supervisor may ask ends the connection.
	if err := s.child.Call(t.Context(), workerapi.MethodStop, workerapi.StopRequest{}, &workerapi.StopReply{}); !errors.Is(err, ipc.ErrClosed) {
		t.Errorf("the worker stops the supervisor: %v", err)
	}
	if err := <-s.ended; !errors.Is(err, ipc.ErrProtocol) {
		t.Errorf("the link ended with %v", err)
	}
}

// A process's text on its standard error cannot pass for anything else.
func TestRepeat(t *testing.T) {
	var said strings.Builder
	w := &Supervisor{o: Options{Logger: slog.New(slog.NewTextHandler(&said, nil))}}
	w.relayLog([]byte(`{"time":"x","level":"WARN","msg":"hello","b":2,"a":"x\ny"}`))
	w.relayLog([]byte("panic: \x1b[2Jtime=forged level=ERROR"))
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
	if err := s.child.Call(t.Context(), workerapi.MethodSegment, workerapi.SegmentRequest{First: 1 << 61}, &ipc.None{}); err == nil {
		t.Error("a segment that begins where numbers end")
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var made atomic.Int64
	var calls errgroup.Group
	for range 4 * segmentBurst {
		calls.Go(func() error {
			f, err := s.child.CallFile(ctx, workerapi.MethodSegment, workerapi.SegmentRequest{First: 1}, &ipc.None{})
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
	took := time.Since(began)
	if n, most := made.Load(), segmentBurst+int64(took/time.Second)+1; n < segmentBurst/2 || n > most {
		t.Errorf("%d segments in %v, want at most %d", n, took, most)
	}
	files, err := os.ReadDir(s.audit)
	if err != nil || len(files) > 2 {
		t.Errorf("%d files for one number, %v", len(files), err)
	}
}

// A process can have the daemon hold little: a call is as large as one of ours needs to be.
func TestCallsAreSmall(t *testing.T) {
	s := newScene(t)
	have := workerapi.LeaseRequest{Credential: "key", Host: bound, Port: 443, Verified: true, Policy: revision, Have: make([]byte, 32)}
	if err := s.child.Call(t.Context(), workerapi.MethodLease, have, &workerapi.LeaseReply{}); err != nil {
		t.Fatal(err)
	}
	longest := workerapi.NameRequest{Sandbox: "box", Name: strings.Repeat("\x01", 255)} // six bytes each
	if err := s.child.Call(t.Context(), workerapi.MethodAssign, longest, &workerapi.NameReply{}); errors.Is(err, ipc.ErrClosed) {
		t.Errorf("a name of 255 bytes: %v", err)
	}
	have.Have = make([]byte, 64<<10)
	if err := s.child.Call(t.Context(), workerapi.MethodLease, have, &workerapi.LeaseReply{}); !errors.Is(err, ipc.ErrClosed) {
		t.Fatalf("a call of 64 KiB: %v", err)
	}
	if err := <-s.ended; !errors.Is(err, ipc.ErrProtocol) {
		t.Errorf("the link ended with %v", err)
	}
}
