// Package clitest runs the command line in a test's own process.
package clitest

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
)

// Run runs a command line: what it prints, and its status.
func Run(t *testing.T, root *cobra.Command, stdin string, args ...string) (out string, status int, err error) {
	t.Helper()
	var b bytes.Buffer
	root.SetArgs(args)
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&b)
	root.SetErr(&b)
	err = root.ExecuteContext(t.Context())
	return b.String(), cli.ExitStatus(err), err
}

// Configured writes a configuration of a gateway alone, below a new folder.
func Configured(t *testing.T, more string) (dir, file string) {
	t.Helper()
	dir = t.TempDir()
	file = filepath.Join(dir, "sallyport.yaml")
	text := fmt.Sprintf("dataDir: %[1]s/data\nrunDir: %[1]s/run\nkeyFile: %[1]s/key\nengine: {kind: none}\n", dir) + more
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir, file
}

// FakeDaemon answers at a daemon's socket, for what a real one cannot be made to say. It
// returns the configuration that leads there.
func FakeDaemon(t *testing.T, routes http.Handler) (file string) {
	t.Helper()
	dir, file := Configured(t, "")
	if err := os.Mkdir(filepath.Join(dir, "run"), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "run", "sallyport.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: routes}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return file
}
