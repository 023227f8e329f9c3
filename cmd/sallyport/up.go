package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	runtimedebug "runtime/debug"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sallyport/gateway"
	"sallyport/internal/api"
	"sallyport/internal/config"
)

func newUp(g *globals) *cobra.Command {
	var detach, debug bool
	c := &cobra.Command{
		Use:   "up",
		Short: "Run the daemon: gateway, sandboxes and audit",
		Long: "Run the daemon in the foreground, or behind with --detach. SIGHUP loads the policy\n" +
			"again. SIGTERM ends the daemon and leaves the sandboxes running, cut off until\n" +
			"the next start takes them over; `sallyport down` stops everything.",
		Args: exactly(),
	}
	c.Flags().BoolVarP(&detach, "detach", "d", false, "run behind, and return when it is ready")
	c.Flags().BoolVar(&debug, "debug", false, "log more")
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := g.config()
		if err != nil {
			return err
		}
		if os.Geteuid() != 0 {
			return errors.New("sallyport up needs root, for the datapath and the engine: run it with sudo")
		}
		if detach {
			return runBehind(cmd, cfg)
		}
		level := slog.LevelInfo
		if debug {
			level = slog.LevelDebug
		}
		if os.Getenv("GOGC") == "" {
			runtimedebug.SetGCPercent(gateway.GCPercent)
		}
		log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
		d, err := newDaemon(cmd.Context(), g, cfg, log)
		if err != nil {
			return err
		}
		return d.run(cmd.Context())
	}
	return c
}

// readyWithin bounds how long a daemon may take to answer: the engine's first
// start and the import of the base image are in it.
const readyWithin = 3 * time.Minute

// runBehind starts this program again in a session of its own and waits until
// it answers, or says why it did not.
func runBehind(cmd *cobra.Command, cfg *config.Config) error {
	client := api.NewClient(socketPath(cfg))
	if s, err := client.Status(cmd.Context()); err == nil {
		return fmt.Errorf("a daemon is running already, pid %d: `sallyport down` stops it", s.PID)
	}
	logs := filepath.Join(cfg.DataDir, "logs")
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return err
	}
	path := filepath.Join(logs, "sallyport.log")
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{}
	for _, a := range os.Args[1:] {
		if a != "-d" && a != "--detach" {
			args = append(args, a)
		}
	}
	child := exec.Command(self, args...)
	child.Stdout, child.Stderr = out, out
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()

	ctx, cancel := context.WithTimeout(cmd.Context(), readyWithin)
	defer cancel()
	for {
		if s, err := client.Status(ctx); err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "sallyport is up, pid %d, log %s\n", s.PID, path)
			return nil
		}
		select {
		case <-ended:
			return fmt.Errorf("the daemon ended at once: %s", lastLine(path))
		case <-ctx.Done():
			_ = child.Process.Signal(syscall.SIGTERM)
			return fmt.Errorf("the daemon did not answer: %w; see %s", ctx.Err(), path)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// lastLine returns what a log ends with, for an error message.
func lastLine(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if i, err := f.Stat(); err == nil && i.Size() > 4096 {
		_, _ = f.Seek(-4096, io.SeekEnd)
	}
	data, _ := io.ReadAll(f) // what could be read is shown
	return string(data)
}
