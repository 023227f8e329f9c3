package sandbox

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
)

// imageTar is an archive of images on its way to the engine: written anew of what was
// read, so that the engine takes none of it for something else. What names the images
// in it is passed on once it has been read whole, and only if it names none that the
// host makes itself, nor the default one: the engine would have such a name stand for the
// archive's image from then on.
type imageTar struct {
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

// newImageTar reads a tar archive, which may be compressed by gzip.
func newImageTar(from io.Reader, own string) *imageTar {
	a := &imageTar{own: own}
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
	return fmt.Errorf("%w: it has to be a whole tar archive, plain or compressed by gzip: %w", ErrArchive, err)
}

// Read is that of the engine's client.
func (a *imageTar) Read(p []byte) (int, error) {
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

func (a *imageTar) fail(err error) {
	if a.err = err; !errors.Is(err, io.EOF) {
		a.wrong.Store(&err)
	}
}

// failure is what the archive itself is wrong with, if it is: what the engine makes of
// one that breaks off says less.
func (a *imageTar) failure() error {
	if err := a.wrong.Load(); err != nil {
		return *err
	}
	return nil
}

// step writes the next piece of the archive.
func (a *imageTar) step() error {
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

func (a *imageTar) header(h *tar.Header) error {
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
	return "", fmt.Errorf("%w: %q in it is no file", ErrArchive, h.Name)
}

// mostNaming is how long a file may be that names images.
const mostNaming = 8 << 20 // bytes

// vetted passes on a file that names images.
func (a *imageTar) vetted(h *tar.Header) error {
	if h.Size > mostNaming {
		return fmt.Errorf("%w: %q in it is longer than %d bytes", ErrArchive, h.Name, mostNaming)
	}
	text, err := io.ReadAll(a.in)
	if err != nil {
		return badArchive(noEnd(err))
	}
	if err := a.vet(text); err != nil {
		return fmt.Errorf("%w: %q in it: %w", ErrArchive, h.Name, err)
	}
	if err := a.header(h); err != nil {
		return err
	}
	_, err = a.out.Write(text)
	return err
}

// vet refuses a reserved name in any place of a JSON text: engines differ in where they
// look, and readers of JSON in what they make of a key that is there twice.
func (a *imageTar) vet(text []byte) error {
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
		case strings.HasPrefix(name, ownNames):
			return fmt.Errorf("%q: this host makes images of such names itself: leave it out, or give it another name", s)
		}
	}
}
