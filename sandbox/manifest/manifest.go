// Package manifest notes what a sandbox's files are at one moment, from the
// host's side, and tells later what has changed.
//
// Nothing is asked of the sandbox, and no link of its is followed. A file is the
// same when its inode, type, mode, owner, size, and times of modification and of
// change are: the last no process inside can set, so one that writes a file and
// resets its time is told all the same. What was done and undone (a mode, a
// second name) is therefore told as a change too; contents are not read.
//
// Both ways it takes the memory of the names of the folders on the way to one
// file, however many files there are; more than 64 MiB of them are an error.
package manifest

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
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
	At     string // absolute; "/" first
	Folder string
	// Lower are what an overlay (overlayfs.rst) shows at "/" where Folder, its
	// upper, has nothing, the uppermost first.
	Lower []string
}

// Kinds of change.
const (
	Added    = "added"
	Modified = "modified"
	Removed  = "removed"
)

// maxDepth bounds how deep folders may be nested: each is an open file.
const maxDepth = 512

const magic = "sallyport-manifest/1\n"

// entry is what is noted of one file.
type entry struct {
	root int // index of its root
	path string
	stat [9]int64 // type and mode, user, group, size, device if it is one, inode, times in ns
}

// Places in entry.stat.
const (
	mode = iota
	uid
	gid
	size
	rdev
	inode
	links
	modified
	changed
)

func (e *entry) kind() int64    { return e.stat[mode] & syscall.S_IFMT }
func (e *entry) folder() bool   { return e.kind() == syscall.S_IFDIR }
func (e *entry) whiteout() bool { return e.kind() == syscall.S_IFCHR && e.stat[rdev] == 0 }
func (e *entry) same(o *entry) bool {
	if e.folder() && o.folder() {
		// Its times change with what is in it, which is told itself.
		return e.stat[mode] == o.stat[mode] && e.stat[uid] == o.stat[uid] && e.stat[gid] == o.stat[gid] && e.stat[inode] == o.stat[inode]
	}
	return e.stat == o.stat
}

func describe(root int, at string, info fs.FileInfo) *entry {
	st := info.Sys().(*syscall.Stat_t)
	e := &entry{root: root, path: at}
	e.stat = [9]int64{
		mode: int64(st.Mode), uid: int64(st.Uid), gid: int64(st.Gid), size: st.Size, rdev: int64(st.Rdev),
		inode: int64(st.Ino), links: int64(st.Nlink), modified: st.Mtim.Nano(), changed: st.Ctim.Nano(),
	}
	return e
}

// Take writes what the files below the roots are.
func Take(ctx context.Context, to io.Writer, roots ...Root) error {
	w := bufio.NewWriter(to)
	_, _ = w.WriteString(magic) // its error stays
	var buf []byte
	for e, err := range walk(ctx, roots) {
		if err != nil {
			return err
		}
		buf = binary.AppendUvarint(buf[:0], uint64(len(e.path)))
		buf = append(buf, e.path...)
		buf = binary.AppendUvarint(buf, uint64(e.root))
		for _, v := range e.stat {
			buf = binary.AppendVarint(buf, v)
		}
		if _, err := w.Write(buf); err != nil {
			return err
		}
	}
	_ = w.WriteByte(0) // the end, so that a cut one is known
	return w.Flush()
}

// ErrDamaged: what is read is no whole manifest.
var ErrDamaged = errors.New("the list of files is damaged")

// maxPath bounds a path that is read, in bytes.
const maxPath = 1 << 20

// read yields what was noted.
func read(from io.Reader) iter.Seq2[*entry, error] {
	return func(yield func(*entry, error) bool) {
		r := bufio.NewReader(from)
		head := make([]byte, len(magic))
		if _, err := io.ReadFull(r, head); err != nil || string(head) != magic {
			yield(nil, ErrDamaged)
			return
		}
		for last := new(entry); ; {
			n, err := binary.ReadUvarint(r)
			if err == nil && n == 0 {
				return
			}
			if err != nil || n > maxPath {
				yield(nil, ErrDamaged)
				return
			}
			name := make([]byte, n)
			_, err = io.ReadFull(r, name)
			e := &entry{path: string(name)}
			if err == nil {
				n, err = binary.ReadUvarint(r)
				e.root = int(n)
			}
			for i := range e.stat {
				if err == nil {
					e.stat[i], err = binary.ReadVarint(r)
				}
			}
			if err != nil || e.root < 0 || order(last, e) >= 0 {
				yield(nil, ErrDamaged)
				return
			}
			last = e
			if !yield(e, nil) {
				return
			}
		}
	}
}

// order is that of a walk: a folder before what is in it, and that before what
// comes after the folder; root by root.
func order(a, b *entry) int {
	return cmp.Or(cmp.Compare(a.root, b.root), strings.Compare(strings.ReplaceAll(a.path, "/", "\x00"), strings.ReplaceAll(b.path, "/", "\x00")))
}

// walk yields what is below the roots, in order.
func walk(ctx context.Context, roots []Root) iter.Seq2[*entry, error] {
	return func(yield func(*entry, error) bool) {
		for i, r := range roots {
			dir, err := os.OpenRoot(r.Folder)
			if err != nil {
				yield(nil, err)
				return
			}
			w := walker{ctx: ctx, root: i, yield: yield}
			on := w.below(dir, r.At, 0)
			_ = dir.Close()
			if !on {
				return
			}
		}
	}
}

// walker is a walk through one root.
type walker struct {
	ctx   context.Context
	root  int
	yield func(*entry, error) bool
	names int // bytes of names that are held
}

// maxNames bounds the memory of the names of the folders on the way to one file, in
// bytes: a sandbox can make tens of millions in one folder.
var maxNames = 64 << 20

const (
	// nameSize is what each takes besides.
	nameSize = 16
	page     = 4096
)

// list reads a folder's names, in order.
func (w *walker) list(dir *os.Root) (names []string, size int, err error) {
	f, err := dir.Open(".")
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
			return nil, 0, errors.New("folders have more files than can be listed in order")
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

func (w *walker) below(dir *os.Root, at string, depth int) bool {
	fail := func(err error) bool { w.yield(nil, err); return false }
	if depth > maxDepth {
		return fail(fmt.Errorf("folders are nested deeper than %d", maxDepth))
	}
	names, size, err := w.list(dir)
	if err != nil {
		return fail(err)
	}
	w.names += size
	defer func() { w.names -= size }()
	for _, name := range names {
		if err := w.ctx.Err(); err != nil {
			return fail(context.Cause(w.ctx))
		}
		info, err := dir.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // since
		}
		if err != nil {
			return fail(err)
		}
		e := describe(w.root, path.Join(at, name), info)
		if !w.yield(e, nil) {
			return false
		}
		if !e.folder() {
			continue
		}
		sub, err := dir.OpenRoot(name)
		if err != nil {
			continue // it has gone, or become something else
		}
		on := true
		if now, err := sub.Stat("."); err == nil && os.SameFile(info, now) {
			on = w.below(sub, e.path, depth+1)
		}
		_ = sub.Close()
		if !on {
			return false
		}
	}
	return true
}
