package disk_test

import (
	"fmt"
	"os"
	"testing"

	"sallyport/internal/test/testnet"
)

// The tests have mounts of their own. A test of another package that starts with a copy of
// this one's mounts would hold a disk after its unmount here: it could not be detached.
func TestMain(m *testing.M) {
	if err := testnet.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
