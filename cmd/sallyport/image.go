package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/size"
	"sallyport/internal/terminal"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

func newImage(g *cli.Globals) *cobra.Command {
	return cli.Group("image", "Fetch, load, list and remove the images that sandboxes are made of",
		newImagePull(g), newImageLoad(g), newImageList(g), newImageRemove(g))
}

func newImagePull(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{
		Use:   "pull NAME",
		Short: "Fetch an image from its registry",
		Long: `Fetch an image from its registry, over the host's own network: no sandbox's rules
count for it. A login is the credential that the configuration names for the registry,
under registries. Ctrl-C ends it and discards its parts.`,
		Example: `  sallyport image pull debian:bookworm
  sallyport image pull registry.example.com/team/agent@sha256:…`,
		Args: cli.Exactly("NAME"),
	}
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		i, err := d.PullImage(cmd.Context(), args[0], newLayers(g, cmd).tell)
		if err != nil {
			return err
		}
		return g.Print(cmd, i, func(w io.Writer) { fmt.Fprintln(w, args[0], "is there:", described(i)) })
	})
}

// described is an image by what does not change.
func described(i sandbox.Image) string {
	return strings.Join(append([]string{i.ID}, i.Digests...), ", ")
}

// layers shows how far each layer is: on a terminal on a line of its own, else a line
// for each change.
type layers struct {
	out    io.Writer // nil: nothing is shown
	height int       // of the terminal, 0 for none
	known  []string
	lines  map[string]string
	status map[string]string
}

func newLayers(g *cli.Globals, cmd *cobra.Command) *layers {
	l := &layers{lines: map[string]string{}, status: map[string]string{}}
	if g.Output == "json" {
		return l
	}
	l.out = cmd.ErrOrStderr()
	if f, ok := l.out.(*os.File); ok {
		_, l.height, _ = term.GetSize(int(f.Fd())) // none of what is no terminal
	}
	return l
}

func (l *layers) tell(s sandbox.ImageStep) {
	if l.out == nil {
		return
	}
	status := terminal.Escape(s.Status)
	line := status
	if s.Layer != "" {
		line = terminal.Escape(s.Layer) + "  " + status
	}
	if s.Layer == "" || l.height <= len(l.known)+1 {
		if s.Layer == "" || l.status[s.Layer] != status {
			fmt.Fprintln(l.out, line)
			l.known = nil // what is above stays as it is
		}
		l.status[s.Layer] = status
		return
	}
	if s.Total > 0 {
		line += fmt.Sprintf("  %s of %s", size.About(s.Done), size.About(s.Total))
	}
	if up := len(l.known); up > 0 {
		fmt.Fprintf(l.out, "\x1b[%dA", up)
	}
	if !slices.Contains(l.known, s.Layer) {
		l.known = append(l.known, s.Layer)
	}
	l.lines[s.Layer] = line
	for _, k := range l.known {
		fmt.Fprintf(l.out, "\r%s\x1b[K\n", l.lines[k])
	}
}

func newImageLoad(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{
		Use:   "load FILE",
		Short: "Load images from a tar archive, as docker save writes it; - is standard input",
		Long: `Load images from a tar archive, as docker save writes it. The archive sets the
names of its images and the programs that run in sandboxes of them: load it only from a
source that you trust.`,
		Example: `  docker save team/agent:1 | sallyport image load -`,
		Args:    cli.Exactly("FILE"),
	}
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		in, total := cmd.InOrStdin(), int64(0)
		if args[0] != "-" {
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer f.Close()
			if info, err := f.Stat(); err != nil {
				return err
			} else if info.IsDir() {
				return cli.Usagef("%s is a folder: name a tar archive", args[0])
			} else {
				total = info.Size()
			}
			in = f
		} else if f, ok := in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			return cli.Usagef("standard input is a terminal: pipe an archive in, or name its file")
		}
		list, err := d.LoadImages(cmd.Context(), &sent{Reader: in, show: newLayers(g, cmd), total: total})
		if err != nil {
			return err
		}
		return g.Print(cmd, list, func(w io.Writer) {
			for _, i := range list {
				fmt.Fprintln(w, strings.Join(i.Names, ", "), "is there:", described(i))
			}
		})
	})
}

// sent shows how much of an archive has been read, on a terminal.
type sent struct {
	io.Reader
	show        *layers
	done, total int64
	shown       int64
}

func (s *sent) Read(p []byte) (int, error) {
	const step = 4 << 20
	n, err := s.Reader.Read(p)
	if s.done += int64(n); s.show.height > 0 && (s.done >= s.shown+step || err != nil) {
		s.shown = s.done
		s.show.tell(sandbox.ImageStep{Layer: "archive", Status: "Sent", Done: s.done, Total: max(s.total, s.done)})
	}
	return n, err
}

func newImageList(g *cli.Globals) *cobra.Command {
	c := &cobra.Command{Use: "ls", Short: "List the images, and the sandboxes that are made of each", Args: cli.Exactly()}
	return cli.Lists(g, c, func(ctx context.Context, d *client.Client, _ []string) ([]sandbox.Image, error) { return d.Images(ctx) },
		"NAME\tID\tDIGEST\tSIZE\tUSED BY", imageRow)
}

func imageRow(i sandbox.Image) string {
	digest, used := "-", i.Sandboxes
	if len(i.Digests) > 0 {
		_, digest, _ = strings.Cut(i.Digests[0], "@")
	}
	if i.Default {
		used = append([]string{"(default)"}, used...)
	}
	names := i.Names
	if len(names) == 0 {
		names = i.Digests
	}
	return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", cli.OrDash(strings.Join(names, ",")), short(i.ID), short(digest), size.About(i.Size), cli.OrDash(strings.Join(used, ",")))
}

// short is enough of a digest to tell it from others by eye.
func short(digest string) string { return digest[:min(len(digest), len("sha256:")+12)] }

func newImageRemove(g *cli.Globals) *cobra.Command {
	return g.Removes(&cobra.Command{
		Use: "rm NAME [NAME ...]", Short: "Remove names of images, and each image with its last name", Args: cli.Exactly("NAME", "[NAME ...]"),
		Long: `Remove names of images, and each image with its last name. The default image cannot be
removed, nor an image that a sandbox is made of.`,
	}, func(ctx context.Context, d *client.Client, name string) error { return d.RemoveImage(ctx, name) })
}
