package terminal_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"sallyport/internal/terminal"
)

func TestEscape(t *testing.T) {
	tests := []struct{ name, in, escaped, word string }{
		{"plain", "memories.md", "memories.md", "memories.md"},
		{"empty", "", "", "-"},
		{"space", "a b", "a b", `a\x20b`},
		{"quotes", `"a"`, `"a"`, `"a"`},
		{"backslash", `\x1b`, `\\x1b`, `\\x1b`},
		{"terminal escape", "\x1b[2J", `\x1b[2J`, `\x1b[2J`},
		{"one-byte CSI", "\u009b2J", `\u009b2J`, `\u009b2J`},
		{"line break", "a\nb\r", `a\nb\r`, `a\nb\r`},
		{"delete", "a\x7f", `a\x7f`, `a\x7f`},
		{"right to left", "a\u202egpj.exe", `a\u202egpj.exe`, `a\u202egpj.exe`},
		{"isolate", "\u2066", `\u2066`, `\u2066`},
		{"line separator", "\u2028", `\u2028`, `\u2028`},
		{"zero width", "a\u200bb\ufeff", `a\u200bb\ufeff`, `a\u200bb\ufeff`},
		{"no-break space", "a\u00a0b", `a\u00a0b`, `a\u00a0b`},
		{"invalid UTF-8", "a\xff\x9b", `a\xff\x9b`, `a\xff\x9b`},
		{"other scripts", "Größe 日本", "Größe 日本", `Größe\x20日本`},
		{"tag characters", "\U000e0041", `\U000e0041`, `\U000e0041`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := terminal.Escape(tt.in); got != tt.escaped {
				t.Errorf("Escape = %q, want %q", got, tt.escaped)
			}
			if got := terminal.Word(tt.in); got != tt.word {
				t.Errorf("Word = %q, want %q", got, tt.word)
			}
		})
	}
}

func FuzzEscape(f *testing.F) {
	for _, s := range []string{"a", "\x1b]0;x\a", `\`, "\xff", "\u202e", " "} {
		f.Add(s, s+" ")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		ea := terminal.Escape(a)
		if !utf8.ValidString(ea) {
			t.Fatalf("%q is not UTF-8", ea)
		}
		for _, r := range ea {
			if !unicode.IsPrint(r) {
				t.Fatalf("%q has %U", ea, r)
			}
		}
		if a != b && ea == terminal.Escape(b) {
			t.Fatalf("%q and %q look the same: %q", a, b, ea)
		}
		if strings.ContainsFunc(terminal.Word(a), unicode.IsSpace) {
			t.Fatalf("Word(%q) has a space", a)
		}
	})
}
