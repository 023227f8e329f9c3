// Package redis logs in at a Redis server in the place of a client, and carries what both
// say afterwards. https://redis.io/docs/latest/develop/reference/protocol-spec/
//
// It guarantees that the server sees no login but the one of the [Account], wherever the
// client asks for one: AUTH and HELLO … AUTH get the account's in place of the client's, and
// RESET is followed by it. All that the server says is searched for secrets: replies keep
// their boundaries and lengths. It reads of a command what tells these from others, and no
// more: what a session may do is for the server's access control list to permit.
package redis

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
)

// maxLine bounds a line that is read whole, in bytes.
const maxLine = 4 << 10

// LoginError is why a server refused the login. Its text can quote the server, and so a
// secret: it is for operators, once searched.
type LoginError struct{ Reply string }

func (e *LoginError) Error() string { return "logging in: " + e.Reply }

// Account is whom to log in as.
type Account struct {
	Username string // empty: the default user
	Password string
}

// auth is the command that logs in.
func (a Account) auth() []byte {
	if a.Username == "" {
		return command("AUTH", a.Password)
	}
	return command("AUTH", a.Username, a.Password)
}

// command is one as a client sends it.
func command(words ...string) []byte {
	out := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, w := range words {
		out = fmt.Appendf(out, "$%d\r\n%s\r\n", len(w), w)
	}
	return out
}

// Login logs in at a server, over TLS already. It reads no further than the reply. Its
// error is a *LoginError where the server refused.
func Login(c net.Conn, a Account) error {
	if _, err := c.Write(a.auth()); err != nil {
		return err
	}
	// Nothing follows a reply until something is asked for.
	var reply []byte
	for b := make([]byte, 1); !bytes.HasSuffix(reply, []byte("\r\n")); {
		if len(reply) == maxLine {
			return &LoginError{"not a reply of Redis"}
		}
		if _, err := io.ReadFull(c, b); err != nil {
			return err
		}
		reply = append(reply, b[0])
	}
	if text := string(reply[:len(reply)-2]); text != "+OK" {
		return &LoginError{text}
	}
	return nil
}

// Refuse tells a client why its session is not begun, or is over.
func Refuse(w io.Writer, reason string) error {
	_, err := fmt.Fprintf(w, "-ERR sallyport: %s\r\n", reason)
	return err
}

// errForm says that a client's commands cannot be told apart for sure.
var errForm = errors.New("commands come as arrays of bulk strings, each length in its shortest form")

// number reads a line that is a kind and a number in its one form, of at most max.
func number(r *bufio.Reader, kind byte, max int64) (int64, error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, bufio.ErrBufferFull) {
			err = errForm
		}
		return 0, err
	}
	text := string(bytes.TrimSuffix(line, []byte("\r\n")))
	if len(text) < 2 || text[0] != kind {
		return 0, errForm
	}
	n, err := strconv.ParseInt(text[1:], 10, 64)
	if err != nil || n < 0 || n > max || strconv.FormatInt(n, 10) != text[1:] || len(line) != len(text)+2 {
		return 0, errForm
	}
	return n, nil
}
