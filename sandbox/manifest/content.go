package manifest

import (
	"bytes"
	"context"
	"maps"
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// sameContents reports whether two regular files of a size have the same bytes. Holes are
// not read. Files that cannot be read are not the same.
func sameContents(ctx context.Context, a, b *entry) bool {
	x, err := a.opened()
	if err != nil {
		return false
	}
	defer x.Close()
	y, err := b.opened()
	if err != nil {
		return false
	}
	defer y.Close()
	size := a.stat[size]
	one, other := make([]byte, 64<<10), make([]byte, 64<<10)
	for at := int64(0); ctx.Err() == nil; {
		if at = min(nextData(x, at), nextData(y, at)); at >= size {
			return true
		}
		n := min(size-at, int64(len(one)))
		if _, err := x.ReadAt(one[:n], at); err != nil {
			return false
		}
		if _, err := y.ReadAt(other[:n], at); err != nil || !bytes.Equal(one[:n], other[:n]) {
			return false
		}
		at += n
	}
	return false
}

// nextData is the offset at or after another where a file may have more than zeros
// (lseek(2), SEEK_DATA).
func nextData(f *os.File, at int64) int64 {
	n, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
	switch {
	case err == unix.ENXIO:
		return math.MaxInt64
	case err != nil:
		return at
	}
	return n
}

// attributes are a file's extended attributes, but for those that an overlay notes.
func (e *entry) attributes() (all map[string]string, err error) {
	f, err := e.opened()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names := make([]byte, 64<<10) // the largest list of Linux
	n, err := unix.Flistxattr(int(f.Fd()), names)
	if err == unix.ENOTSUP {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all = map[string]string{}
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		if name == "" || strings.HasPrefix(name, overlayAttr) {
			continue
		}
		value := make([]byte, 64<<10) // the largest value of Linux
		n, err := unix.Fgetxattr(int(f.Fd()), name, value)
		if err != nil {
			return nil, err
		}
		all[name] = string(value[:n])
	}
	return all, nil
}

// sameAttrs compares extended attributes of regular files and folders. An image's are not
// compared with the layer's, but for whether a file has any.
func sameAttrs(a, b *entry) bool {
	image := a.image || b.image
	if a.kind() != unix.S_IFREG && (image || !a.folder()) {
		return true
	}
	x, err := a.attributes()
	y, yerr := b.attributes()
	if err != nil || yerr != nil {
		return false
	}
	if image {
		return len(x) == 0 && len(y) == 0
	}
	return maps.Equal(x, y)
}

const (
	overlayAttr = "trusted.overlay."
	opaqueAttr  = overlayAttr + "opaque"
)

// opaque reports whether a folder hides the folders below it (overlayfs.rst, "whiteouts
// and opaque directories").
func opaque(dir *os.Root) bool {
	f, err := dir.Open(".")
	if err != nil {
		return false
	}
	defer f.Close()
	value := make([]byte, 1)
	n, err := unix.Fgetxattr(int(f.Fd()), opaqueAttr, value)
	return (err == nil && n == 1 && value[0] == 'y') || err == unix.ERANGE
}
