// Package manifest tells what has changed of a sandbox's files, from the host's
// side: since its image, by its layer as it lies there, or since a snapshot, by two
// archives, one of then and one of now.
//
// Nothing is asked of the sandbox, and no link of its is followed. A file is the
// same when its type, mode, owner, size, time of modification, extended attributes
// and contents are: not by its inode or the time of its change, which a restore and
// a fork do not keep, and not by its times alone, which a process inside can set.
// What was done and undone is therefore not told.
//
// It takes the memory of the names in the folders on the way to one file, and eight
// bytes for each file that has changed, however many files there are. A folder with
// which there would be more than 64 MiB of names is told without what is in it, and so
// is one that is moved meanwhile: that is an error at the end, when all else is told.
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

// Root is a folder of the host, and where the sandbox has it.
type Root struct {
	At     string // absolute
	Folder string
	// Lower are what an overlay (overlayfs.rst) shows there where Folder, its
	// upper, has nothing, the uppermost first.
	Lower []string
	// Then and Now are the folder as GNU tar has archived it at two moments, with
	// --format=posix --sort=name --sparse-version=0.0. Nil, it is as it lies there,
	// and there was nothing then but what is below.
	Then, Now io.Reader
}

// Kinds of change.
const (
	Added    = "added"
	Modified = "modified"
	Removed  = "removed"
)

// entry is what is known of one file.
type entry struct {
	path   string
	stat   [7]int64
	link   string // where a symbolic one leads
	hard   string // path of the first name of a file with several, in an archive
	opaque bool   // a folder that shows nothing of those below it
	attrs  digest // extended attributes; zero: none
	sum    digest // contents
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
	switch e.kind() { // as an archive has it
	case syscall.S_IFREG:
		e.stat[size] = st.Size
	case syscall.S_IFCHR, syscall.S_IFBLK:
		e.stat[rdev] = int64(st.Rdev)
	}
	return e
}

// ErrDamaged: what is read is no whole archive.
var ErrDamaged = errors.New("the list of files is damaged")

// order is that of a walk, and of an archive: a folder before what is in it, and
// that before what comes after the folder.
func order(a, b *entry) int {
	return strings.Compare(strings.ReplaceAll(a.path, "/", "\x00"), strings.ReplaceAll(b.path, "/", "\x00"))
}

// walk yields what is below a root, in order.
func walk(ctx context.Context, r Root) iter.Seq2[*entry, error] {
	return func(yield func(*entry, error) bool) {
		dir, err := os.OpenRoot(r.Folder)
		if err != nil {
			yield(nil, err)
			return
		}
		w := walker{ctx: ctx, yield: yield, folder: r.Folder}
		info, err := dir.Stat(".")
		if err != nil {
			_ = dir.Close()
			yield(nil, err)
			return
		}
		w.below(&level{dir, info, r.At})
	}
}

// walker is a walk through one root.
type walker struct {
	ctx   context.Context
	yield func(*entry, error) bool

	folder string   // the root
	way    []*level // from there
	names  int      // bytes of names and paths that are held
}

// maxNames bounds the memory of the names of the folders on the way to one file, in
// bytes: a sandbox can make tens of millions in one folder.
var maxNames = 64 << 20

const (
	// nameSize is what each takes besides.
	nameSize = 16
	// pathSize is what each folder on the way takes beside its path.
	pathSize = 1 << 10
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
		if errors.Is(err, io.EOF) {
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

// openFile opens a regular file, and nothing that it leads to or has become.
func openFile(dir *os.Root, name string) (*os.File, error) {
	f, err := dir.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = f.Close()
		return nil, fmt.Errorf("%s is no file", name)
	}
	return f, nil
}
