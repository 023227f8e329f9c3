package manager

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"sallyport/internal/image"
	"sallyport/sandbox"
)

// Owners have the default image and those that are listed for them, by name; the
// host's own callers any. What is no name is refused before anything is made. A
// sandbox that is refused is an event.
func TestImagesOfOwners(t *testing.T) {
	h := newFaultHost()
	m := open(t, h, t.TempDir())
	m.opt.Subnet = netip.MustParsePrefix("10.9.0.0/24")
	m.opt.OwnerImages = image.Patterns{"registry.example.com/team/**"}
	host, acme := t.Context(), sandbox.ForOwner(t.Context(), "acme")
	id := "sha256:" + strings.Repeat("0123456789abcdef", 4)
	for i, tt := range []struct {
		ctx   context.Context
		image string
		want  error
	}{
		{acme, "", nil},
		{acme, m.opt.Defaults.Image, nil},
		{acme, m.opt.Defaults.Image + ":latest", nil},
		{acme, "registry.example.com/team/a:1", nil},
		{acme, "registry.example.com/other/a:1", sandbox.ErrImage},
		{acme, "debian", sandbox.ErrImage},
		{acme, id, sandbox.ErrImage},
		{acme, "a", sandbox.ErrImage},
		{acme, "../containers/sallyport-1", sandbox.ErrBadSpec},
		{acme, "registry.example.com/team/../other/a:1", sandbox.ErrBadSpec},
		{host, "debian", nil},
		{host, id, nil},
		{host, "../distribution/203.0.113.1:80/name", sandbox.ErrBadSpec},
		{host, "debian?", sandbox.ErrBadSpec},
		{host, id[:20], sandbox.ErrBadSpec},
	} {
		name := "box-" + string(rune('a'+i))
		deeds, calls := len(h.deeds), h.calls
		_, created, err := m.GetOrCreate(tt.ctx, name, sandbox.Spec{Image: tt.image})
		if !errors.Is(err, tt.want) || created != (tt.want == nil) {
			t.Errorf("%q: got %v, %v, want %v", tt.image, created, err, tt.want)
		}
		if tt.want == nil {
			continue
		}
		if len(h.deeds) != deeds+1 || h.deeds[deeds].State != "refused" || !strings.Contains(h.deeds[deeds].Detail, "image") {
			t.Errorf("%q: got events %+v, want one that it is refused", tt.image, h.deeds[deeds:])
		}
		if made := h.calls - calls; made != 2 { // of the event, before and after it is written
			t.Errorf("%q: %d calls of engine, network and log", tt.image, made)
		}
	}
}
