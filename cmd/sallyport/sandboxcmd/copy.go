package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/api"
	"sallyport/internal/terminal"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/archive"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/client"
)

// copying is one use of `sandbox cp`.
type copying struct {
	files     *client.Files
	recursive bool
	o         archive.Options // of what comes out
}

// Copy is `sallyport cp`, and `sallyport sandbox cp`.
func Copy(g *cli.Globals) *cobra.Command {
	var x copying
	var user string
	c := &cobra.Command{
		Use:   "cp SRC DST",
		Short: "Copy files into a sandbox or out of it",
		Long: `Copy files into a sandbox or out of it. One of SRC and DST is NAME:PATH, a file of
the sandbox; a file of this host whose name has a colon is written ./so:named. A tenant's is TENANT/NAME:PATH.

As with cp(1), what is copied to a folder that is there lands in it under its own
name, and else is named DST; SRC/. stands for what is in SRC. Modes, times and
links are kept, owners are not; out of a sandbox nothing comes that others than
its owner may write.

A sandbox that does not run is started; of one that does not start the files are
read and written on its disk, and nothing in it runs.

Of what comes out of a sandbox nothing lands outside DST. Left out, and said, are
devices, pipes, sockets, setuid bits, and symbolic links that lead out of what is
copied, unless --links; the exit status is 1 then.`,
		Example: `  sallyport sandbox cp -r ./src demo:/root
  sallyport sandbox cp demo:/root/out.csv .`,
		Args: cli.Exactly("SRC", "DST"),
	}
	c.Flags().BoolVarP(&x.recursive, "recursive", "r", false, "copy folders with all that is in them")
	c.Flags().StringVarP(&user, "user", "u", "", "user of the sandbox whose rights count (default the sandbox's)")
	c.Flags().BoolVar(&x.o.Links, "links", false, "keep symbolic links out of the sandbox that lead out of what is copied")
	x.o.MaxBytes = 16 << 30
	c.Flags().Var(sizeFlag{&x.o.MaxBytes}, "max-bytes", "most to take out of a sandbox")
	c.Flags().Int64Var(&x.o.MaxEntries, "max-files", 1_000_000, "most files to take out of a sandbox")
	x.o.Foreign = true
	return g.Asks(c, func(cmd *cobra.Command, d *client.Client, args []string) error {
		if x.o.MaxBytes <= 0 || x.o.MaxEntries <= 0 {
			return cli.Usagef("--max-bytes and --max-files are above zero")
		}
		from, src, out := inSandbox(args[0])
		to, dst, in := inSandbox(args[1])
		if in == out {
			return cli.Usagef("one of SRC and DST is NAME:PATH, the other a file of this host")
		}
		x.files = d.Files(from + to)
		x.files.User = user
		var p sandbox.Packed
		var err error
		if out {
			p, err = x.download(cmd.Context(), src, dst)
		} else {
			p, err = x.upload(cmd.Context(), src, dst)
		}
		for _, why := range p.Why {
			fmt.Fprintf(cmd.ErrOrStderr(), "sallyport: left out %s\n", terminal.Escape(why))
		}
		if err != nil {
			return err
		}
		if err := g.Print(cmd, p, func(w io.Writer) {
			fmt.Fprintf(w, "%s, %s\n", cli.Many(p.Entries-p.Skipped, "entry", "entries"), cli.Many(p.Bytes, "byte", "bytes"))
		}); err != nil {
			return err
		}
		if p.Skipped > 0 {
			return fmt.Errorf("%s left out", cli.Many(p.Skipped, "entry was", "entries were"))
		}
		return nil
	})
}

// inSandbox reads NAME:PATH, or TENANT/NAME:PATH.
func inSandbox(arg string) (name, path string, ok bool) {
	name, path, ok = strings.Cut(arg, ":")
	tenant, own, full := strings.Cut(name, "/")
	if !full {
		tenant, own = "none", name
	}
	if !ok || sandbox.CheckName(own) != nil || sandbox.CheckName(tenant) != nil {
		return "", arg, false
	}
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return name, path, true
}

// contents tells whether a path means what is in it.
func contents(p string) bool { return p == "." || strings.HasSuffix(p, "/.") || path.Clean(p) == "/" }

// place says where what is copied goes: a folder that is there, and a name below
// it.
func place(src, dst string, folder, exists, is bool) (parent, name string, err error) {
	switch {
	case exists && is && contents(src) && folder:
		return dst, ".", nil
	case exists && is:
		return dst, path.Base(path.Clean(src)), nil
	case exists && folder:
		return "", "", fmt.Errorf("%s is there and no folder", terminal.Escape(dst))
	case !exists && strings.HasSuffix(dst, "/") && !folder:
		return "", "", fmt.Errorf("there is no folder %s", terminal.Escape(dst))
	}
	clean := path.Clean(dst)
	return path.Dir(clean), path.Base(clean), nil
}

func (x *copying) download(ctx context.Context, src, dst string) (p sandbox.Packed, err error) {
	info, err := x.files.Stat(ctx, src, true)
	if err != nil {
		return p, err
	}
	folder := info.Type == wire.Folder
	if err := x.whole(src, folder); err != nil {
		return p, err
	}
	there, err := os.Stat(dst)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return p, err
	}
	parent, name, err := place(src, dst, folder, err == nil, err == nil && there.IsDir())
	if err != nil {
		return p, err
	}
	if !folder {
		return x.take(ctx, src, parent, name)
	}
	tar, err := x.files.Download(ctx, src, name)
	if err != nil {
		return p, err
	}
	defer tar.Close()
	x.o.Top = name
	return archive.Unpack(ctx, parent, tar, x.o)
}

// take copies one file out.
func (x *copying) take(ctx context.Context, src, parent, name string) (p sandbox.Packed, err error) {
	info, from, err := x.files.Read(ctx, src)
	if err != nil {
		return p, err
	}
	defer from.Close()
	f, err := os.CreateTemp(parent, ".sallyport-*")
	if err != nil {
		return p, err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	p.Entries = 1
	p.Bytes, err = io.Copy(f, io.LimitReader(from, x.o.MaxBytes+1))
	if err == nil && p.Bytes > x.o.MaxBytes {
		err = fmt.Errorf("%w: more than %d bytes", archive.ErrTooMuch, x.o.MaxBytes)
	}
	if err == nil {
		err = f.Chmod(archive.Foreign(os.FileMode(info.Mode)))
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Chtimes(f.Name(), info.Modified, info.Modified)
	}
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(parent, name))
	}
	return p, err
}

func (x *copying) whole(src string, folder bool) error {
	if folder && !x.recursive {
		return cli.Usagef("%s is a folder: use -r", terminal.Escape(src))
	}
	return nil
}

func (x *copying) upload(ctx context.Context, src, dst string) (p sandbox.Packed, err error) {
	info, err := os.Stat(src)
	if err != nil {
		return p, err
	}
	if err := x.whole(src, info.IsDir()); err != nil {
		return p, err
	}
	there, err := x.files.Stat(ctx, dst, true)
	problem := new(api.Problem)
	missing := errors.As(err, &problem) && problem.Status == http.StatusNotFound
	if err != nil && !missing {
		return p, err
	}
	parent, name, err := place(src, dst, info.IsDir(), !missing, there.Type == wire.Folder)
	if err != nil {
		return p, err
	}
	if name == ".." || name == "." && !contents(src) {
		abs, err := filepath.Abs(src)
		if err != nil {
			return p, err
		}
		name = filepath.Base(abs)
	}
	if !info.IsDir() {
		f, err := os.Open(src)
		if err != nil {
			return p, err
		}
		defer f.Close()
		i, err := x.files.Write(ctx, path.Join(parent, name), f, sandbox.WriteOptions{Mode: wire.Mode(info.Mode().Perm())})
		return sandbox.Packed{Entries: 1, Bytes: i.Size}, err
	}
	if src, err = filepath.EvalSymlinks(src); err != nil {
		return p, err
	}
	if src, err = filepath.Abs(src); err != nil {
		return p, err
	}
	r, w := io.Pipe()
	packed := make(chan sandbox.Packed, 1)
	go func() {
		p, err := archive.Pack(ctx, w, src, name)
		w.CloseWithError(err)
		packed <- p
	}()
	p, err = x.files.Upload(ctx, parent, r)
	_ = r.Close()
	for _, why := range (<-packed).Why {
		p.Skip(why, "not packed")
	}
	return p, err
}
