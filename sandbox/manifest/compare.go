package manifest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// Change is of one file.
type Change struct {
	Path string // as the sandbox has it: any bytes
	Kind string
}

// Compare calls tell for each file that has changed in the roots since Then, or since
// the lower folders where there is no Then. Of a folder of the image that was removed the
// folder is listed, and not its files; of one that was emptied, its files are. Where a
// file has several names, a name is listed as modified if it was a name of another file
// before, or is now.
func Compare(ctx context.Context, roots []Root, tell func(Change) error) error {
	var missing error
	for _, r := range roots {
		c := &comparison{ctx: ctx, root: r, tell: tell, altered: map[uint64]bool{}}
		if err := c.compare(); err != nil {
			return err
		}
		missing = cmp.Or(missing, c.missing)
	}
	return missing
}

// compare walks through both folders side by side.
func (c *comparison) compare() error {
	then := func(func(*entry, error) bool) {}
	if c.root.Then != "" {
		then = walk(c.ctx, c.root.Then, c.root.At)
	}
	before, end := iter.Pull2(then)
	defer end()
	was, err := c.next(before)
	for now, nerr := range walk(c.ctx, c.root.Folder, c.root.At) {
		if c.skip(now, nerr, &c.unlistedNow) {
			continue
		}
		if nerr != nil {
			return nerr
		}
		if c.root.Then == "" {
			now.hard = 0 // the names of an image's files are not compared
		}
		for ; err == nil && was != nil && order(was, now) < 0; was, err = c.next(before) {
			if err := c.pass(was, nil); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		if was == nil || order(was, now) != 0 {
			if err := c.pass(nil, now); err != nil {
				return err
			}
			continue
		}
		if err := c.pass(was, now); err != nil {
			return err
		}
		was, err = c.next(before)
	}
	for ; err == nil && was != nil; was, err = c.next(before) {
		if err := c.pass(was, nil); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	return c.leave("")
}

// next is the next file of a walk; nil at its end.
func (c *comparison) next(walk func() (*entry, error, bool)) (*entry, error) {
	for {
		e, err, ok := walk()
		if !ok {
			return nil, nil
		}
		if !c.skip(e, err, &c.unlistedThen) {
			return e, err
		}
	}
}

// skip reports whether a file is not compared: a socket, which no snapshot has, or a file
// below a folder that could not be listed on one side. Each side's last such folder is
// enough: the walks go in order, and neither goes on before the other has left the folder.
func (c *comparison) skip(e *entry, err error, side *veil) bool {
	var u *unlisted
	if errors.As(err, &u) {
		if c.missing == nil {
			c.missing = fmt.Errorf("not all is told: %w", err)
		}
		*side = veil(u.at)
		c.emptied = slices.DeleteFunc(c.emptied, func(e emptied) bool { return e.path == u.at })
		return true
	}
	return e != nil && (c.root.Then != "" && e.kind() == syscall.S_IFSOCK ||
		c.unlistedThen.hides(e.path) || c.unlistedNow.hides(e.path))
}

type comparison struct {
	ctx  context.Context
	root Root
	tell func(Change) error
	// altered are the hashes of the paths that were listed as modified.
	altered map[uint64]bool
	// The last folders that could not be listed, and the error that says so of the first.
	unlistedThen, unlistedNow veil
	missing                   error
	// then and now hide what is in the lower folders.
	then, now veil
	emptied   []emptied
}

// veil is the path below which nothing shows of what is in the lower folders.
type veil string

func within(p, folder string) bool {
	return strings.HasPrefix(p, folder) && len(p) > len(folder) && (p[len(folder)] == '/' || folder == "/")
}

func (v veil) hides(p string) bool { return v != "" && within(p, string(v)) }

// lower moves the veil on to an entry.
func (v *veil) lower(e *entry) {
	if e != nil && !v.hides(e.path) && (e.opaque || !e.folder()) {
		*v = veil(e.path)
	}
}

// emptied is a folder that shows nothing any more of those below it, and what it
// showed of them but has not shown up again.
type emptied struct {
	path  string
	names map[string]bool
}

// leave tells what is missing of the folders that a path is not in.
func (c *comparison) leave(p string) error {
	for n := len(c.emptied) - 1; n >= 0 && !within(p, c.emptied[n].path); n-- {
		of := c.emptied[n]
		c.emptied = c.emptied[:n]
		for _, name := range slices.Sorted(maps.Keys(of.names)) {
			if err := c.say(path.Join(of.path, name), Removed); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *comparison) say(path, kind string) error {
	if kind == Modified {
		c.altered[hash(path)] = true
	}
	return c.tell(Change{Path: path, Kind: kind})
}

// pass looks at one path, of which there was or is something in the upper folder.
func (c *comparison) pass(was, now *entry) error {
	at := now
	if now == nil {
		if at = was; c.unlistedNow.hides(at.path) {
			return nil // it was read before that was known
		}
	}
	if err := c.leave(at.path); err != nil {
		return err
	}
	if n := len(c.emptied) - 1; n >= 0 && c.emptied[n].path == path.Dir(at.path) {
		delete(c.emptied[n].names, path.Base(at.path))
	}
	// Whether what is below showed then in a folder here, and does not now.
	showed := !c.then.hides(at.path) && (was == nil || was.folder() && !was.opaque)
	hidden := now != nil && now.folder() && (now.opaque || c.now.hides(at.path))
	var under *entry
	if was == nil && showed || now == nil && !c.now.hides(at.path) || showed && hidden {
		under = c.lower(at)
	}
	if showed && hidden && under != nil && under.folder() {
		c.emptied = append(c.emptied, emptied{at.path, c.names(at.path)})
	}
	c.then.lower(was)
	c.now.lower(now)
	if was == nil {
		was = under
	}
	if now == nil {
		now = under
	}
	gone := func(e *entry) bool { return e == nil || e.whiteout() }
	switch {
	case gone(was) && gone(now):
		return nil
	case gone(was):
		return c.say(at.path, Added)
	case gone(now):
		return c.say(at.path, Removed)
	case c.same(was, now):
		return nil
	}
	return c.say(at.path, Modified)
}

// same tells whether two entries of a path are of the same file, as far as can be
// seen inside.
func (c *comparison) same(a, b *entry) bool {
	if a.folder() && b.folder() {
		// Its times change with what is in it, which is told itself.
		return a.stat[mode] == b.stat[mode] && a.stat[uid] == b.stat[uid] && a.stat[gid] == b.stat[gid] && sameAttrs(a, b)
	}
	switch {
	case a.loose || b.loose:
	case a.hard != b.hard, a.hard != 0 && c.altered[a.hard]:
		return false
	}
	switch {
	case a.stat != b.stat, a.link != b.link, !sameAttrs(a, b):
		return false
	case a.hard != 0 && a.hard == b.hard, a.kind() != syscall.S_IFREG:
		return true
	}
	return sameContents(c.ctx, a, b)
}

var seed = maphash.MakeSeed()

// hash stands for a path; never 0.
func hash(path string) uint64 { return maphash.String(seed, path) | 1 }

// lower is what an overlay would show at a path if its upper folder had nothing.
func (c *comparison) lower(of *entry) *entry {
	for _, dir := range c.root.Lower {
		e, hidden := find(dir, c.rel(of.path))
		if e != nil || hidden {
			return e
		}
	}
	return nil
}

func (c *comparison) rel(p string) string {
	return strings.TrimPrefix(strings.TrimPrefix(p, c.root.At), "/")
}

// names are those in a folder that its lower ones show.
func (c *comparison) names(p string) map[string]bool {
	names, gone := map[string]bool{}, map[string]bool{}
	for _, lower := range c.root.Lower {
		e, hidden := find(lower, c.rel(p))
		if e != nil && !e.folder() {
			break
		}
		if e != nil {
			dir, err := descend(lower, strings.Split(c.rel(p), "/"))
			if err != nil {
				break
			}
			list, _ := namesIn(dir)
			for _, name := range list {
				if gone[name] || names[name] {
					continue
				}
				info, err := dir.Lstat(name)
				if err != nil || describe(name, info).whiteout() {
					gone[name] = true
				} else {
					names[name] = true
				}
			}
			hidden = hidden || opaque(dir)
			_ = dir.Close()
		}
		if hidden {
			break
		}
	}
	return names
}

// find looks a path up in one lower folder, following nothing; hidden says that
// what is further below does not show there.
func find(folder, path string) (e *entry, hidden bool) {
	dir, err := os.OpenRoot(folder)
	if err != nil {
		return nil, false
	}
	defer func() { _ = dir.Close() }()
	parts := strings.Split(path, "/")
	for i, part := range parts {
		info, err := dir.Lstat(part)
		if err != nil {
			return nil, hidden
		}
		e := describe("/"+strings.Join(parts[:i+1], "/"), info)
		switch {
		case e.whiteout():
			return nil, true
		case i == len(parts)-1:
			if e.kind() == syscall.S_IFLNK {
				e.link, _ = dir.Readlink(part)
			}
			e.image = true
			e.opened = func() (*os.File, error) { return reopen(folder, parts) }
			return e, hidden
		case !e.folder():
			return nil, true
		}
		sub, err := dir.OpenRoot(part)
		if err != nil {
			return nil, hidden
		}
		_ = dir.Close()
		dir = sub
		hidden = hidden || opaque(dir)
	}
	return nil, hidden
}

// descend opens a folder by its path below another, following nothing.
func descend(folder string, parts []string) (*os.Root, error) {
	dir, err := os.OpenRoot(folder)
	for _, part := range parts {
		if err != nil {
			return nil, err
		}
		var sub *os.Root
		info, lerr := dir.Lstat(part)
		if err = lerr; err == nil && !info.IsDir() {
			err = syscall.ENOTDIR
		}
		if err == nil {
			sub, err = dir.OpenRoot(part)
		}
		_ = dir.Close()
		dir = sub
	}
	return dir, err
}

func reopen(folder string, parts []string) (*os.File, error) {
	dir, err := descend(folder, parts[:len(parts)-1])
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return openFile(dir, parts[len(parts)-1])
}
