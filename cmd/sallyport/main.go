// Command sallyport is the daemon (`sallyport up`) and its command line. There is a file
// for each noun; the daemon is internal/daemon. See docs/ and `sallyport help`.
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
	os.Exit(exitStatus(brokenOff(ctx, err)))
}

func newRoot() *cobra.Command {
	g := &globals{}
	root := &cobra.Command{
		Use:           "sallyport",
		Short:         "The guarded way out for AI-agent sandboxes",
		Long:          "Sallyport gives an AI agent a persistent sandbox and is the only way out of it:\nit decides every request by policy, injects the credentials, and writes it down.",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	refuseUnknown(root)
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().StringVar(&g.source.File, "config", "", "configuration file (default $SALLYPORT_CONFIG, else /etc/sallyport/sallyport.yaml where there is one)")
	root.PersistentFlags().StringVar(&g.source.DataDir, "data-dir", "", "folder of all persistent data (default the configuration's)")
	root.PersistentFlags().StringVarP(&g.output, "output", "o", "text", "text or json")
	root.PersistentFlags().StringVar(&g.remote.URL, "host", "", "https://HOST:PORT of a daemon elsewhere (default $SALLYPORT_HOST, else the one on this host)")
	root.PersistentFlags().StringVar(&g.remote.KeyFile, "key-file", "", "file with the API key for --host (default $SALLYPORT_KEY_FILE)")
	root.PersistentFlags().StringVar(&g.remote.Fingerprint, "fingerprint", "", "sha256:HEX of the certificate of --host (default $SALLYPORT_FINGERPRINT, else the system's certificate authorities are trusted)")
	root.AddCommand(
		newUp(g), newDown(g), newDoctor(g), newRun(g), newSandboxCopy(g), newSandbox(g), newImage(g), newSecret(g),
		newClient(g), newPolicy(g), newApprovals(g), newAudit(g), newMemory(g), newCA(g), newReload(g), newStatus(g),
		newLimits(g), newKey(g), newEvents(g),
		newBackup(g), newRestore(g), newUninstall(g),
		// Processes that the daemon starts, and nobody else.
		process("gateway", "Be the gateway's process; the daemon starts it", worker.Run),
		process(fsjail.Command, "Serve the files of a sandbox; the daemon starts it", fsjail.Run),
		process("ssh-server", "Be the process that speaks SSH; the daemon starts it", ssh.Run),
	)
	return root
}

// process is a hidden command that runs one of the daemon's processes.
func process(use, short string, run func() error) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Hidden: true, Args: exactly(), RunE: func(*cobra.Command, []string) error { return run() }}
}
