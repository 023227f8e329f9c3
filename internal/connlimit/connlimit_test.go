package connlimit

import (
	"fmt"
	"net"
	"slices"
	"testing"
)

// flood enters n connections of a source, and notes those that had to go.
func flood(l *Limit, gone *[]string, source string, n int) {
	for i := range n {
		name := fmt.Sprintf("%s/%d", source, i)
		l.Enter(source, func() { *gone = append(*gone, name) })
	}
}

// A source at its own bound makes room by itself, in the order in which it came.
func TestEachSource(t *testing.T) {
	var gone []string
	l := New(10, 3, nil)
	flood(l, &gone, "b", 1)
	flood(l, &gone, "a", 5)
	if want := []string{"a/0", "a/1"}; !slices.Equal(gone, want) {
		t.Errorf("got %v, want %v", gone, want)
	}
}

// Sources that together have everything make room for one that has nothing.
func TestAllSources(t *testing.T) {
	var gone, began []string
	l := New(12, 3, func(source string) { began = append(began, source) })
	for _, s := range []string{"a", "b", "c", "d"} {
		flood(l, &gone, s, 3)
	}
	stayed := true
	l.Enter("new", func() { stayed = false })
	flood(l, &gone, "another", 2)
	if !stayed || len(gone) != 3 {
		t.Errorf("the new one stayed: %v; gone: %v", stayed, gone)
	}
	if want := []string{"new"}; !slices.Equal(began, want) {
		t.Errorf("a flood began for %v, want %v", began, want)
	}
}

// A place that was given back is nobody's, and giving it back again is of no effect.
func TestLeave(t *testing.T) {
	var gone []string
	l := New(2, 2, nil)
	leave := l.Enter("a", func() { gone = append(gone, "first") })
	leave()
	leave()
	flood(l, &gone, "a", 2)
	if len(gone) != 0 || l.count != 2 {
		t.Errorf("%v had to go, %d are counted", gone, l.count)
	}
}

func TestSource(t *testing.T) {
	for at, want := range map[string]string{
		"203.0.113.9": "203.0.113.9", "::ffff:203.0.113.9": "203.0.113.9",
		"2001:db8::1": "2001:db8::/64", "2001:db8::ffff:1": "2001:db8::/64", "2001:db8:0:1::1": "2001:db8:0:1::/64",
	} {
		if got := Source(&net.TCPAddr{IP: net.ParseIP(at), Port: 1}); got != want {
			t.Errorf("%s: got %q, want %q", at, got, want)
		}
	}
}
