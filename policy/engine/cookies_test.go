package engine_test

import (
	"testing"

	"sallyport/policy"
	"sallyport/policy/engine"
)

func TestCookies(t *testing.T) {
	for _, tt := range []struct {
		name, say string
		want      bool
		bad       bool
	}{
		{name: "by default"},
		{name: "pass", say: "pass", want: true},
		{name: "another word", say: "drop", bad: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			doc := policy.Document{
				Credentials: []policy.Credential{{Name: "key"}},
				EgressAuth:  []policy.EgressAuthRule{{Destination: "api.example.com", AuthRef: "key", Cookies: tt.say}},
			}
			p, err := engine.Compile(t.Context(), doc, engine.Options{})
			if (err != nil) != tt.bad {
				t.Fatal(err)
			}
			if tt.bad {
				return
			}
			d := p.Decide(t.Context(), policy.Input{
				Phase: policy.PhaseRequest, Sandbox: policy.Sandbox{Name: "demo", ID: "sb-1"}, Protocol: policy.ProtocolTLS,
				Destination: policy.Destination{Host: "api.example.com", Port: 443},
				Request:     &policy.Request{Method: "GET", Scheme: "https", Path: "/"},
			})
			if len(d.Inject) != 1 || d.Cookies != tt.want {
				t.Errorf("%+v", d)
			}
		})
	}
}
