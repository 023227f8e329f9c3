package upstream

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// maxInterim bounds the 1xx answers of a proxy before the one that counts.
const maxInterim = 8

var (
	errInterim = errors.New("too many interim answers")
	errNotHTTP = errors.New("not an answer of HTTP/1")
	errColon   = errors.New("a colon in a username")
)

// askHTTP asks an HTTP proxy for a tunnel (RFC 9110, section 9.3.6), and reads
// no further than the head of its answer. Nobody is shown what it says besides its status:
// it may quote the login.
func askHTTP(out io.Writer, in *bufio.Reader, to target, l *login) error {
	head := fmt.Sprintf("CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n", to)
	if l != nil {
		user := l.username.Reveal()
		if strings.Contains(user, ":") { // RFC 7617, section 2
			return &ProxyError{Err: errColon, advice: "cannot be logged in to: the username has a colon in it, which HTTP does not allow"}
		}
		head += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+l.password.Reveal())) + "\r\n"
	}
	if _, err := io.WriteString(out, head+"\r\n"); err != nil {
		return err
	}
	for range maxInterim {
		resp, err := http.ReadResponse(in, &http.Request{Method: http.MethodConnect})
		if err != nil {
			return err
		}
		switch code := resp.StatusCode; {
		case resp.ProtoMajor != 1 || code < 100: // all the same to net/http
			return errNotHTTP
		case code >= 200 && code < 300:
			return nil
		case code < 200 && code != http.StatusSwitchingProtocols:
			continue
		}
		return refusal(resp, to, l != nil)
	}
	return errInterim
}

// refusal puts an answer other than 2xx into our own words.
func refusal(resp *http.Response, to target, told bool) *ProxyError {
	e := &ProxyError{Status: resp.StatusCode}
	// Tinyproxy says 401 to a wrong login.
	unknown := resp.StatusCode == http.StatusProxyAuthRequired || resp.StatusCode == http.StatusUnauthorized
	switch code := resp.StatusCode; {
	case unknown && !offers(resp.Header["Proxy-Authenticate"], "basic"):
		e.advice = fmt.Sprintf("wants a login (%d), but not Basic (RFC 7617), the only one that is spoken here: put a proxy between that speaks both", code)
	case unknown && told:
		e.advice = fmt.Sprintf("refused the login (%d): the username or password of the rule's proxyAuthRef is wrong", code)
	case unknown:
		e.advice = fmt.Sprintf("wants a login (%d): write proxyAuthRef in the rule's upstream", code)
	case code == http.StatusForbidden:
		e.advice = fmt.Sprintf("refuses %s (%d): whoever runs it must allow CONNECT to it", to, code)
		if to.addr.IsValid() {
			e.advice += `; if it allows names only, the rule needs upstream: {resolve: proxy}`
		}
	case code == http.StatusMethodNotAllowed || code == http.StatusNotImplemented:
		e.advice = fmt.Sprintf("does not do CONNECT (%d)", code)
	case code == http.StatusBadGateway || code == http.StatusServiceUnavailable || code == http.StatusGatewayTimeout:
		e.advice, e.elsewhere = fmt.Sprintf("could not reach %s (%d)", to, code), true
	default:
		e.advice = fmt.Sprintf("answered %d where a tunnel to %s was asked for", code, to)
	}
	return e
}

// offers tells whether a challenge names a scheme (RFC 9110, section 11.6.1).
// One that names none offers all.
func offers(challenges []string, scheme string) bool {
	for _, line := range challenges {
		for part := range strings.SplitSeq(line, ",") {
			if name, _, _ := strings.Cut(strings.TrimSpace(part), " "); strings.EqualFold(name, scheme) {
				return true
			}
		}
	}
	return len(challenges) == 0
}
