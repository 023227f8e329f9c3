package credential_test

import (
	"net/http"
	"testing"
	"time"

	"sallyport/gateway/credential"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// An answer of the gateway's own gives no credential to anybody, whatever is asked of the
// lease.
func TestTokenEndpointGivesNothing(t *testing.T) {
	b := broker(map[string]credential.Source{"key": &source{value: "a-long-lived-secret"}})
	l, err := b.Lease(t.Context(), "key", api)
	must.OK(t, err)
	r, err := http.NewRequest("POST", "https://api.example.com/token", nil)
	must.OK(t, err)
	endpoint := policy.Inject{TokenEndpoint: true}
	if err := l.Apply(r, endpoint); err == nil || len(r.Header) > 0 {
		t.Errorf("Apply: %v, and the header is %v", err, r.Header)
	}
	r.Header.Set("Authorization", "Bearer mine")
	if credential.Own(endpoint, r) {
		t.Error("the sandbox has something of its own where nothing is put")
	}
	if err := credential.Check(endpoint, l.Material().Fields, time.Now()); err != nil {
		t.Errorf("Check: %v", err)
	}
}
