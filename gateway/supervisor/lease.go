package supervisor

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"time"

	"sallyport/gateway/credential"
	"sallyport/gateway/workerapi"
)

// A lease permits a number of uses within a time. Asking for each use was measured: it
// took two thirds more CPU time for a request than one process does; this takes an eighth
// more. A worker that has been taken over has the secret after one use anyhow. A change of
// the policy, or of a secret of the embedded store, ends all leases at once.
const (
	leaseUses = 256
	leaseFor  = time.Second
)

// leaseServer answers MethodLease and MethodLogin.
type leaseServer struct {
	broker *credential.Broker
	known  func(id string) bool // of sandboxes and clients
	key    [sha256.Size]byte    // of the marks, which do not reveal whether two secrets are equal
}

func newLeaseServer(b *credential.Broker, known func(id string) bool) *leaseServer {
	l := &leaseServer{broker: b, known: known}
	_, _ = rand.Read(l.key[:]) // never fails (crypto/rand)
	return l
}

func (l *leaseServer) lease(ctx context.Context, c workerapi.LeaseRequest) (workerapi.LeaseReply, error) {
	to := credential.Binding{Host: c.Host, Port: c.Port, Verified: c.Verified, Sandbox: c.Sandbox, Policy: c.Policy}
	if l.broker.PerSandbox(c.Credential) && !l.known(c.Sandbox) {
		return workerapi.LeaseReply{}, fmt.Errorf("leasing %q: %w: %w", c.Credential, credential.ErrNotBound, errNotRunning)
	}
	if c.Refused != "" {
		if _, err := l.broker.Refresh(ctx, c.Credential, to, c.Refused); err != nil {
			return workerapi.LeaseReply{}, err
		}
	}
	lease, err := l.broker.Lease(ctx, c.Credential, to)
	if err != nil {
		return workerapi.LeaseReply{}, err
	}
	m := lease.Material()
	got := workerapi.LeaseReply{Mark: l.mark(m), Uses: leaseUses, For: leaseFor, Cached: m.Cached}
	if !lease.Fresh.IsZero() {
		got.For = max(0, min(leaseFor, time.Until(lease.Fresh)))
	}
	if hmac.Equal(got.Mark, c.Have) {
		return got, nil
	}
	got.Version, got.Accessor, got.Expires, got.Ends, got.Fields = m.Version, m.Accessor, m.Expires, m.Ends, make(map[string]string, len(m.Fields))
	for k, v := range m.Fields {
		got.Fields[k] = v.Reveal()
	}
	return got, nil
}

func (l *leaseServer) login(ctx context.Context, c workerapi.LoginRequest) (workerapi.LoginReply, error) {
	username, password, err := l.broker.Login(ctx, c.Credential, c.Proxy)
	if err != nil {
		return workerapi.LoginReply{}, err
	}
	return workerapi.LoginReply{Username: username.Reveal(), Password: password.Reveal()}, nil
}

// mark is equal for equal material only.
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
	write(m.Ends.Format(time.RFC3339Nano))
	for _, k := range slices.Sorted(maps.Keys(m.Fields)) {
		write(k)
		write(m.Fields[k].Reveal())
	}
	return h.Sum(nil)
}
