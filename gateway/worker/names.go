package worker

import (
	"context"
	"net/netip"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"sallyport/gateway/resolver"
	"sallyport/gateway/workerapi"
	"sallyport/internal/ipc"
)

// maxSandboxes bounds the sandboxes whose names are remembered; how many each may
// have is the table's to say.
const maxSandboxes = 4096

// nameCache caches the supervisor's table of names. A pair of name and address never
// changes while its sandbox lives.
type nameCache struct {
	peer *ipc.Peer

	mu        sync.Mutex
	bySandbox *simplelru.LRU[string, *sandboxNames]
}

type sandboxNames struct {
	addresses map[string]netip.Addr
	names     map[netip.Addr]string
}

func newNameCache(p *ipc.Peer) *nameCache {
	n := &nameCache{peer: p}
	// The size is a positive constant, the only thing that can be wrong.
	n.bySandbox, _ = simplelru.NewLRU[string, *sandboxNames](maxSandboxes, nil)
	return n
}

// Assign implements resolver.Names.
func (n *nameCache) Assign(sandboxID, name string) (netip.Addr, error) {
	n.mu.Lock()
	if b, ok := n.bySandbox.Get(sandboxID); ok {
		if a, ok := b.addresses[name]; ok {
			n.mu.Unlock()
			return a, nil
		}
	}
	n.mu.Unlock()
	var got workerapi.NameReply
	if err := n.peer.Call(context.Background(), workerapi.MethodAssign, workerapi.NameRequest{Sandbox: sandboxID, Name: name}, &got); err != nil {
		return netip.Addr{}, err
	}
	n.remember(sandboxID, name, got.Address)
	return got.Address, nil
}

// Assigned implements resolver.Names, by what is remembered here.
func (n *nameCache) Assigned(sandboxID, name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	b, ok := n.bySandbox.Get(sandboxID)
	if !ok {
		return false
	}
	_, ok = b.addresses[name]
	return ok
}

// Name implements resolver.Names and gateway.Names.
func (n *nameCache) Name(sandboxID string, a netip.Addr) (string, bool) {
	a = a.Unmap()
	if !resolver.Prefix.Contains(a) {
		return "", false
	}
	n.mu.Lock()
	if b, ok := n.bySandbox.Get(sandboxID); ok {
		if name, ok := b.names[a]; ok {
			n.mu.Unlock()
			return name, true
		}
	}
	n.mu.Unlock()
	var got workerapi.NameReply
	if err := n.peer.Call(context.Background(), workerapi.MethodName, workerapi.NameRequest{Sandbox: sandboxID, Address: a}, &got); err != nil || !got.Known {
		return "", false
	}
	n.remember(sandboxID, got.Name, a)
	return got.Name, true
}

func (n *nameCache) remember(sandboxID, name string, a netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b, ok := n.bySandbox.Get(sandboxID)
	if !ok {
		b = &sandboxNames{map[string]netip.Addr{}, map[netip.Addr]string{}}
		n.bySandbox.Add(sandboxID, b)
	}
	b.addresses[name], b.names[a] = a, name
}

func (n *nameCache) forget(sandboxID string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.bySandbox.Remove(sandboxID)
}

// gatewayNames joins the cache with the DNS server, which counts names that were denied.
type gatewayNames struct {
	*nameCache
	server *resolver.Server
}

func (n gatewayNames) Denied(sandboxID, name string) { n.server.Denied(sandboxID, name) }
