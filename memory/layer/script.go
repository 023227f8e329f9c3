package layer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"sallyport/internal/terminal"
	"sallyport/memory"
	"sallyport/memory/search"
)

// Script is a script for a common task, in scripts.
type Script struct {
	Name        string `json:"name"`
	Description string `json:"description"` // one line
	Arguments   string `json:"arguments,omitempty"`
	// Text begins with "#!". It is empty in a list.
	Text string `json:"text,omitempty"`
	// Digest is of the script as it is, or "" if its file is missing. One that is registered
	// with a digest takes the place of the script with that only, and [None] is of no script.
	Digest memory.Digest `json:"digest,omitempty"`
	// Registered says whether the script is in INDEX.md, and Changed whether it differs
	// from what was registered.
	Registered bool `json:"registered"`
	Changed    bool `json:"changed"`
	// LastSuccess and LastFailure are zero if there was none since the script was
	// registered with its text. Note is of the later one.
	LastSuccess  time.Time `json:"last_success,omitzero"`
	LastFailure  time.Time `json:"last_failure,omitzero"`
	Note         string    `json:"note,omitempty"`
	memory.Marks           // of the script, and of what INDEX.md says of it
}

const (
	scriptFolder = "scripts/"
	// ScriptIndex has a section for each script.
	ScriptIndex = scriptFolder + "INDEX.md"
	maxScript   = 1 << 20
	maxLine     = 1 << 10
)

func scriptFile(name string) (string, error) {
	if !plainName.MatchString(name) || name[0] == '.' || strings.EqualFold(name, "INDEX.md") {
		return "", invalid("the script's name %q: a name has 1 to 128 of the characters A-Z a-z 0-9 . _ -, does not begin with a dot and is not INDEX.md", memory.Clip(name, 256))
	}
	return ScriptFile(name), nil
}

// ScriptFile has the script of a name.
func ScriptFile(name string) string { return scriptFolder + name }

// RegisterScript writes a script, which replaces one of the same name, and its section in
// INDEX.md: see [Layers.Judged] once that is recorded. Its text has at most 1 MiB, its description and arguments at most 1 KiB each.
func (l *Layers) RegisterScript(ctx context.Context, s Script) (Script, error) {
	file, err := scriptFile(s.Name)
	if err != nil {
		return Script{}, err
	}
	s.Description, s.Arguments = oneLine(s.Description), oneLine(s.Arguments)
	if err := validText("the script", s.Text, maxScript); err != nil {
		return Script{}, err
	}
	if !strings.HasPrefix(s.Text, "#!") {
		return Script{}, invalid(`the script does not begin with the program that runs it, such as "#!/bin/sh"`)
	}
	if err := validText("the description", s.Description, maxLine); err != nil {
		return Script{}, err
	}
	if len(s.Arguments) > maxLine || !utf8.ValidString(s.Arguments) {
		return Script{}, invalid("the arguments are not UTF-8 of at most %d bytes", maxLine)
	}
	if err := l.change(ctx, file, func(now []byte) ([]byte, error) { return []byte(s.Text), expect("the script "+s.Name, now, s.Digest) }); err != nil {
		return Script{}, err
	}
	s.Digest, s.Registered, s.Changed, s.Text = memory.DigestOf([]byte(s.Text)), true, false, ""
	s.LastSuccess, s.LastFailure, s.Note = time.Time{}, time.Time{}, ""
	err = l.change(ctx, ScriptIndex, func(old []byte) ([]byte, error) {
		index := parseIndex(string(old))
		if i := index.of(s.Name); i >= 0 {
			if was := index[i].script; was.Digest == s.Digest {
				s.LastSuccess, s.LastFailure, s.Note = was.LastSuccess, was.LastFailure, was.Note
			}
		}
		return index.with(s), nil
	})
	return s, err
}

// Judged adds why a script of a name, or what INDEX.md says of it, is not trusted.
func (l *Layers) Judged(s Script) Script {
	s.Untrusted = l.untrusted(scriptFolder + s.Name)
	if s.Registered {
		s.Untrusted = join(s.Untrusted, l.untrusted(ScriptIndex))
	}
	return s
}

// RecordOutcome writes to INDEX.md that a script succeeded or failed now, with a note of
// at most 1 KiB. The error is fs.ErrNotExist for one that is not registered.
func (l *Layers) RecordOutcome(ctx context.Context, name string, ok bool, note string) error {
	if _, err := scriptFile(name); err != nil {
		return err
	}
	if note = oneLine(note); len(note) > maxLine || !utf8.ValidString(note) {
		return invalid("the note is not UTF-8 of at most %d bytes", maxLine)
	}
	return l.change(ctx, ScriptIndex, func(old []byte) ([]byte, error) {
		index := parseIndex(string(old))
		i := index.of(name)
		if i < 0 {
			return nil, fmt.Errorf("the script %q is not registered: %w", name, fs.ErrNotExist)
		}
		s := index[i].script
		if s.Note = note; ok {
			s.LastSuccess = l.now()
		} else {
			s.LastFailure = l.now()
		}
		return index.with(s), nil
	})
}

// Scripts lists the scripts by name, those that are not registered too.
func (l *Layers) Scripts(ctx context.Context) ([]Script, error) {
	list, _, err := l.scripts()
	return list, err
}

func (l *Layers) scripts() (list []Script, index scriptSections, err error) {
	data, err := l.contents(ScriptIndex)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	index = parseIndex(string(data))
	files, err := l.scan(scriptFolder)
	if err != nil {
		return nil, nil, err
	}
	list = []Script{}
	listed := map[string]bool{}
	for _, f := range files {
		name := strings.TrimPrefix(f.Path, scriptFolder)
		if _, err := scriptFile(name); err != nil || f.Kind != memory.KindFile {
			continue
		}
		text, err := l.contents(f.Path)
		if err != nil {
			continue // the sandbox has removed it meanwhile, or it is too large for a script
		}
		s := Script{Name: name}
		if i := index.of(name); i >= 0 {
			s = index[i].script
			s.Registered = true
		}
		digest := memory.DigestOf(text)
		s.Changed = s.Registered && s.Digest != digest
		s.Digest, listed[name] = digest, true
		list = append(list, l.Judged(s))
	}
	for _, section := range index {
		if s := section.script; s.Name != "" && !listed[s.Name] {
			s.Registered, s.Changed, s.Digest, s.Untrusted = true, true, "", l.untrusted(ScriptIndex)
			list, listed[s.Name] = append(list, s), true
		}
	}
	return list, index, nil
}

// FindScript returns the scripts that match a query best, the best first: n of 1 to 100.
func (l *Layers) FindScript(ctx context.Context, query string, n int) ([]Script, error) {
	if n < 1 || n > maxFound {
		return nil, invalid("%d scripts: ask for 1 to %d", n, maxFound)
	}
	hits, err := l.Find(ctx, search.Query{Text: query, Limit: min(10*n, 1000), Allow: func(path string) bool { return strings.HasPrefix(path, scriptFolder) }})
	if err != nil {
		return nil, err
	}
	list, index, err := l.scripts()
	if err != nil {
		return nil, err
	}
	found := []Script{}
	seen := map[string]bool{}
	for _, h := range hits {
		name := strings.TrimPrefix(h.Path, scriptFolder)
		if h.Path == ScriptIndex {
			name = index.at(h.Line)
		}
		for _, s := range list {
			if s.Name == name && !seen[name] && len(found) < n {
				found, seen[name] = append(found, s), true
			}
		}
	}
	return found, nil
}

// section is a part of INDEX.md: one that is ours has a script with a name and a digest.
type section struct {
	text   string
	line   int // from 1
	script Script
}

type scriptSections []section

var sectionBegin = regexp.MustCompile(`(?m)^##? `)

// parseIndex parts INDEX.md at its headings. The texts of the parts are the whole file.
func parseIndex(text string) (list scriptSections) {
	var begins []int
	for _, at := range sectionBegin.FindAllStringIndex(text, -1) {
		begins = append(begins, at[0])
	}
	if len(begins) == 0 || begins[0] > 0 {
		begins = append([]int{0}, begins...)
	}
	line := 1
	for i, begin := range begins {
		end := len(text)
		if i+1 < len(begins) {
			end = begins[i+1]
		}
		s := section{text: text[begin:end], line: line, script: parseSection(text[begin:end])}
		line += strings.Count(s.text, "\n")
		list = append(list, s)
	}
	return list
}

func parseSection(text string) Script {
	heading, rest, _ := strings.Cut(text, "\n")
	name := strings.TrimSpace(strings.TrimPrefix(heading, "## "))
	fields := map[string]string{}
	for line := range strings.Lines(rest) {
		if key, value, ok := strings.Cut(strings.TrimPrefix(line, "- "), ": "); ok {
			fields[key] = memory.Clip(strings.TrimSpace(value), 2*maxLine)
		}
	}
	if _, err := scriptFile(name); err != nil || !strings.HasPrefix(heading, "## ") || fields["SHA-256"] == "" {
		return Script{}
	}
	s := Script{Name: name, Description: fields["Description"], Arguments: fields["Arguments"], Digest: memory.Digest(fields["SHA-256"]), Note: fields["Note"]}
	s.LastSuccess, _ = time.Parse(time.RFC3339, fields["Last success"])
	s.LastFailure, _ = time.Parse(time.RFC3339, fields["Last failure"])
	return s
}

// own is the section of a script.
func (s Script) own() string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n", s.Name)
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.Format(time.RFC3339)
	}
	for _, f := range [][2]string{{"Description", s.Description}, {"Arguments", s.Arguments}, {"SHA-256", string(s.Digest)},
		{"Last success", at(s.LastSuccess)}, {"Last failure", at(s.LastFailure)}, {"Note", s.Note}} {
		if f[1] != "" {
			fmt.Fprintf(&b, "- %s: %s\n", f[0], f[1])
		}
	}
	return b.String()
}

// of is where the script's section is, or -1.
func (list scriptSections) of(name string) int {
	return slices.IndexFunc(list, func(s section) bool { return s.script.Name == name })
}

// at is the script whose section has a line.
func (list scriptSections) at(line int) (name string) {
	for _, s := range list {
		if s.line <= line {
			name = s.script.Name
		}
	}
	return name
}

// with is INDEX.md with the section of a script, in place of the one it has.
func (list scriptSections) with(s Script) []byte {
	var b strings.Builder
	own := list.of(s.Name)
	for i, section := range list {
		switch {
		case i != own:
			b.WriteString(section.text)
		case i+1 < len(list):
			b.WriteString(s.own() + "\n")
		default:
			b.WriteString(s.own())
		}
	}
	if own >= 0 {
		return []byte(b.String())
	}
	text := cmp.Or(strings.TrimRight(b.String(), "\n"), "# Scripts for common tasks")
	return []byte(text + "\n\n" + s.own())
}

// oneLine is a text in one line that a terminal shows as it is.
func oneLine(s string) string { return terminal.Escape(strings.Join(strings.Fields(s), " ")) }
