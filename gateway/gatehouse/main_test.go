package gatehouse

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// The test binary is the process too: a Warden starts it again as one.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "gateway" {
		if err := Run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}
