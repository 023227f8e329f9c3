package http1

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// reading is what the gateway sends on of a head.
type reading struct {
	Method, Target, Host string
	Header               http.Header
	Length               int64
	Coding               []string
}

// read has a head pass await, check and net/http.
func read(t *testing.T, src io.Reader) *http.Request {
	h := headReader{Reader: bufio.NewReaderSize(src, minRead), src: src, max: 32 << 10}
	head, err := h.await(nil, requestEnd)
	if err == nil {
		_, err = check(head)
	}
	if err != nil {
		return nil
	}
	whole := bytes.Clone(head)
	before := h.Buffered()
	r, err := http.ReadRequest(h.Reader)
	if err != nil {
		return nil // which refuses it too
	}
	if n := before - h.Buffered(); n != len(whole) {
		t.Fatalf("net/http took %d bytes of the %d of %q", n, len(whole), whole)
	}
	return r
}

func meaning(r *http.Request) reading {
	h := r.Header.Clone()
	for _, name := range []string{"Connection", "Trailer"} { // of the hop
		delete(h, name)
	}
	if v := h["User-Agent"]; len(v) == 0 || v[0] == "" {
		delete(h, "User-Agent")
	} else {
		h["User-Agent"] = v[:1] // net/http sends the first
	}
	delete(h, "Host")
	delete(h, "Content-Length")
	return reading{r.Method, r.URL.RequestURI(), r.Host, h, r.ContentLength, r.TransferEncoding}
}

// FuzzHead reads heads in pieces, sends on what passes, and reads that again.
func FuzzHead(f *testing.F) {
	for _, s := range []string{
		"GET / HTTP/1.1\r\nHost: h\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\na:\tc \r\nUser-Agent: x\r\n\r\n",
		"POST http://h:8/a%2fb?c=d;e%20f&g HTTP/1.1\r\nhost: other\r\nContent-Length: 10\r\n\r\n0123456789",
		"PUT /%ff?\xff HTTP/1.1\r\nHost:\r\nTransfer-Encoding: chunked\r\nTrailer: a\r\n\r\n",
		"GET //h/../a HTTP/1.0\r\nPragma: no-cache\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: h\r\nConnection: close, A\r\nA: b\r\n\r\n",
		"GET / HTTP/1.1\nHost: h\n\n",
		"GET / HTTP/1.1\r\nHost: h\r\n b\r\n\r\n",
		"\r\n\r\n",
		":\r\n\r\n",
		"  HTTP/1.1\r\nHost: h\r\n\r\n",
		"G / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
	} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	f.Fuzz(func(t *testing.T, raw []byte, pieces bool) {
		var src io.Reader = bytes.NewReader(raw)
		if pieces {
			src = iotest.OneByteReader(src)
		}
		first := read(t, src)
		if first == nil || first.Method == http.MethodConnect || first.URL.Opaque != "" {
			return
		}
		// As the gateway does before it sends a request on.
		first.Host, first.Close = "upstream.example.test", false
		delete(first.Header, "Connection")
		if first.Header["User-Agent"] == nil {
			first.Header["User-Agent"] = []string{""}
		}
		want := meaning(first)
		first.Body = http.NoBody
		if first.ContentLength > 0 {
			first.Body = io.NopCloser(io.LimitReader(endless{}, first.ContentLength))
		}
		var sent bytes.Buffer
		if first.ContentLength > 1<<16 {
			return
		}
		if err := first.Write(&sent); err != nil {
			t.Fatalf("%q passes and cannot be sent: %v", raw, err)
		}
		second := read(t, &sent)
		if second == nil {
			t.Fatalf("%q passes and is sent as %q, which does not", raw, sent.String())
		}
		if diff := cmp.Diff(want, meaning(second), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("of %q: first - second +\n%s", raw, diff)
		}
	})
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { clear(p); return len(p), nil }
