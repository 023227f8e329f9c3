package archive

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"sallyport/sandbox/agent/wire"
)

// Options of Unpack.
type Options struct {
	// Top is what every name of the archive is, or lies below; empty or ".": any.
	Top string
	// Foreign says that the archive comes out of a sandbox onto the host.
	Foreign bool
	// Links keeps symbolic links that lead out of the tree, also with Foreign.
	Links bool
	// MaxBytes bounds the contents of files and MaxEntries their number; 0: not.
	MaxBytes, MaxEntries int64
}

// ErrTooMuch: the archive goes beyond a bound.
var ErrTooMuch = errors.New("the archive is larger than allowed")

// headRoom is what an entry may take besides its contents, in bytes, on average.
const headRoom = 8 << 10

// tail is what may follow an archive's end: the rest of its last block.
const tail = 1 << 20

// level is a folder on the way to the current entry.
type level struct {
	base string
	dir  *os.Root
	// Mode and time for when the entries below it are done.
	set  bool
	mode os.FileMode
	time time.Time
}

type unpacker struct {
	o      Options
	levels []level // the first is where it all goes
	made   map[[2]uint64]struct{}
	report wire.Packed
	buf    []byte
}

// Unpack makes the files of an archive below a folder. Files that are there are
// replaced, folders are joined; a folder never replaces anything else nor the
// other way round. After an error what was made so far stays.
func Unpack(ctx context.Context, folder string, from io.Reader, o Options) (wire.Packed, error) {
	o.Top = cmp.Or(o.Top, ".")
	u := &unpacker{o: o, made: map[[2]uint64]struct{}{}, buf: make([]byte, bufferSize)}
	if info, err := os.Stat(folder); err == nil && !info.IsDir() {
		return u.report, fmt.Errorf("%w: %s is no folder", syscall.ENOTDIR, folder)
	}
	root, err := os.OpenRoot(folder)
	if err != nil {
		return u.report, err
	}
	u.levels = []level{{dir: root}}
	err = u.all(ctx, from)
	for len(u.levels) > 0 {
		err = errors.Join(err, u.leave())
	}
	return u.report, err
}

func (u *unpacker) all(ctx context.Context, from io.Reader) error {
	in := &counter{r: from}
	if u.o.MaxBytes > 0 && u.o.MaxEntries > 0 {
		in.max = u.o.MaxBytes + u.o.MaxEntries*headRoom + tail
	}
	r := tar.NewReader(in)
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		u.report.Entries++
		if u.o.MaxEntries > 0 && u.report.Entries > u.o.MaxEntries {
			return fmt.Errorf("%w: more than %d entries", ErrTooMuch, u.o.MaxEntries)
		}
		if err := u.entry(h, r); err != nil {
			return err
		}
	}
	// The rest can say that the archive is not complete.
	_, err := io.Copy(io.Discard, io.LimitReader(in, tail))
	return err
}

func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name, err := u.name(h.Name)
	if err != nil {
		return err
	}
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return errors.New("the archive's top is not a folder")
		}
		return nil
	}
	in, err := u.enter(path.Dir(name))
	if err != nil {
		return err
	}
	base := path.Base(name)
	switch h.Typeflag {
	case tar.TypeDir:
		return u.folder(in, base, h)
	case tar.TypeReg:
		return u.file(in, base, h, r)
	case tar.TypeSymlink:
		switch {
		case h.Linkname == "" || len(h.Linkname) > wire.MaxPath || strings.Contains(h.Linkname, "\x00"):
			return fmt.Errorf("the link %.100q leads to what is no path", name)
		case u.o.Foreign && !u.o.Links && !inside(u.o.Top, name, h.Linkname):
			u.report.Skip(name, "a link that leads out of the tree")
			return nil
		}
		if err := clear(in, base); err != nil {
			return err
		}
		return in.Symlink(h.Linkname, base)
	case tar.TypeLink:
		return u.link(in, base, name, h.Linkname)
	}
	u.report.Skip(name, "neither a file, a folder nor a link")
	return nil
}

// name is a name of the archive that lies where names may.
func (u *unpacker) name(s string) (string, error) {
	name, err := local(s)
	if err != nil {
		return "", err
	}
	if u.o.Top != "." && name != u.o.Top && !strings.HasPrefix(name, u.o.Top+"/") {
		return "", fmt.Errorf("the archive names %.100q, which is not below %.100q", name, u.o.Top)
	}
	return name, nil
}

// enter opens a folder of the tree, made if it is not there, and leaves those
// that are not on the way to it.
func (u *unpacker) enter(name string) (*os.Root, error) {
	var parts []string
	if name != "." {
		parts = strings.Split(name, "/")
	}
	same := 0
	for same < len(parts) && same+1 < len(u.levels) && u.levels[same+1].base == parts[same] {
		same++
	}
	for len(u.levels) > same+1 {
		if err := u.leave(); err != nil {
			return nil, err
		}
	}
	for _, part := range parts[same:] {
		in := u.levels[len(u.levels)-1].dir
		if err := in.Mkdir(part, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		dir, err := open(in, part)
		if err != nil {
			return nil, err
		}
		u.levels = append(u.levels, level{base: part, dir: dir})
	}
	return u.levels[len(u.levels)-1].dir, nil
}

// open opens a folder that is one itself, and no link to one.
func open(in *os.Root, base string) (*os.Root, error) {
	before, err := in.Lstat(base)
	if err != nil {
		return nil, err
	}
	if !before.IsDir() {
		return nil, fmt.Errorf("%w: %.100q is in the way of a folder of the archive", syscall.ENOTDIR, base)
	}
	dir, err := in.OpenRoot(base)
	if err != nil {
		return nil, err
	}
	now, err := dir.Stat(".")
	if err == nil && !os.SameFile(before, now) {
		err = fmt.Errorf("%w: %.100q was replaced meanwhile", syscall.ENOTDIR, base)
	}
	if err != nil {
		_ = dir.Close()
		return nil, err
	}
	return dir, nil
}

// leave gives the innermost folder what it shall have, and closes it.
func (u *unpacker) leave() error {
	l := u.levels[len(u.levels)-1]
	u.levels = u.levels[:len(u.levels)-1]
	var err error
	if l.set {
		// Times first: a mode can keep us out.
		err = errors.Join(l.dir.Chtimes(".", l.time, l.time), l.dir.Chmod(".", l.mode))
	}
	return errors.Join(err, l.dir.Close())
}

func (u *unpacker) folder(in *os.Root, base string, h *tar.Header) error {
	err := in.Mkdir(base, 0o700)
	there := errors.Is(err, fs.ErrExist)
	if err != nil && !there {
		return err
	}
	dir, err := open(in, base)
	if err != nil {
		return err
	}
	// A sandbox does not say who may enter a folder that the host has.
	u.levels = append(u.levels, level{base: base, dir: dir, set: !there || !u.o.Foreign, mode: u.mode(h), time: h.ModTime})
	return nil
}

// Foreign is the mode on the host of what comes out of a sandbox, which does not say
// who else of the host may write it.
func Foreign(mode os.FileMode) os.FileMode { return mode & 0o755 }

func (u *unpacker) mode(h *tar.Header) os.FileMode {
	mode := os.FileMode(h.Mode & 0o777)
	if u.o.Foreign {
		return Foreign(mode)
	}
	for bit, m := range map[int64]os.FileMode{0o4000: os.ModeSetuid, 0o2000: os.ModeSetgid, 0o1000: os.ModeSticky} {
		if h.Mode&bit != 0 {
			mode |= m
		}
	}
	return mode
}

func (u *unpacker) file(in *os.Root, base string, h *tar.Header, r io.Reader) error {
	if u.o.Foreign && sparse(h) {
		return fmt.Errorf("the archive has %.100q as a sparse file, which none of ours has", h.Name)
	}
	if u.o.MaxBytes > 0 && h.Size > u.o.MaxBytes-u.report.Bytes {
		return fmt.Errorf("%w: more than %d bytes", ErrTooMuch, u.o.MaxBytes)
	}
	if err := clear(in, base); err != nil {
		return err
	}
	f, err := in.OpenFile(base, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	n, err := io.CopyBuffer(plain{f}, onlyReader{r}, u.buf)
	u.report.Bytes += n
	if err == nil && len(u.made) < maxLinked {
		var info fs.FileInfo
		if info, err = f.Stat(); err == nil {
			u.made[id(info)] = struct{}{}
		}
	}
	if err == nil {
		err = f.Chmod(u.mode(h))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return in.Chtimes(base, h.ModTime, h.ModTime)
}

// sparse tells whether a file's size says nothing of what the archive has of it.
func sparse(h *tar.Header) bool {
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return h.Typeflag == tar.TypeGNUSparse
}

// link makes a hard link to a file that this archive has brought.
func (u *unpacker) link(in *os.Root, base, name, target string) error {
	to, err := u.name(target)
	if err != nil {
		return err
	}
	if to == name {
		return fmt.Errorf("the archive links %.100q to itself", name)
	}
	root := u.levels[0].dir
	info, err := root.Lstat(to)
	if err != nil {
		return err
	}
	if _, ours := u.made[id(info)]; !ours || !info.Mode().IsRegular() {
		return fmt.Errorf("the archive links %.100q to %.100q, which it has not brought", name, to)
	}
	if err := clear(in, base); err != nil {
		return err
	}
	return root.Link(to, name)
}

func id(info fs.FileInfo) [2]uint64 {
	st := info.Sys().(*syscall.Stat_t)
	return [2]uint64{uint64(st.Dev), st.Ino}
}

// clear makes room for what is no folder.
func clear(in *os.Root, base string) error {
	info, err := in.Lstat(base)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.IsDir() {
		return fmt.Errorf("%w: a folder %.100q is in the way of a file of the archive", syscall.EISDIR, base)
	}
	return in.Remove(base)
}

// counter bounds what is read.
type counter struct {
	r      io.Reader
	n, max int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if c.n += int64(n); c.max > 0 && c.n > c.max {
		return 0, fmt.Errorf("%w: more than %d bytes with its heads", ErrTooMuch, c.max)
	}
	return n, err
}

// onlyReader hides WriteTo, which would make a buffer of its own.
type onlyReader struct{ io.Reader }
