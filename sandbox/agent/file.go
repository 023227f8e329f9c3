package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"sallyport/sandbox/agent/archive"
	"sallyport/sandbox/agent/wire"
)

// copySize is of each copy's buffer, in bytes.
const copySize = 256 << 10

// files are the routes of files. A request names a path of the sandbox's, as the user that
// it names, or else the sandbox's, has it.
type files struct {
	user  string
	using func() func() // counts a stream until the returned function is called
}

func (s *files) register(mux *http.ServeMux) {
	mux.HandleFunc("GET /files", s.read)
	mux.HandleFunc("PUT /files", s.write)
	mux.HandleFunc("DELETE /files", s.do(func(r *http.Request, path string) (any, error) {
		return nil, remove(path, r.URL.Query().Get("recursive") == "1")
	}))
	mux.HandleFunc("GET /files/stat", s.do(func(r *http.Request, path string) (any, error) {
		return stated(path, r.URL.Query().Get("follow") == "1")
	}))
	mux.HandleFunc("GET /files/list", s.do(func(r *http.Request, path string) (any, error) {
		return page(r.Context(), path, r.URL.Query().Get("after"))
	}))
	mux.HandleFunc("POST /files/mkdir", func(w http.ResponseWriter, r *http.Request) {
		var in wire.MakeFolder
		if decode(w, r, &in) {
			s.do(func(r *http.Request, path string) (any, error) { return stated(path, false, mkdir(path, in)) })(w, r)
		}
	})
	mux.HandleFunc("POST /files/move", s.do(func(r *http.Request, path string) (any, error) {
		to := r.URL.Query().Get("to")
		if err := absolute(to); err != nil {
			return nil, err
		}
		return stated(to, false, move(path, to, r.URL.Query().Get("replace") == "1"))
	}))
	mux.HandleFunc("GET /files/tar", s.pack)
	mux.HandleFunc("PUT /files/tar", s.do(func(r *http.Request, path string) (any, error) {
		defer s.using()()
		return archive.Unpack(r.Context(), path, r.Body, archive.Options{})
	}))
	mux.HandleFunc("GET /files/watch", s.watch)
}

// whose is the user of a request.
func (s *files) whose(r *http.Request) string {
	return cmp.Or(r.URL.Query().Get("user"), s.user)
}

// do is a route that answers when it is done.
func (s *files) do(f func(r *http.Request, path string) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var out any
		path, err := named(r)
		if err == nil {
			err = asUser(s.whose(r), func() (err error) {
				out, err = f(r, path)
				return err
			})
		}
		if err != nil {
			refuseFile(w, err)
			return
		}
		answer(w, http.StatusOK, out)
	}
}

var errPath = errors.New("name a file by its absolute path")

func named(r *http.Request) (string, error) {
	path := r.URL.Query().Get("path")
	return path, absolute(path)
}

func absolute(path string) error {
	if !filepath.IsAbs(path) || len(path) > wire.MaxPath || strings.Contains(path, "\x00") {
		return errPath
	}
	return nil
}

// errKind: what is there is not of the kind that is needed.
var errKind = errors.New("not a regular file")

// refuseFile answers why something was not done to a file.
func refuseFile(w http.ResponseWriter, err error) {
	status := http.StatusBadRequest
	switch {
	case errors.Is(err, fs.ErrNotExist):
		status = http.StatusNotFound
	case errors.As(err, new(*userError)):
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		status = http.StatusForbidden
	case errors.Is(err, fs.ErrExist), errors.Is(err, errKind), errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.ENOTDIR),
		errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.EXDEV), errors.Is(err, syscall.EBUSY), errors.Is(err, syscall.ETXTBSY):
		status = http.StatusConflict
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		status = http.StatusInsufficientStorage
	}
	refuse(w, status, err)
}

// open opens a regular file. Opening anything else neither waits nor changes
// it.
func open(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: %w", path, errKind)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

func (s *files) read(w http.ResponseWriter, r *http.Request) {
	defer s.using()()
	var f *os.File
	var info fs.FileInfo
	path, err := named(r)
	if err == nil {
		err = asUser(s.whose(r), func() (err error) {
			f, info, err = open(path)
			return err
		})
	}
	if err != nil {
		refuseFile(w, err)
		return
	}
	defer f.Close()
	head, err := json.Marshal(describe(filepath.Base(path), info))
	if err != nil {
		refuseFile(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set(wire.FileHeader, strconv.QuoteToASCII(string(head)))
	var from io.Reader = f
	if size := info.Size(); size > 0 { // the kernel's own files say 0 and have more
		w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		from = io.LimitReader(f, size)
	}
	// A file that is shorter than was said ends in the middle for its reader.
	if _, err := io.CopyBuffer(writeOnly{w}, from, make([]byte, copySize)); err != nil {
		panic(http.ErrAbortHandler)
	}
}

// writeOnly hides ReadFrom: sendfile(2) has no bound in gVisor on what it holds.
type writeOnly struct{ io.Writer }

func (s *files) pack(w http.ResponseWriter, r *http.Request) {
	defer s.using()()
	path, err := named(r)
	name := cmp.Or(r.URL.Query().Get("as"), filepath.Base(path))
	if name == "/" {
		name = "."
	}
	if err == nil {
		// An error that is known at once is a plain status. The path itself may be a link.
		err = asUser(s.whose(r), func() (err error) {
			path, err = filepath.EvalSymlinks(path)
			return err
		})
	}
	if err != nil {
		refuseFile(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-tar")
	w.Header().Set("Trailer", wire.ErrorTrailer)
	err = asUser(s.whose(r), func() error {
		_, err := archive.Pack(r.Context(), w, path, name)
		return err
	})
	if err != nil {
		w.Header().Set(wire.ErrorTrailer, strconv.QuoteToASCII(err.Error()))
	}
}

func remove(path string, recursive bool) error {
	if filepath.Clean(path) == "/" {
		return fmt.Errorf("%s: %w", path, fs.ErrPermission)
	}
	if _, err := os.Lstat(path); err != nil {
		return err
	}
	if recursive {
		return os.RemoveAll(path)
	}
	return os.Remove(path)
}

func mkdir(path string, in wire.MakeFolder) error {
	mode := os.FileMode(cmp.Or(in.Mode, 0o755)) & 0o777
	if in.Parents {
		return os.MkdirAll(path, mode)
	}
	if err := os.Mkdir(path, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode) // whatever our mask is
}

// stated describes a file, unless what was done to it failed.
func stated(path string, follow bool, failed ...error) (wire.File, error) {
	if err := errors.Join(failed...); err != nil {
		return wire.File{}, err
	}
	stat := os.Lstat
	if follow {
		stat = os.Stat
	}
	info, err := stat(path)
	if err != nil {
		return wire.File{}, err
	}
	f := describe(filepath.Base(path), info)
	if f.Type == wire.Link {
		f.Target, err = os.Readlink(path)
	}
	return f, err
}

func describe(name string, info fs.FileInfo) wire.File {
	f := wire.File{Name: name, Raw: wire.Raw(name), Type: wire.Other, Size: info.Size(), Modified: info.ModTime().UTC()}
	switch mode := info.Mode(); {
	case mode.IsRegular():
		f.Type = wire.Regular
	case mode.IsDir():
		f.Type = wire.Folder
	case mode&fs.ModeSymlink != 0:
		f.Type = wire.Link
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		f.Mode, f.UID, f.GID = wire.Mode(st.Mode&0o7777), st.Uid, st.Gid
	}
	return f
}

// move renames within one file system. Unless it may replace, what is there stays,
// also where it has come only just now.
func move(from, to string, replace bool) error {
	if replace {
		return os.Rename(from, to)
	}
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) {
		// Files that gVisor shares with the host have no such flag (gofer's RenameAt).
		err = moveNew(from, to)
	}
	var why syscall.Errno
	if errors.As(err, &why) {
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: why}
	}
	return err
}

// moveNew is move without the kernel's flag, by calls that fail where something
// is: a folder takes the place of an empty one that is made for it, which a
// rename replaces only as long as it is empty; all else is linked there first, and
// has two names for a moment, or for good if we end in it.
func moveNew(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		if err := os.Link(from, to); err != nil {
			return err
		}
		err := os.Remove(from)
		if made, lerr := os.Lstat(to); err != nil && lerr == nil && os.SameFile(info, made) {
			_ = os.Remove(to)
		}
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	// os.Rename would look first, and find what was made.
	if err := unix.Rename(from, to); err != nil {
		_ = unix.Rmdir(to) // as long as it is empty
		return err
	}
	return nil
}
