package reconcile

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"sallyport/internal/test/testnet"
)

func TestMain(m *testing.M) {
	if err := testnet.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, "isolating:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
