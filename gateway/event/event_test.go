package event

import "testing"

func TestClip(t *testing.T) {
	t.Parallel()
	if got := clip("abcdef", 4); got != "abcd… (2 more bytes)" {
		t.Error(got)
	}
	if got := ClipAll(make([]string, 200)); len(got) != maxNames+1 || got[maxNames] != "… (72 more)" {
		t.Error(len(got), got[len(got)-1])
	}
}
