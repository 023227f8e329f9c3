package engine_test

import (
	"testing"

	"sallyport/policy"
	"sallyport/policy/engine"
)

func TestEngine(t *testing.T) {
	var e engine.Engine
	in := request("GET", "a.example.com", "/")
	if d := e.Decide(t.Context(), in); d.Action != policy.Deny || d.Err == nil {
		t.Errorf("the zero engine: %+v", d)
	}
	first := compile(t, `egress: [{destination: "a.example.com"}]`, engine.Options{})
	e.Swap(first)
	if d := e.Decide(t.Context(), in); d.Action != policy.Allow {
		t.Errorf("after the swap: %+v", d)
	}
	second := compile(t, ``, engine.Options{})
	if old := e.Swap(second); old != first || e.Policy() != second {
		t.Error("Swap did not return what it replaced")
	}
	if d := e.Decide(t.Context(), in); d.Action != policy.Deny || d.Revision == first.Revision() {
		t.Errorf("after the second swap: %+v", d)
	}
}

// TestEngineSwapsWhole decides while the policy changes: each decision is one
// policy's or the other's.
func TestEngineSwapsWhole(t *testing.T) {
	open := compile(t, `egress: [{destination: "a.example.com"}]`, engine.Options{})
	shut := compile(t, `egress: [{destination: "a.example.com", action: deny}]`, engine.Options{})
	e := engine.NewEngine(open)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 300 {
			e.Swap([]*engine.Policy{open, shut}[i%2])
		}
	}()
	for range 300 {
		d := e.Decide(t.Context(), request("GET", "a.example.com", "/"))
		if want := map[string]policy.Action{open.Revision(): policy.Allow, shut.Revision(): policy.Deny}[d.Revision]; d.Action != want || d.Err != nil {
			t.Fatalf("got %+v, want %s", d, want)
		}
	}
	<-done
}
