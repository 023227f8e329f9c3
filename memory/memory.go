// Package memory lays out the file-backed memory of each sandbox: a folder on
// the host that the sandbox sees as /memory, with memories.md in it.
//
// It promises that the folder outlasts every session of the sandbox, and that
// looking at it from the host is safe although all that is in it (names, links,
// modes, special files) was chosen by the sandbox, which may change it
// meanwhile. Nothing outside the folder is ever opened or shown, no device,
// pipe or socket is opened, and what is read is bounded.
//
// It does not promise that a name is fit for a terminal (use
// terminal.Escape), that owner and mode of a file mean anything on the host,
// or a limit to what the sandbox stores. Anybody inside may write to it: it
// begins open to all of the sandbox's users. The folder is kept from other users of
// the host by the folder around it, which is the host's alone: the sandbox may
// change the modes of its own.
package memory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"sallyport/internal/durable"
)

// Index is the file that every memory begins with.
const Index = "memories.md"

// Dir is the memory in a sandbox's own folder.
func Dir(sandbox string) string { return filepath.Join(sandbox, "memory") }

// Ensure makes the memory in a sandbox's own folder, with memories.md in it, and returns
// the memory's folder. Files that exist stay as they are. The sandbox must not run
// meanwhile.
func Ensure(sandbox string) (string, error) {
	dir := Dir(sandbox)
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("making the memory folder: %w", err)
	}
	folder, err := Open(dir)
	if err != nil {
		return "", err
	}
	defer folder.Close()
	root := folder.root
	f, err := root.OpenFile(Index, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return dir, nil
	}
	if err != nil {
		return "", fmt.Errorf("making %s: %w", Index, err)
	}
	_, err = f.WriteString("# Memories\n")
	if err = errors.Join(err, root.Chmod(".", 0o777), f.Chmod(0o666), f.Sync(), f.Close(), durable.SyncDir(dir)); err != nil {
		return "", fmt.Errorf("writing %s: %w", filepath.Join(dir, Index), err)
	}
	return dir, nil
}
