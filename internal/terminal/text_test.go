package terminal_test

import (
	"testing"

	"sallyport/internal/terminal"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"":                                 "",
		"one\n\ttwo: \"C:\\x\" é":          "one\n\ttwo: \"C:\\x\" é",
		"a\x1b[2Jb\r\u202ec\xff\u009b\x7f": `a\x1b[2Jb\r\u202ec\xff\u009b\x7f`,
	} {
		if got := terminal.Text(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
