package gateway_test

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"sallyport/policy"
)

// A secret that comes back behind a response of HTTP/2 is found where there is
// no body too.
func TestSecretInTrailers(t *testing.T) {
	t.Parallel()
	for _, status := range []string{"200", "204", "304"} {
		t.Run(status, func(t *testing.T) {
			w := newNetEnv(t)
			w.credential("key", token)
			w.policy(func(in policy.Input) policy.Decision {
				d := inject("key")(in)
				d.Upstream = w.reach
				return d
			})
			o := w.scripted("api.example.test", func(c *frames, id uint32) {
				_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.headers(field{":status", status}), EndHeaders: true})
				_ = c.WriteHeaders(http2.HeadersFrameParam{
					StreamID: id, BlockFragment: c.headers(field{"x-echo", token}, field{"x-other", "kept"}), EndHeaders: true, EndStream: true,
				})
			})
			f := w.frames(w.steer, o)
			a := f.ask(t, field{":method", "GET"}, field{":scheme", "https"}, field{":authority", fmt.Sprintf("%s:%d", o.name, o.port)}, field{":path", "/x"})
			if seen := fmt.Sprintf("%+v", a); strings.Contains(seen, token) || !strings.Contains(seen, "kept") {
				t.Errorf("got %s", seen)
			}
			_, completions := w.settled(t)
			for _, c := range completions {
				if !strings.Contains(c.Message, "injected credential 1 times") {
					t.Errorf("the hit is not recorded: %+v", c)
				}
			}
		})
	}
}
