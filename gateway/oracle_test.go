package gateway_test

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// guesses are secret's beginnings, each but the first with a wrong character at its end.
func guesses(known int) (all []string) {
	all = append(all, token[:known+1])
	for _, c := range "~^!?=ZQ" {
		all = append(all, token[:known]+string(c))
	}
	return all
}

// An allowed host that never got the secret breaks off its body after a guess of how
// the secret begins: how much of it arrives does not tell whether the guess is right.
func TestBreakingOffTellsNothing(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"h1", "h2"} {
		t.Run(version, func(t *testing.T) {
			m := newVersionEnv(t, "transparent", version, version, "https")
			m.credential("key", token)
			m.policy(m.keyed)
			m.handle("/keyed", func(http.ResponseWriter, *http.Request) {})
			other := m.netEnv.origin("files.example.test", version, true)
			var body string
			other.handle("/broken", func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, body)
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			})
			text(t, m.do(t, m.request(t, "GET", "/keyed", nil)))
			for known := range len(token) - 1 {
				arrived := map[int]bool{}
				for _, guess := range guesses(known) {
					body = strings.Repeat("filler. ", 100) + guess
					resp, err := m.client.Get(other.url("https", "/broken"))
					must.OK(t, err)
					got, err := io.ReadAll(resp.Body)
					_ = resp.Body.Close()
					if err == nil {
						t.Fatalf("a body that broke off was taken for whole: %q", got)
					}
					arrived[len(body)-len(got)] = true
				}
				if len(arrived) != 1 {
					t.Fatalf("with %d characters known, these many bytes were kept back: %v", known, arrived)
				}
			}
		})
	}
}

// recordSizes notes how long the TLS records are that come in.
type recordSizes struct {
	net.Conn
	head  []byte
	left  int
	sizes []int
}

func (r *recordSizes) Read(p []byte) (int, error) {
	n, err := r.Conn.Read(p)
	for b := p[:n]; len(b) > 0; {
		if r.left > 0 {
			k := min(r.left, len(b))
			r.left -= k
			b = b[k:]
			continue
		}
		r.head = append(r.head, b[0])
		if b = b[1:]; len(r.head) == 5 {
			r.left = int(binary.BigEndian.Uint16(r.head[3:]))
			if r.head[0] == 23 {
				r.sizes = append(r.sizes, r.left)
			}
			r.head = r.head[:0]
		}
	}
	return n, err
}

// An honest host gives back a stored file whole, in which guesses of how the secret
// begins stand at the ends of 16 KiB records: the gateway's own records do not tell
// which of them is right.
func TestRecordsTellNothing(t *testing.T) {
	t.Parallel()
	m := newVersionEnv(t, "transparent", "h1", "h1", "https")
	m.credential("key", token)
	m.policy(m.keyed)
	m.handle("/keyed", func(http.ResponseWriter, *http.Request) {})
	other := m.netEnv.origin("files.example.test", "h1", true)
	const block = 16 << 10
	var file string
	step := make(chan struct{})
	other.handle("/file", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(file)))
		for at := 0; at < len(file); at += block {
			_, _ = io.WriteString(w, file[at:at+block])
			_ = http.NewResponseController(w).Flush()
			<-step // what the block's end has kept back is seen before there is more
		}
	})
	text(t, m.do(t, m.request(t, "GET", "/keyed", nil)))
	addr := netip.MustParseAddrPort(net.JoinHostPort(m.env.address("files.example.test").String(), fmt.Sprint(other.port)))
	for _, known := range []int{0, 1, 8, len(token) - 2} {
		file = ""
		all := guesses(known)
		all[0], all[3] = all[3], all[0]
		for _, guess := range all {
			file += strings.Repeat("f", block-len(guess)) + guess
		}
		conn, err := m.listener.dial(sandboxAddr, addr)
		must.OK(t, err)
		_ = conn.SetDeadline(time.Now().Add(patience))
		wire := &recordSizes{Conn: conn}
		c := tls.Client(wire, &tls.Config{RootCAs: m.ca.pool, ServerName: "files.example.test"})
		if _, err := io.WriteString(c, "GET /file HTTP/1.1\r\nHost: "+strings.TrimPrefix(other.url("https", ""), "https://")+"\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(c)
		resp, err := http.ReadResponse(in, nil)
		must.OK(t, err)
		// Before the next block is sent, as much of one comes as can without its end.
		buf := make([]byte, 4096)
		for n, come := 0, 0; come < len(file); {
			k, err := resp.Body.Read(buf)
			if come += k; err != nil && err != io.EOF {
				t.Fatal(err)
			}
			for ; n < len(file)/block && come >= min(block*(n+1)-1000, len(file)); n++ {
				step <- struct{}{}
			}
		}
		_ = c.Close()
		// The bytes between a block's end and that of the last record in it.
		end, kept := len(file), map[int]int{}
		for _, size := range slices.Backward(wire.sizes) {
			end -= size - recordOverhead
			if n := (end + block - 1) / block; n > 0 && end > 0 {
				if _, seen := kept[n]; !seen {
					kept[n] = n*block - end
				}
			}
		}
		for n := 1; n < len(file)/block; n++ {
			if kept[n] != kept[1] || kept[n] == 0 {
				t.Fatalf("with %d characters known these many bytes of each block were kept back: %v", known, kept)
			}
		}
	}
}

// recordOverhead is by how many bytes a record of TLS 1.3 is longer than what is in it.
const recordOverhead = 1 + 16
