// Package secretscan finds secrets in text by the rules of gitleaks
// (https://github.com/gitleaks/gitleaks, see the folder gitleaks).
//
// A file has a secret if a rule's regular expression matches, the secret has more entropy
// than the rule asks for, and no allowlist has it, as in gitleaks itself. Unlike there, a
// path alone excuses nothing, nor does a comment gitleaks:allow, since both are the
// writer's choice, and text is not decoded first. A match is at most 16 KiB long, for
// expressions that have no end by themselves. Secrets that look like other text are not
// found.
package secretscan

import (
	"bytes"
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Finding is a secret that was found. It does not hold the secret.
type Finding struct {
	Rule string // its id
	Line int    // from 1 on; 0 if the file itself is a secret
}

// prefilter is all rules, and which of them may match where a keyword is.
type prefilter struct {
	config
	by    map[[2]byte][]keyword // by the keyword's first two bytes
	first [1 << 16]bool         // those bytes
}

type keyword struct {
	text []byte
	rule int
}

var load = sync.OnceValue(func() *prefilter {
	c, err := parse(gitleaks)
	if err != nil {
		panic("the rules of gitleaks: " + err.Error())
	}
	p := &prefilter{config: c, by: map[[2]byte][]keyword{}}
	for i, r := range c.Rules {
		for _, k := range r.Keywords {
			text := []byte(strings.ToLower(k))
			two := [2]byte(text)
			p.by[two] = append(p.by[two], keyword{text, i})
			p.first[int(two[0])<<8|int(two[1])] = true
		}
	}
	return p
})

const (
	// part is how much of a text is searched at a time, in bytes, and margin what is looked at
	// before and after it: a match, and the words around it, are not longer.
	part   = 1 << 20
	margin = 3 * maxReach
	// maxWork is how much text the rules search in one part, in bytes: a rule searches what is
	// near its keywords, so that many rules may search the same.
	maxWork = 4 << 20
)

// Unsearched is the Rule of a file in which too many keywords stand to look at them all.
const Unsearched = "unsearched"

// Find returns the first secret in a file, by the MiB and in it by the order of the rules,
// if there is any before the context ends. Its memory is bounded, and its time by the size
// of the file.
func Find(ctx context.Context, path string, data []byte) (Finding, bool) {
	p := load()
	for _, r := range p.Rules {
		if r.Regex == nil && r.Path.compiled().MatchString(path) {
			return Finding{Rule: r.ID}, true
		}
	}
	for at := 0; at < len(data); at += part {
		from := max(0, at-margin)
		some := data[from:min(len(data), at+part+margin)]
		if f, ok := p.find(ctx, path, some, window{at - from, min(at+part, len(data)) - from}); ok {
			if f.Line > 0 {
				f.Line += bytes.Count(data[:from], []byte("\n"))
			}
			return f, true
		}
	}
	return Finding{}, false
}

// find returns the first secret near the keywords in a part of the data.
func (p *prefilter) find(ctx context.Context, path string, data []byte, part window) (Finding, bool) {
	near, work := p.near(data, part), 0
	for i, r := range p.Rules {
		if len(near[i]) == 0 || r.Path != nil && !r.Path.compiled().MatchString(path) {
			continue
		}
		for _, w := range near[i] {
			if ctx.Err() != nil {
				return Finding{}, false
			}
			if work += w.to - w.from; work > maxWork {
				return Finding{Rule: Unsearched}, true
			}
			for _, at := range r.Regex.compiled().FindAllIndex(data[w.from:w.to], -1) {
				from, to := w.from+at[0], w.from+at[1]
				if r.secret(path, data, from, to, p.Allowlist) {
					return Finding{r.ID, 1 + bytes.Count(data[:from], []byte("\n"))}, true
				}
			}
		}
	}
	return Finding{}, false
}

// window is a part of the text.
type window struct{ from, to int }

// near returns where each rule has to search for keywords in a part of the data: as far from its keywords as a match is long,
// and on to the next space, so that none ends only because a window does.
func (p *prefilter) near(data []byte, part window) [][]window {
	near := make([][]window, len(p.Rules))
	lower := slices.Clone(data)
	for i, c := range lower {
		if 'A' <= c && c <= 'Z' {
			lower[i] = c + 'a' - 'A'
		}
	}
	for i := part.from; i < min(part.to, len(lower)-1); i++ {
		if !p.first[int(lower[i])<<8|int(lower[i+1])] {
			continue
		}
		for _, k := range p.by[[2]byte(lower[i:])] {
			if !bytes.HasPrefix(lower[i:], k.text) {
				continue
			}
			reach, list := p.Rules[k.rule].Regex.reach(), near[k.rule]
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
	if groups := r.Regex.compiled().FindSubmatch(match); len(groups) > 1 && r.SecretGroup > 0 {
		secret = groups[r.SecretGroup]
	} else if len(groups) > 1 {
		for _, g := range groups[1:] {
			if len(g) > 0 {
				secret = g
				break
			}
		}
	}
	if r.Entropy > 0 && entropy(secret) <= r.Entropy {
		return false
	}
	line := data[bytes.LastIndexByte(data[:from], '\n')+1:]
	if end := bytes.IndexByte(data[to:], '\n'); end >= 0 {
		line = line[:len(line)-len(data)+to+end]
	}
	for _, a := range append([]*allowlist{global}, r.Allowlists...) {
		if a.allows(path, secret, match, line) {
			return false
		}
	}
	return true
}

func (a *allowlist) allows(path string, secret, match, line []byte) bool {
	target := map[string][]byte{"": secret, "match": match, "line": line}[a.RegexTarget]
	regex, stopword, where := false, false, false
	for _, p := range a.Regexes {
		regex = regex || p.compiled().Match(target)
	}
	lower := bytes.ToLower(secret)
	for _, w := range a.Stopwords {
		stopword = stopword || bytes.Contains(lower, []byte(strings.ToLower(w)))
	}
	for _, p := range a.Paths {
		where = where || p.compiled().MatchString(path)
	}
	if a.Condition == "AND" {
		return (regex || len(a.Regexes) == 0) && (stopword || len(a.Stopwords) == 0) && (where || len(a.Paths) == 0)
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
