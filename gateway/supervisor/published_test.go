package supervisor

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"reflect"
	"testing"
	"time"

	"sallyport/gateway"
	"sallyport/gateway/access"
	"sallyport/gateway/inbound"
	"sallyport/gateway/workerapi"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// A process that has been taken over starts what is exposed, and nothing else.
func TestWakeIsChecked(t *testing.T) {
	w := New(Options{})
	var woken []string
	w.o.Ports = func() []access.Port { return []access.Port{{Sandbox: "box", SandboxID: "box", Port: 8000}} }
	w.o.Whose = func(_ context.Context, id string) (policy.Sandbox, error) {
		return policy.Sandbox{Name: id, ID: id, Tags: map[string]string{"team": "web"}}, nil
	}
	w.o.Wake = func(_ context.Context, id string) (gateway.Identity, error) {
		woken = append(woken, id)
		return gateway.Identity{Sandbox: policy.Sandbox{Name: id, ID: id}, Address: netip.MustParseAddr("10.231.0.3")}, nil
	}
	if i, err := w.wake(t.Context(), workerapi.SandboxRequest{ID: "box"}); err != nil || i.Sandbox.ID != "box" || i.Address != netip.MustParseAddr("10.231.0.3") {
		t.Errorf("what is exposed: %+v %v", i, err)
	}
	if who, err := w.identify(t.Context(), workerapi.SandboxRequest{ID: "box"}); err != nil || who.Sandbox.Tags["team"] != "web" {
		t.Errorf("who is exposed: %+v %v", who, err)
	}
	for _, id := range []string{"other", "", "../box"} {
		if i, err := w.wake(t.Context(), workerapi.SandboxRequest{ID: id}); err == nil {
			t.Errorf("%q: %+v", id, i)
		}
		if who, err := w.identify(t.Context(), workerapi.SandboxRequest{ID: id}); err == nil {
			t.Errorf("who %q is: %+v", id, who)
		}
	}
	w.o.Ports = nil
	if _, err := w.wake(t.Context(), workerapi.SandboxRequest{ID: "box"}); err == nil {
		t.Error("nothing is exposed, and box was started")
	}
	if len(woken) != 1 {
		t.Errorf("woken: %q", woken)
	}
}

// The end of a process does not wait for a sandbox that wakes for it: that waits to
// be recorded until the log is taken back, which is done when the process has ended.
func TestWakeOutlivesTheProcess(t *testing.T) {
	s := newScene(t)
	s.supervisor.o.Ports = func() []access.Port { return []access.Port{{Sandbox: "box", SandboxID: "box", Port: 8000}} }
	begun, back, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	s.supervisor.o.Wake = func(context.Context, string) (gateway.Identity, error) {
		close(begun)
		<-back
		close(over)
		return gateway.Identity{}, nil
	}
	go func() {
		var got workerapi.WakeReply
		_ = s.child.Call(t.Context(), workerapi.MethodWake, workerapi.SandboxRequest{ID: "box"}, &got)
	}()
	<-begun
	_ = s.child.Close()
	select {
	case <-s.ended:
	case <-time.After(time.Minute):
		t.Error("the link ends after the wake")
	}
	close(back)
	<-over
}

// A router's client has a process find sandboxes, and reach those that the daemon says.
func TestRoutedIsChecked(t *testing.T) {
	s := newScene(t)
	o := &s.supervisor.o
	place := inbound.Place{Namespace: "agents", Name: "box", Sandbox: policy.Sandbox{Name: "agents/box", ID: "box", Tags: map[string]string{"team": "web"}}}
	o.Find = func(_ context.Context, to inbound.Route) (inbound.Place, error) {
		switch {
		case to == inbound.Route{Namespace: "agents", Name: "box", Port: 8888}:
			return place, nil
		case to.Address == netip.MustParseAddr("10.231.2.1"):
			return inbound.Place{Namespace: "agents", Name: "far", Node: netip.MustParseAddrPort("192.0.2.2:7443")}, nil
		}
		return inbound.Place{}, inbound.ErrNotPlaced
	}
	o.Routable = func(id string, port uint16) bool { return id == "box" && (port == 0 || port == 8888) }
	o.Whose = func(_ context.Context, id string) (policy.Sandbox, error) { return policy.Sandbox{ID: id}, nil }
	o.Dial = func(string, uint16) (*os.File, error) { return os.Open(os.DevNull) }
	find := func(to inbound.Route) (at inbound.Place, err error) {
		return at, s.child.Call(t.Context(), workerapi.MethodFind, to, &at)
	}
	if at, err := find(inbound.Route{Namespace: "agents", Name: "box", Port: 8888}); err != nil || !reflect.DeepEqual(at, place) {
		t.Errorf("got %+v %v", at, err)
	}
	if at, err := find(inbound.Route{Address: netip.MustParseAddr("10.231.2.1"), Port: 80}); err != nil || at.Node.String() != "192.0.2.2:7443" {
		t.Errorf("got %+v %v", at, err)
	}
	if at, err := find(inbound.Route{Namespace: "agents", Name: "none"}); !errors.Is(err, inbound.ErrNotPlaced) {
		t.Errorf("got %+v %v", at, err)
	}
	for id, want := range map[string]bool{"box": true, "other": false} {
		if who, err := s.supervisor.identify(t.Context(), workerapi.SandboxRequest{ID: id}); (err == nil) != want {
			t.Errorf("who %s is: %+v %v", id, who, err)
		}
		for _, port := range []uint16{8888, 22} {
			if _, f, err := s.supervisor.dial(t.Context(), workerapi.PortRequest{ID: id, Port: port}); (err == nil) != (want && port == 8888) {
				t.Errorf("port %d of %s: %v", port, id, err)
			} else if f != nil {
				_ = f.Close()
			}
		}
		if _, _, err := s.supervisor.loopback(t.Context(), workerapi.PortRequest{ID: id, Port: 8888}); err == nil {
			t.Errorf("the loopback address of %s is reached", id)
		}
	}
}

// A look-up that nobody waits for any more ends.
func TestFindEnds(t *testing.T) {
	s := &Supervisor{o: Options{Find: func(ctx context.Context, _ inbound.Route) (inbound.Place, error) {
		if _, ends := ctx.Deadline(); !ends {
			t.Error("it has no end")
		}
		return inbound.Place{}, nil
	}}}
	_, err := s.find(t.Context(), inbound.Route{})
	must.OK(t, err)
}
