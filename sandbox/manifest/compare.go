package manifest

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Change is of one file.
type Change struct {
	Path string // as the sandbox has it: any bytes
	Kind string
}

// Compare tells what has changed since a manifest was taken of the same roots;
// without one, since nothing was in them but what lies below. Of a folder that
// came or was replaced, what it has is told, and what was below the one before
// it only as far as it was noted.
func Compare(ctx context.Context, since io.Reader, roots []Root, tell func(Change) error) error {
	old := func(func(*entry, error) bool) {}
	if since != nil {
		old = read(since)
	}
	before, stop := iter.Pull2(iter.Seq2[*entry, error](old))
	defer stop()
	was, err, more := before()
	next := func() {
		if was, err, more = before(); !more {
			was = nil
		}
	}
	c := &comparison{roots: roots, tell: tell}
	for now, werr := range walk(ctx, roots) {
		if werr != nil {
			return werr
		}
		for err == nil && was != nil && order(was, now) < 0 {
			if err := c.gone(was); err != nil {
				return err
			}
			next()
		}
		if err != nil {
			return err
		}
		if was != nil && order(was, now) == 0 {
			err1 := c.both(was, now)
			next()
			if err1 != nil {
				return err1
			}
			continue
		}
		if err := c.came(now); err != nil {
			return err
		}
	}
	for err == nil && was != nil {
		if err := c.gone(was); err != nil {
			return err
		}
		next()
	}
	return err
}

type comparison struct {
	roots []Root
	tell  func(Change) error
}

func (c *comparison) say(path, kind string) error { return c.tell(Change{Path: path, Kind: kind}) }

func (c *comparison) both(was, now *entry) error {
	switch {
	case was.whiteout() && now.whiteout() || was.same(now):
		return nil
	case now.whiteout():
		return c.say(now.path, Removed)
	case was.whiteout():
		return c.say(now.path, Added)
	}
	return c.say(now.path, Modified)
}

// came tells of what was not in the folder.
func (c *comparison) came(now *entry) error {
	if now.whiteout() {
		return c.say(now.path, Removed)
	}
	under := c.lower(now)
	switch {
	case under == nil:
		return c.say(now.path, Added)
	case now.folder() && under.folder() && now.stat[mode] == under.stat[mode] && now.stat[uid] == under.stat[uid] && now.stat[gid] == under.stat[gid]:
		return nil // it is there for what is in it
	}
	return c.say(now.path, Modified)
}

// gone tells of what is not in the folder any more.
func (c *comparison) gone(was *entry) error {
	under := c.lower(was)
	switch {
	case was.whiteout() && under == nil:
		return nil
	case was.whiteout():
		return c.say(was.path, Added)
	case under != nil:
		return c.say(was.path, Modified)
	}
	return c.say(was.path, Removed)
}

// lower is what an overlay would show at a path if its upper folder had nothing.
func (c *comparison) lower(of *entry) *entry {
	if of.root >= len(c.roots) {
		return nil
	}
	for _, dir := range c.roots[of.root].Lower {
		e, hidden := find(dir, strings.TrimPrefix(of.path, "/"))
		if e != nil || hidden {
			return e
		}
	}
	return nil
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
		at := describe(0, "/"+strings.Join(parts[:i+1], "/"), info)
		switch {
		case at.whiteout():
			return nil, true
		case i == len(parts)-1:
			return at, hidden
		case !at.folder():
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

// opaque tells whether a folder shows nothing of those below it
// (overlayfs.rst, "whiteouts and opaque directories").
func opaque(dir *os.Root) bool {
	f, err := dir.Open(".")
	if err != nil {
		return false
	}
	defer f.Close()
	value := make([]byte, 1)
	n, err := unix.Fgetxattr(int(f.Fd()), "trusted.overlay.opaque", value)
	return (err == nil && n == 1 && value[0] == 'y') || errors.Is(err, unix.ERANGE)
}
