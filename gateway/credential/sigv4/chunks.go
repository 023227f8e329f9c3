package sigv4

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// Payload names of bodies that are signed chunk by chunk.
const (
	Chunked        = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
	ChunkedTrailer = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
)

// maxChunk bounds a chunk, in bytes: it is held while it is signed. AWS's SDKs send 64 to
// 128 KiB in one.
const maxChunk = 1 << 20

// maxTrailer bounds what follows the last chunk, in bytes.
const maxTrailer = 8 << 10

// ErrChunks is wrapped by errors about a body that is not in the form that its request
// says.
var ErrChunks = errors.New("the body is not aws-chunked as the request says")

// chunks signs a body in aws-chunked form anew. It gives as many bytes as it reads.
type chunks struct {
	*signer
	source  io.ReadCloser
	body    *bufio.Reader
	prev    string // the last signature
	trailer bool
	room    func(int64) error

	chunk []byte
	out   bytes.Buffer
	err   error
}

// NewChunks returns a body in aws-chunked form (SigV4) whose chunks, and trailers if it has
// any, are signed anew with the keys, after the signature of the request's head. It holds
// one chunk of at most 1 MiB, and asks room for the bytes that this takes. Errors of Read
// wrap ErrChunks where the body is not well formed, or are room's.
func (k *Keys) NewChunks(body io.ReadCloser, f Form, signature string, trailer bool, now time.Time, room func(int64) error) io.ReadCloser {
	return &chunks{signer: k.signer(f, now), source: body, body: bufio.NewReader(body), prev: signature, trailer: trailer, room: room}
}

func (c *chunks) Close() error { return c.source.Close() }

func (c *chunks) Read(p []byte) (int, error) {
	for c.out.Len() == 0 && c.err == nil {
		c.out.Reset()
		c.err = c.next()
	}
	if c.out.Len() > 0 {
		return c.out.Read(p)
	}
	return 0, c.err
}

// next signs one chunk, and what follows the last.
func (c *chunks) next() error {
	line, err := c.line()
	if err != nil {
		return err
	}
	size, extension, _ := strings.Cut(line, ";")
	n, err := strconv.ParseUint(size, 16, 31)
	const name = "chunk-signature="
	// A signature of another length would change that of the body.
	if err != nil || !strings.HasPrefix(extension, name) || len(extension) != len(name)+64 {
		return fmt.Errorf("%w: a chunk has no size or signature", ErrChunks)
	}
	if n > maxChunk {
		return fmt.Errorf("%w: a chunk has more than %d bytes", ErrChunks, maxChunk)
	}
	if more := int64(n) - int64(cap(c.chunk)); more > 0 {
		if err := c.room(2 * more); err != nil { // as it comes and as it leaves
			return err
		}
		c.chunk = make([]byte, n)
	}
	c.chunk = c.chunk[:n]
	if _, err := io.ReadFull(c.body, c.chunk); err != nil {
		return short(err)
	}
	if c.prev, err = c.sign(V4+"-PAYLOAD", c.prev, Empty, hash(c.chunk)); err != nil {
		return err
	}
	fmt.Fprintf(&c.out, "%s;%s%s\r\n", size, name, c.prev)
	if n == 0 && c.trailer {
		return c.end()
	}
	c.out.Write(c.chunk)
	if line, err = c.line(); err != nil || line != "" {
		return firstOf(err, fmt.Errorf("%w: a chunk is longer than it says", ErrChunks))
	}
	c.out.WriteString("\r\n")
	if n > 0 {
		return nil
	}
	return c.over()
}

// end signs the trailers.
func (c *chunks) end() error {
	const name = "x-amz-trailer-signature:"
	var signed bytes.Buffer
	for {
		line, err := c.line()
		if err != nil {
			return err
		}
		if strings.HasPrefix(strings.ToLower(line), name) {
			if len(line) != len(name)+64 {
				return fmt.Errorf("%w: its trailers have no signature", ErrChunks)
			}
			break
		}
		key, value, ok := strings.Cut(line, ":")
		if !ok || signed.Len()+len(line) > maxTrailer {
			return fmt.Errorf("%w: its trailers have no signature", ErrChunks)
		}
		signed.WriteString(strings.ToLower(strings.TrimSpace(key)) + ":" + strings.TrimSpace(value) + "\n")
		c.out.WriteString(line + "\r\n")
	}
	signature, err := c.sign(V4+"-TRAILER", c.prev, hash(signed.Bytes()))
	if err != nil {
		return err
	}
	c.out.WriteString(name + signature + "\r\n")
	if line, err := c.line(); err != nil || line != "" {
		return firstOf(err, fmt.Errorf("%w: more follows the trailers", ErrChunks))
	}
	c.out.WriteString("\r\n")
	return c.over()
}

// over is the end of a body that nothing may follow.
func (c *chunks) over() error {
	if _, err := c.body.ReadByte(); err != io.EOF {
		return firstOf(err, fmt.Errorf("%w: more follows its end", ErrChunks))
	}
	return io.EOF
}

// line reads up to the next CRLF.
func (c *chunks) line() (string, error) {
	line, err := c.body.ReadSlice('\n')
	if err != nil {
		return "", short(err)
	}
	text, ok := bytes.CutSuffix(line, []byte("\r\n"))
	if !ok {
		return "", fmt.Errorf("%w: a line does not end with CRLF", ErrChunks)
	}
	return string(text), nil
}

func short(err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w: it ends too early", ErrChunks)
	case errors.Is(err, bufio.ErrBufferFull):
		return fmt.Errorf("%w: a line is too long", ErrChunks)
	}
	return err
}

func firstOf(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}
