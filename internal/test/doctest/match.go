package doctest

import (
	"maps"
	"regexp"
	"strings"
)

// Bindings are what ids and digests of a document are in this run.
type Bindings map[string]string

const (
	anyID       = `[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`
	anyDigest   = `\b[0-9a-f]{12,64}\b`
	anyTime     = `\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?Z?|\b\d\d:\d\d:\d\d(?:\.\d+)?\b`
	anyDuration = `\b(?:\d+h)?(?:\d+m)?\d+(?:\.\d+)?(?:ms|µs|s)\b`
	anyPID      = `\bpid \d+`
)

var (
	identity = regexp.MustCompile(anyID + `|` + anyDigest)
	general  = regexp.MustCompile(`(?P<id>` + anyID + `|` + anyDigest + `)|(?P<time>` + anyTime + `)|(?P<duration>` + anyDuration + `)|(?P<pid>` + anyPID + `)|(?P<gap> {2,})|(?P<any>…)`)
)

// Replace puts the ids of this run into a command.
func (b Bindings) Replace(command string) string {
	return identity.ReplaceAllStringFunc(command, func(id string) string {
		if is, ok := b[id]; ok {
			return is
		}
		return id
	})
}

// Match compares what was printed with what is shown, and returns the bindings with
// those of new ids, or nil where they differ.
func (b Bindings) Match(want, got string) Bindings {
	var pattern strings.Builder
	var order []string // of the ids that are not known yet
	pattern.WriteString(`^`)
	for line := range strings.Lines(want) {
		line = strings.TrimRight(line, "\n")
		if strings.TrimSpace(line) == "…" {
			pattern.WriteString(`(?:[^\n]*\n)*`)
			continue
		}
		at := 0
		for _, m := range general.FindAllStringSubmatchIndex(line, -1) {
			pattern.WriteString(regexp.QuoteMeta(line[at:m[0]]))
			at = m[1]
			text := line[m[0]:m[1]]
			switch {
			case m[2] >= 0:
				if is, ok := b[text]; ok {
					pattern.WriteString(regexp.QuoteMeta(is))
					break
				}
				order = append(order, text)
				pattern.WriteString(`(` + kind(text) + `)`)
			case m[4] >= 0:
				pattern.WriteString(`(?:` + anyTime + `)`)
			case m[6] >= 0:
				pattern.WriteString(anyDuration)
			case m[8] >= 0:
				pattern.WriteString(anyPID)
			case m[10] >= 0 && m[0] == 0:
				pattern.WriteString(text) // an indentation says something
			case m[10] >= 0:
				pattern.WriteString(` {2,}`)
			default:
				pattern.WriteString(`[^\n]*?`)
			}
		}
		pattern.WriteString(regexp.QuoteMeta(line[at:]) + `[ ]*\n`)
	}
	pattern.WriteString(`$`)
	if got != "" && !strings.HasSuffix(got, "\n") {
		got += "\n"
	}
	m := regexp.MustCompile(pattern.String()).FindStringSubmatch(got)
	if m == nil {
		return nil
	}
	now, shownAs := Bindings{}, map[string]string{}
	maps.Copy(now, b)
	for shown, is := range b {
		shownAs[is] = shown
	}
	for i, shown := range order {
		is := m[i+1]
		// One id is one id, and another is another.
		if was, ok := now[shown]; ok && was != is {
			return nil
		}
		if other, ok := shownAs[is]; ok && other != shown {
			return nil
		}
		now[shown], shownAs[is] = is, shown
	}
	return now
}

// kind is the pattern of an id that is not known yet.
func kind(text string) string {
	if strings.Contains(text, "-") {
		return anyID
	}
	return anyDigest
}
