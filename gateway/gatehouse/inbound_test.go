package gatehouse

import (
	"context"
	"net/netip"
	"testing"

	"sallyport/gateway"
	"sallyport/internal/link"
	"sallyport/policy"
)

// A process that has been taken over starts what is exposed, and nothing else.
func TestWakeIsChecked(t *testing.T) {
	s := newScene(t)
	var woken []string
	s.warden.o.Exposures = func() []gateway.Exposure { return []gateway.Exposure{{Sandbox: "box", SandboxID: "box", Port: 8000}} }
	s.warden.o.Whose = func(_ context.Context, id string) (policy.Sandbox, error) {
		return policy.Sandbox{Name: id, ID: id, Tags: map[string]string{"team": "web"}}, nil
	}
	s.warden.o.Wake = func(_ context.Context, id string) (gateway.Identity, error) {
		woken = append(woken, id)
		return gateway.Identity{Sandbox: policy.Sandbox{Name: id, ID: id}, Address: netip.MustParseAddr("10.231.0.3")}, nil
	}
	w := waker{s.child}
	if i, err := w.Wake(t.Context(), "box"); err != nil || i.ID != "box" || i.Address != netip.MustParseAddr("10.231.0.3") {
		t.Errorf("what is exposed: %+v %v", i, err)
	}
	if who, err := w.Whose(t.Context(), "box"); err != nil || who.Tags["team"] != "web" {
		t.Errorf("who is exposed: %+v %v", who, err)
	}
	for _, id := range []string{"other", "", "../box"} {
		if i, err := w.Wake(t.Context(), id); err == nil {
			t.Errorf("%q: %+v", id, i)
		}
		if who, err := w.Whose(t.Context(), id); err == nil {
			t.Errorf("who %q is: %+v", id, who)
		}
	}
	s.warden.o.Exposures = nil
	if err := s.child.Call(t.Context(), callWake, exposedCall{"box"}, &link.None{}); err == nil {
		t.Error("nothing is exposed, and box was started")
	}
	if len(woken) != 1 {
		t.Errorf("woken: %q", woken)
	}
}
