package pathvariants_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/policy/pathvariants"
)

func TestOf(t *testing.T) {
	for _, tt := range []struct {
		path string
		want []string
	}{
		{"/", []string{"/"}},
		{"/a/b", []string{"/a/b"}},
		{"/100%/2F", []string{"/100%/2F"}},
		{"/@scope%2Fname", []string{"/@scope%2Fname", "/@scope/name"}},
		{"/o/a%2Fb%2Fc", []string{"/o/a%2Fb%2Fc", "/o/a/b/c"}},
		{"/p/a%2Fb/f/c%2Fd", []string{"/p/a%2Fb/f/c%2Fd", "/p/a/b/f/c%2Fd", "/p/a%2Fb/f/c/d", "/p/a/b/f/c/d"}},
		{"/a%2Fb/c%2Fd/e%2Ff/g%2Fh", nil},
		{"/a?b", []string{"/a?b", "/a"}},
		{"/a/b#c/d?e", []string{"/a/b#c/d?e", "/a/b"}},
		{"/?", []string{"/?", "/"}},
		{"/a%2Fb#c%2Fd", []string{"/a%2Fb#c%2Fd", "/a/b#c/d", "/a%2Fb", "/a/b"}},
	} {
		if diff := cmp.Diff(tt.want, pathvariants.Of(tt.path)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.path, diff)
		}
	}
}

// TestOfIsComplete: every way to decode some segments is a reading, once.
func TestOfIsComplete(t *testing.T) {
	for segments := range pathvariants.Segments + 1 {
		path := "/x"
		want := []string{"/x"}
		for i := range segments {
			s := fmt.Sprintf("/%d%%2Fa%%2Fb", i)
			path += s
			var longer []string
			for _, w := range want {
				longer = append(longer, w+s, w+strings.ReplaceAll(s, "%2F", "/"))
			}
			want = longer
		}
		got := pathvariants.Of(path)
		if got[0] != path || got[len(got)-1] != pathvariants.Decoded(path) {
			t.Errorf("%s: the order is %q", path, got)
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}
