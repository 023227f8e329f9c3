package wire_test

import (
	"strings"
	"testing"

	"sallyport/gateway/wire"
)

func TestWithout(t *testing.T) {
	const secret = "correct-horse-battery-staple"
	got := wire.Without("no such password for app: "+secret+" (28P01)", secret)
	if want := "no such password for app: " + strings.Repeat("*", len(secret)) + " (28P01)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
