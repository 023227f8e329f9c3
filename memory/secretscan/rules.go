package secretscan

import (
	_ "embed"
	"regexp"
	"regexp/syntax"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
)

//go:embed gitleaks/gitleaks.toml
var gitleaks string

// config is gitleaks' configuration, as far as it says what is a secret.
type config struct {
	Title, MinVersion string
	Allowlist         *allowlist
	Rules             []*rule
}

// rule is one of gitleaks' rules.
type rule struct {
	ID, Description string
	Regex, Path     *pattern
	Entropy         float64
	SecretGroup     int
	Keywords        []string
	Allowlists      []*allowlist
}

// allowlist is of what is no secret. Its lists are checked against the secret that was
// found, or else against what RegexTarget says.
type allowlist struct {
	Description string
	RegexTarget string // "match" or "line"
	Condition   string // "AND", or any of the lists is enough
	Paths       []*pattern
	Regexes     []*pattern
	Stopwords   []string
}

// parse reads gitleaks' configuration, and refuses keys that it does not know.
func parse(text string) (c config, err error) {
	d := toml.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	return c, d.Decode(&c)
}

// pattern is a regular expression that is compiled when it is first used.
type pattern struct {
	text string
	once sync.Once
	re   *regexp.Regexp
	most int
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *pattern) UnmarshalText(text []byte) error {
	p.text = string(text)
	return nil
}

func (p *pattern) compiled() *regexp.Regexp {
	p.once.Do(func() {
		p.re = regexp.MustCompile(p.text)
		if e, err := syntax.Parse(p.text, syntax.Perl); err == nil {
			p.most = longest(e)
		}
	})
	return p.re
}

// maxReach is how far from a keyword a match is looked for, in bytes.
const maxReach = 16 << 10

// reach is how long a match can be, in bytes.
func (p *pattern) reach() int {
	p.compiled()
	return p.most
}

func longest(e *syntax.Regexp) (n int) {
	switch e.Op {
	case syntax.OpLiteral:
		n = len(string(e.Rune))
	case syntax.OpCharClass:
		n = utf8.RuneLen(min(e.Rune[len(e.Rune)-1], utf8.MaxRune))
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		n = utf8.UTFMax
	case syntax.OpAlternate:
		for _, s := range e.Sub {
			n = max(n, longest(s))
		}
	case syntax.OpCapture, syntax.OpConcat, syntax.OpQuest:
		for _, s := range e.Sub {
			n += longest(s)
		}
	case syntax.OpRepeat:
		n = maxReach
		if e.Max >= 0 {
			n = e.Max * longest(e.Sub[0])
		}
	case syntax.OpStar, syntax.OpPlus:
		n = maxReach
	}
	return min(n, maxReach)
}
