package auditlimit_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/internal/auditlimit"
)

// A burst is recorded one by one; what follows is counted, and none is lost.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := auditlimit.New()
		for n := range auditlimit.Burst {
			if got := l.Count("a"); got != 1 {
				t.Fatalf("refusal %d of a burst: got %d, want 1", n, got)
			}
		}
		for range 5 {
			if got := l.Count("a"); got != 0 {
				t.Fatalf("beyond the burst: got %d, want 0", got)
			}
		}
		time.Sleep(auditlimit.Every)
		if got := l.Count("a"); got != 6 {
			t.Errorf("a while later: got %d, want 6", got)
		}
	})
}

// A flood of one source hides nothing of another's, and is not counted as another's.
func TestFloodOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := auditlimit.New()
		for range 100_000 {
			l.Count("flood")
		}
		for n := range auditlimit.Burst {
			if got := l.Count("quiet"); got != 1 {
				t.Fatalf("refusal %d of a quiet source: got %d, want 1", n, got)
			}
		}
		// Nor does one of many sources, once they are silent.
		for i := range 10 * auditlimit.Sources {
			for range 2 * auditlimit.Burst {
				l.Count(fmt.Sprint(i))
			}
		}
		time.Sleep(auditlimit.Burst * auditlimit.Every)
		if got := l.Count("late"); got < 1 {
			t.Errorf("of a source after them: got %d", got)
		}
		for range 100_000 {
			l.Count("late")
		}
		for n := range auditlimit.Burst {
			if got := l.Count("quieter"); got != 1 {
				t.Fatalf("refusal %d of a quiet source after a flood by many: got %d, want 1", n, got)
			}
		}
	})
}

// All that was refused is counted by some record, of however many sources.
func TestNoneIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := auditlimit.New()
		told, counted := 0, 0
		for range 3 {
			for i := range 3 * auditlimit.Sources {
				for range 2 * auditlimit.Burst {
					told++
					counted += l.Count(fmt.Sprint(i))
				}
			}
			time.Sleep(auditlimit.Burst * auditlimit.Every)
		}
		for i := range 2 * auditlimit.Sources {
			time.Sleep(auditlimit.Burst * auditlimit.Every)
			told++
			counted += l.Count(fmt.Sprint("later-", i))
		}
		if told != counted {
			t.Errorf("%d were told of, %d counted", told, counted)
		}
	})
}
