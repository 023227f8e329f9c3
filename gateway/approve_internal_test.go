package gateway

import (
	"fmt"
	"testing"
)

// Sandboxes that hold all the requests that they may leave places to everybody else.
func TestHoldsForOthers(t *testing.T) {
	t.Parallel()
	var h holds
	h.begin()
	for i := range 64 {
		for h.places.Enter(fmt.Sprint("greedy-", i), "acme") {
		}
	}
	for owner, n := range map[string]int{"acme": leastHeld, "beta": maxHeld, "": maxHeld} {
		for i := range n {
			if !h.places.Enter("late-"+owner, owner) {
				t.Fatalf("of owner %q, request %d finds no place", owner, i)
			}
		}
	}
}
