package http1

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"io"
	"net/http"
)

// Bounds of what a chunked body carries beside its data, in bytes.
const (
	maxChunkLine = 1 << 10  // a chunk's size and extensions
	maxWaste     = 16 << 10 // lines of chunks that are too small for them
	maxTrailer   = 4 << 10  // the fields after the last chunk
)

var (
	errChunk   = errors.New("the chunked coding of the body is malformed")
	errTrailer = errors.New("the fields after the chunked body are malformed, too large, or not for there")
)

// chunks reads a request's chunked body (RFC 9112, section 7.1). net/http's
// reader takes white space after a size, control characters in extensions, and
// trailers that end with a bare LF, which other servers read differently.
type chunks struct {
	in      *bufio.Reader
	request *http.Request // gets the trailers
	left    uint64        // of the chunk
	inside  bool          // a chunk has begun whose CRLF is still to come
	waste   int64
	err     error
}

// Read returns data of one chunk at most, and with the last of it the end, if
// that is there.
func (c *chunks) Read(p []byte) (n int, err error) {
	if len(p) == 0 && c.err == nil {
		return 0, nil
	}
	for c.left == 0 && c.err == nil {
		c.err = c.next()
	}
	if c.err != nil {
		return 0, c.err
	}
	if uint64(len(p)) > c.left {
		p = p[:c.left]
	}
	n, err = c.in.Read(p)
	if c.left -= uint64(n); c.left == 0 && err == nil && c.in.Buffered() >= len(lastChunk) {
		if b, _ := c.in.Peek(len(lastChunk)); bytes.Equal(b, lastChunk) {
			_, _ = c.in.Discard(len(lastChunk)) // they are there
			c.err = io.EOF
			return n, io.EOF
		}
	}
	return n, short(err)
}

// lastChunk is how nearly every body ends.
var lastChunk = []byte("\r\n0\r\n\r\n")

func short(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// next goes to the next chunk, or past the last one.
func (c *chunks) next() error {
	if c.inside {
		line, err := c.line()
		if err != nil || len(line) > 0 {
			return cmp.Or(err, errChunk)
		}
		c.inside = false
	}
	line, err := c.line()
	if err != nil {
		return err
	}
	size, ok := chunkSize(line)
	if !ok {
		return errChunk
	}
	// Lines may cost 16 bytes a chunk and two bytes for each of data.
	if c.waste = max(c.waste+int64(len(line))-16-2*int64(min(size, 1<<20)), 0); c.waste > maxWaste {
		return errChunk
	}
	if size == 0 {
		return c.trailers()
	}
	c.left, c.inside = size, true
	return nil
}

// line reads one line, which is good until the next read.
func (c *chunks) line() ([]byte, error) {
	b, err := c.in.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		return nil, errChunk
	}
	if err != nil {
		return nil, short(err)
	}
	line, _, ok := cutLine(b)
	if !ok || len(line) > maxChunkLine {
		return nil, errChunk
	}
	return line, nil
}

// chunkSize reads a size in hexadecimal, after which nothing comes but
// extensions. They mean nothing to anyone (RFC 9112, section 7.1.1).
func chunkSize(line []byte) (n uint64, ok bool) {
	i := 0
	for ; i < len(line); i++ {
		var d byte
		switch c := line[i]; {
		case '0' <= c && c <= '9':
			d = c - '0'
		case 'a' <= c && c <= 'f':
			d = c - 'a' + 10
		case 'A' <= c && c <= 'F':
			d = c - 'A' + 10
		case c == ';':
			return n, i > 0
		default:
			return 0, false
		}
		if i == 15 { // 60 bits are enough, and no server's overflow
			return 0, false
		}
		n = n<<4 | uint64(d)
	}
	return n, i > 0
}

// trailers reads the fields after the last chunk. Those that say where a
// message ends or goes to are too late there (RFC 9110, section 6.5.1).
func (c *chunks) trailers() error {
	var t http.Header
	for n, size := 0, 0; ; {
		line, err := c.line()
		if err == errChunk {
			return errTrailer
		}
		if err != nil {
			return err
		}
		if len(line) == 0 {
			break
		}
		name, value, err := cutField(line)
		if size += len(line); err != nil || size > maxTrailer || n == MaxTrailers {
			return errTrailer
		}
		key := http.CanonicalHeaderKey(string(name))
		if framing[key] || key == "Host" {
			return errTrailer
		}
		n++
		if t == nil {
			t = make(http.Header)
		}
		t[key] = append(t[key], string(value))
	}
	if len(t) > 0 && c.request.Trailer == nil {
		c.request.Trailer = t
	} else {
		for key, values := range t {
			c.request.Trailer[key] = values
		}
	}
	return io.EOF
}
