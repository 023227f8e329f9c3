package bodies

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// Sandboxes that hold all the room that they get, for as long as they sleep for
// instance, leave some to the others; and it is never more than there is.
func TestRoomForOthers(t *testing.T) {
	r := NewBudget(prometheus.NewGauge(prometheus.GaugeOpts{}), prometheus.NewCounter(prometheus.CounterOpts{}))
	const step = 64 << 10
	for i := range 8 {
		id := fmt.Sprint(i)
		if err := r.Take(id, step); err != nil {
			t.Errorf("sandbox %d has no room for one body: %v", i, err)
		}
		for r.Take(id, step) == nil {
		}
	}
	if r.all > maxHeld || r.ofOne["0"] != maxHeldOfOne {
		t.Errorf("%d bytes are held of %d, %d by the first", r.all, int64(maxHeld), r.ofOne["0"])
	}
	for id, n := range r.ofOne {
		r.Give(id, n)
	}
	if err := r.Take("0", maxHeldOfOne); err != nil {
		t.Errorf("when all is given back: %v", err)
	}
}
