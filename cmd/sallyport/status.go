package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/api"
	"sallyport/internal/config"
	"sallyport/internal/daemon"
	"sallyport/internal/doctor"
	"sallyport/internal/terminal"
	"sallyport/sandbox/client"
)

func printStatus(w io.Writer, s api.Status) {
	fmt.Fprintf(w, "sallyport %s, pid %d: %s, policy %.12s with %s, %s\n",
		s.Version, s.PID, cli.Many(s.Sandboxes, "sandbox", "sandboxes"), s.Revision, cli.Many(s.Rules, "rule", "rules"), cli.Many(s.Events, "event", "events"))
	if n := s.Node; n != nil {
		of := ""
		if n.Cluster != "" {
			of = " of cluster " + n.Cluster
		}
		fmt.Fprintf(w, "node %s%s: limits and approvals are of this node alone\n", n.Name, of)
		if n.Tainted != "" {
			fmt.Fprintln(w, "new pods may be kept off it:", terminal.Text(n.Tainted))
		}
	}
	fmt.Fprintln(w, gatewayLine(s.Gateway))
	for _, line := range policyLines(s.Policy) {
		fmt.Fprintln(w, line)
	}
	if s.Seal != nil {
		fmt.Fprintln(w, sealLine(s.Seal))
	}
	for _, line := range s.Retention.Lines() {
		fmt.Fprintln(w, terminal.Text(line))
	}
	for _, l := range s.Leases {
		fmt.Fprintf(w, "lease %s of credential %s is not revoked yet: %s\n", terminal.Word(l.ID), l.Credential, terminal.Text(cmp.Or(l.Error, "Vault is being asked")))
	}
	for _, sink := range s.Sinks {
		state, _ := sink.State()
		fmt.Fprintf(w, "audit sink %s, %s at %s, has records up to %d, %s\n", sink.Name, sink.Type, terminal.Word(sink.Receiver), sink.Cursor, terminal.Text(state))
	}
	if s.SSH != nil {
		fmt.Fprintln(w, sshLine(s.SSH))
	}
	if s.Fingerprint != "" {
		fmt.Fprintln(w, "api over TLS, certificate", s.Fingerprint)
	}
}

// policyLines say where the policy is not what it might be.
func policyLines(p api.Policy) (lines []string) {
	if b := p.Bundle; b != nil {
		line := fmt.Sprintf("policy bundle %q from %s", b.Revision, b.Source)
		if !b.Signed {
			line += ", not verified"
		}
		if !b.Checked.IsZero() {
			line += ", checked " + b.Checked.Local().Format(time.DateTime)
		}
		if b.Stale {
			line += ", stale"
		}
		if b.Failure != "" {
			line += ": " + b.Failure
		}
		lines = append(lines, line)
	}
	if len(p.Selected) > 0 {
		lines = append(lines, fmt.Sprintf("policy selects by name since %s what was there before: %s: see that each is the one that is meant",
			p.Loaded.Local().Format(time.DateTime), strings.Join(p.Selected, ", ")))
	}
	if r := p.Refused; r != nil {
		lines = append(lines, fmt.Sprintf("policy refused since %s, the one of %s stays: %s",
			r.Since.Local().Format(time.DateTime), p.Loaded.Local().Format(time.DateTime), r.Reason))
	}
	return lines
}

// gatewayLine says how the gateway's process is.
func gatewayLine(s api.Process) string {
	line := fmt.Sprintf("gateway, pid %d, uid %d", s.PID, s.UID)
	switch {
	case s.PID == 0:
		line = "gateway: not running, nothing leaves"
	case !s.OwnRoot:
		line += ", without a user and a root of its own, since the daemon is not root"
	case s.Landlock == 0:
		line += ", without Landlock, which this kernel does not have or has turned off"
	}
	return line + again(s.Restarts, s.Failure)
}

// again says how often a process was started again, and why the last time.
func again(restarts int, failure string) string {
	if restarts == 0 {
		return ""
	}
	return fmt.Sprintf("; started again %d times, last after: %s", restarts, failure)
}

func newStatus(g *cli.Globals) *cobra.Command {
	return statusAfter(g, "status", "Show the state of the daemon", api.GetStatus)
}

func newReload(g *cli.Globals) *cobra.Command {
	return statusAfter(g, "reload", "Load policy and credentials from the configuration again", api.Reload)
}

// statusAfter is a command that asks the daemon for one thing and says how it
// is then.
func statusAfter(g *cli.Globals, use, short string, do client.Call[client.None, api.Status]) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cli.Exactly()}
	return cli.Shows(g, c, func(ctx context.Context, d *client.Client, _ []string) (api.Status, error) {
		s, err := do.Do(ctx, d, client.None{})
		cli.Observing(c.ErrOrStderr(), s.Observing)
		return s, err
	}, printStatus)
}

// downWithin bounds the end of a daemon with its sandboxes and its engine, after
// a minute of draining at most.
const (
	downWithin = 150 * time.Second
	downPoll   = 50 * time.Millisecond
)

func newDown(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "down", Short: "Stop the sandboxes, the private engine and the daemon; files and memory stay", Args: cli.Exactly()}
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, _ []string) error {
		if err := shutdownDaemon(cmd.Context(), d); err != nil {
			return err
		}
		return g.Print(cmd, map[string]bool{"down": true}, func(w io.Writer) { fmt.Fprintln(w, "sallyport is down") })
	})
}

// shutdownDaemon has the daemon stop everything, and waits until it has ended.
func shutdownDaemon(ctx context.Context, d *client.Client) error {
	s, err := api.GetStatus.Do(ctx, d, client.None{})
	if err != nil {
		return err
	}
	if err := api.Shutdown.Do(ctx, d, client.None{}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, downWithin)
	defer cancel()
	for !errors.Is(syscall.Kill(s.PID, 0), syscall.ESRCH) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the daemon, pid %d, is still there: %w: see its log", s.PID, ctx.Err())
		case <-time.After(downPoll):
		}
	}
	return nil
}

// sshLine says where SSH is, and what key it shows.
func sshLine(s *api.SSH) string {
	line := fmt.Sprintf("ssh at %s, host key %s, pid %d, uid %d", s.Listen, s.Fingerprint, s.PID, s.UID)
	if s.PID == 0 {
		line = fmt.Sprintf("ssh at %s: not running", s.Listen)
	}
	return line + again(s.Restarts, s.Failure)
}

func newDoctor(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "doctor", Short: "Check what this host lacks, and say how to fix it", Args: cli.Exactly()}
	return g.Reads(c, func(cmd *cobra.Command, cfg *config.Config, _ []string) error {
		findings := daemon.Examine(cmd.Context(), cfg)
		var rows []string
		var failed error
		for _, f := range findings {
			rows = append(rows, fmt.Sprintf("%s\t%s\t%s", f.Level, f.Name, f.Found))
			if f.Level != doctor.OK && f.Fix != "" {
				rows = append(rows, fmt.Sprintf("\t\t→ %s", f.Fix))
			}
			if f.Level == doctor.Fail && failed == nil {
				failed = fmt.Errorf("%s is not as needed; see above", f.Name)
			}
		}
		err := g.Print(cmd, findings, func(w io.Writer) { cli.Table(w, "STATE\tREQUIREMENT\tFOUND", rows...) })
		return cmp.Or(err, failed)
	})
}

// sealLine says how far the audit log is sealed.
func sealLine(s *api.Seal) string {
	line := fmt.Sprintf("audit log %s: %d records in the tree, %d after the newest checkpoint", s.Log, s.Size, s.Unanchored)
	if !s.Checkpoint.IsZero() {
		line += " of " + s.Checkpoint.Local().Format(time.DateTime)
	}
	if s.Failure != "" {
		line += fmt.Sprintf("; not sealed since %s: %s", s.Since.Local().Format(time.DateTime), s.Failure)
	}
	return line
}
