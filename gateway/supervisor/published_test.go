package supervisor

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"sallyport/gateway"
	"sallyport/gateway/access"
	"sallyport/gateway/workerapi"
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
	case <-time.After(5 * time.Second):
		t.Error("the link ends after the wake")
	}
	close(back)
	<-over
}
