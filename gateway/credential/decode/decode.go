// Package decode removes content codings (RFC 9110, section 8.4.1) from a body as it
// streams.
//
// Decoded bytes are handed out before more is read, so that a flushed body, such as a
// stream of events, keeps flowing. For deflate and gzip that takes a flush to a byte
// boundary (Z_SYNC_FLUSH or Z_FULL_FLUSH), which servers use.
//
// Bounds: the window of deflate takes at most 32 KiB of memory, that of br (RFC 7932)
// 16 MiB and that of zstd (RFC 9659) 8 MiB, for each of at most two codings. A body
// takes as much as its beginning declares, and waits for it if others of its [Share]
// hold too much. A body longer than 64 MiB may become at most 1,100 times as long. A
// body that is cut short or damaged, or goes on after its end, ends in an error.
package decode

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
	// ErrUnknown is the error for a coding other than gzip, x-gzip, deflate, br and zstd,
	// and for more than two codings.
	ErrUnknown = errors.New("a content coding that cannot be taken off")
	// ErrBomb is the error for a body that becomes too long when it is decoded.
	ErrBomb = errors.New("a body that becomes too long when it is decoded")

	errTrailing = errors.New("the body goes on after its end")
)

const (
	maxCodings = 2
	// free is how many bytes a body may become whatever its length.
	free = 64 << 20
	// ratio is how many times longer it may become beyond that: as much as by
	// deflate alone, which cannot do more than 1,032, but not as by br, by zstd or
	// by several codings, which can do without limit.
	ratio     = 1100
	maxWindow = 8 << 20
)

// decoder is a coding: how much memory it takes to take it off a body that begins
// as src does, in bytes, and how that is done with no more.
type decoder struct {
	cost func(src *bufio.Reader) (int, error)
	open func(src *bufio.Reader, cost int) (io.Reader, error)
}

var decoders = map[string]decoder{
	"gzip":    {small, gunzip},
	"x-gzip":  {small, gunzip},
	"deflate": {small, inflate},
	"br":      {brotliCost, unbrotli},
	"zstd":    {zstdCost, unzstd},
}

// Memory that decoders take beside the window, in bytes, measured.
const (
	flateCost   = 96 << 10
	brotliExtra = 256 << 10
	zstdExtra   = 512 << 10
)

func small(*bufio.Reader) (int, error) { return flateCost, nil }

func gunzip(r *bufio.Reader, _ int) (io.Reader, error) { return gzip.NewReader(r) }

// inflate reads the zlib format (RFC 1950), which deflate means, and bare deflate
// (RFC 1951), which some servers send and all clients take.
func inflate(r *bufio.Reader, _ int) (io.Reader, error) {
	head, err := r.Peek(2)
	if err == nil && head[0]&0xF == 8 && head[0]>>4 <= 7 && binary.BigEndian.Uint16(head)%31 == 0 {
		return zlib.NewReader(r)
	}
	return flate.NewReader(r), nil
}

// brotliCost reads the window's size (RFC 7932, section 9.1). The package's
// decoder has room for a quarter more; it refuses the large window, an extension.
func brotliCost(r *bufio.Reader) (int, error) {
	head, err := r.Peek(1)
	if err != nil {
		return 0, err
	}
	bits := 16
	if b := head[0]; b&1 != 0 {
		switch low, high := int(b>>1&7), int(b>>4&7); {
		case low != 0:
			bits = 17 + low
		case high == 0:
			bits = 17
		default:
			bits = 8 + high
		}
	}
	return 5<<bits/4 + brotliExtra, nil
}

// brotliReader ends where the body does. The package's own Reader (v1.2.8) says
// that a body goes on after its end also when its last bytes came one by one:
// only what it has left tells.
type brotliReader struct{ *brotli.Reader }

func unbrotli(r *bufio.Reader, _ int) (io.Reader, error) {
	return brotliReader{brotli.NewReader(r)}, nil
}

func (r brotliReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && err.Error() == "brotli: excessive input" {
		if left := reflect.ValueOf(r.Reader).Elem().FieldByName("in"); left.Kind() == reflect.Slice && left.Len() == 0 {
			err = io.EOF
		}
	}
	return n, err
}

// zstdCost reads the window's size of the first frame (RFC 8878, section
// 3.1.1.1). Frames that follow may have none that is larger, unless they all are
// small.
func zstdCost(r *bufio.Reader) (int, error) {
	const least, most = 6, 18 // bytes of a header: all of it may have to be waited for
	for n := least; ; n++ {
		head, err := r.Peek(n)
		if err != nil {
			return 0, err
		}
		var h zstd.Header
		if err = h.Decode(head); err == io.ErrUnexpectedEOF && n < most {
			continue
		}
		if err != nil {
			return 0, err
		}
		window := h.WindowSize
		switch {
		case h.Skippable:
			window = maxWindow // what follows is not known
		case h.SingleSegment:
			window = h.FrameContentSize
		}
		if window > maxWindow {
			return 0, zstd.ErrWindowSizeExceeded
		}
		return max(int(window), smallWindow) + zstdExtra, nil
	}
}

// smallWindow is one that is not worth telling from none.
const smallWindow = 128 << 10

// unzstd decodes in the goroutine that reads.
func unzstd(r *bufio.Reader, cost int) (io.Reader, error) {
	return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(uint64(cost-zstdExtra)))
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

// NewReader returns a body without its codings, as List returned them. It reads nothing
// yet. Decoders take their memory from hold and give it back at the body's end; close hold
// if the body is not read to its end. The error wraps ErrUnknown.
func NewReader(body io.Reader, codings []string, hold *Hold) (io.Reader, error) {
	if len(codings) > maxCodings {
		return nil, fmt.Errorf("%w: %d of them", ErrUnknown, len(codings))
	}
	in := &source{Reader: body}
	var r io.Reader = in
	for i := len(codings) - 1; i >= 0; i-- {
		decoder, known := decoders[codings[i]]
		if !known {
			// Its name is the upstream's text: it could be a secret.
			return nil, ErrUnknown
		}
		r = &stage{coding: codings[i], decoder: decoder, hold: hold, in: in, src: bufio.NewReader(r)}
	}
	return r, nil
}

// Begin reads as much of NewReader's body as shows its memory, and waits for that memory.
// It returns an error only if there is none; other errors are left to Read.
func Begin(r io.Reader) error {
	s, ok := r.(*stage)
	if !ok || s.dec != nil || s.err != nil {
		return nil
	}
	if err := s.begin(); errors.Is(err, ErrMemory) {
		return err
	}
	return nil
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
	decoder
	hold  *Hold
	taken int           // from hold
	in    *source       // of the first stage
	src   *bufio.Reader // the stage before
	dec   io.Reader
	n     int64 // decoded
	done  bool  // dec has come to its end
	err   error
}

func (s *stage) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	if s.dec == nil {
		if err := s.begin(); err != nil {
			return 0, err
		}
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

// begin makes the decoder when there is memory for it.
func (s *stage) begin() error {
	// A body of nothing is coded as nothing by many.
	if _, err := s.src.Peek(1); err != nil {
		return s.end(err)
	}
	cost, err := s.cost(s.src)
	if err != nil {
		return s.end(unexpected(err))
	}
	if err := s.hold.Take(cost); err != nil {
		return s.end(err)
	}
	s.taken = cost
	if s.dec, err = s.open(s.src, cost); err != nil {
		return s.end(unexpected(err))
	}
	return nil
}

// end remembers an error, but for which body it was, and returns it. Nothing is
// decoded after it.
func (s *stage) end(err error) error {
	if err != nil {
		s.dec = nil
		s.hold.Give(s.taken)
		s.taken = 0
	}
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
