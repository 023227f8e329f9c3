// Command sallyport is the daemon (`sallyport up`) and its command line. There is a file
// for each noun, a folder for one of several files; the daemon is internal/daemon. See
// docs/ and `sallyport help`.
//
// The exit status is 0 for success, 1 for a failure, 2 for a usage error, and 128 plus
// the signal's number after a signal, as after Ctrl-C. `run` and `sandbox exec` exit with
// the status of their command.
package main

import (
	"context"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/auditcmd"
	"sallyport/cmd/sallyport/cli"
	"sallyport/cmd/sallyport/memorycmd"
	"sallyport/cmd/sallyport/policycmd"
	"sallyport/cmd/sallyport/sandboxcmd"
	"sallyport/gateway/worker"
	"sallyport/internal/ssh"
	"sallyport/sandbox/fsjail"
)

// version is set by the linker: -ldflags "-X main.version=…".
var version = "devel"

func main() {
	ctx, stop := untilSignal(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRoot().ExecuteContext(ctx)
	stop()
	os.Exit(cli.ExitStatus(brokenOff(ctx, err)))
}

func newRoot() *cobra.Command {
	root := cli.Root(version, newUp, newDown, newDoctor, sandboxcmd.Run, sandboxcmd.Copy, sandboxcmd.Command, newImage, newSecret,
		newClient, policycmd.Command, newApprovals, auditcmd.Command, memorycmd.New, newCA, newReload, newStatus,
		newLimits, newKey, newEvents, newBackup, newRestore, newUninstall)
	// Processes that the daemon starts, and nobody else.
	root.AddCommand(
		process("gateway", "Be the gateway's process; the daemon starts it", worker.Run),
		process(fsjail.Command, "Serve the files of a sandbox; the daemon starts it", fsjail.Run),
		process("ssh-server", "Be the process that speaks SSH; the daemon starts it", ssh.Run),
	)
	return root
}

// process is a hidden command that runs one of the daemon's processes.
func process(use, short string, run func() error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Hidden: true, Args: cli.Exactly(), RunE: func(*cobra.Command, []string) error { return run() }}
}
