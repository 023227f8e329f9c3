package redis

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
)

// Bounds of what a client sends.
const (
	chunk    = 16 << 10 // that of a record of TLS
	maxBulk  = 1 << 40  // bytes of one string, which is carried as it comes
	maxWords = 1 << 20  // of a command
	// maxLogin bounds the words of a command that logs in, and their bytes together.
	maxLoginWords = 16
	maxLoginBytes = 64 << 10
	maxName       = 128 // bytes of a command's name
)

var errLogin = fmt.Errorf("a command that logs in has at most %d words and %d KiB", maxLoginWords, maxLoginBytes>>10)

// errHello says that a server might refuse a HELLO, or take it for another.
var errHello = errors.New("HELLO has version 2 or 3, and then AUTH and SETNAME alone")

// Session is what Commands and Replies of one session share.
type Session struct {
	Account Account

	mu     sync.Mutex
	resets int // whose replies have not come
}

// Commands carries a client's commands to a server. Its error is nil where the client ended
// the connection after a whole command. No command is held in memory but those that log in
// or out.
func (s *Session) Commands(server io.Writer, client io.Reader) error {
	in, w := bufio.NewReaderSize(client, chunk), bufio.NewWriterSize(server, chunk)
	for {
		if in.Buffered() == 0 {
			if err := w.Flush(); err != nil {
				return err
			}
		}
		if _, err := in.Peek(1); err != nil {
			if err == io.EOF {
				err = nil
			}
			return err
		}
		if err := s.command(w, in); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
}

// command carries one.
func (s *Session) command(w *bufio.Writer, in *bufio.Reader) error {
	words, err := number(in, '*', maxWords)
	if err != nil {
		return err
	}
	if words == 0 {
		return errForm
	}
	size, err := number(in, '$', maxBulk)
	if err != nil {
		return err
	}
	if size > maxName {
		return errForm
	}
	name, err := word(in, size)
	if err != nil {
		return err
	}
	// The server compares names up to the first zero byte.
	if strings.Contains(name, "\x00") {
		return errForm
	}
	switch upper(name) {
	case "AUTH", "HELLO", "RESET":
		return s.login(w, in, name, words-1)
	}
	fmt.Fprintf(w, "*%d\r\n$%d\r\n%s\r\n", words, size, name)
	for range words - 1 {
		if size, err = number(in, '$', maxBulk); err != nil {
			return err
		}
		fmt.Fprintf(w, "$%d\r\n", size)
		if err := bulk(w, in, size); err != nil {
			return err
		}
	}
	return nil
}

// login carries a command that logs in or out, with the account's login.
func (s *Session) login(w io.Writer, in *bufio.Reader, name string, more int64) error {
	if more >= maxLoginWords {
		return errLogin
	}
	words, left := []string{name}, int64(maxLoginBytes)
	for range more {
		size, err := number(in, '$', maxBulk)
		if err != nil {
			return err
		}
		if left -= size; left < 0 {
			return errLogin
		}
		text, err := word(in, size)
		if err != nil {
			return err
		}
		words = append(words, text)
	}
	var err error
	switch upper(name) {
	case "AUTH":
		_, err = w.Write(s.Account.auth())
	case "HELLO":
		var out []string
		if out, err = hello(words); err == nil {
			_, err = w.Write(command(out...))
		}
	case "RESET":
		out := command(words...)
		if len(words) == 1 { // it is refused else, and changes nothing
			s.mu.Lock()
			s.resets++
			s.mu.Unlock()
			out = append(out, s.Account.auth()...)
		}
		_, err = w.Write(out)
	}
	return err
}

// hello returns HELLO without a login: the connection is logged in already, and a server
// that refuses the command would show its words in its log of slow commands.
func hello(words []string) ([]string, error) {
	if len(words) > 1 && words[1] != "2" && words[1] != "3" {
		return nil, errHello
	}
	out := slices.Clone(words[:min(len(words), 2)])
	for rest := words[len(out):]; len(rest) > 0; {
		switch option := upper(rest[0]); {
		case option == "AUTH" && len(rest) >= 3:
			rest = rest[3:]
		case option == "SETNAME" && len(rest) >= 2:
			out, rest = append(out, "SETNAME", rest[1]), rest[2:]
		default:
			return nil, errHello
		}
	}
	return out, nil
}

// upper is s with the letters of ASCII in upper case, as the server compares it.
func upper(s string) string {
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' {
			return r - 'a' + 'A'
		}
		return r
	}, s)
}

// word reads a string, and the end of its line, that is to be held.
func word(in *bufio.Reader, size int64) (string, error) {
	text := make([]byte, size+2)
	if _, err := io.ReadFull(in, text); err != nil {
		return "", err
	}
	if string(text[size:]) != "\r\n" {
		return "", errForm
	}
	return string(text[:size]), nil
}

// bulk carries a string and the end of its line. The part that has come does not wait for
// the rest.
func bulk(w *bufio.Writer, in *bufio.Reader, size int64) error {
	for left := size; left > 0; {
		if in.Buffered() == 0 {
			if err := w.Flush(); err != nil {
				return err
			}
			if _, err := in.Peek(1); err != nil {
				return err
			}
		}
		n, err := io.CopyN(w, in, min(left, int64(in.Buffered())))
		if left -= n; err != nil {
			return err
		}
	}
	if _, err := word(in, 0); err != nil {
		return err
	}
	_, err := w.WriteString("\r\n")
	return err
}

// IsForm tells whether an error of Commands is about what the client sent.
func IsForm(err error) bool {
	return errors.Is(err, errForm) || errors.Is(err, errLogin) || errors.Is(err, errHello)
}
