// Package manifest lists what has changed of a sandbox's files, from the host's side:
// since its image, by its layer as it lies there, or since a snapshot, by two folders,
// one as it was and one as it is.
//
// Nothing inside the sandbox is asked, and no link is followed. Two files are the same
// when their type, mode, owner, size, time of modification, extended attributes and
// contents are. The inode and the time of the inode's change do not count, since a
// restore and a fork do not keep them; times alone do not decide, since a process inside
// can set them. A change that was undone is therefore not listed.
//
// The memory used depends on the names in the folders on the way to one file, on the
// files that have several names, and on the files that have changed (eight bytes each),
// not on the number of files. A folder with which there would be more than 64 MiB of
// names is listed without its files, and so is a folder that is moved meanwhile: Compare
// returns that as an error when all else is listed. Of files with several names beyond a
// million or so, each name is compared by its contents alone.
package manifest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// Root is a folder of the host, and its place in the sandbox.
type Root struct {
	At     string // absolute
	Folder string
	// Lower are the folders that an overlay (overlayfs.rst) shows where Folder, its upper
	// folder, has nothing, the uppermost first.
	Lower []string
	// Then is a copy of Folder as it was. "": there was nothing but Lower.
	Then string
}

// Kinds of change.
const (
	Added    = "added"
	Modified = "modified"
	Removed  = "removed"
)

// entry is one file.
type entry struct {
	path   string
	stat   [7]int64
	link   string // target of a symbolic link
	hard   uint64 // hash of the first name of a file with several; 0: this is the first
	loose  bool   // of a file with several names, the first is not known
	opaque bool   // a folder that hides the folders below it
	image  bool   // it is in a lower folder
	opened func() (*os.File, error)
}

// Places in entry.stat.
const (
	mode = iota // and type
	uid
	gid
	size
	rdev
	seconds // time of modification
	nanoseconds
)

func (e *entry) kind() int64    { return e.stat[mode] & syscall.S_IFMT }
func (e *entry) folder() bool   { return e.kind() == syscall.S_IFDIR }
func (e *entry) whiteout() bool { return e.kind() == syscall.S_IFCHR && e.stat[rdev] == 0 }

func describe(at string, info fs.FileInfo) *entry {
	st := info.Sys().(*syscall.Stat_t)
	e := &entry{path: at}
	e.stat = [7]int64{
		mode: int64(st.Mode), uid: int64(st.Uid), gid: int64(st.Gid), seconds: st.Mtim.Sec, nanoseconds: st.Mtim.Nsec,
	}
	switch e.kind() {
	case syscall.S_IFREG:
		e.stat[size] = st.Size
	case syscall.S_IFCHR, syscall.S_IFBLK:
		e.stat[rdev] = int64(st.Rdev)
	}
	return e
}

// order compares two files by their place in a walk: a folder comes before its files, and
// those before the folder's next sibling.
func order(a, b *entry) int {
	return strings.Compare(strings.ReplaceAll(a.path, "/", "\x00"), strings.ReplaceAll(b.path, "/", "\x00"))
}

// walk yields the files below a folder in order. It yields an *unlisted error for a
// folder that it cannot list, and goes on.
func walk(ctx context.Context, folder, at string) iter.Seq2[*entry, error] {
	return func(yield func(*entry, error) bool) {
		dir, err := os.OpenRoot(folder)
		if err != nil {
			yield(nil, err)
			return
		}
		w := walker{ctx: ctx, yield: yield, folder: folder, first: map[uint64]uint64{}}
		info, err := dir.Stat(".")
		if err != nil {
			_ = dir.Close()
			yield(nil, err)
			return
		}
		w.below(&level{dir, info, at})
	}
}

// walker is a walk through one root.
type walker struct {
	ctx   context.Context
	yield func(*entry, error) bool

	folder string            // the root
	way    []*level          // from there
	names  int               // bytes of names and paths that are held
	first  map[uint64]uint64 // hash of the first name, by the inode of a file with several
}

// maxNames bounds the memory of the names of the folders on the way to one file, in
// bytes: a sandbox can make tens of millions in one folder.
var maxNames = 64 << 20

const (
	// nameSize is what each takes besides.
	nameSize = 16
	// pathSize is what each folder on the way takes beside its path.
	pathSize = 1 << 10
	// linkSize is what each file with several names takes.
	linkSize = 48
	page     = 4096
)

var errTooMany = errors.New("folders have more files than can be listed in order")

// list reads a folder's names, in order.
func (w *walker) list(l *level) (names []string, size int, err error) {
	size = len(l.at) + pathSize
	f, err := l.dir.Open(".")
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	for {
		some, err := f.Readdirnames(page)
		for _, name := range some {
			size += len(name) + nameSize
		}
		if w.names+size > maxNames {
			return nil, 0, errTooMany
		}
		names = append(names, some...)
		if errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist) { // the folder has been removed meanwhile
			break
		}
		if err != nil {
			return nil, 0, err
		}
	}
	slices.Sort(names)
	return names, size, nil
}

// below yields what is in a folder, which it closes.
func (w *walker) below(l *level) bool {
	w.enter(l)
	defer w.leave()
	fail := func(err error) bool { w.yield(nil, err); return false }
	names, size, err := w.list(l)
	if errors.Is(err, errTooMany) {
		return w.yield(nil, &unlisted{l.at, err.Error()})
	}
	if err != nil {
		return fail(err)
	}
	w.names += size
	defer func() { w.names -= size }()
	for _, name := range names {
		if err := w.ctx.Err(); err != nil {
			return fail(context.Cause(w.ctx))
		}
		dir := l.dir
		if dir == nil {
			return w.yield(nil, &unlisted{l.at, "it was moved meanwhile"})
		}
		info, err := dir.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // since
		}
		if err != nil {
			return fail(err)
		}
		e := describe(path.Join(l.at, name), info)
		e.opened = func() (*os.File, error) { return openFile(dir, name) }
		if st := info.Sys().(*syscall.Stat_t); e.kind() == syscall.S_IFREG && st.Nlink > 1 {
			if e.hard = w.first[st.Ino]; e.hard == 0 {
				if e.loose = len(w.first)*linkSize > maxNames; !e.loose {
					w.first[st.Ino] = hash(e.path)
				}
			}
		}
		if e.kind() == syscall.S_IFLNK {
			e.link, _ = dir.Readlink(name) // "" where it has gone
		}
		if !e.folder() {
			if !w.yield(e, nil) {
				return false
			}
			continue
		}
		sub, err := dir.OpenRoot(name)
		if err == nil {
			e.opaque = opaque(sub)
		}
		on := w.yield(e, nil)
		if err != nil { // it has gone, or become something else
			if !on {
				return false
			}
			continue
		}
		if now, err := sub.Stat("."); on && err == nil && os.SameFile(info, now) {
			on = w.below(&level{sub, now, e.path})
		} else {
			_ = sub.Close()
		}
		if !on {
			return false
		}
	}
	return true
}

func namesIn(dir *os.Root) ([]string, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

// openFile opens a regular file or a folder, and nothing that it leads to or has become.
func openFile(dir *os.Root, name string) (*os.File, error) {
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() && !info.IsDir() {
		_ = f.Close()
		return nil, fmt.Errorf("%s is no file", name)
	}
	return f, nil
}
