package memory

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// Errors of a Folder to branch on, besides fs.ErrNotExist and fs.ErrExist.
var (
	ErrBadName  = errors.New("not a name within the memory")
	ErrNotFile  = errors.New("not a regular file")
	ErrTooLarge = errors.New("larger than 16 MiB")
	// ErrChanged is of a write that expected other contents than the file has.
	ErrChanged = errors.New("the file has been changed meanwhile")
)

// MaxFile is the size of the largest file that is read or written, in bytes.
const MaxFile = 16 << 20

// Folder is the memory of one sandbox, opened on the host. It is safe for concurrent use,
// while the sandbox uses it too. Only one Folder may write to a memory at a time. Names are relative to the memory, with slashes; links on the way
// to a file are followed within the memory only, and a link as the name is refused.
type Folder struct {
	root  *os.Root
	write sync.Mutex
}

// Open opens the memory in dir, and refuses a link in its place.
func Open(dir string) (*Folder, error) {
	info, err := os.Lstat(dir)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: unix.ENOTDIR}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &Folder{root: root}, nil
}

// Close closes the folder.
func (f *Folder) Close() error { return f.root.Close() }

// Digest names contents: their SHA-256 in hexadecimal digits. "" is of no file.
type Digest string

// DigestOf returns the digest of contents.
func DigestOf(data []byte) Digest {
	sum := sha256.Sum256(data)
	return Digest(hex.EncodeToString(sum[:]))
}

// Read returns a regular file.
func (f *Folder) Read(name string) ([]byte, error) {
	file, err := f.open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readAll(file, name)
}

func (f *Folder) open(name string) (*os.File, error) { return f.openAs(name, unix.O_RDONLY) }

// openAs opens a regular file and nothing else: O_PATH (open(2)) opens no pipe, which would
// block, and no device, which might act on it.
func (f *Folder) openAs(name string, flags int) (*os.File, error) {
	if !filepath.IsLocal(name) {
		return nil, fmt.Errorf("%q: %w: give a path relative to it, without ..", name, ErrBadName)
	}
	handle, err := f.root.OpenFile(name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, cause(err))
	}
	defer handle.Close()
	info, err := handle.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%q: %w", name, ErrNotFile)
	}
	file, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", handle.Fd()), flags, 0)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, cause(err))
	}
	return file, nil
}

// readAll reads a file, which may grow meanwhile.
func readAll(file *os.File, name string) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(file, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, cause(err))
	}
	if len(data) > MaxFile {
		return nil, fmt.Errorf("%q: %w: read it inside the sandbox", name, ErrTooLarge)
	}
	return data, nil
}

// Write puts a file in the place of the one with the digest, which is "" for none: a
// reader sees the old contents or the new ones, also after a crash, and what another wrote
// in between is not lost: the error is then [ErrChanged], or fs.ErrExist where no file was
// expected. Folders on the way are made. All of the sandbox's users may write what is
// made, and run what begins with "#!".
func (f *Folder) Write(name string, data []byte, old Digest) error {
	return f.within(name, f.parent, func(parent *os.File, base string) error {
		if len(data) > MaxFile {
			return ErrTooLarge
		}
		temporary := temporaryPrefix + rand.Text()
		if err := create(parent, temporary, data); err != nil {
			return cause(err)
		}
		f.write.Lock()
		defer f.write.Unlock()
		return exchange(parent, temporary, base, DigestOf(data), old)
	})
}

// within calls do with the folder that a name is in, which open opens, and the name there,
// and writes to disk what the folder has then.
func (f *Folder) within(name string, open func(name string) (*os.File, error), do func(parent *os.File, base string) error) error {
	name, err := local(name)
	if err != nil {
		return err
	}
	parent, err := open(name)
	if err != nil {
		return fmt.Errorf("%q: %w", name, cause(err))
	}
	defer parent.Close()
	if err = do(parent, path.Base(name)); err == nil {
		err = parent.Sync()
	}
	if err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	return nil
}

// existing opens the folder that a name is in.
func (f *Folder) existing(name string) (*os.File, error) {
	return f.root.OpenFile(path.Dir(name), unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

// temporaryPrefix begins the names of files that are being written.
const temporaryPrefix = ".sallyport-"

// exchange gives the file temporary of the digest the name base, if a file of the digest
// old has that now, or none with "". The one that is put out of its place is compared once
// more, and put back if the sandbox has written to it meanwhile (renameat2(2),
// RENAME_EXCHANGE).
func exchange(parent *os.File, temporary, base string, digest, old Digest) error {
	at := int(parent.Fd())
	swap := func() error { return unix.Renameat2(at, temporary, at, base, unix.RENAME_EXCHANGE) }
	if old == "" {
		if err := unix.Renameat2(at, temporary, at, base, unix.RENAME_NOREPLACE); err != nil {
			return errors.Join(err, remove(parent, temporary))
		}
		return nil
	}
	err := matches(parent, base, old)
	if err != nil {
		return errors.Join(err, remove(parent, temporary))
	}
	if err := swap(); err != nil {
		return errors.Join(ErrChanged, err, remove(parent, temporary))
	}
	if err := matches(parent, temporary, old); err == nil {
		return remove(parent, temporary)
	}
	if err := swap(); err != nil {
		return errors.Join(ErrChanged, err)
	}
	// The sandbox may have written to the new file while it had the name.
	if err := matches(parent, temporary, digest); err != nil {
		return errors.Join(ErrChanged, unix.Renameat(at, temporary, at, base+".conflict-"+rand.Text()))
	}
	return errors.Join(ErrChanged, remove(parent, temporary))
}

// matches returns nil if a name in a folder is a regular file of the digest.
func matches(parent *os.File, name string, want Digest) error {
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return errors.Join(ErrChanged, err)
	}
	file := os.NewFile(uintptr(fd), name)
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return ErrChanged
	}
	data, err := readAll(file, name)
	if err == nil && DigestOf(data) != want {
		err = ErrChanged
	}
	return err
}

func remove(parent *os.File, name string) error { return unix.Unlinkat(int(parent.Fd()), name, 0) }

// create makes a file in a folder, durably.
func create(parent *os.File, name string, data []byte) error {
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o666)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), name)
	_, err = io.Copy(file, bytes.NewReader(data))
	mode := fs.FileMode(0o666)
	if bytes.HasPrefix(data, []byte("#!")) {
		mode = 0o777
	}
	if err = errors.Join(err, file.Chmod(mode), file.Sync(), file.Close()); err != nil {
		return errors.Join(err, remove(parent, name))
	}
	return nil
}

// parent opens the folder that a name is in, and makes it if there is none.
func (f *Folder) parent(name string) (*os.File, error) {
	dir := path.Dir(name)
	made := dir
	var missing []string
	for made != "." {
		if _, err := f.root.Lstat(made); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		missing, made = append(missing, made), path.Dir(made)
	}
	if err := f.root.MkdirAll(dir, 0o777); err != nil {
		return nil, err
	}
	for _, m := range missing {
		if err := f.root.Chmod(m, 0o777); err != nil {
			return nil, err
		}
	}
	return f.root.OpenFile(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

// Remove removes a file, a link, or a folder with all that is in it.
func (f *Folder) Remove(name string) error {
	name, err := local(name)
	if err != nil {
		return err
	}
	if _, err := f.root.Lstat(name); err != nil {
		return fmt.Errorf("%q: %w", name, cause(err))
	}
	if err := f.root.RemoveAll(name); err != nil {
		return fmt.Errorf("%q: %w", name, cause(err))
	}
	return nil
}

// RemoveFile removes a regular file of the digest. The error is [ErrChanged] if it has
// other contents, also if the sandbox writes them meanwhile: they stay.
func (f *Folder) RemoveFile(name string, old Digest) error {
	return f.within(name, f.existing, func(parent *os.File, base string) error {
		f.write.Lock()
		defer f.write.Unlock()
		at, temporary := int(parent.Fd()), temporaryPrefix+rand.Text()
		if err := matches(parent, base, old); err != nil {
			return err
		}
		if err := unix.Renameat2(at, base, at, temporary, unix.RENAME_NOREPLACE); err != nil {
			return errors.Join(ErrChanged, err)
		}
		if err := matches(parent, temporary, old); err != nil {
			back := unix.Renameat2(at, temporary, at, base, unix.RENAME_NOREPLACE)
			if back != nil {
				back = unix.Renameat(at, temporary, at, base+".conflict-"+rand.Text())
			}
			return errors.Join(ErrChanged, err, back)
		}
		return remove(parent, temporary)
	})
}

// Readlink returns what a link points to.
func (f *Folder) Readlink(name string) (string, error) {
	name, err := local(name)
	if err != nil {
		return "", err
	}
	target, err := f.root.Readlink(name)
	if err != nil {
		return "", fmt.Errorf("%q: %w", name, cause(err))
	}
	return target, nil
}

// Symlink makes a link, in a place where nothing is. Its target is the sandbox's affair:
// the host follows it within the memory only.
func (f *Folder) Symlink(target, name string) error {
	return f.within(name, f.parent, func(parent *os.File, base string) error {
		return unix.Symlinkat(target, int(parent.Fd()), base)
	})
}

// Mkdir makes a folder and those on the way, and is content with one that exists.
func (f *Folder) Mkdir(name string) error {
	name, err := local(name)
	if err != nil {
		return err
	}
	dir, err := f.parent(path.Join(name, "x"))
	if err != nil {
		return fmt.Errorf("%q: %w", name, cause(err))
	}
	return dir.Close()
}

// Rmdir removes a folder that has nothing in it. The error is fs.ErrExist if it has.
func (f *Folder) Rmdir(name string) error {
	return f.within(name, f.existing, func(parent *os.File, base string) error {
		return unix.Unlinkat(int(parent.Fd()), base, unix.AT_REMOVEDIR)
	})
}

// Chmod sets the permission bits of a file or folder.
func (f *Folder) Chmod(name string, mode fs.FileMode) error {
	name, err := local(name)
	if err != nil {
		return err
	}
	if err := f.root.Chmod(name, mode&0o777); err != nil {
		return fmt.Errorf("%q: %w", name, cause(err))
	}
	return nil
}

// Rename gives a file or folder another name, which nothing may have yet. Folders on the
// way are made.
func (f *Folder) Rename(from, to string) error {
	from, err := local(from)
	if err != nil {
		return err
	}
	if to, err = local(to); err != nil {
		return err
	}
	src, err := f.existing(from)
	if err != nil {
		return fmt.Errorf("%q: %w", from, cause(err))
	}
	defer src.Close()
	var st unix.Stat_t // before a folder is made for nothing
	if err := unix.Fstatat(int(src.Fd()), path.Base(from), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("%q: %w", from, err)
	}
	dst, err := f.parent(to)
	if err != nil {
		return fmt.Errorf("%q: %w", to, cause(err))
	}
	defer dst.Close()
	err = unix.Renameat2(int(src.Fd()), path.Base(from), int(dst.Fd()), path.Base(to), unix.RENAME_NOREPLACE)
	if err != nil {
		return fmt.Errorf("%q to %q: %w", from, to, err)
	}
	return errors.Join(src.Sync(), dst.Sync())
}

// local returns the shortest form of a name of something in the memory.
func local(name string) (string, error) {
	if name = path.Clean(name); name == "." || !filepath.IsLocal(name) {
		return "", fmt.Errorf("%q: %w: give a path relative to it, without ..", name, ErrBadName)
	}
	return name, nil
}

// cause is the error without its path, which the message holds already, escaped.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
