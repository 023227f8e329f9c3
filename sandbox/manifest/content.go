package manifest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

type digest [sha256.Size]byte

// blockSize is what contents are summed up by, in bytes.
const blockSize = 4096

// contents sums up what a file has, however it lies on the disk: blocks of zeros are
// left out, be they holes or not.
type contents struct {
	hash  hash.Hash
	at    int64 // of the block
	block [blockSize]byte
	some  bool // the block has been written to
}

var zeros [blockSize]byte

func newContents() *contents { return &contents{hash: sha256.New()} }

// write takes what is at an offset. Offsets rise.
func (c *contents) write(offset int64, p []byte) {
	for len(p) > 0 {
		if at := offset - offset%blockSize; at != c.at {
			c.flush()
			c.at = at
		}
		n := copy(c.block[offset-c.at:], p)
		c.some = true
		offset, p = offset+int64(n), p[n:]
	}
}

func (c *contents) flush() {
	if c.some && !bytes.Equal(c.block[:], zeros[:]) {
		_ = binary.Write(c.hash, binary.BigEndian, c.at)
		c.hash.Write(c.block[:])
	}
	c.block, c.some = zeros, false
}

func (c *contents) sum() (d digest) {
	c.flush()
	c.hash.Sum(d[:0])
	return d
}

// read takes n bytes of r that are at an offset.
func (c *contents) read(ctx context.Context, r io.Reader, offset, n int64) error {
	buf := make([]byte, min(n, 64<<10))
	for n > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		part := buf[:min(n, int64(len(buf)))]
		if _, err := io.ReadFull(r, part); err != nil {
			return err
		}
		c.write(offset, part)
		offset, n = offset+int64(len(part)), n-int64(len(part))
	}
	return nil
}

// summed is the sum of an entry's contents. Of one that lies in a folder they are
// read.
func (e *entry) summed(ctx context.Context) (digest, error) {
	if e.opened == nil {
		return e.sum, nil
	}
	f, err := e.opened()
	if err != nil {
		return digest{}, err
	}
	defer f.Close()
	c := newContents()
	if err := c.read(ctx, f, 0, e.stat[size]); err != nil {
		return digest{}, err
	}
	return c.sum(), nil
}

// plain tells whether an entry has no extended attributes. What an overlay notes in
// them does not count.
func (e *entry) plain() bool {
	if e.opened == nil {
		return e.attrs == digest{}
	}
	f, err := e.opened()
	if err != nil {
		return false
	}
	defer f.Close()
	names := make([]byte, 64<<10) // all that Linux lists
	n, err := unix.Flistxattr(int(f.Fd()), names)
	if err != nil {
		return err == unix.ENOTSUP
	}
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		if name != "" && !strings.HasPrefix(name, overlayAttr) {
			return false
		}
	}
	return true
}

const (
	overlayAttr = "trusted.overlay."
	opaqueAttr  = overlayAttr + "opaque"
)

// opaque tells whether a folder shows nothing of those below it
// (overlayfs.rst, "whiteouts and opaque directories").
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
