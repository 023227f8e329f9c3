package memory

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrTruncated says that a listing is not complete.
var ErrTruncated = errors.New("the memory holds more files and folders than are listed, is more than 64 folders deep, or has very long paths")

const (
	// MaxListed is how many entries List shows.
	MaxListed = 10_000
	maxDepth  = 64
	// maxPath is the length in bytes of the longest path that is listed, as open(2) takes
	// it, and maxPaths that of all paths together.
	maxPath  = 4096
	maxPaths = 32 << 20
)

// Kind of an entry.
type Kind string

const (
	KindFile   Kind = "file"
	KindFolder Kind = "folder"
	KindLink   Kind = "link"  // symbolic; never followed
	KindOther  Kind = "other" // device, pipe, socket; never opened
)

// Entry is one name in a memory.
type Entry struct {
	// Path is relative to the memory, with slashes, as the sandbox chose it:
	// it may hold any byte but NUL.
	Path     string    `json:"path"`
	Kind     Kind      `json:"kind"`
	Size     int64     `json:"size"` // bytes, of files
	Modified time.Time `json:"modified"`
	// Mode is the permission bits, which mean nothing on the host.
	Mode fs.FileMode `json:"-"`
	// Stamp is another one after each change of the file: the inode, and the time of its
	// last change (inode(7), ctime), which the sandbox cannot set.
	Stamp Stamp `json:"-"`
}

// Stamp tells one state of a file from another without reading it.
type Stamp struct {
	Inode   uint64
	Changed int64 // nanoseconds since 1970
}

// List is Scan of at most MaxListed entries.
func (f *Folder) List() ([]Entry, error) { return f.Scan(MaxListed) }

// Scan lists the memory, sorted by path. If there are more entries than most, or their paths
// are longer than 32 MiB together, it returns the first that it met, and ErrTruncated.
func (f *Folder) Scan(most int) ([]Entry, error) { return f.ScanIn(".", most) }

// ScanIn is Scan of what is in a folder of the memory. A link is no folder.
func (f *Folder) ScanIn(name string, most int) ([]Entry, error) {
	name, prefix := path.Clean(name), ""
	if !filepath.IsLocal(name) {
		return nil, fmt.Errorf("%q: %w: give a path relative to it, without ..", name, ErrBadName)
	}
	if name != "." {
		prefix = name + "/"
	}
	if info, err := f.root.Lstat(name); err != nil {
		return nil, fmt.Errorf("%q: %w", name, cause(err))
	} else if !info.IsDir() {
		return nil, fmt.Errorf("%q: %w", name, unix.ENOTDIR)
	}
	d, err := f.root.OpenFile(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, cause(err))
	}
	l := lister{most: most}
	err = l.folder(d, prefix, 1+strings.Count(prefix, "/"))
	slices.SortFunc(l.entries, func(a, b Entry) int { return strings.Compare(a.Path, b.Path) })
	if err == nil && l.truncated {
		err = ErrTruncated
	}
	return l.entries, err
}

type lister struct {
	most      int
	entries   []Entry
	paths     int // bytes
	truncated bool
}

// openFolder opens a folder by its name in the folder at. O_DIRECTORY keeps it from
// opening a pipe or a device, O_NOFOLLOW from following a link (open(2)). Each step starts
// at an open folder, so a folder that is moved meanwhile leads nowhere else.
func openFolder(at int, name, label string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening %q: %w", label, err)
	}
	return os.NewFile(uintptr(fd), label), nil
}

// folder lists d, whose path is prefix, and closes it.
func (l *lister) folder(d *os.File, prefix string, depth int) error {
	defer d.Close()
	for {
		names, err := d.Readdirnames(256)
		for _, name := range names {
			if len(prefix)+len(name) > maxPath {
				l.truncated = true
				continue
			}
			if l.paths += len(prefix) + len(name); len(l.entries) == l.most || l.paths > maxPaths {
				l.truncated = true
				return nil
			}
			if err := l.entry(d, name, prefix, depth); err != nil && !gone(err) {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (l *lister) entry(d *os.File, name, prefix string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(d.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	e := Entry{Path: prefix + name, Modified: time.Unix(st.Mtim.Unix()).UTC(), Mode: fs.FileMode(st.Mode & 0o777), Stamp: Stamp{st.Ino, st.Ctim.Nano()}}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		e.Kind, e.Size = KindFile, st.Size
	case unix.S_IFLNK:
		e.Kind = KindLink
	case unix.S_IFDIR:
		e.Kind = KindFolder
	default:
		e.Kind = KindOther
	}
	l.entries = append(l.entries, e)
	if e.Kind != KindFolder {
		return nil
	}
	if depth == maxDepth {
		l.truncated = true
		return nil
	}
	sub, err := openFolder(int(d.Fd()), name, e.Path)
	if err != nil {
		return err
	}
	return l.folder(sub, e.Path+"/", depth+1)
}

// gone reports whether the sandbox removed or replaced something while it was being
// listed.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// Lstat describes what has a name, a link too.
func (f *Folder) Lstat(name string) (fs.FileInfo, error) {
	info, err := f.root.Lstat(name)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, cause(err))
	}
	return info, nil
}

// Names returns the names in a folder in no order. If there are more than most, it returns
// the first that it met, and ErrTruncated.
func (f *Folder) Names(name string, most int) ([]string, error) {
	if info, err := f.root.Lstat(name); err != nil {
		return nil, fmt.Errorf("%q: %w", name, cause(err))
	} else if !info.IsDir() {
		return nil, fmt.Errorf("%q: %w", name, unix.ENOTDIR)
	}
	d, err := f.root.OpenFile(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, cause(err))
	}
	defer d.Close()
	names, err := d.Readdirnames(most + 1)
	if len(names) > most {
		return names[:most], ErrTruncated
	}
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("%q: %w", name, cause(err))
	}
	return names, nil
}
