// Package checkpoint seals the memory of a sandbox's processes into one file, and
// unseals it again.
//
// A sealed checkpoint is a stream (see package seal) of a header and of the files that
// the runtime wrote. The header names the sandbox, the session and the runtime's build,
// so that no other sandbox or session can get the memory, and a file that was changed or
// cut short is noticed before anything runs from it.
package checkpoint

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"sallyport/internal/durable"
	"sallyport/internal/seal"
)

// ErrUnusable: the memory cannot be restored, now or ever. Any other error of this
// package says that it could not be read or written now.
var ErrUnusable = errors.New("its memory cannot be restored")

const (
	version   = 1
	maxHeader = 64 << 10 // bytes
)

// Header says whose memory a checkpoint is. Version and Files are set by Seal.
type Header struct {
	Version int       `json:"version"`
	Build   string    `json:"build"` // of the runtime, which reads only its own checkpoints
	ID      string    `json:"id"`    // the sandbox's
	Session string    `json:"session"`
	Made    time.Time `json:"made"`
	Files   []File    `json:"files"`
}

// File is one file of a checkpoint.
type File struct {
	Name string `json:"name"`
	Size int64  `json:"size"` // bytes
}

// Match returns a check for Open: the memory must be that of a sandbox's session and
// written by a build of the runtime.
func Match(id, session, build string) func(Header) error {
	return func(h Header) error {
		switch {
		case h.ID != id || h.Session != session:
			return fmt.Errorf("%w: it is of another sandbox or session", ErrUnusable)
		case h.Build != build:
			return fmt.Errorf("%w: gVisor %s wrote it, and this is %s", ErrUnusable, h.Build, build)
		case !slices.ContainsFunc(h.Files, func(f File) bool { return f.Size > 0 }):
			return fmt.Errorf("%w: there is nothing in it", ErrUnusable)
		}
		return nil
	}
}

// Seal writes the files of the folder from to the file to, and returns their size in
// bytes. The file is whole and durable, or not there. Seal fails as soon as checkDisk
// does.
func Seal(key *seal.Key, h Header, from, to string, checkDisk func() error) (size int64, err error) {
	h.Version, h.Files = version, nil
	entries, err := os.ReadDir(from)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return 0, err
		}
		if !info.Mode().IsRegular() {
			return 0, fmt.Errorf("%s is not a regular file", filepath.Join(from, e.Name()))
		}
		h.Files = append(h.Files, File{e.Name(), info.Size()})
		size += info.Size()
	}
	part := to + ".part"
	out, err := os.OpenFile(part, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	err = write(key, h, from, NewWriter(out, checkDisk))
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err == nil {
		err = os.Rename(part, to)
	}
	if err == nil {
		err = durable.SyncDir(filepath.Dir(to))
	}
	if err != nil {
		_ = os.Remove(part)
		return 0, err
	}
	return size, nil
}

func write(key *seal.Key, h Header, from string, out io.Writer) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	w, err := key.NewWriter(out)
	if err != nil {
		return err
	}
	if _, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...)); err != nil {
		return err
	}
	for _, f := range h.Files {
		if err := copyFrom(w, filepath.Join(from, f.Name), f.Size); err != nil {
			return err
		}
	}
	return w.Close()
}

func copyFrom(w io.Writer, path string, size int64) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	// Without File.WriteTo, whose buffer is smaller than a chunk.
	_, err = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{io.LimitReader(f, size)}, make([]byte, 256<<10))
	return err
}

// Sealed is a sealed checkpoint whose header has been read.
type Sealed struct {
	files []File
	rest  io.Reader
	io.Closer
}

// Open reads the header of a sealed checkpoint and passes it to check, whose error it
// returns. The caller closes the checkpoint.
func Open(key *seal.Key, path string, check func(Header) error) (_ *Sealed, err error) {
	in, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is gone", ErrUnusable, path)
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(unusable(err), in.Close())
		}
	}()
	rest, err := key.NewReader(bufio.NewReaderSize(in, 256<<10))
	if err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(rest, size[:]); err != nil {
		return nil, short(err)
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxHeader {
		return nil, fmt.Errorf("%w: its header has %d bytes", ErrUnusable, n)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(rest, text); err != nil {
		return nil, short(err)
	}
	var h Header
	if err := json.Unmarshal(text, &h); err != nil {
		return nil, fmt.Errorf("%w: its header: %w", ErrUnusable, err)
	}
	if h.Version != version {
		return nil, fmt.Errorf("%w: it is of format %d, and this daemon reads %d", ErrUnusable, h.Version, version)
	}
	for _, f := range h.Files {
		if f.Name != filepath.Base(f.Name) || strings.HasPrefix(f.Name, ".") || f.Size < 0 {
			return nil, fmt.Errorf("%w: a file in it is called %q", ErrUnusable, f.Name)
		}
	}
	if err := check(h); err != nil {
		return nil, err
	}
	return &Sealed{h.Files, rest, in}, nil
}

// Unseal writes the files of the checkpoint into the folder to, which it makes anew. When
// it returns nil they are whole.
func (s *Sealed) Unseal(to string) (err error) {
	defer func() { err = unusable(err) }()
	if err := os.RemoveAll(to); err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	for _, f := range s.files {
		if err := copyTo(filepath.Join(to, f.Name), s.rest, f.Size); err != nil {
			return err
		}
	}
	// Only the end says that it is whole.
	if n, err := s.rest.Read(make([]byte, 1)); err != io.EOF || n > 0 {
		if err == nil || err == io.EOF {
			return fmt.Errorf("%w: there is more in it than its header says", ErrUnusable)
		}
		return err
	}
	return nil
}

// Unseal is Open and Sealed.Unseal.
func Unseal(key *seal.Key, path, to string, check func(Header) error) error {
	s, err := Open(key, path, check)
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Unseal(to)
}

func copyTo(path string, r io.Reader, size int64) (err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, io.LimitReader(r, size), make([]byte, 64<<10))
	if err == nil && n < size {
		err = short(io.EOF)
	}
	return errors.Join(err, f.Close())
}

// unusable marks the errors of a stream that was changed.
func unusable(err error) error {
	if errors.Is(err, seal.ErrDamaged) || errors.Is(err, seal.ErrWrongKey) {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	return err
}

// short marks the error of a stream that ends early.
func short(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("%w: there is less in it than its header says", ErrUnusable)
	}
	return err
}
