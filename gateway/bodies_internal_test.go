package gateway

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Sandboxes that hold all the room that they get, for as long as they sleep for
// instance, leave some to the others; and it is never more than there is.
func TestRoomForOthers(t *testing.T) {
	m, err := newMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	r := newRoom(m)
	const step = 64 << 10
	for i := range 8 {
		id := fmt.Sprint(i)
		if err := r.take(id, step); err != nil {
			t.Errorf("sandbox %d has no room for one body: %v", i, err)
		}
		for r.take(id, step) == nil {
		}
	}
	if r.all > maxRoom || r.ofOne["0"] != maxRoomOfOne {
		t.Errorf("%d bytes are held of %d, %d by the first", r.all, int64(maxRoom), r.ofOne["0"])
	}
	for id, n := range r.ofOne {
		r.give(id, n)
	}
	if err := r.take("0", maxRoomOfOne); err != nil {
		t.Errorf("when all is given back: %v", err)
	}
}
