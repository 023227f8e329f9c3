package redis_test

import (
	"bytes"
	"io"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"sallyport/gateway/credential/scrub"
	"sallyport/gateway/redis"
)

// commands reads what a server would, which is not strict about lengths: nil where it would
// refuse.
func commands(data []byte) (all [][]string) {
	line := func() (string, bool) {
		at := bytes.IndexByte(data, '\r')
		if at < 0 || at+2 > len(data) {
			return "", false
		}
		text := string(data[:at])
		data = data[at+2:] // whatever the second byte is
		return text, true
	}
	for len(data) > 0 {
		head, ok := line()
		n, err := strconv.Atoi(strings.TrimPrefix(head, "*"))
		if !ok || err != nil || head[0] != '*' {
			return all
		}
		var words []string
		for range n {
			head, ok := line()
			size, err := strconv.Atoi(strings.TrimPrefix(head, "$"))
			if !ok || err != nil || head[0] != '$' || size < 0 || size+2 > len(data) {
				return all
			}
			words = append(words, string(data[:size]))
			data = data[size+2:]
		}
		all = append(all, words)
	}
	return all
}

// However a client writes its commands, the server gets no login but the account's.
func FuzzCommands(f *testing.F) {
	f.Add([]byte(words("SET", "k", "v") + words("AUTH", "x", "y") + words("RESET") + words("HELLO", "3", "AUTH", "a", "b")))
	f.Add([]byte("*2\r\n$4\r\nAUTH\r\n$1\r\nx\r\n"))
	f.Add([]byte(words("HELLO", "9", "AUTH", "a", "b")))
	f.Add([]byte(words("HELLO", "3", "x", "AUTH", "a", "b")))
	f.Add([]byte(words("HELLO", "3", "AUTH\x00", "own", "own") + words("HELLO", "3", "\u017fETNAME", "x")))
	f.Add([]byte("*1\r\n$10\r\nPING\r\nAUTH\r\n"))
	f.Add([]byte("*1\n$4\nPING\n"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		s := &redis.Session{Account: redis.Account{Username: "app", Password: password}}
		var got bytes.Buffer
		_ = s.Commands(&got, bytes.NewReader(sent))
		for _, words := range commands(got.Bytes()) {
			if len(words) == 0 {
				continue
			}
			if strings.Contains(words[0], "\x00") {
				t.Errorf("passes %q", words)
			}
			switch strings.ToUpper(words[0]) {
			case "AUTH":
				if strings.Join(words[1:], " ") != "app "+password {
					t.Errorf("passes %q", words)
				}
			case "HELLO":
				// It may fail, and is then shown in the server's log of slow commands.
				fits := len(words) == 1 || words[1] == "2" || words[1] == "3"
				for i := 2; i < len(words); i += 2 {
					fits = fits && words[i] == "SETNAME" && i+1 < len(words) && (words[i+1] != password || bytes.Contains(sent, []byte(password)))
				}
				if !fits {
					t.Errorf("passes %q", words)
				}
			default:
				if strings.Contains(strings.Join(words, " "), password) && !bytes.Contains(sent, []byte(password)) {
					t.Errorf("the password is in %q", words)
				}
			}
		}
	})
}

// Whatever pieces replies come in, the client gets the same bytes, as many as there were.
func FuzzReplies(f *testing.F) {
	f.Add([]byte("+OK\r\n$-1\r\n*2\r\n:1\r\n$28\r\n"+password+"\r\n%1\r\n+a\r\n*0\r\n"), uint8(0))
	f.Add([]byte("|1\r\n+a\r\n+b\r\n>2\r\n+x\r\n_\r\n*-1\r\n"), uint8(1))
	f.Add([]byte("*1\r\n*1\r\n*1\r\n*1\r\n,1.5\r\n(123\r\n#t\r\n=5\r\ntxt:a\r\n"), uint8(1))
	f.Add([]byte("$?\r\n;4\r\nabcd\r\n;0\r\n"), uint8(1))
	f.Add([]byte("%1099511627776\r\n%1099511627776\r\n"), uint8(1))
	scrubber := scrub.New([]scrub.Value{{Text: password}})
	f.Fuzz(func(t *testing.T, said []byte, way uint8) {
		carry := func(r io.Reader) ([]byte, error) {
			var got bytes.Buffer
			_, err := new(redis.Session).Replies(&got, r, scrubber.Texts(nil))
			return got.Bytes(), err
		}
		got, err := carry(bytes.NewReader(said))
		if len(got) > len(said) || err == nil && len(got) != len(said) {
			t.Fatalf("%d bytes of %d: %v", len(got), len(said), err)
		}
		for i, c := range got {
			if c != said[i] && c != '*' {
				t.Fatalf("byte %d became %q", i, c)
			}
		}
		for line := range bytes.SplitSeq(got, []byte("\r\n")) {
			if err == nil && bytes.Contains(line, []byte(password)) {
				t.Errorf("the secret passes in %q", line)
			}
		}
		var slow io.Reader = iotest.OneByteReader(bytes.NewReader(said))
		if way%2 == 0 {
			slow = iotest.HalfReader(bytes.NewReader(said))
		}
		again, failed := carry(slow)
		if (failed == nil) != (err == nil) || err == nil && !bytes.Equal(again, got) {
			t.Errorf("in pieces: %v, at once: %v", failed, err)
		}
	})
}
