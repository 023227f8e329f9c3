package audit_test

import (
	"testing"

	"sallyport/audit"
)

func TestHTTPActivity(t *testing.T) {
	for i, method := range []string{"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT", "TRACE", "PATCH"} {
		if got := audit.HTTPActivity(method); got != i+1 {
			t.Errorf("%s = %d, want %d", method, got, i+1)
		}
	}
	for _, method := range []string{"get", "", "FETCH"} {
		if got := audit.HTTPActivity(method); got != 99 {
			t.Errorf("%s = %d, want 99", method, got)
		}
	}
}
