package secretscan

import (
	_ "embed"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

//go:embed gitleaks/gitleaks.toml
var gitleaks string

// rule is one of gitleaks' rules.
type rule struct {
	id, description string
	regex, path     *pattern
	entropy         float64
	group           int
	keywords        []string
	allowlists      []*allowlist
}

// allowlist is of what is no secret. Its lists are checked against the secret that was
// found, or else against what target says.
type allowlist struct {
	target    string // "match" or "line"
	and       bool
	paths     []*pattern
	regexes   []*pattern
	stopwords []string
}

// pattern is a regular expression that is compiled when it is first used.
type pattern struct {
	text string
	once sync.Once
	re   *regexp.Regexp
	most int
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

func patterns(list []string) (all []*pattern) {
	for _, text := range list {
		all = append(all, &pattern{text: text})
	}
	return all
}

// parse reads gitleaks' configuration: tables, and keys whose values are strings, numbers
// and arrays of strings. It refuses other TOML, and keys that it does not know.
func parse(text string) (rules []*rule, global *allowlist, err error) {
	global = &allowlist{}
	r, a := &rule{}, global
	table, p := "", &parser{rest: text}
	for p.next(); p.rest != "" && p.err == nil; p.next() {
		line, _, _ := strings.Cut(p.rest, "\n")
		if strings.HasPrefix(line, "[") {
			switch table = line; table {
			case "[[rules]]":
				r = &rule{}
				rules = append(rules, r)
			case "[[rules.allowlists]]":
				a = &allowlist{}
				r.allowlists = append(r.allowlists, a)
			case "[allowlist]":
			default:
				p.err = fmt.Errorf("table %s is not known", table)
			}
			p.rest = p.rest[len(line):]
			continue
		}
		key, rest, _ := strings.Cut(p.rest, "=")
		p.rest = rest
		v := p.value()
		if p.err != nil {
			break
		}
		switch key = strings.TrimSpace(key); table + key {
		case "title", "minVersion":
		case "[[rules]]id":
			r.id = v.text
		case "[[rules]]description":
			r.description = v.text
		case "[[rules]]regex":
			r.regex = &pattern{text: v.text}
		case "[[rules]]path":
			r.path = &pattern{text: v.text}
		case "[[rules]]entropy":
			r.entropy = v.number
		case "[[rules]]secretGroup":
			r.group = int(v.number)
		case "[[rules]]keywords":
			r.keywords = v.list
		case "[allowlist]description", "[[rules.allowlists]]description":
		case "[[rules.allowlists]]condition":
			a.and = v.text == "AND"
		case "[[rules.allowlists]]regexTarget":
			a.target = v.text
		case "[allowlist]paths", "[[rules.allowlists]]paths":
			a.paths = patterns(v.list)
		case "[allowlist]regexes", "[[rules.allowlists]]regexes":
			a.regexes = patterns(v.list)
		case "[allowlist]stopwords", "[[rules.allowlists]]stopwords":
			a.stopwords = v.list
		default:
			p.err = fmt.Errorf("key %s of %s is not known", key, table)
		}
	}
	return rules, global, p.err
}

type value struct {
	text   string
	number float64
	list   []string
}

type parser struct {
	rest string
	err  error
}

// next skips space and comments.
func (p *parser) next() {
	for {
		p.rest = strings.TrimLeft(p.rest, " \t\r\n")
		if !strings.HasPrefix(p.rest, "#") {
			return
		}
		_, p.rest, _ = strings.Cut(p.rest, "\n")
	}
}

func (p *parser) value() (v value) {
	p.next()
	switch {
	case p.err != nil:
	case strings.HasPrefix(p.rest, "'''"):
		text, rest, ok := strings.Cut(p.rest[3:], "'''")
		if v.text, p.rest = text, rest; !ok {
			p.err = fmt.Errorf("a string does not end")
		}
	case strings.HasPrefix(p.rest, `"`):
		var quoted string
		if quoted, p.err = strconv.QuotedPrefix(p.rest); p.err == nil {
			v.text, p.err = strconv.Unquote(quoted)
			p.rest = p.rest[len(quoted):]
		}
	case strings.HasPrefix(p.rest, "["):
		p.rest = p.rest[1:]
		for p.next(); p.err == nil && !strings.HasPrefix(p.rest, "]"); p.next() {
			v.list = append(v.list, p.value().text)
			p.next()
			p.rest = strings.TrimPrefix(p.rest, ",")
		}
		p.rest = strings.TrimPrefix(p.rest, "]")
	default:
		text, rest, _ := strings.Cut(p.rest, "\n")
		p.rest = rest
		v.number, p.err = strconv.ParseFloat(strings.TrimSpace(text), 64)
	}
	return v
}
