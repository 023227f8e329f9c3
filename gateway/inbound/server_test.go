package inbound

import (
	"testing"
	"time"

	"sallyport/gateway/access"
)

// Requests to another port between those to one do not make the one's bounds anew.
func TestPaceOfOnePort(t *testing.T) {
	s := New(Options{Ports: new(access.Ports)})
	begun, passed := time.Now(), 0
	for range 4 * requestBurst {
		for _, host := range []string{"box.agents.svc:8888", "box.agents.svc:8889"} {
			if s.enter(host) {
				s.leave(host)
				passed++
			}
		}
	}
	if most := 2 * (requestBurst + 1 + int(requestRate*time.Since(begun).Seconds())); passed > most {
		t.Errorf("%d requests passed, %d is the most", passed, most)
	}
	if len(s.load) != 2 {
		t.Errorf("%d ports are counted", len(s.load))
	}
}

// Ports that have not been asked for a while are not remembered.
func TestPacesAreForgotten(t *testing.T) {
	s := New(Options{Ports: new(access.Ports)})
	for _, host := range []string{"idle", "busy"} {
		if !s.enter(host) {
			t.Fatal(host)
		}
	}
	s.leave("idle")
	s.forgetPaces(time.Now().Add(time.Minute))
	if s.load["idle"] != nil || s.load["busy"] == nil {
		t.Errorf("kept %v", s.load)
	}
}
