// Package secretscan finds secrets in text by the rules of gitleaks
// (https://github.com/gitleaks/gitleaks, see the folder gitleaks).
//
// A file has a secret if a rule's regular expression matches, the secret has more entropy
// than the rule asks for, and no allowlist has it, as in gitleaks itself. Unlike there, a
// path alone excuses nothing, nor does a comment gitleaks:allow, since both are the
// writer's choice; text is not decoded first, and only text of up to 1 MiB is searched.
// Secrets that look like other text are not found: see [Inspector] for those that are known.
package secretscan

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Finding is a secret that was found. It does not hold the secret.
type Finding struct {
	Rule        string // its id
	Description string
	Line        int // from 1 on; 0 if the file itself is a secret
}

// prefilter is all rules, and which of them may match where a keyword is.
type prefilter struct {
	rules  []*rule
	global *allowlist
	by     map[[2]byte][]keyword // by the keyword's first two bytes
	first  [1 << 16]bool         // those bytes
}

type keyword struct {
	text []byte
	rule int
}

var load = sync.OnceValue(func() *prefilter {
	rules, global, err := parse(gitleaks)
	if err != nil {
		panic("the rules of gitleaks: " + err.Error())
	}
	p := &prefilter{rules: rules, global: global, by: map[[2]byte][]keyword{}}
	for i, r := range rules {
		for _, k := range r.keywords {
			text := []byte(strings.ToLower(k))
			two := [2]byte(text)
			p.by[two] = append(p.by[two], keyword{text, i})
			p.first[int(two[0])<<8|int(two[1])] = true
		}
	}
	return p
})

// MaxText is the size in bytes of the largest text that Find searches.
const MaxText = 1 << 20

// maxWork is how much text the rules search in one file, in bytes: a rule searches what is
// near its keywords, so that many rules may search the same.
const maxWork = 4 << 20

// Unsearched is the Rule of a file in which too many keywords stand to look at them all.
const Unsearched = "unsearched"

// Find returns the first secret in a file by the order of the rules, if there is any
// before the context ends. Text larger than MaxText is not searched.
func Find(ctx context.Context, path string, data []byte) (Finding, bool) {
	if len(data) > MaxText {
		data = nil
	}
	p := load()
	near, work := p.near(data), 0
	for i, r := range p.rules {
		if r.path != nil && !r.path.compiled().MatchString(path) {
			continue
		}
		if r.regex == nil {
			return Finding{Rule: r.id, Description: r.description}, true
		}
		for _, w := range near[i] {
			if ctx.Err() != nil {
				return Finding{}, false
			}
			if work += w.to - w.from; work > maxWork {
				return Finding{Rule: Unsearched, Description: "Too many words by which secrets are found stand in it."}, true
			}
			for _, at := range r.regex.compiled().FindAllIndex(data[w.from:w.to], -1) {
				from, to := w.from+at[0], w.from+at[1]
				if r.secret(path, data, from, to, p.global) {
					return Finding{r.id, r.description, 1 + bytes.Count(data[:from], []byte("\n"))}, true
				}
			}
		}
	}
	return Finding{}, false
}

// window is a part of the text.
type window struct{ from, to int }

// near returns where each rule has to search: as far from its keywords as a match is long,
// and on to the next space, so that none ends only because a window does.
func (p *prefilter) near(data []byte) [][]window {
	near := make([][]window, len(p.rules))
	lower := slices.Clone(data)
	for i, c := range lower {
		if 'A' <= c && c <= 'Z' {
			lower[i] = c + 'a' - 'A'
		}
	}
	for i := range max(0, len(lower)-1) {
		if !p.first[int(lower[i])<<8|int(lower[i+1])] {
			continue
		}
		for _, k := range p.by[[2]byte(lower[i:])] {
			if !bytes.HasPrefix(lower[i:], k.text) {
				continue
			}
			reach, list := p.rules[k.rule].regex.reach(), near[k.rule]
			w := window{max(0, i-reach), min(len(data), i+len(k.text)+reach)}
			if last := len(list) - 1; last >= 0 && w.from <= list[last].to {
				list[last].to = w.to
			} else {
				near[k.rule] = append(list, w)
			}
		}
	}
	for _, list := range near {
		for i, w := range list {
			for list[i].from > 0 && w.from-list[i].from < maxReach && !space(data[list[i].from]) {
				list[i].from--
			}
			for list[i].to < len(data) && list[i].to-w.to < maxReach && !space(data[list[i].to-1]) {
				list[i].to++
			}
		}
	}
	return near
}

func space(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

// secret says whether a match is one.
func (r *rule) secret(path string, data []byte, from, to int, global *allowlist) bool {
	match := bytes.Trim(data[from:to], "\n")
	secret := match
	if groups := r.regex.compiled().FindSubmatch(match); len(groups) > 1 && r.group > 0 {
		secret = groups[r.group]
	} else if len(groups) > 1 {
		for _, g := range groups[1:] {
			if len(g) > 0 {
				secret = g
				break
			}
		}
	}
	if r.entropy > 0 && entropy(secret) <= r.entropy {
		return false
	}
	line := data[bytes.LastIndexByte(data[:from], '\n')+1:]
	if end := bytes.IndexByte(data[to:], '\n'); end >= 0 {
		line = line[:len(line)-len(data)+to+end]
	}
	for _, a := range append([]*allowlist{global}, r.allowlists...) {
		if a.allows(path, secret, match, line) {
			return false
		}
	}
	return true
}

func (a *allowlist) allows(path string, secret, match, line []byte) bool {
	target := map[string][]byte{"": secret, "match": match, "line": line}[a.target]
	regex, stopword, where := false, false, false
	for _, p := range a.regexes {
		regex = regex || p.compiled().Match(target)
	}
	lower := bytes.ToLower(secret)
	for _, w := range a.stopwords {
		stopword = stopword || bytes.Contains(lower, []byte(strings.ToLower(w)))
	}
	for _, p := range a.paths {
		where = where || p.compiled().MatchString(path)
	}
	if a.and {
		return (regex || len(a.regexes) == 0) && (stopword || len(a.stopwords) == 0) && (where || len(a.paths) == 0)
	}
	return regex || stopword
}

// entropy is Shannon's, in bits a byte, as gitleaks counts it.
func entropy(data []byte) (bits float64) {
	counts := map[rune]int{}
	for rest := data; len(rest) > 0; {
		c, n := utf8.DecodeRune(rest)
		counts[c]++
		rest = rest[n:]
	}
	for _, n := range counts {
		f := float64(n) / float64(len(data))
		bits -= f * math.Log2(f)
	}
	return bits
}

// Inspector returns a function that says why a file is to be quarantined, and "" if it is
// not: known finds secrets that are known to be some, and may be nil. A file whose search
// the context ends is one for which nothing is said.
func Inspector(known func(data []byte) bool) func(ctx context.Context, path string, data []byte) string {
	return func(ctx context.Context, path string, data []byte) string {
		if known != nil && known(data) {
			return "it holds a secret that the broker keeps"
		}
		if f, ok := Find(ctx, path, data); ok {
			if f.Line == 0 {
				return "it may be or hold a secret: " + f.Rule
			}
			return fmt.Sprintf("line %d holds a secret: %s", f.Line, f.Rule)
		}
		return ""
	}
}
