package policycmd

import (
	"testing"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/test/clitest"
)

// run is the command line with `sallyport policy` alone.
func run(t *testing.T, stdin string, args ...string) (out string, status int, err error) {
	t.Helper()
	return clitest.Run(t, cli.Root("devel", Command), stdin, args...)
}
