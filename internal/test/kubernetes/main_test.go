//go:build kubernetes

package kubernetes

import (
	"fmt"
	"os"
	"testing"

	"sallyport/internal/test/testnet"
)

func TestMain(m *testing.M) {
	if err := testnet.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
