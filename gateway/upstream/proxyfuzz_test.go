package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"

	"sallyport/gateway/credential"
)

var fuzzTarget = target{addr: netip.MustParseAddr("2001:db8::1"), port: 443}

func fuzzLogin(with bool) *login {
	if !with {
		return nil
	}
	return &login{credential.NewSecret(proxyUser), credential.NewSecret(proxyPassword)}
}

// taken returns how many bytes of data an answer was.
func taken(data []byte, source *bytes.Reader, in *bufio.Reader) []byte {
	return data[:len(data)-source.Len()-in.Buffered()]
}

// FuzzAskHTTP: a tunnel is open only after the end of a head with a 2xx, and
// nothing behind that head has been read.
func FuzzAskHTTP(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.0 200 Connection established\r\nProxy-agent: x\r\n\r\nSSH-2.0", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 x\n\n",
		"HTTP/1.1 407 x\r\nProxy-Authenticate: Basic realm=\"x\", NTLM\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello", "HTTP/1.1 502\r\n\r\n", "\x05\x00",
	} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, with bool) {
		source := bytes.NewReader(data)
		in := bufio.NewReader(io.LimitReader(source, maxProxyHead))
		var out bytes.Buffer
		err := askHTTP(&out, in, fuzzTarget, fuzzLogin(with))
		if !strings.HasPrefix(out.String(), "CONNECT [2001:db8::1]:443 HTTP/1.1\r\n") || strings.Contains(out.String(), "Proxy-Authorization") != with {
			t.Fatalf("asked %q", out.String())
		}
		if err != nil {
			var said *ProxyError
			if errors.As(err, &said) && said.Status == 0 {
				t.Errorf("no status: %v", said)
			}
			return
		}
		head := taken(data, source, in)
		if len(head) > maxProxyHead || !bytes.HasSuffix(head, []byte("\n")) || !bytes.Contains(head, []byte(" 2")) {
			t.Errorf("a tunnel after %q", head)
		}
	})
}

// FuzzAskSOCKS: a connection is open only after a whole reply with the code 0,
// and nothing behind it has been read.
func FuzzAskSOCKS(f *testing.F) {
	for _, s := range []string{
		"\x05\x00\x05\x00\x00\x01\x7f\x00\x00\x01\x00\x50", "\x05\x02\x01\x00\x05\x00\x00\x04" + strings.Repeat("\x00", 18) + "SSH-2.0",
		"\x05\x00\x05\x00\x00\x03\x05proxy\x00\x50", "\x05\xff", "\x05\x02\x01\x01", "\x05\x00\x05\x05", "\x04\x5a", "HTTP/1.1 400 x\r\n\r\n",
	} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, with bool) {
		source := bytes.NewReader(data)
		in := bufio.NewReader(io.LimitReader(source, maxProxyHead))
		var out bytes.Buffer
		err := askSOCKS(&out, in, fuzzTarget, fuzzLogin(with))
		if !with && strings.Contains(out.String(), proxyPassword) {
			t.Error("a login that nobody has")
		}
		if err != nil {
			return
		}
		got := taken(data, source, in)
		method := got[1]
		if got[0] != 5 || method != 0 && (method != 2 || !with) {
			t.Fatalf("took the method of %q", got)
		}
		if told := strings.Contains(out.String(), proxyPassword); told != (method == 2) {
			t.Errorf("told the password: %v, by method %d", told, method)
		}
		reply := got[2:]
		if method == 2 {
			if reply[0] != 1 || reply[1] != 0 {
				t.Errorf("took the refusal %q for a login", reply[:2])
			}
			reply = reply[2:]
		}
		rest := map[byte]int{1: 4, 4: 16}[reply[3]]
		if reply[3] == 3 {
			rest = 1 + int(reply[4])
		}
		if reply[0] != 5 || reply[1] != 0 || rest == 0 || len(reply) != 4+rest+2 {
			t.Errorf("a connection after %q", reply)
		}
	})
}
