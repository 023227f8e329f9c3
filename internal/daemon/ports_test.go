package daemon

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// turning is a list of sandboxes of which one ends after it has been looked at: another has
// its address by then.
type turning struct {
	sandboxes
	now *[]sandbox.Info
	end func()
}

func (n turning) List() []sandbox.Info {
	defer n.end()
	return *n.now
}

// A connection to a sandbox that has ended meanwhile is not made: it could be to the next one
// with its address.
func TestReachesNoOther(t *testing.T) {
	must.Root(t)
	l := listening(t)
	at := l.Addr().(interface{ AddrPort() netip.AddrPort }).AddrPort()
	info := func(id string, generation uint32) []sandbox.Info {
		return []sandbox.Info{{Name: "agents/" + id, ID: id, State: sandbox.Running, Address: at.Addr(), Generation: generation}}
	}
	for name, next := range map[string][]sandbox.Info{"another": info("b", 2), "its next session": info("a", 2), "none": nil, "itself": info("a", 1)} {
		now := info("a", 1)
		d := &daemon{sandboxes: turning{now: &now, end: func() { now = next }}}
		f, err := d.reach("a", at.Port())
		if ok := name == "itself"; ok != (err == nil) || !ok && !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("%s has the address: got %v", name, err)
		}
		if f != (*os.File)(nil) {
			must.OK(t, f.Close())
		}
	}
}
