package archive

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/sandbox/agent/wire"
)

// page is how many names of a folder are read at a time.
const page = 256

type packer struct {
	ctx    context.Context
	w      *tar.Writer
	links  map[[2]uint64]string // device and inode: the name it was packed under
	report wire.Packed
	buf    []byte
}

// Pack writes a file, or a folder with all below it, under the name as, which
// "." leaves out. A symbolic link is packed as one, also when it is the file that
// is asked for. A file that vanishes meanwhile is left out. One that cannot be read, or
// shrinks while it is, is an error.
func Pack(ctx context.Context, to io.Writer, file, as string) (wire.Packed, error) {
	p := &packer{ctx: ctx, w: tar.NewWriter(to), links: map[[2]uint64]string{}, buf: make([]byte, bufferSize)}
	as, err := local(as)
	if err != nil {
		return p.report, err
	}
	file = filepath.Clean(file)
	dir, base := filepath.Dir(file), filepath.Base(file)
	if base == "/" {
		base = "."
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return p.report, err
	}
	defer root.Close()
	info, err := root.Lstat(base)
	if err != nil {
		return p.report, err
	}
	if as == "." && !info.IsDir() {
		return p.report, fmt.Errorf("%w: %s is not a folder", syscall.ENOTDIR, file)
	}
	if err := p.entry(root, base, as, info, 0); err != nil {
		return p.report, err
	}
	return p.report, p.w.Close()
}

// entry packs what is at base of an open folder.
func (p *packer) entry(in *os.Root, base, name string, info fs.FileInfo, depth int) error {
	if err := p.ctx.Err(); err != nil {
		return context.Cause(p.ctx)
	}
	st := info.Sys().(*syscall.Stat_t)
	h := &tar.Header{
		Name: name, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(info.ModTime().Unix(), 0), Format: tar.FormatPAX,
	}
	var err error
	switch mode := info.Mode(); {
	case mode.IsDir():
		return p.folder(in, base, h, depth)
	case mode.IsRegular():
		return p.file(in, base, h, st)
	case mode&fs.ModeSymlink != 0:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = in.Readlink(base); err != nil {
			return vanished(err)
		}
		return p.head(h)
	}
	p.report.Skip(name, "neither a file, a folder nor a link")
	return nil
}

func (p *packer) head(h *tar.Header) error {
	p.report.Entries++
	return p.w.WriteHeader(h)
}

func (p *packer) file(in *os.Root, base string, h *tar.Header, st *syscall.Stat_t) error {
	h.Typeflag = tar.TypeReg
	key := [2]uint64{uint64(st.Dev), st.Ino}
	if have, ok := p.links[key]; ok {
		h.Typeflag, h.Linkname = tar.TypeLink, have
		return p.head(h)
	}
	// Opening it, whatever it has become meanwhile, neither waits nor follows.
	f, err := in.OpenFile(base, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return vanished(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		p.report.Skip(h.Name, "changed while it was packed")
		return nil
	}
	h.Size = info.Size()
	if err := p.head(h); err != nil {
		return err
	}
	n, err := io.CopyBuffer(plain{p.w}, io.LimitReader(f, h.Size), p.buf)
	p.report.Bytes += n
	if err != nil {
		return err
	}
	if n < h.Size {
		return fmt.Errorf("%s has shrunk while it was packed", h.Name)
	}
	if st.Nlink > 1 && len(p.links) < maxLinked {
		p.links[key] = h.Name
	}
	return nil
}

func (p *packer) folder(in *os.Root, base string, h *tar.Header, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("folders are nested deeper than %d", maxDepth)
	}
	name := h.Name
	h.Typeflag, h.Name = tar.TypeDir, name+"/"
	dir, err := in.OpenRoot(base)
	if err != nil {
		return vanished(err)
	}
	defer dir.Close()
	if name != "." {
		if err := p.head(h); err != nil {
			return err
		}
	}
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		names, err := f.Readdirnames(page)
		for _, base := range names {
			info, err := dir.Lstat(base)
			if err = vanished(err); err != nil {
				return err
			}
			if info == nil {
				continue
			}
			if err := p.entry(dir, base, path.Join(name, base), info, depth+1); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// vanished is nil for what is not there any more.
func vanished(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// plain hides ReadFrom, which would make a buffer of its own.
type plain struct{ io.Writer }
