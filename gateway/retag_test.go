package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/policy"
)

// Tags that are taken from a sandbox are taken from its open connections too.
func TestTagsOfAnOpenConnection(t *testing.T) {
	t.Parallel()
	l := newEnv(t)
	l.name("api.example.test")
	l.upstream("api.example.test", true, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fine") })
	l.policy(func(in policy.Input) policy.Decision {
		if in.Sandbox.Tags["team"] != "a" {
			return policy.Decision{Action: policy.Deny, Reason: "not of team a"}
		}
		return allow(in)
	})
	l.tag(map[string]string{"team": "a"})
	c, err := l.secure(l.address("api.example.test").String()+":443", "api.example.test")
	must.OK(t, err)
	defer c.Close()
	ask := func() string {
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: api.example.test\r\n\r\n")
		b := make([]byte, 4096)
		n, err := c.Read(b)
		return fmt.Sprint(string(b[:min(n, 12)]), err)
	}
	if got := ask(); got != "HTTP/1.1 200<nil>" {
		t.Fatal(got)
	}
	l.tag(map[string]string{"team": "b"})
	l.gateway.Redecide()
	if got := ask(); got == "HTTP/1.1 200<nil>" {
		t.Error("its old tags were asked about")
	}
}
