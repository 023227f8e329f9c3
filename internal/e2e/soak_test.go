package e2e

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// soak is how often something is done: few times, or many in `make soak`, which sets
// SALLYPORT_SOAK.
func soak(few, many int) int {
	if os.Getenv("SALLYPORT_SOAK") != "" {
		return many
	}
	return few
}

// seed is of the dice of a test. SALLYPORT_SEED throws those of an earlier run.
func seed(t *testing.T) uint64 {
	t.Helper()
	n := uint64(time.Now().UnixNano())
	if s := os.Getenv("SALLYPORT_SEED"); s != "" {
		var err error
		if n, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("SALLYPORT_SEED=%d", n)
	return n
}
