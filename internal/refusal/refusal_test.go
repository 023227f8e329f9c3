package refusal_test

import (
	"testing"
	"testing/synctest"
	"time"

	"sallyport/internal/refusal"
)

// A burst is recorded one by one; what follows is counted, and none is lost.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := refusal.New()
		for n := range refusal.Burst {
			if got := l.Count(); got != 1 {
				t.Fatalf("refusal %d of a burst: got %d, want 1", n, got)
			}
		}
		for range 5 {
			if got := l.Count(); got != 0 {
				t.Fatalf("beyond the burst: got %d, want 0", got)
			}
		}
		time.Sleep(refusal.Every)
		if got := l.Count(); got != 6 {
			t.Errorf("a while later: got %d, want 6", got)
		}
	})
}
