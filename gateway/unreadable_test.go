package gateway_test

import (
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

// A request refused for its head is told what is wrong with it and what to send instead,
// whatever the status: 501 and 505 are no failures of the gateway's.
func TestRefusedHeadIsLegible(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, request, status, reason, remedy string
	}{
		{"a coding that nobody asked for", "POST / HTTP/1.1\r\nHost: api.example.test\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "501 Not Implemented",
			"a Transfer-Encoding that is not chunked alone", "Transfer-Encoding: chunked, once"},
		{"a coding in HTTP/1.0", "POST / HTTP/1.0\r\nHost: api.example.test\r\nTransfer-Encoding: chunked\r\n\r\n", "400 Bad Request",
			"HTTP/1.0, which has no Transfer-Encoding", "Change the request"},
		{"another version", "GET / HTTP/1.2\r\nHost: api.example.test\r\n\r\n", "505 HTTP Version Not Supported", "another version of HTTP", "Speak HTTP/1.1"},
		{"HTTP/2 in the middle", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505 HTTP Version Not Supported", "begins HTTP/2 on a connection of HTTP/1.1", "Speak HTTP/1.1"},
		{"an expectation", "GET / HTTP/1.1\r\nHost: api.example.test\r\nExpect: x\r\n\r\n", "417 Expectation Failed", "expects something else", "Leave Expect out"},
		{"a large head", "GET / HTTP/1.1\r\nHost: api.example.test\r\nX: " + strings.Repeat("x", 130<<10) + "\r\n\r\n", "431 Request Header Fields Too Large",
			"head is too large", "128 KiB is the most"},
		{"a bare LF", "GET / HTTP/1.1\nHost: api.example.test\n\n", "400 Bad Request", "a bare CR or LF", "Change the request"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newEnv(t)
			l.policy(allow)
			c, err := l.secure(l.name("api.example.test").String()+":443", "api.example.test", "http/1.1")
			must.OK(t, err)
			resp, body := send(t, c, tt.request)
			if resp.Status != tt.status {
				t.Errorf("got %s, want %s", resp.Status, tt.status)
			}
			reason, rest, _ := strings.Cut(strings.TrimPrefix(body, "Sallyport denied this request.\nreason: "), "\n")
			if !strings.HasPrefix(body, "Sallyport denied") || !strings.Contains(reason, tt.reason) || !strings.Contains(rest, tt.remedy) {
				t.Errorf("got %s, want a denial, %q and %q", body, tt.reason, tt.remedy)
			}
			if e := l.await(1)[0]; e.Rule.Name != "request-form" || e.Unmapped.Sallyport.Reason != reason || resp.Header.Get("Sallyport-Decision") != e.ID() {
				t.Errorf("%+v", e)
			}
		})
	}
}
