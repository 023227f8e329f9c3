package credential_test

import (
	"testing"
	"testing/synctest"
	"time"

	"sallyport/gateway/credential"
	"sallyport/internal/test/must"
)

// A secret that was changed holds from the next lease on, also where its source is being
// asked just then.
func TestForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &source{value: "first-secret-value"}
		b := broker(map[string]credential.Source{"key": remote{s}})
		version := func() string {
			t.Helper()
			l, err := b.Lease(t.Context(), "key", api)
			must.OK(t, err)
			return l.Version
		}
		version()
		s.set("second-secret-value", nil)
		if v := version(); v != "first-secret-value" {
			t.Errorf("before: %s", v)
		}
		b.Forget("key")
		b.Forget("other")
		if v := version(); v != "second-secret-value" {
			t.Errorf("after: %s", v)
		}

		b.Forget("key")
		s.slow(time.Second)
		go func() { _, _ = b.Lease(t.Context(), "key", api) }()
		synctest.Wait() // it is being read
		s.set("third-secret-value", nil)
		b.Forget("key")
		if v := version(); v != "third-secret-value" {
			t.Errorf("during a read: %s", v)
		}
		time.Sleep(2 * time.Second)
		if v := version(); v != "third-secret-value" {
			t.Errorf("after that read: %s", v)
		}
	})
}
