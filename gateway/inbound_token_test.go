package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/test/must"
)

// speaks has a program listen that answers each connection with the same bytes, and
// returns what the last one asked.
func (n *published) speaks(t *testing.T, answer string) <-chan string {
	t.Helper()
	n.inside.Close()
	var ln net.Listener
	must.Soon(t, "the port", func() bool { // a client may have it, for a while
		var err error
		ln, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", n.port))
		return err == nil
	})
	t.Cleanup(func() { _ = ln.Close() })
	asked := make(chan string, 16)
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			in := bufio.NewReader(c)
			var said strings.Builder
			r, err := http.ReadRequest(bufio.NewReader(io.TeeReader(in, &said)))
			if err == nil {
				_, _ = io.Copy(io.Discard, r.Body)
				asked <- said.String()
				_, _ = io.WriteString(c, answer)
			}
			_ = c.Close()
		}
	}()
	return asked
}

const chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"

// The trailers of an answer are passed on, but for those that would say after the
// body what they may not say before it.
func TestInboundTrailers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer string
		want   http.Header
		said   string // in Trailer
	}{
		"announced":           {chunked + "Trailer: X-Sum, Grpc-Status\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 1\r\nGrpc-Status: 0\r\n\r\n", http.Header{"X-Sum": {"1"}, "Grpc-Status": {"0"}}, "Grpc-Status, X-Sum"},
		"not announced":       {chunked + "\r\n2\r\nhi\r\n0\r\nX-Late: 1\r\nX-Late: 2\r\n\r\n", http.Header{"X-Late": {"1", "2"}}, ""},
		"without a body":      {chunked + "Trailer: X-Sum\r\n\r\n0\r\nX-Sum: 1\r\n\r\n", http.Header{"X-Sum": {"1"}}, "X-Sum"},
		"one of the head too": {chunked + "X-Sum: head\r\nTrailer: X-Sum\r\n\r\n2\r\nhi\r\n0\r\n\r\n", nil, "X-Sum"},
		"what is ours or for the head": {chunked + "Trailer: X-Sum, Set-Cookie, Sallyport-Decision\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 1\r\nSet-Cookie: a=1; Domain=localhost\r\nset-cookie: sallyport-exposure=evil\r\n" +
			"Sallyport-Decision: forged\r\nSallyport-Approval: forged\r\nAlt-Svc: h3\r\nConnection: close\r\nContent-Encoding: gzip\r\nAuthorization: x\r\n\r\n", http.Header{"X-Sum": {"1"}}, "X-Sum"},
	} {
		t.Run(name, func(t *testing.T) {
			n, token := newInbound(t)
			asked := n.speaks(t, tt.answer)
			c, err := net.Dial("tcp", n.ln.Addr().String())
			must.OK(t, err)
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nTE: trailers\r\nConnection: TE, close\r\n\r\n", n.host("demo"), token)
			var raw strings.Builder
			resp, err := http.ReadResponse(bufio.NewReader(io.TeeReader(c, &raw)), nil)
			must.OK(t, err)
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Fatal(err)
			}
			got := resp.Trailer.Clone()
			for name, values := range got {
				if values == nil {
					delete(got, name)
				}
			}
			if len(got) == 0 {
				got = nil
			}
			if diff := cmp.Diff(got, tt.want); diff != "" {
				t.Errorf("%s\nin %q", diff, raw.String())
			}
			_, said, _ := strings.Cut(raw.String(), "\r\nTrailer: ")
			said, _, _ = strings.Cut(said, "\r\n")
			announced := strings.Split(said, ", ")
			slices.Sort(announced)
			if said = strings.Join(announced, ", "); said != tt.said {
				t.Errorf("announced %q, want %q", said, tt.said)
			}
			if said := <-asked; !strings.Contains(said, "\r\nTe: trailers\r\n") {
				t.Errorf("the sandbox was not told that trailers are taken: %q", said)
			}
			if e := n.await(2)[1]; e.HTTPResponse.Code != 200 {
				t.Errorf("completed: %+v", e)
			}
		})
	}
}

// Trailers beyond the bound break the answer off: what is left of one must not look
// whole.
func TestInboundTrailersAreBounded(t *testing.T) {
	t.Parallel()
	n, token := newInbound(t)
	n.speaks(t, chunked+"\r\n2\r\nhi\r\n0\r\n"+strings.Repeat("X-Long: "+strings.Repeat("x", 1000)+"\r\n", 1000)+"\r\n")
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true, Dial: func(string, string) (net.Conn, error) {
		return net.Dial("tcp", n.ln.Addr().String())
	}}}).Do(&http.Request{Method: "GET", URL: &url.URL{Scheme: "http", Host: n.host("demo"), Path: "/"}, Header: http.Header{"Sallyport-Token": {token}}})
	must.OK(t, err)
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err == nil || len(resp.Trailer) > 0 {
		t.Errorf("got %q with trailers %v, whole", body, resp.Trailer)
	}
}

// Of a request's trailers the sandbox gets those that the policy has seen.
func TestInboundRequestTrailers(t *testing.T) {
	t.Parallel()
	n, token := newInbound(t)
	asked := n.speaks(t, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
	r, body := n.ask(t, "POST / HTTP/1.1\r\nHost: "+n.host("demo")+"\r\nAuthorization: Bearer "+token+"\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, Sallyport-Token\r\n\r\n"+
		"2\r\nhi\r\n0\r\nX-Sum: 1\r\nX-HTTP-Method-Override: DELETE\r\nSallyport-Token: "+token+"\r\n\r\n")
	if r.StatusCode != 200 {
		t.Fatalf("got %d %s", r.StatusCode, body)
	}
	if said := <-asked; !strings.HasSuffix(said, "0\r\nX-Sum: 1\r\n\r\n") || strings.Contains(said, token) || strings.Contains(said, "Override") {
		t.Errorf("the sandbox got %q", said)
	}
}
