package layer

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"sallyport/internal/terminal"
	"sallyport/memory"

	"github.com/goccy/go-yaml"
)

// The types of an entry.
const (
	Observation = "observation"
	LearnedFact = "learned_fact"
	TaskOutcome = "task_outcome"
	Preference  = "preference"
)

// Types are the types of an entry.
var Types = []string{Observation, LearnedFact, TaskOutcome, Preference}

const (
	entryFolder = "memories/"
	maxText     = 64 << 10 // bytes of an entry's text
	maxFront    = 16 << 10 // bytes of an entry's front matter
	maxMetadata = 32       // keys
)

// Entry is something that is remembered: a markdown file in memories.
type Entry struct {
	ID       string            `json:"id"`
	Type     string            `json:"type"`
	Time     time.Time         `json:"time"`
	Session  string            `json:"session,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Text     string            `json:"text"`
	// Path is relative to the memory. It may hold any byte but NUL.
	Path string `json:"path"`
	memory.Marks
}

// front is the front matter of an entry.
type front struct {
	ID        string            `yaml:"id"`
	Type      string            `yaml:"type"`
	Time      string            `yaml:"time"`
	Session   string            `yaml:"session"`
	Metadata  map[string]string `yaml:"metadata"`
	Untrusted string            `yaml:"untrusted"`
	Sources   map[string]string `yaml:"sources"` // of a summary: id of an entry to the beginning of its file's digest
}

// Store remembers an observation: a text of at most 64 KiB in UTF-8. It may have 32 metadata
// of at most 1 KiB, with keys of the characters A-Z a-z 0-9 . _ -. Whether it is trusted is
// known once the file is recorded.
func (l *Layers) Store(ctx context.Context, observation, kind string, metadata map[string]string) (Entry, error) {
	e := Entry{Type: kind, Time: l.now().Truncate(time.Second), Session: l.Session, Metadata: metadata, Text: strings.TrimSpace(observation)}
	if !slices.Contains(Types, kind) {
		return Entry{}, invalid("the type %q: a type is one of %s", memory.Clip(kind, 64), strings.Join(Types, ", "))
	}
	if err := errors.Join(validText("the observation", e.Text, maxText), l.validSession()); err != nil {
		return Entry{}, err
	}
	if len(metadata) > maxMetadata {
		return Entry{}, invalid("there are %d metadata; the most is %d", len(metadata), maxMetadata)
	}
	for key, value := range metadata {
		if !plainName.MatchString(key) || len(value) > 1<<10 || !utf8.ValidString(value) {
			return Entry{}, invalid("the metadata %q: a key has 1 to 128 of the characters A-Z a-z 0-9 . _ -, a value at most 1024 bytes of UTF-8", memory.Clip(key, 256))
		}
	}
	var err error = fs.ErrExist
	for errors.Is(err, fs.ErrExist) {
		if err := ctx.Err(); err != nil {
			return Entry{}, err
		}
		e.ID = e.Time.Format("20060102T150405Z") + "-" + rand.Text()[:6]
		e.Path = entryFolder + kind + "/" + e.ID + ".md"
		err = l.Folder.Write(e.Path, e.file(nil), "")
	}
	if err != nil {
		return Entry{}, err
	}
	return e, nil
}

func (l *Layers) validSession() error {
	if len(l.Session) > 256 || !utf8.ValidString(l.Session) {
		return invalid("the session's name is not UTF-8 of at most 256 bytes")
	}
	return nil
}

// file is the entry as a file: front matter, of which each value from outside is a string
// in JSON, and the text.
func (e Entry) file(sources map[string]string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "---\nid: %s\ntype: %s\ntime: %s\n", e.ID, e.Type, e.Time.Format(time.RFC3339))
	if e.Session != "" {
		fmt.Fprintf(&b, "session: %s\n", quote(e.Session))
	}
	if e.Untrusted != "" {
		fmt.Fprintf(&b, "untrusted: %s\n", quote(e.Untrusted))
	}
	writeMap(&b, "metadata", e.Metadata)
	writeMap(&b, "sources", sources)
	fmt.Fprintf(&b, "---\n\n%s\n", e.Text)
	return b.Bytes()
}

func writeMap(b *bytes.Buffer, name string, m map[string]string) {
	if len(m) > 0 {
		fmt.Fprintf(b, "%s:\n", name)
	}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(b, "  %s: %s\n", quote(key), quote(m[key]))
	}
}

// quote is a string in JSON, which is one in YAML as well.
func quote(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always encodes
	return strings.TrimSuffix(b.String(), "\n")
}

// parse makes an entry of a file in memories. The path says its id; its front matter the
// rest. A file without valid front matter is an observation as a whole.
func parse(name string, data []byte, modified time.Time) (Entry, front) {
	e := Entry{ID: name, Type: Observation, Time: modified, Path: name, Text: strings.TrimSpace(string(data))}
	var f front
	head, ok := bytes.CutPrefix(data, []byte("---\n"))
	if !ok {
		return e, f
	}
	end := bytes.Index(append([]byte("\n"), head[:min(len(head), maxFront)]...), []byte("\n---\n"))
	if end < 0 || yaml.Unmarshal(head[:end], &f) != nil || !slices.Contains(Types, f.Type) {
		return e, front{}
	}
	at, err := time.Parse(time.RFC3339, f.Time)
	if err != nil {
		return e, front{}
	}
	if dir, base := path.Split(name); strings.TrimSuffix(base, ".md") == f.ID && (dir == entryFolder+f.Type+"/" || dir == summaryFolder) {
		e.ID = f.ID
	}
	e.Type, e.Time, e.Session, e.Metadata = f.Type, at.UTC(), f.Session, f.Metadata
	e.Untrusted = memory.Clip(terminal.Escape(f.Untrusted), 512)
	e.Text = strings.TrimSpace(string(head[end+len("---\n"):]))
	return e, f
}

// read returns the entry at a path.
func (l *Layers) read(name string, modified time.Time) (Entry, error) {
	data, err := l.contents(name)
	if err != nil {
		return Entry{}, err
	}
	e, _ := parse(name, data, modified)
	return l.judged(e), nil
}

// judged adds why the entry is not trusted. Its front matter can only lower the trust.
func (l *Layers) judged(e Entry) Entry {
	if why := l.untrusted(e.Path); why != "" {
		e.Untrusted = why
	}
	return e
}

// scan lists a folder of the memory. It is empty if there is none.
func (l *Layers) scan(folder string) ([]memory.Entry, error) {
	entries, err := l.Folder.ScanIn(folder, maxNames)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return entries, err
}
