package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

// TestTrailersAreHeadersToPolicy: a header that is refused does not get through
// as a trailer.
func TestTrailersAreHeadersToPolicy(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	l.name("api.example.test")
	l.upstream("api.example.test", true, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %v", b, r.Trailer)
	})
	for name, want := range map[string]int{"X-Http-Method-Override": 403, "X-Checksum": 200} {
		r, _ := http.NewRequest("POST", "https://api.example.test/", io.MultiReader(strings.NewReader("body")))
		r.Trailer = http.Header{name: {"DELETE"}}
		resp, err := l.client().Do(r)
		must.OK(t, err)
		if got := text(t, resp); resp.StatusCode != want || want == 200 && got != "body map[X-Checksum:[DELETE]]" {
			t.Errorf("%s: %d %s", name, resp.StatusCode, got)
		}
	}
}

// TestCloseIsOfOneConnection: a sandbox that ends its connection does not have
// the upstream end the gateway's.
func TestCloseIsOfOneConnection(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.policy(allow)
	l.name("api.example.test")
	l.upstream("api.example.test", true, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Close) })
	for range 3 {
		r, _ := http.NewRequest("GET", "https://api.example.test/", nil)
		r.Close = true
		resp, err := l.client().Do(r)
		must.OK(t, err)
		if got := text(t, resp); got != "false" || !resp.Close {
			t.Errorf("the upstream saw close=%s, the sandbox close=%v", got, resp.Close)
		}
	}
	if n := l.dials(); n != 1 {
		t.Errorf("%d connections to the upstream", n)
	}
}
