// Package must ends a test at once where what it goes on from is not so.
package must

import (
	"testing"
	"time"
)

// limit is how long Soon waits. No test is slow because of it: only failures take it.
const limit = 3 * time.Minute

// OK ends the test with err, unless err is nil.
func OK(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// Soon waits until a condition holds. It ends the test if it has not after three minutes.
func Soon(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
