package gatehouse

import (
	"context"
	"net/netip"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"sallyport/gateway/resolver"
	"sallyport/internal/ipc"
)

// maxBooks bounds the sandboxes whose names are remembered; how many each may
// have is the table's to say.
const maxBooks = 4096

// names remembers what the Warden's table said, in the process: a pair never
// changes while its sandbox lives.
type names struct {
	peer *ipc.Peer

	mu    sync.Mutex
	books *simplelru.LRU[string, *book]
}

type book struct {
	addresses map[string]netip.Addr
	names     map[netip.Addr]string
}

func newNames(p *ipc.Peer) *names {
	n := &names{peer: p}
	// The size is a positive constant, the only thing that can be wrong.
	n.books, _ = simplelru.NewLRU[string, *book](maxBooks, nil)
	return n
}

// Assign implements resolver.Names.
func (n *names) Assign(sandboxID, name string) (netip.Addr, error) {
	n.mu.Lock()
	if b, ok := n.books.Get(sandboxID); ok {
		if a, ok := b.addresses[name]; ok {
			n.mu.Unlock()
			return a, nil
		}
	}
	n.mu.Unlock()
	var got named
	if err := n.peer.Call(context.Background(), callAssign, nameCall{Sandbox: sandboxID, Name: name}, &got); err != nil {
		return netip.Addr{}, err
	}
	n.remember(sandboxID, name, got.Address)
	return got.Address, nil
}

// Assigned implements resolver.Names, by what is remembered here.
func (n *names) Assigned(sandboxID, name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	b, ok := n.books.Get(sandboxID)
	if !ok {
		return false
	}
	_, ok = b.addresses[name]
	return ok
}

// Name implements resolver.Names and gateway.Names.
func (n *names) Name(sandboxID string, a netip.Addr) (string, bool) {
	a = a.Unmap()
	if !resolver.Prefix.Contains(a) {
		return "", false
	}
	n.mu.Lock()
	if b, ok := n.books.Get(sandboxID); ok {
		if name, ok := b.names[a]; ok {
			n.mu.Unlock()
			return name, true
		}
	}
	n.mu.Unlock()
	var got named
	if err := n.peer.Call(context.Background(), callName, nameCall{Sandbox: sandboxID, Address: a}, &got); err != nil || !got.Known {
		return "", false
	}
	n.remember(sandboxID, got.Name, a)
	return got.Name, true
}

func (n *names) remember(sandboxID, name string, a netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b, ok := n.books.Get(sandboxID)
	if !ok {
		b = &book{map[string]netip.Addr{}, map[netip.Addr]string{}}
		n.books.Add(sandboxID, b)
	}
	b.addresses[name], b.names[a] = a, name
}

func (n *names) forget(sandboxID string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.books.Remove(sandboxID)
}

// gatewayNames joins the names and the server that answers from them.
type gatewayNames struct {
	*names
	server *resolver.Server
}

func (n gatewayNames) Denied(sandboxID, name string) { n.server.Denied(sandboxID, name) }
