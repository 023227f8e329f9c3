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
	longestName   = 5 // of those that log in or out
)

var errLogin = fmt.Errorf("a command that logs in has at most %d words and %d KiB", maxLoginWords, maxLoginBytes>>10)

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
	if size <= longestName {
		name, err := word(in, size)
		if err != nil {
			return err
		}
		switch strings.ToUpper(name) {
		case "AUTH", "HELLO", "RESET":
			return s.login(w, in, name, words-1)
		}
		fmt.Fprintf(w, "*%d\r\n$%d\r\n%s\r\n", words, size, name)
	} else {
		fmt.Fprintf(w, "*%d\r\n$%d\r\n", words, size)
		if err := bulk(w, in, size); err != nil {
			return err
		}
	}
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
	switch strings.ToUpper(name) {
	case "AUTH":
		_, err = w.Write(s.Account.auth())
	case "HELLO":
		_, err = w.Write(command(s.hello(words)...))
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

// hello returns HELLO with the account's login in the place of the client's. It takes the
// options for what the server takes them for.
func (s *Session) hello(words []string) []string {
	out := slices.Clone(words[:min(len(words), 2)])
	for i := 2; i < len(words); i++ {
		if !strings.EqualFold(words[i], "AUTH") {
			out = append(out, words[i])
			if strings.EqualFold(words[i], "SETNAME") && i+1 < len(words) {
				i++
				out = append(out, words[i])
			}
			continue
		}
		user := s.Account.Username
		if user == "" {
			user = "default"
		}
		out = append(out, words[i], user, s.Account.Password)
		i += 2
	}
	return out
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

// bulk carries a string and the end of its line. What has come of it does not wait for
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
func IsForm(err error) bool { return errors.Is(err, errForm) || errors.Is(err, errLogin) }
