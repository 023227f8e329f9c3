package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestTrailersDoNotLeave: policy sees no trailer, and a header that is refused
// must not get through as one.
func TestTrailersDoNotLeave(t *testing.T) {
	l := newLab(t)
	l.policy(allow)
	l.name("api.example.test")
	l.upstream("api.example.test", true, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %v", b, r.Trailer)
	})
	r, _ := http.NewRequest("POST", "https://api.example.test/", io.MultiReader(strings.NewReader("body")))
	r.Trailer = http.Header{"X-Http-Method-Override": {"DELETE"}}
	resp, err := l.client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, resp); got != "body map[]" {
		t.Errorf("the upstream got %s", got)
	}
}

// TestCloseIsOfOneConnection: a sandbox that ends its connection does not have
// the upstream end the gateway's.
func TestCloseIsOfOneConnection(t *testing.T) {
	l := newLab(t)
	l.policy(allow)
	l.name("api.example.test")
	l.upstream("api.example.test", true, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Close) })
	for range 3 {
		r, _ := http.NewRequest("GET", "https://api.example.test/", nil)
		r.Close = true
		resp, err := l.client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if got := text(t, resp); got != "false" || !resp.Close {
			t.Errorf("the upstream saw close=%s, the sandbox close=%v", got, resp.Close)
		}
	}
	if n := l.dials(); n != 1 {
		t.Errorf("%d connections to the upstream", n)
	}
}
