package api_test

import (
	"fmt"
	"log/slog"
	"testing"

	"sallyport/internal/api"
)

// However many requests a tenant sends with idempotency keys, by however many of its API
// keys, what others' came to is kept; and of its own the newest is.
func TestOnceIsShared(t *testing.T) {
	dir := t.TempDir()
	o := must[*api.Once](t)(api.OpenOnce(dir, slog.New(slog.DiscardHandler)))
	known := func(who, tenant, key string) bool {
		t.Helper()
		before, err := o.Do(api.Principal{ID: who, Tenant: tenant}, key)
		if err != nil {
			t.Fatalf("%s of %q, %s: %v", who, tenant, key, err)
		}
		return before
	}
	for i := range 256 {
		known("host", "", fmt.Sprint(i))
	}
	known("beta-key", "beta", "first")
	for i := range 4096 {
		known(fmt.Sprint("acme-", i%20), "acme", fmt.Sprint(i))
	}
	check := func() {
		t.Helper()
		if !known("host", "", "0") || !known("host", "", "255") || !known("beta-key", "beta", "first") {
			t.Error("what others' requests came to is forgotten")
		}
		if !known(fmt.Sprint("acme-", 4095%20), "acme", "4095") {
			t.Error("the newest of its own is forgotten")
		}
		if known("beta-key", "beta", "second") {
			t.Error("a request of another has been done before")
		}
	}
	check()
	o = must[*api.Once](t)(api.OpenOnce(dir, slog.New(slog.DiscardHandler)))
	if !known("beta-key", "beta", "second") || !known("host", "", "0") {
		t.Error("forgotten over a restart")
	}
	for i := range 300 {
		known("host", "", fmt.Sprint("more-", i))
	}
	if !known("beta-key", "beta", "first") || !known("host", "", "more-299") || known("host", "", "0") {
		t.Error("a caller has its newest 256, and no more")
	}
}
