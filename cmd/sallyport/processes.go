package main

import (
	"github.com/spf13/cobra"

	"sallyport/gateway/worker"
	"sallyport/internal/ssh"
	"sallyport/sandbox/fsjail"
)

// newGateway is the process that the daemon starts for the gateway. Nobody else
// does, so that it is not shown.
func newGateway() *cobra.Command {
	return &cobra.Command{
		Use: "gateway", Hidden: true, Args: exactly(),
		Short: "Be the gateway's process; the daemon starts it",
		RunE:  func(*cobra.Command, []string) error { return worker.Run() },
	}
}

// newJail is the process that the daemon starts for the files of a sandbox that cannot
// be started.
func newJail() *cobra.Command {
	return &cobra.Command{
		Use: fsjail.Command, Hidden: true, Args: exactly(),
		Short: "Serve the files of a sandbox; the daemon starts it",
		RunE:  func(*cobra.Command, []string) error { return fsjail.Run() },
	}
}

// newSSHServer is the process that the daemon starts for SSH. Nobody else does, so
// that it is not shown.
func newSSHServer() *cobra.Command {
	return &cobra.Command{
		Use: "ssh-server", Hidden: true, Args: exactly(),
		Short: "Be the process that speaks SSH; the daemon starts it",
		RunE:  func(*cobra.Command, []string) error { return ssh.Run() },
	}
}
