// Package backup writes a data directory that is not in use to one file, and restores it.
//
// The file is two lines, the format and a [Manifest] in JSON, then a tar archive
// as GNU tar writes it (sparse files, extended attributes, hard links and devices
// are kept, since the engine's layers consist of them), then a line with the
// SHA-256 of all before it.
//
// A file that is damaged or cut off is refused before anything is written, and a folder
// is filled completely or not at all. The checksum is not a signature: an attacker with
// write access to the file can make one that is accepted, and its contents belong to root.
// Protect the file like the data directory itself.
package backup

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/durable"
)

// Errors to branch on.
var (
	ErrDamaged  = errors.New("the backup is damaged")
	ErrNotEmpty = errors.New("the folder is not empty")
)

const (
	format    = "sallyport backup 1\n"
	maxHead   = 64 << 10 // bytes of the manifest
	endMark   = "\nsha256 "
	endLength = len(endMark) + 2*sha256.Size + 1
	draft     = ".restore" // below the folder that is filled
)

// skipped are made anew: logs, locks, and what an engine keeps for a faster build
// or while containers run.
var skipped = []string{"logs", "lock", "lost+found", "index/audit.db*", "engine/containerd", "engine/docker/buildkit", "engine/docker/tmp", "engine/docker/runtimes"}

// Manifest describes a backup.
type Manifest struct {
	Version string    `json:"version"` // of the program that made it
	DataDir string    `json:"dataDir"` // absolute; containers know their files by it
	Created time.Time `json:"created"`
	Key     []byte    `json:"key,omitempty"` // the key file, where it was asked for
}

// Write writes a backup of the folder that the manifest names. Nothing may use it.
func Write(ctx context.Context, to io.Writer, m Manifest) error {
	head, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(head) > maxHead {
		return fmt.Errorf("the manifest has %d bytes, more than %d", len(head), maxHead)
	}
	sum := sha256.New()
	w := bufio.NewWriterSize(io.MultiWriter(to, sum), 1<<20)
	if _, err := w.WriteString(format + string(head) + "\n"); err != nil {
		return err
	}
	args := []string{"--create", "--file=-", "--sparse", "--anchored"}
	for _, s := range skipped {
		args = append(args, "--exclude=./"+s)
	}
	if err := tar(ctx, nil, w, append(args, "--directory="+m.DataDir, ".")...); err != nil {
		return fmt.Errorf("reading %s: %w", m.DataDir, err)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = io.WriteString(to, end(sum))
	return err
}

func end(sum hash.Hash) string { return endMark + hex.EncodeToString(sum.Sum(nil)) + "\n" }

// Archive is a backup whose checksum is right.
type Archive struct {
	Manifest
	file *os.File
	sum  []byte
	from int64 // where the archive begins
	to   int64
}

// Open reads the backup to its end. Its error wraps ErrDamaged if the file is not as
// Write wrote it.
func Open(path string) (_ *Archive, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	i, err := f.Stat()
	if err != nil {
		return nil, err
	}
	a := &Archive{file: f, to: i.Size() - int64(endLength)}
	if !i.Mode().IsRegular() || a.to <= 0 {
		return nil, fmt.Errorf("%w: %s is no backup", ErrDamaged, path)
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, a.to)); err != nil {
		return nil, err
	}
	got := make([]byte, endLength)
	if _, err := f.ReadAt(got, a.to); err != nil {
		return nil, err
	}
	if string(got) != end(sum) {
		return nil, fmt.Errorf("%w: %s is not what was written, or is cut off", ErrDamaged, path)
	}
	a.sum = sum.Sum(nil)
	head := make([]byte, min(int64(len(format)+maxHead+1), a.to))
	if _, err := f.ReadAt(head, 0); err != nil {
		return nil, err
	}
	rest, ok := bytes.CutPrefix(head, []byte(format))
	line, _, ended := bytes.Cut(rest, []byte("\n"))
	if !ok || !ended || json.Unmarshal(line, &a.Manifest) != nil {
		return nil, fmt.Errorf("%w: %s is of another format than this version's", ErrDamaged, path)
	}
	a.from = int64(len(format) + len(line) + 1)
	return a, nil
}

func (a *Archive) Close() error { return a.file.Close() }

// Extract fills a folder, which must be empty and is created if it is missing.
func (a *Archive) Extract(ctx context.Context, folder string) (err error) {
	if err := Empty(folder); err != nil {
		return err
	}
	if err := durable.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	// Below it, since it may be where a disk is mounted.
	at := filepath.Join(folder, draft)
	if err := os.Mkdir(at, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(at))
		}
	}()
	// The extracted bytes are hashed again: the file may have been changed meanwhile.
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(a.file, 0, a.from)); err != nil {
		return err
	}
	in := io.TeeReader(io.NewSectionReader(a.file, a.from, a.to-a.from), sum)
	if err := tar(ctx, in, io.Discard, "--extract", "--file=-", "--same-owner", "--same-permissions", "--delay-directory-restore", "--directory="+at); err != nil {
		return fmt.Errorf("writing %s: %w", folder, err)
	}
	if _, err := io.Copy(io.Discard, in); err != nil {
		return err
	}
	if !bytes.Equal(sum.Sum(nil), a.sum) {
		return fmt.Errorf("%w: it was changed while it was read", ErrDamaged)
	}
	return settle(at, folder)
}

// settle moves what was extracted to where it belongs, once it is durable.
func settle(from, to string) error {
	d, err := os.Open(from)
	if err != nil {
		return err
	}
	err = unix.Syncfs(int(d.Fd()))
	if err = errors.Join(err, d.Close()); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.Rename(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	if err := os.Remove(from); err != nil {
		return err
	}
	return durable.SyncDir(to)
}

// Empty returns an error that wraps ErrNotEmpty if the folder has contents other than
// those of a new file system.
func Empty(folder string) error {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.Name() != "lost+found" {
			return fmt.Errorf("%w: %s has %s in it: move it aside", ErrNotEmpty, folder, e.Name())
		}
	}
	return err
}

// tar runs GNU tar, which keeps everything that a file system of Linux holds.
func tar(ctx context.Context, in io.Reader, out io.Writer, args ...string) error {
	all := append([]string{"--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner", "--format=posix"}, args...)
	c := exec.CommandContext(ctx, "tar", all...)
	c.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C"}
	var said bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = in, out, &said
	if err := c.Run(); err != nil {
		lines := strings.SplitN(said.String(), "\n", 4)
		return fmt.Errorf("tar: %w: %s", err, strings.Join(lines[:min(3, len(lines))], "; "))
	}
	return nil
}
