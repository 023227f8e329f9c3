package policy_test

import (
	"encoding/json"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy"
)

// The gateway's process gets the document as JSON.
func TestTimeoutCrossesAsJSON(t *testing.T) {
	text, err := json.Marshal(policy.Document{Policy: policy.Source{Timeout: new(policy.Duration(20 * time.Millisecond))}})
	must.OK(t, err)
	var doc policy.Document
	if err := json.Unmarshal(text, &doc); err != nil || doc.Policy.Timeout == nil || time.Duration(*doc.Policy.Timeout) != 20*time.Millisecond {
		t.Errorf("got %v, %v from %s", doc.Policy.Timeout, err, text)
	}
}
