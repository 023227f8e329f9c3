package sandboxcmd

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/size"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

func newSnapshot(g *cli.Globals) *cobra.Command {
	var spec sandbox.SnapshotSpec
	var remove bool
	c := &cobra.Command{
		Use:   "snapshot NAME [SNAPSHOT]",
		Short: "Take a snapshot of a sandbox, or remove one",
		Example: `  sallyport sandbox snapshot demo before-upgrade --memory
  sallyport sandbox snapshot demo --keep-last 5 --expires 72h
  sallyport sandbox snapshot demo before-upgrade --remove`,
		Args: cli.Exactly("NAME", "[SNAPSHOT]"),
	}
	c.Flags().BoolVar(&spec.Memory, "memory", false, "its processes too")
	c.Flags().IntVar(&spec.KeepLast, "keep-last", 0, "remove the oldest beyond so many (default none)")
	lastsVar(c.Flags(), &spec.Expires, "expires", "remove it after so long (default never)")
	c.Flags().BoolVar(&remove, "remove", false, "remove the snapshot")
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		spec.Name = append(args, "")[1]
		if remove && (spec.Name == "" || spec.Memory || spec.KeepLast != 0 || spec.Expires != 0) {
			return cli.Usagef("write: %s NAME SNAPSHOT --remove", cmd.CommandPath())
		}
		if remove {
			if err := d.RemoveSnapshot(cmd.Context(), args[0], spec.Name); err != nil {
				return err
			}
			return g.Done(cmd, "removed", spec.Name)
		}
		s, err := d.Snapshot(cmd.Context(), args[0], spec)
		if err != nil {
			return err
		}
		return g.Print(cmd, s, func(w io.Writer) {
			fmt.Fprintf(w, "%s of %s is kept: %s, %s\n", s.Name, s.Sandbox, holdings(s), size.About(s.Size))
		})
	})
}

// holdings says what there is in a snapshot.
func holdings(s sandbox.Snapshot) string {
	switch {
	case s.Memory:
		return "disk and processes"
	case s.Unsealed:
		return "disk, unsealed"
	}
	return "disk"
}

func newSnapshots(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "snapshots NAME", Short: "List the snapshots of a sandbox", Args: cli.Exactly("NAME")}
	return cli.Lists(g, c, named((*client.Client).Snapshots),
		"NAME\tMADE\tWITH\tSIZE\tEXPIRES\tPOLICY\tEVENTS", func(s sandbox.Snapshot) string {
			expires := "never"
			if !s.Expires.IsZero() {
				expires = s.Expires.Local().Format(time.DateTime)
			}
			return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%.12s\t%d", s.Name, s.Created.Local().Format(time.DateTime), holdings(s), size.About(s.Size), expires, cli.OrDash(s.Mark.Policy), s.Mark.Audit)
		})
}

func newRestore(g *cli.Globals) *cobra.Command {
	var spec sandbox.RestoreSpec
	c := &cobra.Command{
		Use:   "restore NAME SNAPSHOT",
		Short: "Restore a sandbox from a snapshot; its present state is kept as another snapshot",
		Example: `  sallyport sandbox restore demo before-upgrade
  sallyport sandbox restore demo before-upgrade --discard`,
		Args: cli.Exactly("NAME", "SNAPSHOT"),
	}
	c.Flags().BoolVar(&spec.Discard, "discard", false, "do not keep its present state")
	return cli.Shows(g, c, func(ctx context.Context, d *client.Client, args []string) (sandbox.Info, error) {
		spec.Snapshot = args[1]
		return d.Restore(ctx, args[0], spec)
	}, func(w io.Writer, i sandbox.Info) {
		fmt.Fprintf(w, "%s is what it was at %s, and %s\n", i.Name, spec.Snapshot, i.State)
		lost(w, i)
	})
}

func newFork(g *cli.Globals) *cobra.Command {
	var spec sandbox.ForkSpec
	c := &cobra.Command{
		Use:   "fork NAME [CHILD ...]",
		Short: "Make sandboxes of one, with its files and its processes",
		Example: `  sallyport sandbox fork demo try-a try-b
  sallyport sandbox fork demo --count 10
  sallyport sandbox fork demo --snapshot before-upgrade again`,
		Args: cli.Exactly("NAME", "[CHILD ...]"),
	}
	c.Flags().IntVar(&spec.Count, "count", 0, "how many forks, named after the parent (default 1)")
	c.Flags().StringVar(&spec.Snapshot, "snapshot", "", "fork this snapshot (default its present state)")
	return cli.Shows(g, c, func(ctx context.Context, d *client.Client, args []string) ([]sandbox.Info, error) {
		if c.Flags().Changed("count") && (spec.Count < 1 || spec.Count > sandbox.MaxForks) {
			return nil, cli.Usagef("--count %d: use 1 to %d", spec.Count, sandbox.MaxForks)
		}
		spec.Names = args[1:]
		return d.Fork(ctx, args[0], spec)
	}, func(w io.Writer, list []sandbox.Info) {
		cli.Table(w, sandboxHead, cli.Rows(list, sandboxRow)...)
		for _, i := range list {
			lost(w, i)
		}
	})
}
