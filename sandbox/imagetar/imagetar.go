// Package imagetar checks a tar archive of images on its way to the engine.
//
// The archive is written anew from what was read, so that the engine cannot take any of
// it for something else. No file that names images reaches the engine before it has been
// read whole, and only if it names no image that the host makes itself, nor the default
// one: the engine would let such a name stand for the archive's image from then on.
package imagetar

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync/atomic"

	"sallyport/internal/image"
	"sallyport/sandbox"
)

// HostNames begins the names of images that the host makes itself. No registry is asked
// for them, since anybody could have them there.
const HostNames = "docker.io/sallyport/"

// Reader is the checked archive.
type Reader struct {
	own  string // the parsed name of the default image
	in   *tar.Reader
	out  *tar.Writer
	next bytes.Buffer // of what out has written
	left int64        // of the file that is being passed on
	err  error        // that it ended with
	// wrong is what the archive itself is wrong with: the engine's client may still read
	// when the engine has answered.
	wrong atomic.Pointer[error]
}

// NewReader reads a tar archive, which may be compressed by gzip. own is the parsed name
// of the default image.
func NewReader(from io.Reader, own string) *Reader {
	a := &Reader{own: own}
	in := bufio.NewReader(from)
	if magic, _ := in.Peek(2); string(magic) == "\x1f\x8b" {
		z, err := gzip.NewReader(in)
		if err != nil {
			a.fail(badArchive(noEnd(err)))
			return a
		}
		a.in = tar.NewReader(z)
	} else {
		a.in = tar.NewReader(in)
	}
	a.out = tar.NewWriter(&a.next)
	return a
}

func badArchive(err error) error {
	return fmt.Errorf("%w: it has to be a whole tar archive, plain or compressed by gzip: %w", sandbox.ErrArchive, err)
}

// Read implements io.Reader for the client of the engine.
func (a *Reader) Read(p []byte) (int, error) {
	for a.next.Len() == 0 {
		if a.err != nil {
			return 0, a.err
		}
		if err := a.step(); err != nil {
			a.fail(err)
		}
	}
	return a.next.Read(p)
}

func (a *Reader) fail(err error) {
	if a.err = err; !errors.Is(err, io.EOF) {
		a.wrong.Store(&err)
	}
}

// Err is what is wrong with the archive itself, or nil: the engine's own words about an
// archive that breaks off say less. It is a sandbox.ErrArchive.
func (a *Reader) Err() error {
	if err := a.wrong.Load(); err != nil {
		return *err
	}
	return nil
}

// step writes the next piece of the archive.
func (a *Reader) step() error {
	if a.left > 0 {
		n, err := io.CopyN(a.out, a.in, min(a.left, 64<<10))
		a.left -= n
		if err != nil {
			return badArchive(noEnd(err))
		}
		return nil
	}
	h, err := a.in.Next()
	switch {
	case errors.Is(err, io.EOF):
		return cmp.Or(a.out.Close(), io.EOF)
	case err != nil:
		return badArchive(err)
	}
	// Nothing else of a header has a meaning in an archive of images.
	anew := &tar.Header{Typeflag: h.Typeflag, Name: h.Name, Linkname: h.Linkname, Size: h.Size, Mode: h.Mode & 0o777, ModTime: h.ModTime}
	named, err := names(h)
	switch {
	case err != nil:
		return err
	case named == "repositories":
		return nil // of Docker before 1.10; manifest.json says the same
	case named != "":
		return a.vetted(anew)
	}
	a.left = h.Size
	return a.header(anew)
}

func (a *Reader) header(h *tar.Header) error {
	if err := a.out.WriteHeader(h); err != nil {
		return badArchive(err)
	}
	return nil
}

// noEnd is for what ends before its length is reached.
func noEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// names tells whether an entry is one that names images, wherever it lies: a link
// elsewhere in the archive could bring it to its place.
func names(h *tar.Header) (string, error) {
	name := path.Base(path.Clean("/" + h.Name))
	names := name == "manifest.json" || name == "index.json" || name == "repositories"
	switch {
	case h.Typeflag == tar.TypeReg && names:
		return name, nil
	case h.Typeflag == tar.TypeReg, !names && (h.Typeflag == tar.TypeDir || h.Typeflag == tar.TypeSymlink || h.Typeflag == tar.TypeLink):
		return "", nil
	}
	return "", fmt.Errorf("%w: %q in it is no file", sandbox.ErrArchive, h.Name)
}

// mostNaming is how long a file may be that names images.
const mostNaming = 8 << 20 // bytes

// vetted passes on a file that names images.
func (a *Reader) vetted(h *tar.Header) error {
	if h.Size > mostNaming {
		return fmt.Errorf("%w: %q in it is longer than %d bytes", sandbox.ErrArchive, h.Name, mostNaming)
	}
	text, err := io.ReadAll(a.in)
	if err != nil {
		return badArchive(noEnd(err))
	}
	if err := a.vet(text); err != nil {
		return fmt.Errorf("%w: %q in it: %w", sandbox.ErrArchive, h.Name, err)
	}
	if err := a.header(h); err != nil {
		return err
	}
	_, err = a.out.Write(text)
	return err
}

// vet refuses a reserved name in any place of a JSON text: engines differ in where they
// look, and readers of JSON in what they make of a key that is there twice.
func (a *Reader) vet(text []byte) error {
	if !json.Valid(text) {
		return errors.New("it is no JSON")
	}
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		token, err := d.Token()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		s, ok := token.(string)
		if !ok {
			continue
		}
		name, err := image.Parse(s)
		switch {
		case err != nil: // no name, so the engine takes it for none
		case name == a.own:
			return fmt.Errorf("%q is the name of the default image (sandbox.image): leave it out, or give it another name", s)
		case strings.HasPrefix(name, HostNames):
			return fmt.Errorf("%q: this host makes images of such names itself: leave it out, or give it another name", s)
		}
	}
}
