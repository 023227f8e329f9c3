package tool

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"
)

const (
	maxPath   = 4096 // bytes
	maxDepth  = 64   // folders
	maxLinks  = 40   // on the way of one path, as in path_resolution(7)
	maxWork   = 500_000
	rootPath  = "/memories"
	aboveRoot = "/\x00" // a folder that no path can name
)

var (
	errEscape = errors.New("Path would escape /memories directory via symlink")
	errWork   = errors.New("too many links and folders")
)

// place is something in the memory.
type place struct {
	path string // as the command has it
	name string // relative to the memory; "." is the memory itself
	real string // the name with all links followed, as far as it exists
	cut  bool   // where it does not is a link, with more behind it
}

// locate finds a path, after it has seen that no parameter is wrong.
func (c *call) locate(p string) (place, error) {
	if c.err != nil {
		return place{}, c.err
	}
	if len(p) > maxPath {
		return place{}, fmt.Errorf("Path is too long (%d bytes). Maximum is %d bytes.", len(p), maxPath)
	}
	// The contract takes /memoriesX for /memories/X.
	rest, ok := strings.CutPrefix(p, rootPath)
	if !ok {
		return place{}, fmt.Errorf("Path must start with /memories, got: %s", p)
	}
	name, ok := strings.CutPrefix(path.Join(aboveRoot+rootPath, rest)+"/", aboveRoot+rootPath+"/")
	if !ok {
		return place{}, fmt.Errorf("Path %s would escape /memories directory", p)
	}
	found := place{path: p, name: path.Clean(name)}
	if strings.Contains(p, "\x00") {
		return place{}, found.failed(syscall.EINVAL)
	}
	if n := strings.Count(found.name, "/"); n > maxDepth {
		return place{}, fmt.Errorf("Path %s is too deep (%d folders). Maximum is %d folders.", p, n, maxDepth)
	}
	err := c.follow(&found)
	if err != nil && err != errEscape {
		err = found.failed(err)
	}
	return found, err
}

// fits tells whether a file system takes the names, before a folder is made for them.
func (p place) fits() error {
	if p.cut {
		return syscall.ENOENT
	}
	for name := range strings.SplitSeq(p.name, "/") {
		if len(name) > 255 {
			return syscall.ENAMETOOLONG
		}
	}
	return nil
}

// follow sets the real name. The part after a name that leads nowhere stays as it is.
func (c *call) follow(p *place) error {
	links, parts := 0, strings.Split(p.name, "/")
	p.real = "."
	for i, part := range parts {
		next, err := c.step(p.real, part, &links)
		if errors.Is(err, fs.ErrNotExist) {
			_, err = c.lstat(path.Join(p.real, part))
			p.cut = err == nil && i < len(parts)-1
			p.real = path.Join(p.real, path.Join(parts[i:]...))
			return nil
		}
		if err != nil {
			return err
		}
		p.real = next
	}
	return nil
}

// step returns where a path leads from a folder.
func (c *call) step(dir, to string, links *int) (string, error) {
	for rest := strings.Split(to, "/"); len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if dir == "." {
				return "", errEscape
			}
			dir = path.Dir(dir)
			continue
		}
		next := path.Join(dir, part)
		info, err := c.lstat(next)
		if err != nil {
			return "", err
		}
		if info.Mode().Type() != fs.ModeSymlink {
			if len(rest) > 0 && !info.IsDir() {
				return "", syscall.ENOTDIR
			}
			dir = next
			continue
		}
		if *links++; *links > maxLinks {
			return "", syscall.ELOOP
		}
		target, err := c.folder.Readlink(next)
		if err != nil {
			return "", err
		}
		if path.IsAbs(target) {
			return "", errEscape
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return dir, nil
}

// lstat bounds the work of a call: looking a name up walks through the folders above it.
func (c *call) lstat(name string) (fs.FileInfo, error) {
	if c.work -= 1 + strings.Count(name, "/"); c.work < 0 || c.ctx.Err() != nil {
		return nil, errWork
	}
	return c.folder.Lstat(name)
}
