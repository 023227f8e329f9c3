package lab_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"sallyport/internal/lab"
)

func TestMain(m *testing.M) {
	if err := lab.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
