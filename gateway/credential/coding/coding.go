// Package coding takes content codings (RFC 9110, section 8.4.1) off a body as it
// streams.
//
// What has been decoded is handed out before more is waited for: a body that was
// flushed, as a stream of events is, keeps flowing. For deflate and gzip that
// takes a flush to a byte boundary (Z_SYNC_FLUSH or Z_FULL_FLUSH), which is what
// servers do.
//
// A body takes at most 32 KiB of window for deflate, 16 MiB for br (RFC 7932) and
// 8 MiB for zstd (RFC 9659), for each of at most three codings. It may become no
// more than 1,100 times as long once it is longer than 64 MiB. One that is cut
// short or damaged, or goes on after its end, ends in an error.
package coding

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

var (
	// ErrUnknown says that a body cannot be decoded: a coding is not one of gzip,
	// x-gzip, deflate, br and zstd, or there are more than three.
	ErrUnknown = errors.New("a content coding that cannot be taken off")
	// ErrBomb says that a body became too long for what it was.
	ErrBomb = errors.New("a body that becomes too long when it is decoded")

	errTrailing = errors.New("the body goes on after its end")
)

const (
	maxCodings = 3
	// free is how many bytes a body may become whatever its length.
	free = 64 << 20
	// ratio is how many times longer it may become beyond that: as much as by
	// deflate alone, which cannot do more than 1,032, but not as by br, by zstd or
	// by several codings, which can do without limit.
	ratio     = 1100
	maxWindow = 8 << 20
)

var decoders = map[string]func(*bufio.Reader) (io.Reader, error){
	"gzip":    gunzip,
	"x-gzip":  gunzip,
	"deflate": inflate,
	"br":      unbrotli,
	"zstd":    unzstd,
}

func gunzip(r *bufio.Reader) (io.Reader, error) { return gzip.NewReader(r) }

// inflate reads the zlib format (RFC 1950), which deflate means, and bare deflate
// (RFC 1951), which some servers send and all clients take.
func inflate(r *bufio.Reader) (io.Reader, error) {
	head, err := r.Peek(2)
	if err == nil && head[0]&0xF == 8 && head[0]>>4 <= 7 && binary.BigEndian.Uint16(head)%31 == 0 {
		return zlib.NewReader(r)
	}
	return flate.NewReader(r), nil
}

// brotliReader ends where the body does. The package's own Reader (v1.2.8) says
// that a body goes on after its end also when its last bytes came one by one:
// only what it has left tells.
type brotliReader struct{ *brotli.Reader }

func unbrotli(r *bufio.Reader) (io.Reader, error) { return brotliReader{brotli.NewReader(r)}, nil }

func (r brotliReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && err.Error() == "brotli: excessive input" {
		if left := reflect.ValueOf(r.Reader).Elem().FieldByName("in"); left.Kind() == reflect.Slice && left.Len() == 0 {
			err = io.EOF
		}
	}
	return n, err
}

// unzstd decodes in the goroutine that reads.
func unzstd(r *bufio.Reader) (io.Reader, error) {
	return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
}

// List returns the codings that the values of a Content-Encoding header name, in
// the order in which they were applied, but for identity, in lower case.
func List(values []string) (codings []string) {
	for _, v := range values {
		for c := range strings.SplitSeq(v, ",") {
			if c = strings.ToLower(strings.TrimSpace(c)); c != "" && c != "identity" {
				codings = append(codings, c)
			}
		}
	}
	return codings
}

// NewReader returns a body without its codings, which List gave. It reads nothing
// yet. Its error wraps ErrUnknown.
func NewReader(body io.Reader, codings []string) (io.Reader, error) {
	if len(codings) > maxCodings {
		return nil, fmt.Errorf("%w: %d of them", ErrUnknown, len(codings))
	}
	in := &source{Reader: body}
	var r io.Reader = in
	for i := len(codings) - 1; i >= 0; i-- {
		open := decoders[codings[i]]
		if open == nil {
			// Its name is the upstream's text: it could be a secret.
			return nil, ErrUnknown
		}
		r = &stage{coding: codings[i], open: open, in: in, src: bufio.NewReader(r)}
	}
	return r, nil
}

// source is the coded body. It counts what is read and keeps to how it ended,
// which decoders forget.
type source struct {
	io.Reader
	n   int64
	err error
}

func (s *source) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.Reader.Read(p)
	s.n, s.err = s.n+int64(n), err
	return n, err
}

// stage takes off one coding.
type stage struct {
	coding string
	open   func(*bufio.Reader) (io.Reader, error)
	in     *source       // of the first stage
	src    *bufio.Reader // the stage before
	dec    io.Reader
	n      int64 // decoded
	done   bool  // dec has come to its end
	err    error
}

func (s *stage) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	if s.dec == nil {
		// A body of nothing is coded as nothing by many.
		if _, err := s.src.Peek(1); err != nil {
			return 0, s.end(err)
		}
		dec, err := s.open(s.src)
		if err != nil {
			return 0, s.end(unexpected(err))
		}
		s.dec = dec
	}
	if s.done {
		_, err := s.src.Peek(1)
		if err == nil {
			err = errTrailing
		}
		return 0, s.end(err)
	}
	n, err := s.dec.Read(p)
	if s.n += int64(n); s.n > free && s.n/ratio > s.in.n {
		return 0, s.end(ErrBomb)
	}
	if err == io.EOF {
		s.done, err = true, nil
	}
	return n, s.end(err)
}

// end remembers an error, but for which body it was, and returns it.
func (s *stage) end(err error) error {
	if err != nil && err != io.EOF {
		err = fmt.Errorf("decoding %s: %w", s.coding, err)
	}
	s.err = err
	return err
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
