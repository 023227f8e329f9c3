// Command sallyport is the daemon (`sallyport up`) and the command line that
// talks to it over a unix socket of root's. See docs/ and `sallyport help`.
//
// It exits with 0, with 1 for what went wrong, with 2 for what was typed wrong, and
// with 128 and the signal's number when a signal broke it off, as after Ctrl-C;
// `run` and `sandbox exec` exit with the status of their command.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"sallyport/internal/terminal"
)

// version is set by the linker: -ldflags "-X main.version=…".
var version = "devel"

func main() {
	ctx, stop := untilSignal(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRoot().ExecuteContext(ctx)
	stop()
	os.Exit(exitStatus(brokenOff(ctx, err)))
}

// signalled is the signal that ended a context.
type signalled struct{ syscall.Signal }

func (s signalled) Error() string { return "ended by a signal: " + s.String() }

// untilSignal is signal.NotifyContext whose cause tells which signal it was.
func untilSignal(parent context.Context, signals ...os.Signal) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	came := make(chan os.Signal, 1)
	signal.Notify(came, signals...)
	go func() {
		select {
		case s := <-came:
			cancel(signalled{s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { signal.Stop(came); cancel(nil) }
}

// brokenOff makes of an error that only says so the status that a shell gives to
// what a signal ended. Whoever sent it knows, so that nothing more is said.
func brokenOff(ctx context.Context, err error) error {
	var by signalled
	if !errors.As(context.Cause(ctx), &by) {
		return err
	}
	root := err
	for next := err; next != nil; next = errors.Unwrap(next) { // none of what is joined
		root = next
	}
	if root != context.Canceled && root != error(by) {
		return err
	}
	return exitCode(128 + int(by.Signal))
}

// usageError is what the caller typed wrong; it exits with 2.
type usageError struct{ err error }

func (u usageError) Error() string { return u.err.Error() }
func (u usageError) Unwrap() error { return u.err }

// judgeError is why a command whose status is a verdict came to none; it exits
// with 2, so that it is not taken for one.
type judgeError struct{ err error }

func (j judgeError) Error() string { return j.err.Error() }
func (j judgeError) Unwrap() error { return j.err }

// exitCode is the status of a command that ran in a sandbox, passed on.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("the command exited with status %d", int(e)) }

// exitStatus prints an error and chooses the process's status: 1 for what went
// wrong, 2 for what was typed wrong or came to no verdict, and a sandboxed
// command's own.
func exitStatus(err error) int {
	var code exitCode
	var usage usageError
	var judged judgeError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &usage), errors.As(err, &judged):
		fmt.Fprintln(os.Stderr, "sallyport:", terminal.Text(err.Error()))
		return 2
	default:
		fmt.Fprintln(os.Stderr, "sallyport:", terminal.Text(err.Error()))
		return 1
	}
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
	root.PersistentFlags().StringVar(&g.configPath, "config", "", "configuration file (default $SALLYPORT_CONFIG, else /etc/sallyport/sallyport.yaml where there is one)")
	root.PersistentFlags().StringVar(&g.dataDir, "data-dir", "", "folder of everything that lasts (default the configuration's)")
	root.PersistentFlags().StringVarP(&g.output, "output", "o", "text", "text or json")
	root.PersistentFlags().StringVar(&g.remote.URL, "host", "", "https://HOST:PORT of a daemon elsewhere (default $SALLYPORT_HOST, else the one on this host)")
	root.PersistentFlags().StringVar(&g.remote.KeyFile, "key-file", "", "file with the API key for --host (default $SALLYPORT_KEY_FILE)")
	root.PersistentFlags().StringVar(&g.remote.Fingerprint, "fingerprint", "", "sha256:HEX of the certificate of --host (default $SALLYPORT_FINGERPRINT, else the system's authorities vouch)")
	root.AddCommand(
		newUp(g), newDown(g), newDoctor(g), newRun(g), newSandboxCopy(g), newSandbox(g), newImage(g), newSecret(g),
		newClient(g), newPolicy(g), newApprovals(g), newAudit(g), newMemory(g), newCA(g), newReload(g), newStatus(g),
		newLimits(g), newKey(g), newEvents(g),
		newBackup(g), newRestore(g), newUninstall(g),
		newGateway(), newJail(), newSSHServer(),
	)
	return root
}
