package ratelimit_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/internal/ratelimit"
)

// A burst is recorded one by one; what follows is counted, and none is lost.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.ForAudit()
		for n := range ratelimit.AuditBurst {
			if got := l.Count("a"); got != 1 {
				t.Fatalf("refusal %d of a burst: got %d, want 1", n, got)
			}
		}
		for range 5 {
			if got := l.Count("a"); got != 0 {
				t.Fatalf("beyond the burst: got %d, want 0", got)
			}
		}
		time.Sleep(ratelimit.AuditEvery)
		if got := l.Count("a"); got != 6 {
			t.Errorf("a while later: got %d, want 6", got)
		}
	})
}

// A flood of one source hides nothing of another's, and is not counted as another's.
func TestFloodOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.ForAudit()
		for range 100_000 {
			l.Count("flood")
		}
		for n := range ratelimit.AuditBurst {
			if got := l.Count("quiet"); got != 1 {
				t.Fatalf("refusal %d of a quiet source: got %d, want 1", n, got)
			}
		}
		// Nor does one of many sources, once they are silent.
		for i := range 10 * ratelimit.AuditSources {
			for range 2 * ratelimit.AuditBurst {
				l.Count(fmt.Sprint(i))
			}
		}
		time.Sleep(ratelimit.AuditBurst * ratelimit.AuditEvery)
		if got := l.Count("late"); got < 1 {
			t.Errorf("of a source after them: got %d", got)
		}
		for range 100_000 {
			l.Count("late")
		}
		for n := range ratelimit.AuditBurst {
			if got := l.Count("quieter"); got != 1 {
				t.Fatalf("refusal %d of a quiet source after a flood by many: got %d, want 1", n, got)
			}
		}
	})
}

// All that was refused is counted by some record, of however many sources.
func TestNoneIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.ForAudit()
		told, counted := 0, 0
		for range 3 {
			for i := range 3 * ratelimit.AuditSources {
				for range 2 * ratelimit.AuditBurst {
					told++
					counted += l.Count(fmt.Sprint(i))
				}
			}
			time.Sleep(ratelimit.AuditBurst * ratelimit.AuditEvery)
		}
		for i := range 2 * ratelimit.AuditSources {
			time.Sleep(ratelimit.AuditBurst * ratelimit.AuditEvery)
			told++
			counted += l.Count(fmt.Sprint("later-", i))
		}
		if told != counted {
			t.Errorf("%d were told of, %d counted", told, counted)
		}
	})
}
