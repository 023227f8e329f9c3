// Package archive moves trees of files as tar (POSIX.1-2001 pax), in memory
// that does not grow with them: what is inside a sandbox, and what is outside.
//
// Unpack takes what it reads for hostile. Nothing is made outside the folder
// that it is given, whatever the names, links and the order of entries are, and
// whatever changes the folder meanwhile: each name is walked from an open folder
// to the next, and a symbolic link on the way is an error, also one that was
// there before. A hard link goes to a file of the same archive or nowhere.
// Devices, pipes and sockets are left out. With [Options.Foreign], for the host,
// so are setuid, setgid and sticky bits, what lets others write, sparse files, and symbolic links that
// lead out of the tree.
//
// It carries names, contents, permission bits, times of files and folders, and
// links of both kinds; no owner, no extended attribute.
package archive

import (
	"fmt"
	"path"
	"strings"

	"sallyport/sandbox/agent/wire"
)

const (
	// maxDepth bounds how deep folders may be nested: each is an open file.
	maxDepth = 256
	// maxLinked bounds the files that hard links can be told of.
	maxLinked = 1 << 20
	// bufferSize is of each copy, in bytes.
	bufferSize = 256 << 10
	maxName    = 255 // NAME_MAX
)

// local is a name in an archive made plain: no slash at its ends, and no dots
// but "." alone. Any other is an error.
func local(name string) (string, error) {
	bad := name == "" || len(name) > wire.MaxPath || strings.HasPrefix(name, "/") || strings.Contains(name, "\x00")
	depth := 0
	for part := range strings.SplitSeq(name, "/") {
		bad = bad || part == ".." || len(part) > maxName
		depth++
	}
	if bad || depth > maxDepth {
		return "", fmt.Errorf("the archive names %.100q, which cannot be below a folder", name)
	}
	return path.Clean(name), nil
}

// inside tells whether a symbolic link at name leads nowhere above the tree that
// begins at top. Dots after anything else could lead through another link.
func inside(top, name, target string) bool {
	if target == "" || strings.HasPrefix(target, "/") {
		return false
	}
	room := strings.Count(name, "/")
	if top != "." {
		room -= 1 + strings.Count(top, "/")
	}
	begun := false
	for part := range strings.SplitSeq(target, "/") {
		switch {
		case part == "" || part == ".":
		case part != "..":
			begun = true
		case begun:
			return false
		default:
			if room--; room < 0 {
				return false
			}
		}
	}
	return true
}
