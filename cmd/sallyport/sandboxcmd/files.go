package sandboxcmd

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/terminal"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/client"
)

func newFiles(g *cli.Globals) *cobra.Command {
	var user string
	// of makes a command about files of one sandbox.
	of := func(use, short string, args []string, run func(context.Context, *cobra.Command, *client.Files, []string) error) *cobra.Command {
		return g.Asks(&cobra.Command{Use: use, Short: short, Args: cli.Exactly(args...)}, func(cmd *cobra.Command, d *client.Client, args []string) error {
			f := d.Files(args[0])
			f.User = user
			return run(cmd.Context(), cmd, f, args[1:])
		})
	}
	one := []string{"NAME", "PATH"}
	show := func(cmd *cobra.Command, i sandbox.File, err error) error {
		if err != nil {
			return err
		}
		return g.Print(cmd, i, func(w io.Writer) { cli.Table(w, fileHead, fileRow(i)) })
	}

	ls := of("ls NAME PATH", "List a folder", one, func(ctx context.Context, cmd *cobra.Command, f *client.Files, args []string) error {
		return printFolder(ctx, g, cmd, f, args[0])
	})
	var follow bool
	stat := of("stat NAME PATH", "Show what is known of a file", one, func(ctx context.Context, cmd *cobra.Command, f *client.Files, args []string) error {
		i, err := f.Stat(ctx, args[0], follow)
		return show(cmd, i, err)
	})
	stat.Flags().BoolVarP(&follow, "follow", "L", false, "of a symbolic link, what it leads to")
	cat := of("cat NAME PATH", "Print a file", one, func(ctx context.Context, cmd *cobra.Command, f *client.Files, args []string) error {
		_, from, err := f.Read(ctx, args[0])
		if err != nil {
			return err
		}
		defer from.Close()
		_, err = io.Copy(cmd.OutOrStdout(), from)
		return err
	})
	var w sandbox.WriteOptions
	var mode string
	put := of("put NAME PATH", "Write standard input to a file, in one step", one, func(ctx context.Context, cmd *cobra.Command, f *client.Files, args []string) error {
		if err := readMode(mode, &w.Mode); err != nil {
			return err
		}
		i, err := f.Write(ctx, args[0], cmd.InOrStdin(), w)
		return show(cmd, i, err)
	})
	put.Flags().StringVar(&mode, "mode", "", "permission bits as in 0644 (default those of the file before it, or 0644)")
	put.Flags().BoolVarP(&w.Parents, "parents", "p", false, "create missing folders of the path")
	var parents bool
	mkdir := of("mkdir NAME PATH", "Make a folder", one, func(ctx context.Context, cmd *cobra.Command, f *client.Files, args []string) error {
		var m wire.Mode
		if err := readMode(mode, &m); err != nil {
			return err
		}
		i, err := f.Mkdir(ctx, args[0], m, parents)
		return show(cmd, i, err)
	})
	mkdir.Flags().StringVar(&mode, "mode", "", "permission bits as in 0755, which is the default")
	mkdir.Flags().BoolVarP(&parents, "parents", "p", false, "create missing folders of the path, and accept a folder that exists")
	var replace bool
	mv := of("mv NAME FROM TO", "Rename a file or folder", []string{"NAME", "FROM", "TO"}, func(ctx context.Context, cmd *cobra.Command, f *client.Files, args []string) error {
		i, err := f.Move(ctx, args[0], args[1], replace)
		return show(cmd, i, err)
	})
	mv.Flags().BoolVarP(&replace, "force", "f", false, "replace what is there")
	var recursive bool
	rm := of("rm NAME PATH", "Remove a file or an empty folder", one, func(ctx context.Context, cmd *cobra.Command, f *client.Files, args []string) error {
		if err := f.Remove(ctx, args[0], recursive); err != nil {
			return err
		}
		return g.Print(cmd, map[string]string{"removed": args[0]}, func(io.Writer) {})
	})
	rm.Flags().BoolVarP(&recursive, "recursive", "r", false, "with all that is in it")
	watch := of("watch NAME PATH", "Print what happens to a file, or to what is in a folder", one, func(ctx context.Context, cmd *cobra.Command, f *client.Files, args []string) error {
		return f.Watch(ctx, args[0], sandbox.WatchOptions{Recursive: recursive}, func(e sandbox.FileEvent) error {
			return g.PrintLine(cmd, e, func() string {
				name := terminal.Escape(wire.RawName(e.Path, e.Raw))
				if e.Folder {
					name += "/"
				}
				return strings.TrimRight(fmt.Sprintf("%-8s  %s", terminal.Word(e.Op), name), " ")
			})
		})
	})
	watch.Flags().BoolVarP(&recursive, "recursive", "r", false, "folders below it too")
	c := cli.Group("files", "Read, write and watch a sandbox's files", ls, stat, cat, put, mkdir, mv, rm, watch)
	c.PersistentFlags().StringVarP(&user, "user", "u", "", "user of the sandbox whose rights count (default the sandbox's)")
	return c
}

func readMode(text string, m *wire.Mode) error {
	if text == "" {
		return nil
	}
	if err := m.UnmarshalText([]byte(text)); err != nil {
		return cli.Usagef("--mode: %w", err)
	}
	return nil
}

const fileHead = "MODE\tUID\tGID\tSIZE\tMODIFIED\tNAME"

// fileRow is a line of a listing. The sandbox says what is in it.
func fileRow(i sandbox.File) string {
	kind := map[string]string{wire.Regular: "-", wire.Folder: "d", wire.Link: "l"}[i.Type]
	if kind == "" {
		kind = "?"
	}
	name := terminal.Escape(wire.RawName(i.Name, i.Raw))
	if i.Type == wire.Link {
		name += " -> " + terminal.Escape(i.Target)
	}
	return fmt.Sprintf("%s%04o\t%d\t%d\t%d\t%s\t%s", kind, uint32(i.Mode), i.UID, i.GID, i.Size, i.Modified.Format(time.RFC3339), name)
}

// printFolder prints a folder page by page, so that a large one needs no more memory
// than a small one.
func printFolder(ctx context.Context, g *cli.Globals, cmd *cobra.Command, f *client.Files, path string) error {
	for after, more := "", true; more; {
		var list []sandbox.File
		var err error
		if list, more, err = f.List(ctx, path, after); err != nil {
			return err
		}
		if g.Output == "json" {
			// A line each: one array would have to be held.
			lines := terminal.JSON(cmd.OutOrStdout())
			for _, i := range list {
				if err := lines.Encode(i); err != nil {
					return err
				}
			}
		} else {
			cli.Table(cmd.OutOrStdout(), fileHead, cli.Rows(list, fileRow)...)
		}
		if len(list) > 0 {
			after = wire.RawName(list[len(list)-1].Name, list[len(list)-1].Raw)
		}
	}
	return nil
}

func newChanges(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{
		Use:   "changes NAME [SNAPSHOT]",
		Short: "List files that changed since a snapshot, or since the image",
		Args:  cli.Exactly("NAME", "[SNAPSHOT]"),
	}
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		return d.Changes(cmd.Context(), args[0], append(args, "")[1], func(c client.Change) error {
			return g.PrintLine(cmd, c, func() string {
				return fmt.Sprintf("%-8s  %s", terminal.Word(c.Kind), terminal.Escape(wire.RawName(c.Path, c.Raw)))
			})
		})
	})
}
