package credential_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sallyport/gateway/credential"
)

// cached is a broker of src as "key", which keeps it for a time.
func cached(src *source, d time.Duration) *credential.Broker {
	return broker(map[string]credential.Source{"key": credential.Lasting{Source: remote{src}, Cache: &d}})
}

// With a cache of 0 each lease has what the source said after it was asked for, also where
// others have asked already; those that wait at the same time share a reading.
func TestWithoutCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &source{value: "one", delay: time.Second}
		b := cached(src, 0)
		var leases sync.WaitGroup
		lease := func(want string) {
			leases.Go(func() {
				if got := version(t, b); got != want {
					t.Errorf("leased %q, want %q", got, want)
				}
			})
		}
		lease("one")
		synctest.Wait()
		src.set("two", nil)
		time.Sleep(time.Millisecond)
		for range 1000 {
			lease("two")
		}
		leases.Wait()
		if n := src.count(); n != 2 {
			t.Errorf("%d readings, want one for the first and one for all others", n)
		}
		src.set("three", nil)
		if got := version(t, b); got != "three" {
			t.Errorf("then %q", got)
		}

		// A source that fails is not asked again and again.
		src.set("", credential.ErrUnavailable)
		before := src.count()
		for range 1000 {
			if _, err := b.Lease(t.Context(), "key", api); !errors.Is(err, credential.ErrUnavailable) {
				t.Fatalf("while the source is away: %v", err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := src.count() - before; n > 10 {
			t.Errorf("asked %d times within ten seconds and more", n)
		}
		src.set("four", nil)
		time.Sleep(time.Second)
		if got := version(t, b); got != "four" {
			t.Errorf("when the source is back: %q", got)
		}
	})
}

// A secret is leased for the time of its cache, and no lease goes on for longer.
func TestCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &source{value: "one"}
		b := cached(src, 5*time.Second)
		begun := time.Now()
		for since := time.Duration(0); since < 4*time.Second; since = time.Since(begun) {
			l, err := b.Lease(t.Context(), "key", api)
			if err != nil || l.Version != "one" || time.Until(l.Fresh) != 5*time.Second-since || !l.Cached() {
				t.Fatalf("after %v: %+v, %v", since, l, err)
			}
			time.Sleep(time.Second)
		}
		src.set("two", nil)
		time.Sleep(time.Second)
		if got := version(t, b); got != "two" {
			t.Errorf("after the time of its cache: %q", got)
		}
		l, err := broker(map[string]credential.Source{"key": src}).Lease(t.Context(), "key", api)
		if err != nil || !l.Fresh.IsZero() || l.Cached() {
			t.Errorf("a source that is asked each time: %+v, %v", l, err)
		}
	})
}
