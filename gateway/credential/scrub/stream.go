package scrub

import (
	"bufio"
	"encoding/base64"
	"encoding/binary"
	"io"
	"math"
	"mime"
	"strings"
)

// lengths is how messages follow each other in a stream where each begins with its
// length: in the last four bytes of its head.
type lengths struct {
	head  int   // bytes
	whole bool  // the length is of the head too
	most  int64 // bytes of a message that are believed, head included
	text  bool  // each message is in base64 of its own
}

// streams are those in which a text ends with each message, besides those of
// [framings]. Heads are searched with their messages. A head of printable
// characters has no length that is believed.
var streams = []struct {
	media, parameter, value string
	lengths
}{
	// https://smithy.io/2.0/aws/amazon-eventstream.html
	{media: "application/vnd.amazon.eventstream", lengths: lengths{head: 4, whole: true, most: 24 << 20}},
	// https://pkg.go.dev/k8s.io/apimachinery/pkg/util/framer
	{media: "application/vnd.kubernetes.protobuf", parameter: "stream", value: "watch", lengths: lengths{head: 4, most: 16 << 20}},
	// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-WEB.md
	{media: "application/grpc-web-text", lengths: lengths{head: prefix, most: 16 << 20, text: true}},
}

// streamed tells whether a Content-Type is of such a stream, and of which.
func streamed(values []string) (lengths, bool) {
	for _, v := range values {
		media, parameters, err := mime.ParseMediaType(v)
		media, _, _ = strings.Cut(media, "+")
		for _, s := range streams {
			if err == nil && s.media == media && parameters[s.parameter] == s.value {
				return s.lengths, true
			}
		}
	}
	return lengths{}, false
}

// begins is how many bytes of a message tell its size.
func (l *lengths) begins() int {
	if l.text {
		return base64.StdEncoding.EncodedLen(l.head)
	}
	return l.head
}

// size returns how many bytes a message has that begins with these, and whether
// they end in padding. There are none where that cannot be.
func (l *lengths) size(begin []byte) (n int64, padded bool) {
	head := begin
	if l.text {
		var room [2 * prefix]byte
		n, err := base64.StdEncoding.Decode(room[:], begin)
		if head = room[:n]; err != nil || n < l.head {
			return 0, false
		}
	}
	n = int64(binary.BigEndian.Uint32(head[l.head-4:]))
	if !l.whole {
		n += int64(l.head)
	}
	switch {
	case n < int64(l.head) || n > l.most:
		return 0, false
	case !l.text:
		return n, false
	case int64(len(head)) < min(n, prefix+1): // what follows has a base64 of its own
		return 0, false
	}
	return (n + 2) / 3 * 4, n%3 != 0
}

// stream scrubs each message by itself. After a length that cannot be, the rest is
// scrubbed as a body without messages.
type stream struct {
	text
	lengths
	src    *bufio.Reader
	left   int64 // bytes of a message to come
	padded bool  // it is to end in padding
	ready  []byte
	err    error // after ready
}

func (a *answer) stream(src io.Reader, l lengths) io.Reader {
	return &stream{text: a.text(a.hit), lengths: l, src: bufio.NewReader(src)}
}

func (s *stream) Read(p []byte) (n int, err error) {
	for len(p) > 0 && len(s.ready) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		if s.left == 0 {
			s.begin()
		}
		piece := s.room(int(min(s.left, chunk)))
		n, s.err = s.src.Read(piece)
		s.left -= int64(n)
		if s.left == 0 && s.padded && piece[n-1] != '=' {
			s.endless()
		}
		s.ready = s.add(n, s.left == 0 || s.err == io.EOF)
	}
	n = copy(p, s.ready)
	s.ready = s.ready[n:]
	return n, nil
}

// begin finds out how long the next message is.
func (s *stream) begin() {
	begin, err := s.src.Peek(s.begins())
	if err == nil {
		s.left, s.padded = s.size(begin)
	}
	if s.left == 0 {
		s.endless()
	}
}

// endless takes all that comes for the rest of a message.
func (s *stream) endless() { s.left, s.padded, s.lined = math.MaxInt64, false, true }
