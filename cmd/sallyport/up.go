package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"gopkg.in/natefinch/lumberjack.v2"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/api"
	"sallyport/internal/config"
	"sallyport/internal/daemon"
	"sallyport/sandbox/client"
)

func newUp(g *cli.Globals) *cobra.Command {
	var detach, debug bool
	var logFile string
	c := &cobra.Command{
		Use:   "up",
		Short: "Run the daemon: gateway, sandboxes and audit",
		Long: "Run the daemon in the foreground, or in the background with --detach. SIGHUP loads\n" +
			"the policy again. SIGTERM ends the daemon and leaves the sandboxes running, cut off until\n" +
			"the next start takes them over; `sallyport down` stops everything.",
		Args: cli.Exactly(),
	}
	c.Flags().BoolVarP(&detach, "detach", "d", false, "run in the background, and return when it is ready")
	c.Flags().BoolVar(&debug, "debug", false, "log more")
	c.Flags().StringVar(&logFile, "log-file", "", fmt.Sprintf("log there, in two files of at most %d MiB, instead of to standard error", logSize))
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		// Before anything else: who changes the configuration as the daemon starts
		// must not end it.
		hangup := make(chan os.Signal, 1)
		signal.Notify(hangup, syscall.SIGHUP)
		defer signal.Stop(hangup)
		cfg, err := g.Config()
		if err != nil {
			return err
		}
		if os.Geteuid() != 0 && cfg.Engine.Kind != "none" {
			return errors.New("sallyport up needs root, for the datapath and the engine: run it with sudo, or with engine: {kind: none} for the explicit proxy alone")
		}
		if detach {
			return runBehind(g, cmd, cfg, debug)
		}
		level := slog.LevelInfo
		if debug {
			level = slog.LevelDebug
		}
		to := cmd.ErrOrStderr()
		if logFile != "" {
			// A sandbox can make the daemon say things; it must not fill the disk.
			file := &lumberjack.Logger{Filename: logFile, MaxSize: logSize, MaxBackups: 1}
			defer file.Close()
			to = file
		}
		log := slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: level}))
		return daemon.Run(cmd.Context(), daemon.Options{Location: &g.Location, Config: cfg, Version: version, Log: log, Hangup: hangup})
	}
	return c
}

// logSize bounds a log file, in MiB.
const logSize = 16

// readyWithin bounds how long a daemon may take to answer: the engine's first
// start and the import of the base image are in it.
const readyWithin = 3 * time.Minute

// runBehind starts this program again in a session of its own and waits until
// it answers, or says why it did not.
func runBehind(g *cli.Globals, cmd *cobra.Command, cfg *config.Config, debug bool) error {
	conn := client.Unix(cfg.Socket())
	if s, err := api.GetStatus.Do(cmd.Context(), conn, client.None{}); err == nil {
		return fmt.Errorf("a daemon is running already, pid %d: `sallyport down` stops it", s.PID)
	}
	logs := filepath.Join(cfg.DataDir, "logs")
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return err
	}
	path := filepath.Join(logs, "sallyport.log")
	// The daemon's output outside its log: why it does not start, or how it crashed,
	// which is asked for after the next start.
	last := filepath.Join(logs, "sallyport.err")
	if err := os.Rename(last, last+".1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	out, err := os.OpenFile(last, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	child := exec.Command(self, "up", "--config", g.Location.File, "--data-dir", g.Location.DataDir, "--debug="+strconv.FormatBool(debug), "--log-file", path)
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
		if s, err := api.GetStatus.Do(ctx, conn, client.None{}); err == nil {
			return g.Print(cmd, s, func(w io.Writer) { fmt.Fprintf(w, "sallyport is up, pid %d, log %s\n", s.PID, path) })
		}
		select {
		case <-ended:
			return fmt.Errorf("the daemon ended before it was ready:\n%s", ending(last))
		case <-ctx.Done():
			_ = child.Process.Signal(syscall.SIGTERM)
			return fmt.Errorf("the daemon did not answer: %w; see %s", ctx.Err(), path)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ending returns the last 4 KiB of a log, for an error message.
func ending(path string) string {
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
