package redis

import (
	"bufio"
	"errors"
	"io"
	"strconv"

	"sallyport/gateway/credential/scrub"
)

// Bounds of what a server says.
const (
	maxElements = 1 << 40 // of a reply, aggregates in others included
	maxDigits   = 20      // of a length
)

var errReply = errors.New("the server's reply is not of Redis's protocol")

// Replies carries what a server says to a client, each reply or push searched as a text. A
// reply of any length is carried as it comes. whole says that the client has all of the last
// reply, so that an error may follow. err is nil where the server ended the connection so.
func (s *Session) Replies(client io.Writer, server io.Reader, texts *scrub.Texts) (whole bool, err error) {
	in, w := bufio.NewReaderSize(server, chunk), bufio.NewWriterSize(client, chunk)
	var p parser
	for {
		if in.Buffered() == 0 {
			if err := w.Flush(); err != nil {
				return false, err
			}
		}
		if _, err := in.Peek(1); err != nil {
			whole = p.idle()
			switch {
			case err == io.EOF && !whole:
				err = io.ErrUnexpectedEOF
			case err == io.EOF:
				err = nil
			}
			return whole, err
		}
		data, _ := in.Peek(in.Buffered())
		for len(data) > 0 {
			if p.idle() {
				if err := s.expect(&p, data[0]); err != nil {
					return true, errors.Join(err, w.Flush())
				}
			}
			used, err := p.scan(data)
			piece := data[:used]
			data = data[used:]
			if err != nil {
				return false, errors.Join(err, w.Flush())
			}
			if p.own {
				continue
			}
			_ = copy(texts.Room(len(piece)), piece)
			if _, err := w.Write(texts.Add(len(piece), p.idle())); err != nil {
				return false, err
			}
			if p.idle() && string(p.head) == "+RESET\r" {
				p.follow = s.reset()
			}
		}
		_, _ = in.Discard(in.Buffered())
	}
}

// reset takes the reply of a RESET that a client sent, if one is waited for.
func (s *Session) reset() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resets == 0 {
		return false
	}
	s.resets--
	return true
}

// expect begins a reply. After that of a RESET comes that of the login, which the client
// has not asked for.
func (s *Session) expect(p *parser, first byte) error {
	p.own = p.follow
	p.follow = false
	if p.own && first != '+' {
		return &LoginError{"the server refused it after a RESET"}
	}
	return nil
}

// parser finds where replies end, of RESP2 and RESP3.
type parser struct {
	left   int64  // elements to come of the reply, 0 before one
	bytes  int64  // of a string to come, with the end of its line
	head   []byte // of the line that is read, without its LF, as far as it matters
	inLine bool
	own    bool // the reply is the gateway's
	follow bool // the next one will be
}

// idle tells whether a reply has ended, or none has begun.
func (p *parser) idle() bool { return p.left == 0 }

// scan takes bytes up to the end of a reply, and returns how many.
func (p *parser) scan(data []byte) (int, error) {
	if p.left == 0 {
		p.left = 1
	}
	for at := 0; at < len(data); {
		switch {
		case p.bytes > 0:
			n := min(p.bytes, int64(len(data)-at))
			p.bytes -= n
			if at += int(n); p.bytes == 0 {
				p.left--
			}
		default:
			if !p.inLine {
				p.inLine, p.head = true, p.head[:0]
			}
			c := data[at]
			at++
			if c != '\n' {
				if len(p.head) <= maxDigits+2 {
					p.head = append(p.head, c)
				}
				continue
			}
			p.inLine = false
			if err := p.line(); err != nil {
				return at, err
			}
		}
		if p.left == 0 {
			return at, nil
		}
	}
	return len(data), nil
}

// line takes the line of an element.
func (p *parser) line() error {
	if len(p.head) == 0 {
		return errReply
	}
	switch kind := p.head[0]; kind {
	case '+', '-', ':', '_', '#', ',', '(':
		p.left--
	case '$', '!', '=':
		n, err := p.number()
		if err != nil {
			return err
		}
		if n < 0 {
			p.left--
			break
		}
		p.bytes = n + 2
	case '*', '~', '>', '%', '|':
		n, err := p.number()
		if err != nil {
			return err
		}
		n = max(n, 0)
		switch kind {
		case '%':
			n *= 2
		case '|': // is not the reply, which follows
			n = 2*n + 1
		}
		p.left += n - 1
		if p.left > maxElements {
			return errReply
		}
	default:
		return errReply
	}
	return nil
}

// number reads the length in the line, -1 for none.
func (p *parser) number() (int64, error) {
	text := string(p.head[1:])
	if len(text) < 2 || text[len(text)-1] != '\r' {
		return 0, errReply
	}
	n, err := strconv.ParseInt(text[:len(text)-1], 10, 64)
	if err != nil || n < -1 || n > maxElements {
		return 0, errReply
	}
	return n, nil
}
