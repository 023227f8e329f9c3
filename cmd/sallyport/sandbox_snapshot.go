package main

import (
	"cmp"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"sallyport/internal/size"
	"sallyport/sandbox"
)

func newSnapshot(g *globals) *cobra.Command {
	var spec sandbox.SnapshotSpec
	var remove bool
	c := &cobra.Command{
		Use:   "snapshot NAME [SNAPSHOT]",
		Short: "Take a snapshot of a sandbox, or remove one",
		Example: `  sallyport sandbox snapshot demo before-upgrade --memory
  sallyport sandbox snapshot demo --keep-last 5 --expires 72h
  sallyport sandbox snapshot demo before-upgrade --remove`,
		Args: exactly("NAME", "[SNAPSHOT]"),
	}
	c.Flags().BoolVar(&spec.Memory, "memory", false, "its processes too")
	c.Flags().IntVar(&spec.KeepLast, "keep-last", 0, "remove the oldest beyond so many (default none)")
	lastsVar(c.Flags(), &spec.Expires, "expires", "remove it after so long (default never)")
	c.Flags().BoolVar(&remove, "remove", false, "remove the snapshot")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 2 {
			spec.Name = args[1]
		}
		if remove && (spec.Name == "" || spec.Memory || spec.KeepLast != 0 || spec.Expires != 0) {
			return usageError{fmt.Errorf("write: %s NAME SNAPSHOT --remove", cmd.CommandPath())}
		}
		d, err := g.daemon()
		if err != nil {
			return err
		}
		if remove {
			if err := d.RemoveSnapshot(cmd.Context(), args[0], spec.Name); err != nil {
				return err
			}
			return g.print(cmd, map[string]string{"removed": spec.Name}, func(w io.Writer) { fmt.Fprintln(w, spec.Name, "is removed") })
		}
		s, err := d.Snapshot(cmd.Context(), args[0], spec)
		if err != nil {
			return err
		}
		return g.print(cmd, s, func(w io.Writer) {
			fmt.Fprintf(w, "%s of %s is kept: %s, %s\n", s.Name, s.Sandbox, holdings(s), size.About(s.Size))
		})
	}
	return c
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

func newSnapshots(g *globals) *cobra.Command {
	return &cobra.Command{Use: "snapshots NAME", Short: "List the snapshots of a sandbox", Args: exactly("NAME"), RunE: func(cmd *cobra.Command, args []string) error {
		d, err := g.daemon()
		if err != nil {
			return err
		}
		list, err := d.Snapshots(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return g.print(cmd, list, func(w io.Writer) {
			var rows []string
			for _, s := range list {
				expires, policy := "never", cmp.Or(s.Mark.Policy, "-")
				if !s.Expires.IsZero() {
					expires = s.Expires.Local().Format(time.DateTime)
				}
				rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%.12s\t%d", s.Name, s.Created.Local().Format(time.DateTime), holdings(s), size.About(s.Size), expires, policy, s.Mark.Audit))
			}
			table(w, "NAME\tMADE\tWITH\tSIZE\tEXPIRES\tPOLICY\tEVENTS", rows...)
		})
	}}
}

func newSandboxRestore(g *globals) *cobra.Command {
	var spec sandbox.RestoreSpec
	c := &cobra.Command{
		Use:   "restore NAME SNAPSHOT",
		Short: "Restore a sandbox from a snapshot; its present state is kept as another snapshot",
		Example: `  sallyport sandbox restore demo before-upgrade
  sallyport sandbox restore demo before-upgrade --discard`,
		Args: exactly("NAME", "SNAPSHOT"),
	}
	c.Flags().BoolVar(&spec.Discard, "discard", false, "do not keep its present state")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		d, err := g.daemon()
		if err != nil {
			return err
		}
		spec.Snapshot = args[1]
		i, err := d.Restore(cmd.Context(), args[0], spec)
		if err != nil {
			return err
		}
		return g.print(cmd, i, func(w io.Writer) {
			fmt.Fprintf(w, "%s is what it was at %s, and %s\n", i.Name, spec.Snapshot, i.State)
			lost(w, i)
		})
	}
	return c
}

func newFork(g *globals) *cobra.Command {
	var spec sandbox.ForkSpec
	c := &cobra.Command{
		Use:   "fork NAME [CHILD ...]",
		Short: "Make sandboxes of one, with its files and its processes",
		Example: `  sallyport sandbox fork demo try-a try-b
  sallyport sandbox fork demo --count 10
  sallyport sandbox fork demo --snapshot before-upgrade again`,
		Args: exactly("NAME", "[CHILD ...]"),
	}
	c.Flags().IntVar(&spec.Count, "count", 0, "how many forks, named after the parent (default 1)")
	c.Flags().StringVar(&spec.Snapshot, "snapshot", "", "fork this snapshot (default its present state)")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("count") && (spec.Count < 1 || spec.Count > sandbox.MaxForks) {
			return usageError{fmt.Errorf("--count %d: use 1 to %d", spec.Count, sandbox.MaxForks)}
		}
		d, err := g.daemon()
		if err != nil {
			return err
		}
		spec.Names = args[1:]
		list, err := d.Fork(cmd.Context(), args[0], spec)
		if err != nil {
			return err
		}
		return g.print(cmd, list, func(w io.Writer) {
			var rows []string
			for _, i := range list {
				rows = append(rows, sandboxRow(i))
			}
			table(w, sandboxHead, rows...)
			for _, i := range list {
				lost(w, i)
			}
		})
	}
	return c
}
