package engine_test

import (
	"context"
	"fmt"

	"sallyport/policy"
	"sallyport/policy/engine"
)

func Example() {
	ctx := context.Background()
	p, err := engine.Compile(ctx, policy.Document{
		EgressAuth:  []policy.EgressAuthRule{{Destination: "api.openai.com", AuthRef: "openai-api-key"}},
		Credentials: []policy.Credential{{Name: "openai-api-key"}},
	}, engine.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, host := range []string{"api.openai.com", "pastebin.example"} {
		d := p.Decide(ctx, policy.Input{
			Phase:       policy.PhaseRequest,
			Destination: policy.Destination{Host: host, Port: 443},
			Request:     &policy.Request{Method: "POST", Scheme: "https", Path: "/v1/responses"},
		})
		fmt.Println(d.Action, "-", d.Reason)
		for _, i := range d.Inject {
			fmt.Println("with", i.Credential)
		}
	}
	// Output:
	// allow - allowed by rule openai-api-key@api.openai.com
	// with openai-api-key
	// deny - no rule allows POST /v1/responses at pastebin.example:443
}
