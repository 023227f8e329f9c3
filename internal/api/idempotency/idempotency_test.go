package idempotency

import (
	"fmt"
	"log/slog"
	"os"
	"testing"

	"sallyport/internal/test/must"
)

// However many requests a tenant sends with idempotency keys, by however many of its API
// keys, what others' came to is kept; and of its own the newest is.
func TestShared(t *testing.T) {
	dir := t.TempDir()
	open := func() *Store {
		t.Helper()
		s, err := Open(dir, slog.New(slog.DiscardHandler))
		must.OK(t, err)
		return s
	}
	o := open()
	known := func(who, owner, key string) bool {
		t.Helper()
		id := digest(who, key)
		before, err := o.begin(id, "print", Call{Caller: who, Owner: owner})
		if err != nil {
			t.Fatalf("%s of %q, %s: %v", who, owner, key, err)
		}
		if before == nil {
			o.end(id, &kept{Status: 200})
		}
		return before != nil
	}
	for i := range 256 {
		known("host", "host", fmt.Sprint(i))
	}
	known("beta-key", "beta", "first")
	for i := range 4096 {
		known(fmt.Sprint("acme-", i%20), "acme", fmt.Sprint(i))
	}
	check := func() {
		t.Helper()
		if !known("host", "host", "0") || !known("host", "host", "255") || !known("beta-key", "beta", "first") {
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
	o = open()
	if !known("beta-key", "beta", "second") || !known("host", "host", "0") {
		t.Error("forgotten over a restart")
	}
	for i := range 300 {
		known("host", "host", fmt.Sprint("more-", i))
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) > 4096+16 {
		t.Errorf("%d are kept: %v", len(files), err)
	}
	if !known("beta-key", "beta", "first") || !known("host", "host", "more-299") || known("host", "host", "0") {
		t.Error("a caller has its newest 256, and no more")
	}
}
