package upstream

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// The bytes of RFC 1928 and RFC 1929.
const (
	socksVersion      = 5
	socksNoLogin      = 0
	socksPassword     = 2
	socksNoMethod     = 0xff
	socksLoginVersion = 1
	socksConnect      = 1
	socksIPv4         = 1
	socksName         = 3
	socksIPv6         = 4
)

var (
	errSOCKS       = errors.New("not an answer of SOCKS5")
	errLoginLength = errors.New("username or password of a length that SOCKS cannot carry")
)

// askSOCKS asks a SOCKS5 proxy for a connection (RFC 1928), with username and
// password when there is a login (RFC 1929). It does what golang.org/x/net/proxy
// does, but keeps the reply's code apart from its text and takes no method that
// was not offered.
func askSOCKS(out io.Writer, in *bufio.Reader, to target, l *login) error {
	offer := []byte{socksVersion, 1, socksNoLogin}
	if l != nil {
		offer = []byte{socksVersion, 2, socksNoLogin, socksPassword}
	}
	if _, err := out.Write(offer); err != nil {
		return err
	}
	var b [4]byte
	if _, err := io.ReadFull(in, b[:2]); err != nil {
		return err
	}
	switch method := b[1]; {
	case b[0] != socksVersion:
		return errSOCKS
	case method == socksNoLogin:
	case method == socksPassword && l != nil:
		if err := tellSOCKS(out, in, l); err != nil {
			return err
		}
	case method == socksNoMethod && l == nil:
		return &ProxyError{advice: "wants a login: write proxyAuthRef in the rule's upstream"}
	case method == socksNoMethod:
		return &ProxyError{advice: "takes no login by username and password"}
	default:
		return errSOCKS
	}

	ask := []byte{socksVersion, socksConnect, 0}
	switch {
	case to.addr.Is4():
		ask = append(append(ask, socksIPv4), to.addr.AsSlice()...)
	case to.addr.Is6():
		ask = append(append(ask, socksIPv6), to.addr.AsSlice()...)
	default: // checkHost bounds it to 253 bytes
		ask = append(append(ask, socksName, byte(len(to.name))), to.name...)
	}
	ask = append(ask, byte(to.port>>8), byte(to.port))
	if _, err := out.Write(ask); err != nil {
		return err
	}
	// Some end the connection behind a refusal before its address.
	if _, err := io.ReadFull(in, b[:2]); err != nil {
		return err
	}
	if b[0] != socksVersion {
		return errSOCKS
	}
	if b[1] != 0 {
		return replied(b[1], to)
	}
	if _, err := io.ReadFull(in, b[:2]); err != nil {
		return err
	}
	// The address that the proxy connects from, of no use to us.
	var rest int
	switch b[1] {
	case socksIPv4:
		rest = 4
	case socksIPv6:
		rest = 16
	case socksName:
		n, err := in.ReadByte()
		if err != nil {
			return err
		}
		rest = int(n)
	default:
		return errSOCKS
	}
	_, err := in.Discard(rest + 2)
	return err
}

// tellSOCKS logs in (RFC 1929).
func tellSOCKS(out io.Writer, in *bufio.Reader, l *login) error {
	user, password := l.username.Reveal(), l.password.Reveal()
	if len(user) == 0 || len(user) > 255 || len(password) == 0 || len(password) > 255 {
		return &ProxyError{Err: errLoginLength, advice: "cannot be logged in to: SOCKS5 wants a username and a password of 1 to 255 bytes each"}
	}
	b := append([]byte{socksLoginVersion, byte(len(user))}, user...)
	b = append(append(b, byte(len(password))), password...)
	if _, err := out.Write(b); err != nil {
		return err
	}
	var answer [2]byte
	if _, err := io.ReadFull(in, answer[:]); err != nil {
		return err
	}
	switch {
	case answer[0] != socksLoginVersion:
		return errSOCKS
	case answer[1] != 0:
		return &ProxyError{advice: "refused the login: the username or password of the rule's proxyAuthRef is wrong"}
	}
	return nil
}

// replied puts a reply's code into words (RFC 1928, section 6).
func replied(code byte, to target) *ProxyError {
	e := &ProxyError{Reply: code}
	switch code {
	case 1:
		e.advice, e.elsewhere = fmt.Sprintf("failed to reach %s", to), true
	case 2:
		e.advice = fmt.Sprintf("refuses %s: whoever runs it must allow it", to)
		if to.addr.IsValid() {
			e.advice += "; if it allows names only, the rule needs upstream: {resolve: proxy}"
		}
	case 3, 4, 6:
		e.advice, e.elsewhere = fmt.Sprintf("has no way to %s", to), true
	case 5:
		e.advice, e.elsewhere = fmt.Sprintf("found nobody listening at %s", to), true
	case 7:
		e.advice = "does not do CONNECT"
	case 8:
		e.advice, e.elsewhere = fmt.Sprintf("does not take the kind of address that %s is", to), true
	default:
		e.advice = fmt.Sprintf("refused %s for a reason that RFC 1928 does not know (%d)", to, code)
	}
	return e
}
