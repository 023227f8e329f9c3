package secretscan_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"regexp/syntax"
	"strings"
	"testing"

	"sallyport/memory/secretscan"
)

// generate writes text that an expression matches.
func generate(r *rand.Rand, e *syntax.Regexp, b *strings.Builder) {
	switch e.Op {
	case syntax.OpLiteral:
		b.WriteString(string(e.Rune))
	case syntax.OpCharClass:
		var from []rune
		for i := 0; i < len(e.Rune); i += 2 {
			for c := max(e.Rune[i], ' '); c <= min(e.Rune[i+1], '~'); c++ {
				from = append(from, c)
			}
		}
		if len(from) == 0 {
			from = []rune{e.Rune[0]}
		}
		b.WriteRune(from[r.IntN(len(from))])
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		b.WriteByte(".abcdefghijklmnopqrstuvwxyz"[max(0, r.IntN(52)-25)])
	case syntax.OpCapture, syntax.OpConcat:
		for _, s := range e.Sub {
			generate(r, s, b)
		}
	case syntax.OpAlternate:
		generate(r, e.Sub[r.IntN(len(e.Sub))], b)
	case syntax.OpStar, syntax.OpQuest, syntax.OpPlus, syntax.OpRepeat:
		low, high := e.Min, e.Max
		switch e.Op {
		case syntax.OpStar:
			low, high = 0, 3
		case syntax.OpQuest:
			low, high = 0, 1
		case syntax.OpPlus:
			low, high = 1, 4
		}
		if high < 0 || high > low+20 {
			high = low + 20
		}
		for range low + r.IntN(high-low+1) {
			generate(r, e.Sub[0], b)
		}
	}
}

var ruleText = regexp.MustCompile(`(?ms)^id = "([^"]+)"\n.*?^regex = '''(.*?)'''$.*?^keywords = \[\s*"(.*?)"`)

// rules are the id, the expression and a keyword of each of gitleaks' rules.
func rules(t testing.TB) [][]string {
	t.Helper()
	text, err := os.ReadFile("gitleaks/gitleaks.toml")
	if err != nil {
		t.Fatal(err)
	}
	var all [][]string
	for part := range strings.SplitSeq(string(text), "[[rules]]") {
		if m := ruleText.FindStringSubmatch(part); m != nil {
			all = append(all, m[1:])
		}
	}
	if len(all) < 200 {
		t.Fatalf("%d rules", len(all))
	}
	return all
}

// paths are such that a rule is about them.
var paths = map[string]string{
	"freemius-secret-key": "a.php", "hashicorp-tf-password": "a.tf", "kubernetes-secret-yaml": "a.yaml", "nuget-config-password": "nuget.config",
}

// Each rule finds what its own expression matches, in the middle of other text.
func TestEachRule(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, rule := range rules(t) {
		e, err := syntax.Parse(rule[1], syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		path := "notes/a.md"
		if p := paths[rule[0]]; p != "" {
			path = p
		}
		found := false
		var b strings.Builder
		for try := 0; try < 200 && !found; try++ { // some have too little entropy, or a stop word
			b.Reset()
			b.WriteString("# Notes\n\nAbout " + rule[2] + ":\n\n")
			generate(r, e, &b)
			b.WriteString("\n\nThat is all.\n")
			_, found = secretscan.Find(t.Context(), path, []byte(b.String()))
		}
		if !found {
			t.Errorf("%s: nothing found in %d bytes", rule[0], b.Len())
		}
	}
}

func TestFind(t *testing.T) {
	aws := "AKIA" + "Q3EGVZLP" + "7N2XWKDB"
	private := "-----BEGIN RSA " + "PRIVATE KEY-----\n" + strings.Repeat("MIIEpQIBAAKCAQEAn6\n", 8) + "-----END RSA " + "PRIVATE KEY-----\n"
	for _, tt := range []struct {
		name, path, text string
		rule             string
		line             int
	}{
		{"plain text", "a.md", "The user likes green tea and short answers.\nAsk before a deletion.\n", "", 0},
		{"an access key", "a.md", "first line\nkey " + aws + "\n", "aws-access-token", 2},
		{"at the very end", "a.md", aws, "aws-access-token", 1},
		{"in an image's name", "a.png", "key " + aws, "aws-access-token", 1},
		{"said to be allowed", "a.md", "key " + aws + " # gitleaks:allow", "aws-access-token", 1},
		{"after others that are none", "a.md", "AKIAIOSFODNN7EXAMPLE\nAKIAXXXXXXXXXXXXXXXX\n" + aws, "aws-access-token", 3},
		{"documentation's example", "a.md", "AKIAIOSFODNN7EXAMPLE", "", 0},
		{"too little entropy", "a.md", "AKIAXXXXXXXXXXXXXXXX", "", 0},
		{"part of a longer word", "a.md", "X" + aws + "Y", "", 0},
		{"a private key", "id_rsa", private, "private-key", 1},
		{"invalid UTF-8 around it", "a.bin", "\xff\xfe\x00" + aws + "\x00\xff", "aws-access-token", 1},
		{"a generic one", "a.md", "api_key = \"" + "f81kq0v7zm3x" + "9w2c5t4j6b" + "\"", "generic-api-key", 1},
		{"a generic one that is a word", "a.md", "api_key = \"my_favourite_placeholder\"", "", 0},
		{"a store of keys", "certs/client.p12", "", "pkcs12-file", 0},
		{"far into a long text", "a.md", strings.Repeat("All is well, they say.\n", 20_000) + aws + strings.Repeat("\nAll is well.", 20_000), "aws-access-token", 20_001},
		{"far into a long line", "a.md", strings.Repeat("akia.", 50_000) + " " + aws + strings.Repeat(".akia", 50_000), "aws-access-token", 1},
		{"too many keywords", "a.md", strings.Repeat("adafruit adobe airtable algolia alibaba asana beamer bitbucket bittrex ", 10_000), secretscan.Unsearched, 0},
		{"at the beginning of a very long text", "a.md", aws + strings.Repeat("\nAll is well.", 100_000), "aws-access-token", 1},
		{"at the end of a very long text", "a.md", strings.Repeat("All is well.\n", 1_200_000) + aws, "aws-access-token", 1_200_001},
		{"no space in a very long text", "a.md", strings.Repeat("0", 2<<20) + "-" + aws + "-" + strings.Repeat("0", 2<<20), "aws-access-token", 1},
		{"nothing", "a.md", "", "", 0},
		{"one byte", "a.md", "k", "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := secretscan.Find(t.Context(), tt.path, []byte(tt.text))
			if ok != (tt.rule != "") || got.Rule != tt.rule || got.Line != tt.line {
				t.Errorf("%+v, %t, want %s in line %d", got, ok, tt.rule, tt.line)
			}
		})
	}
}

// Wherever a secret stands in a text that is searched in parts, it is found, and what only
// looks like one where a part begins or ends is not.
func TestFindAcrossParts(t *testing.T) {
	aws := "AKIA" + "Q3EGVZLP" + "7N2XWKDB"
	private := "-----BEGIN RSA " + "PRIVATE KEY-----\n" + strings.Repeat("MIIEpQIBAAKCAQEAn6\n", 500) + "-----END RSA " + "PRIVATE KEY-----\n"
	const part = 1 << 20
	long := []byte(strings.Repeat("All is well, they say. ", part*6/5/23))
	for rule, secret := range map[string]string{"aws-access-token": " " + aws + " ", "private-key": "\n" + private, "": "X" + aws + "Y"} {
		for from := part - len(secret) - 5; from <= part+5; from += 1 + len(secret)/4 {
			text := bytes.Clone(long)
			copy(text[from:], secret)
			if got, ok := secretscan.Find(t.Context(), "a.md", text); ok != (rule != "") || got.Rule != rule {
				t.Fatalf("%s at %d: %+v, %t", rule, from, got, ok)
			}
		}
	}
}

// Find looks no further once nobody waits for it.
func TestFindEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, ok := secretscan.Find(ctx, "a.md", []byte("AKIA"+"Q3EGVZLP"+"7N2XWKDB")); ok {
		t.Error("found after the context had ended")
	}
}

func FuzzFind(f *testing.F) {
	f.Add("a.md", []byte("secret = 'x'"))
	f.Fuzz(func(t *testing.T, path string, data []byte) { secretscan.Find(t.Context(), path, data) })
}

func ExampleFind() {
	found, ok := secretscan.Find(context.Background(), "notes.md", []byte("The key is\n"+"ghp_"+"q3egvzlp7n2xwkdb"+"Q3EGVZLP7N2XWKDBq3eg"+"\n"))
	fmt.Println(ok, found.Rule, found.Line)
	// Output: true github-pat 2
}

func BenchmarkFind(b *testing.B) {
	note := []byte(strings.Repeat("The user said that the tests of the parser fail since Monday. Token budget: 4,000. See the API's page.\n", 40))
	var all strings.Builder
	for _, r := range rules(b) {
		fmt.Fprintln(&all, r[0], "secret token key sk ey")
	}
	every := []byte(strings.Repeat(all.String(), 1<<20/all.Len()))
	most := bytes.Repeat(note, 16<<20/len(note))
	for name, data := range map[string][]byte{"note": note, "every keyword": every, "16 MiB of notes": most} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				secretscan.Find(context.Background(), "a.md", data)
			}
		})
	}
}
