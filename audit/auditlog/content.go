package auditlog

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"sort"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// A segment that grows no more may be compressed: its file ends in .zst then. It is a
// sequence of Zstandard frames (RFC 8878) of frameSize bytes each, and a table of their
// sizes in a skippable frame, as Zstandard's seekable format has it
// (contrib/seekable_format in its repository): `zstdcat` reads it, and a reader that is
// interested in one line decompresses one frame.
const (
	zstSuffix = ".zst"
	frameSize = 128 << 10 // larger ones are hardly smaller when compressed, and slower to seek in

	maxFrame  = 4 << 20 // bytes of a frame, compressed or not, that a reader takes
	maxFrames = 1 << 16 // of a segment

	skippableMagic = 0x184D2A5E
	seekableMagic  = 0x8F92EAB1
	tableHead      = 8 // magic and size of the skippable frame
	tableFoot      = 9 // frames, descriptor, magic
)

// frame is where a frame begins in the file, and what it has in the segment.
type frame struct{ at, offset int64 }

// content is what a segment holds, whichever form its file has. It is not safe for
// concurrent use.
type content struct {
	file   *os.File
	frames []frame // of a compressed one, and one more for the end; nil of a plain one
	bad    string  // why it cannot be read
	buf    []byte  // what the frame holds that was read last
	of     int     // its index; -1 for none
	raw    []byte
}

// open opens the segment. The plain file is the one that counts if both are there. If none
// is, the error is that of the plain one, and the segment was deleted.
func (s segment) open() (*content, error) {
	f, err := os.Open(s.path())
	if err == nil {
		return &content{file: f}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	z, zerr := os.Open(s.path() + zstSuffix)
	if errors.Is(zerr, fs.ErrNotExist) {
		return nil, err
	}
	if zerr != nil {
		return nil, zerr
	}
	return newContent(z)
}

// newContent reads the table of a compressed file. One that is not as it was written has
// no content: bad says so.
func newContent(f *os.File) (*content, error) {
	c := &content{file: f, of: -1}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	c.frames, err = readTable(f, info.Size())
	var bad *tableError
	if errors.As(err, &bad) {
		c.bad, c.frames, err = bad.Error(), []frame{{}}, nil
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return c, nil
}

// tableError says that the table of a compressed segment is not as it was written.
type tableError struct{ reason string }

func (e *tableError) Error() string { return "it cannot be decompressed: " + e.reason }

// readTable reads the table at the end of a compressed file.
func readTable(f io.ReaderAt, size int64) ([]frame, error) {
	var foot [tableFoot]byte
	if size < tableHead+tableFoot {
		return nil, &tableError{"it is too short"}
	}
	if _, err := f.ReadAt(foot[:], size-tableFoot); err != nil {
		return nil, err
	}
	n := int64(binary.LittleEndian.Uint32(foot[:]))
	begin := size - tableFoot - 8*n - tableHead
	if binary.LittleEndian.Uint32(foot[5:]) != seekableMagic || foot[4] != 0 || n > maxFrames || begin < 0 {
		return nil, &tableError{"it does not end in a table of frames"}
	}
	table := make([]byte, tableHead+8*n)
	if _, err := f.ReadAt(table, begin); err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint32(table) != skippableMagic || int64(binary.LittleEndian.Uint32(table[4:])) != 8*n+tableFoot {
		return nil, &tableError{"its table of frames has another size"}
	}
	frames := make([]frame, n+1)
	for i, entry := int64(0), table[tableHead:]; i < n; i, entry = i+1, entry[8:] {
		packed, plain := binary.LittleEndian.Uint32(entry), binary.LittleEndian.Uint32(entry[4:])
		if packed > maxFrame || plain > maxFrame || packed == 0 || plain == 0 {
			return nil, &tableError{"its table has a frame that none writes"}
		}
		frames[i+1] = frame{frames[i].at + int64(packed), frames[i].offset + int64(plain)}
	}
	if frames[n].at != begin {
		return nil, &tableError{"its table is of other frames"}
	}
	return frames, nil
}

// decoder decompresses for all readers, within bounds: root alone writes these files, and
// still a damaged one may not take the memory.
var decoder = sync.OnceValue(func() *zstd.Decoder {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(2), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(maxFrame), zstd.WithDecoderMaxWindow(maxFrame))
	if err != nil {
		panic(err) // of options that are constant
	}
	return d
})

// load decompresses a frame. One that is damaged reads as zeros, as what a crash has left
// unwritten does: readers tell of it, and go on after it.
func (c *content) load(i int) error {
	if c.of == i {
		return nil
	}
	from, to := c.frames[i], c.frames[i+1]
	c.of = -1
	c.raw = append(c.raw[:0], make([]byte, to.at-from.at)...)
	if _, err := c.file.ReadAt(c.raw, from.at); err != nil {
		return err
	}
	size := int(to.offset - from.offset)
	var err error
	if c.buf, err = decoder().DecodeAll(c.raw, c.buf[:0]); err != nil || len(c.buf) != size {
		c.buf = append(c.buf[:0], make([]byte, size)...)
	}
	c.of = i
	return nil
}

// ReadAt implements io.ReaderAt.
func (c *content) ReadAt(b []byte, offset int64) (n int, err error) {
	if c.frames == nil {
		return c.file.ReadAt(b, offset)
	}
	for n < len(b) {
		at := offset + int64(n)
		i := sort.Search(len(c.frames), func(i int) bool { return c.frames[i].offset > at }) - 1
		if i == len(c.frames)-1 {
			return n, io.EOF
		}
		if err := c.load(i); err != nil {
			return n, err
		}
		n += copy(b[n:], c.buf[at-c.frames[i].offset:])
	}
	return n, nil
}

// Size is how many bytes the segment has.
func (c *content) Size() (int64, error) {
	if c.frames != nil {
		return c.frames[len(c.frames)-1].offset, nil
	}
	info, err := c.file.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// lines reads from an offset on.
func (c *content) lines(offset int64) *lineReader {
	return newLineReader(&sequence{c, offset}, offset)
}

// sequence reads in order, of a compressed segment no more at a time than a frame has.
type sequence struct {
	*content
	at int64
}

func (s *sequence) Read(b []byte) (int, error) {
	if s.frames != nil {
		b = b[:min(len(b), frameSize)]
	}
	n, err := s.ReadAt(b, s.at)
	s.at += int64(n)
	if n > 0 && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// dense reads all of it, but for the holes of a plain file.
func (c *content) dense() *lineReader {
	if c.frames == nil {
		return newLineReader(&dense{File: c.file}, 0)
	}
	return c.lines(0)
}

// Close closes the file, if it was opened.
func (c *content) Close() error {
	if c == nil {
		return nil
	}
	return c.file.Close()
}
