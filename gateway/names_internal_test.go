package gateway

import "testing"

func TestClip(t *testing.T) {
	t.Parallel()
	if got := clip("abcdef", 4); got != "abcd… (2 more bytes)" {
		t.Error(got)
	}
	if got := clipAll(make([]string, 200)); len(got) != maxAuditNames+1 || got[maxAuditNames] != "… (72 more)" {
		t.Error(len(got), got[len(got)-1])
	}
}
