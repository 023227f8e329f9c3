package search

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"sallyport/memory"
)

const (
	// conversations is the file that has a turn a line.
	conversations    = "conversations.jsonl"
	maxConversations = 16 << 20
	// maxUnit is the size of the largest unit, in bytes: what is longer is parted.
	maxUnit = 2000
	// maxUnits is how many units a file has before they become as large as rest.
	maxUnits = 4096
	rest     = 64 << 10
	// maxSession is the size of the largest document of turns, in bytes.
	maxSession = 32 << 10
	// maxFront is the size of the largest front matter, in bytes.
	maxFront = 16 << 10
	// maxTurns is how many turns are indexed, the last ones.
	maxTurns = 100_000
	// maxLabel is the size of the longest ID, session, type or heading, in bytes.
	maxLabel = 200
	// turnType is the type of turns.
	turnType = "turn"
)

// document is a file, or a part of a session of the conversations.
type document struct {
	entry, session string
	heading        string
	metadata       string
	units          []unit
}

// unit is a paragraph or a turn.
type unit struct {
	line    int
	kind    string
	time    time.Time
	dated   bool // the time is not only the file's
	heading string
	text    string
}

// date is the words that a question may name a unit's day with.
func (u unit) date() string {
	if !u.dated {
		return ""
	}
	return u.time.UTC().Format(" 2 January 2006")
}

// near is what a unit is found by besides its own words: those of the two before it and of
// the one after, which often ask, or say, what it is about.
func (d document) near(i int) string {
	around := []string{d.metadata}
	for j := max(0, i-2); j < min(len(d.units), i+2); j++ {
		if j != i {
			around = append(around, memory.Clip(d.units[j].text, maxUnit))
		}
	}
	return strings.Join(around, "\n")
}

// digest names the text of a unit.
func (u unit) digest() []byte {
	h := sha256.New()
	write(h, u.heading, u.text)
	return h.Sum(nil)[:16]
}

// digest names all that is indexed of a document.
func (d document) digest() []byte {
	h := sha256.New()
	write(h, d.entry, d.session, d.heading, d.metadata)
	for _, u := range d.units {
		write(h, strconv.Itoa(u.line), u.kind, strconv.FormatInt(u.time.UnixMilli(), 10), strconv.FormatBool(u.dated), u.heading, u.text)
	}
	return h.Sum(nil)[:16]
}

func write(h hash.Hash, fields ...string) {
	for _, f := range fields {
		fmt.Fprintf(h, "%d:%s", len(f), f)
	}
}

func isText(data []byte) bool { return utf8.Valid(data) && bytes.IndexByte(data, 0) < 0 }

// split makes the documents of a file. data is nil for a file that is found by its name
// only.
func split(name string, data []byte, modified time.Time) []document {
	if name == conversations && data != nil {
		return turns(data, modified)
	}
	front, body, line := frontMatter(string(data))
	d := document{entry: cmp.Or(front["id"], name), session: front["session"], heading: name, metadata: front["metadata"]}
	kind := cmp.Or(front["type"], kindOf(name))
	when, dated := modified, false
	if t, err := time.Parse(time.RFC3339, front["time"]); err == nil {
		when, dated = t, true
	}
	d.units = paragraphs(body, line, path.Ext(name) == ".md")
	if len(d.units) == 0 {
		d.units = []unit{{line: 1}}
	}
	for i := range d.units {
		u := &d.units[i]
		u.kind, u.time, u.dated, u.heading = kind, when, dated, cmp.Or(u.heading, path.Base(name))
	}
	return []document{d}
}

// kindOf is the type of an entry whose file does not say.
func kindOf(name string) string {
	dir, rest, ok := strings.Cut(name, "/")
	if !ok {
		return "core"
	}
	switch dir {
	case "memories":
		if kind, _, ok := strings.Cut(rest, "/"); ok {
			switch kind {
			case "learned_fact", "task_outcome", "preference":
				return kind
			}
		}
		return "observation"
	case "plans", "scripts", "artifacts":
		return strings.TrimSuffix(dir, "s")
	}
	return dir
}

// frontMatter parts a file into the fields at its head, its text, and the number of the
// text's first line. Of the YAML it reads one field a line, and what is indented is
// metadata; a head that does not end is text.
func frontMatter(data string) (fields map[string]string, body string, line int) {
	head, ok := strings.CutPrefix(strings.TrimPrefix(data, "\ufeff"), "---\n")
	if !ok {
		return nil, data, 1
	}
	end := strings.Index("\n"+head, "\n---\n")
	if end < 0 {
		if end = strings.Index("\n"+head, "\n---"); end < 0 || end+len("---") != len(head) {
			return nil, data, 1
		}
	}
	if end > maxFront {
		return nil, data, 1
	}
	fields = map[string]string{}
	for l := range strings.Lines(head[:end]) {
		key, value, ok := strings.Cut(l, ":")
		if !ok {
			continue
		}
		value = strings.TrimSpace(value)
		if unquoted, err := strconv.Unquote(value); err == nil && value[0] == '"' {
			value = unquoted
		} else if len(value) >= 2 && value[0] == '\'' && value[len(value)-1] == '\'' {
			value = strings.ReplaceAll(value[1:len(value)-1], "''", "'")
		}
		if strings.TrimSpace(key) != key {
			fields["metadata"] += strings.TrimSpace(key) + " " + value + "\n"
			continue
		}
		fields[key] = memory.Clip(value, maxLabel)
	}
	body = strings.TrimPrefix(head[end+len("---"):], "\n")
	return fields, body, strings.Count(data[:len(data)-len(body)], "\n") + 1
}

// paragraphs parts a text at its empty lines, headings and list items. line is the number
// of its first line.
func paragraphs(text string, line int, markdown bool) []unit {
	var units []unit
	var now strings.Builder
	var headings []string
	heading, began, fenced := "", line, false
	flush := func() {
		if t := strings.TrimSpace(now.String()); t != "" {
			units = append(units, unit{line: began, heading: heading, text: t})
		}
		now.Reset()
	}
	limit := func() int {
		if len(units) < maxUnits {
			return maxUnit
		}
		return rest
	}
	for l := range strings.Lines(text) {
		trimmed := strings.TrimSpace(l)
		few := len(units) < maxUnits
		switch {
		case markdown && strings.HasPrefix(trimmed, "```"):
			fenced = !fenced
		case fenced:
		case trimmed == "" && few:
			flush()
		case markdown && few && l[0] == '#':
			flush()
			depth := len(l) - len(strings.TrimLeft(l, "#"))
			headings = append(headings[:min(len(headings), min(depth, 6)-1)], memory.Clip(strings.TrimSpace(l[depth:]), maxLabel))
			heading = strings.Join(headings, " > ")
		case markdown && few && item(l):
			flush()
		}
		for len(l) > 0 {
			if now.Len() > 0 && now.Len()+len(l) > limit() {
				flush()
			}
			if now.Len() == 0 && trimmed == "" {
				break
			}
			if now.Len() == 0 {
				began = line
			}
			part := memory.Clip(l, limit())
			now.WriteString(part)
			l = l[len(part):]
		}
		line++
	}
	flush()
	return units
}

// item says whether a line begins an item of a list.
func item(l string) bool {
	if strings.HasPrefix(l, "- ") || strings.HasPrefix(l, "* ") || strings.HasPrefix(l, "+ ") {
		return true
	}
	digits := strings.TrimLeft(l, "0123456789")
	return len(digits) < len(l) && (strings.HasPrefix(digits, ". ") || strings.HasPrefix(digits, ") "))
}

// turns makes the documents of the conversations. A line that is not a turn is one with
// its text.
func turns(data []byte, modified time.Time) []document {
	var documents []document
	last := map[string]int{} // where the last document of a session is
	size := map[string]int{}
	line, skipped := 0, bytes.Count(data, []byte{'\n'})-maxTurns
	for l := range bytes.Lines(data) {
		if line++; line <= skipped {
			continue
		}
		var t struct {
			Time    string `json:"time"`
			Session string `json:"session"`
			Role    string `json:"role"`
			Content string `json:"content"`
		}
		if l = bytes.TrimSpace(l); len(l) == 0 {
			continue
		}
		if json.Unmarshal(l, &t) != nil {
			t.Content = string(l)
		}
		when, err := time.Parse(time.RFC3339, t.Time)
		if err != nil {
			when = modified
		}
		t.Session, t.Role = memory.Clip(t.Session, maxLabel), memory.Clip(t.Role, maxLabel)
		i, ok := last[t.Session]
		if !ok || size[t.Session]+len(t.Content) > maxSession {
			i = len(documents)
			documents = append(documents, document{entry: conversations, session: t.Session, heading: t.Session})
			last[t.Session], size[t.Session] = i, 0
		}
		size[t.Session] += len(t.Content)
		for text := t.Content; text != ""; {
			part := memory.Clip(text, maxSession)
			text = text[len(part):]
			documents[i].units = append(documents[i].units, unit{line: line, kind: turnType, time: when, dated: err == nil, heading: t.Role, text: part})
		}
	}
	return documents
}

// spaced parts a text into words where its script does not.
func spaced(s string) string {
	var b strings.Builder
	done := 0
	for i, r := range s {
		if r < 0x0e00 || !unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar) {
			continue
		}
		b.WriteString(s[done:i])
		b.WriteByte(' ')
		b.WriteRune(r)
		b.WriteByte(' ')
		done = i + utf8.RuneLen(r)
	}
	if done == 0 {
		return s
	}
	b.WriteString(s[done:])
	return b.String()
}
