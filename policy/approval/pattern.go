package approval

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sallyport/policy/pathvariants"
)

// same tells whether a grant for one request is for this one.
func (s Subject) same(o Subject) bool {
	return s.SandboxID == o.SandboxID && s.Session == o.Session && s.Protocol == o.Protocol &&
		s.Host == o.Host && s.Port == o.Port && s.Method == o.Method && s.Path == o.Path && s.Target == o.Target && s.Query == o.Query &&
		slices.Equal(s.Credentials, o.Credentials) && s.Rule == o.Rule && s.RuleType == o.RuleType && s.Policy == o.Policy &&
		s.Body == o.Body && s.Length == o.Length
}

// bound tells whether a subject is all of a request, so that once is one.
func (s Subject) bound() bool { return s.Method == "" || s.Body != "" }

// covers tells whether a grant is for a subject, whatever is left of it.
func (g *Grant) covers(s Subject) bool {
	of := g.Subject
	switch g.Span {
	case Once:
		return of.bound() && of.same(s)
	case Session:
		if of.Session != s.Session || s.Session == "" {
			return false
		}
	case Period:
	default:
		return false
	}
	return of.SandboxID == s.SandboxID && of.Protocol == s.Protocol && of.Host == s.Host && of.Port == s.Port &&
		slices.Equal(of.Credentials, s.Credentials) && of.Rule == s.Rule && of.RuleType == s.RuleType &&
		(of.Method == "") == (s.Method == "") && (s.Method == "" || g.matches(s))
}

// matches tells whether a longer grant's pattern covers a request's line.
func (g *Grant) matches(s Subject) bool {
	if m := g.Pattern.Method; m != "*" && m != s.Method {
		return false
	}
	return g.within(s.Path)
}

// within tells whether the pattern covers a path in every reading of it: which one
// the server takes is not known.
func (g *Grant) within(path string) bool {
	readings := pathvariants.Of(path)
	return readings != nil && !slices.ContainsFunc(readings, func(r string) bool { return !g.path.MatchString(r) })
}

// compile readies a grant that is made or read.
func (g *Grant) compile() (err error) {
	g.path, err = regexp.Compile("^" + expression(g.Pattern.Path) + "$")
	return err
}

// within fills in what a pattern leaves open and checks that it is about what
// was asked: approving something else is a policy, not an approval.
func (p Pattern) within(s Subject) (Pattern, error) {
	if s.Method == "" {
		if p != (Pattern{}) {
			return p, fmt.Errorf("%w: a connection has no method and no path", ErrAnswer)
		}
		return p, nil
	}
	if p.Method == "" {
		p.Method = s.Method
	}
	if len(p.Path) > maxGlob {
		return p, fmt.Errorf("%w: a path of more than %d bytes", ErrAnswer, maxGlob)
	}
	if p.Path == "" {
		p.Path = literal(s.Path)
	}
	g := Grant{Pattern: p}
	if err := g.compile(); err != nil {
		return p, fmt.Errorf("%w: the path %.256q: %w", ErrAnswer, p.Path, err)
	}
	switch {
	case p.Method != "*" && p.Method != s.Method:
		return p, fmt.Errorf("%w: the method %.32q is not the request's, %.32q", ErrAnswer, p.Method, s.Method)
	case !g.within(s.Path):
		return p, fmt.Errorf("%w: the path %.256q does not cover the request's own", ErrAnswer, p.Path)
	}
	return p, nil
}

// maxGlob bounds the path that an operator writes, in bytes.
const maxGlob = 1 << 10

// literal is the glob that matches one path only: * may be in a path.
func literal(path string) string { return strings.NewReplacer(`\`, `\\`, `*`, `\*`).Replace(path) }

// expression is the regular expression (RE2, linear in the path) for a glob: * is
// any run of characters but a slash, ** any run at all, %2F a slash, encoded or
// not, and a backslash, which no normalised path has, takes the meaning off what
// follows.
func expression(glob string) string {
	var b strings.Builder
	b.WriteString("(?s:")
	for i := 0; i < len(glob); i++ {
		switch {
		case glob[i] == '\\' && i+1 < len(glob):
			i++
			b.WriteString(regexp.QuoteMeta(glob[i : i+1]))
		case strings.HasPrefix(glob[i:], "**"):
			for i+1 < len(glob) && glob[i+1] == '*' {
				i++
			}
			b.WriteString(".*")
		case glob[i] == '*':
			b.WriteString("[^/]*")
		default:
			n := strings.IndexAny(glob[i:], `*\`)
			if n <= 0 {
				n = len(glob) - i
				if glob[i] == '\\' {
					n = 1
				}
			}
			b.WriteString(strings.ReplaceAll(regexp.QuoteMeta(glob[i:i+n]), pathvariants.Slash, "(?:/|"+pathvariants.Slash+")"))
			i += n - 1
		}
	}
	b.WriteString(")")
	return b.String()
}
