package layer_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/memory/layer"
)

func TestStore(t *testing.T) {
	l, dir := remember(t)
	l.Session = "---\nid: x\n\"'"
	metadata := map[string]string{"source": "https://a.example/?q=1#x", "odd": "a: b\n---\nc\t\x00\u2028\u0085\\\"'*&x 😀", "empty": "", "true": "yes", "n": "1e3"}
	text := "# Title\n\n---\nid: y\n---\n\ttab, trailing  \n```\nend"
	e, err := l.Store(ctx, "\n"+text+"\n\n", layer.TaskOutcome, metadata)
	if err != nil {
		t.Fatal(err)
	}
	if want := "memories/task_outcome/" + e.ID + ".md"; e.Path != want || !strings.HasPrefix(e.ID, "20261126T182805Z-") || len(e.ID) != 23 {
		t.Errorf("%q, %q", e.Path, e.ID)
	}
	if got := read(t, dir, e.Path); !strings.HasPrefix(got, "---\nid: "+e.ID+"\ntype: task_outcome\ntime: 2026-11-26T18:28:05Z\nsession: ") {
		t.Error(got)
	}
	found, err := l.Retrieve(ctx, "title", 1, layer.RetrieveOptions{})
	if err != nil || len(found) != 1 {
		t.Fatalf("%v, %v", found, err)
	}
	got := found[0].Entry
	if got.Text != text || got.ID != e.ID || got.Type != e.Type || !got.Time.Equal(day) || got.Session != l.Session || !maps.Equal(got.Metadata, metadata) {
		t.Errorf("got %+v\nwant %+v", got, e)
	}
}

func TestStoreRefuses(t *testing.T) {
	many := map[string]string{}
	for i := range 33 {
		many[strings.Repeat("k", i+1)] = ""
	}
	for name, tt := range map[string]struct {
		text, kind, session string
		metadata            map[string]string
	}{
		"no text":           {"", layer.Observation, "", nil},
		"only space":        {" \n\t", layer.Observation, "", nil},
		"long text":         {strings.Repeat("x", 64<<10+1), layer.Observation, "", nil},
		"not UTF-8":         {"a\xff", layer.Observation, "", nil},
		"no type":           {"a", "", "", nil},
		"another type":      {"a", "summaries", "", nil},
		"a path for a type": {"a", "../../etc", "", nil},
		"long session":      {"a", layer.Observation, strings.Repeat("s", 257), nil},
		"session not UTF-8": {"a", layer.Observation, "\xff", nil},
		"many metadata":     {"a", layer.Observation, "", many},
		"metadata's key":    {"a", layer.Observation, "", map[string]string{"a b": ""}},
		"metadata's value":  {"a", layer.Observation, "", map[string]string{"a": strings.Repeat("v", 1025)}},
		"not UTF-8 either":  {"a", layer.Observation, "", map[string]string{"a": "\xff"}},
	} {
		l, dir := remember(t)
		l.Session = tt.session
		if _, err := l.Store(ctx, tt.text, tt.kind, tt.metadata); !errors.Is(err, layer.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if files, _ := os.ReadDir(dir); len(files) != 1 {
			t.Errorf("%s: something was written", name)
		}
	}
}

func TestRetrieve(t *testing.T) {
	l, dir := remember(t)
	e := store(t, l, layer.LearnedFact, "The deploy key of acme expires in March.")
	store(t, l, layer.Observation, "The weather is fine while the deploy runs.")
	write(t, dir, "memories/by hand.md", "# Deploying\n\nThe deploy key of globex never expires.\n")
	write(t, dir, "plans/deploy.md", "deploy key")
	if err := l.AppendTurn(ctx, "user", "Renew the deploy key of initech, please."); err != nil {
		t.Fatal(err)
	}
	l.Trust = func(path string) string {
		if path == "memories/by hand.md" {
			return "learned after contact with evil.example"
		}
		return ""
	}
	retrieve := func(query string, n int, o layer.RetrieveOptions) (ids []string) {
		t.Helper()
		found, err := l.Retrieve(ctx, query, n, o)
		if err != nil {
			t.Fatal(err)
		}
		last := 1.0
		for _, s := range found {
			if s.Score < 0 || s.Score > last {
				t.Errorf("%s has score %v after %v", s.ID, s.Score, last)
			}
			if (s.Untrusted != "") != (s.Path == "memories/by hand.md") {
				t.Errorf("%s is untrusted: %q", s.Path, s.Untrusted)
			}
			last = s.Score
			ids = append(ids, s.ID)
		}
		return ids
	}
	for name, tt := range map[string]struct {
		query string
		n     int
		o     layer.RetrieveOptions
		want  int
		first string
	}{
		"best first":    {"when does the deploy key of acme expire?", 10, layer.RetrieveOptions{}, 4, e.ID},
		"n":             {"deploy", 2, layer.RetrieveOptions{}, 2, ""},
		"type":          {"deploy", 10, layer.RetrieveOptions{Type: layer.LearnedFact}, 1, e.ID},
		"by hand":       {"globex", 1, layer.RetrieveOptions{}, 1, "memories/by hand.md"},
		"turn":          {"initech", 5, layer.RetrieveOptions{Type: "turn"}, 1, "conversations.jsonl:1"},
		"trusted":       {"globex deploy", 10, layer.RetrieveOptions{TrustedOnly: true}, 3, ""},
		"time":          {"deploy", 10, layer.RetrieveOptions{Until: day}, 0, ""},
		"nothing":       {"zebra", 10, layer.RetrieveOptions{}, 0, ""},
		"odd":           {"\"* OR NEAR( \xff\x00", 10, layer.RetrieveOptions{}, 0, ""},
		"unknown types": {"deploy", 10, layer.RetrieveOptions{Type: "other"}, 0, ""},
	} {
		if got := retrieve(tt.query, tt.n, tt.o); len(got) != tt.want || tt.first != "" && got[0] != tt.first {
			t.Errorf("%s: %q", name, got)
		}
	}
	for _, n := range []int{-1, 0, 101} {
		if _, err := l.Retrieve(ctx, "x", n, layer.RetrieveOptions{}); !errors.Is(err, layer.ErrInvalid) {
			t.Errorf("%d: %v", n, err)
		}
	}
}

// An entry left out because it is not trusted takes no room.
func TestRetrieveTrusted(t *testing.T) {
	l, dir := remember(t)
	for i := range 15 {
		write(t, dir, fmt.Sprint("memories/", i, ".md"), "acme, acme and acme")
	}
	e := store(t, l, layer.Observation, "acme among others that are here")
	l.Trust = func(path string) string { return strings.TrimPrefix(path, e.Path) }
	found, err := l.Retrieve(ctx, "acme", 1, layer.RetrieveOptions{TrustedOnly: true})
	if err != nil || len(found) != 1 || found[0].ID != e.ID {
		t.Errorf("%+v, %v", found, err)
	}
}

// Front matter that is not valid is text.
func TestFrontMatter(t *testing.T) {
	laughs := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'k'; c++ {
		laughs += string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+",", 9) + "]\n"
	}
	const valid = "id: ID\ntype: preference\ntime: 2026-01-02T03:04:05Z\n"
	for name, front := range map[string]string{
		"no end":        "---\n" + valid + "needle",
		"not YAML":      "---\n\t{[:\n---\nneedle",
		"another type":  "---\ntype: [x]\n---\nneedle",
		"unknown type":  "---\ntype: system\ntime: 2026-01-02T03:04:05Z\n---\nneedle",
		"no time":       "---\ntype: preference\ntime: yesterday\n---\nneedle",
		"large":         "---\n" + valid + "x: " + strings.Repeat("x", 20<<10) + "\n---\nneedle",
		"aliases":       "---\n" + laughs + "metadata: *j\n---\nneedle",
		"map for text":  "---\n" + valid + "session: {a: b}\n---\nneedle",
		"not UTF-8":     "---\n" + valid + "session: \xff\xfe\n\x00---\nneedle",
		"carriage":      "---\r\n" + valid + "---\r\nneedle",
		"several":       "--- \n---\n---\nneedle",
		"anchor cycles": "---\n" + valid + "metadata: &m {a: *m}\n---\nneedle",
	} {
		l, dir := remember(t)
		write(t, dir, "memories/x.md", front)
		began := time.Now()
		found, err := l.Retrieve(ctx, "needle", 1, layer.RetrieveOptions{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, s := range found {
			if s.ID != "memories/x.md" || s.Type != layer.Observation || !strings.HasPrefix(s.Text, strings.TrimSpace(front)[:3]) {
				t.Errorf("%s: %+v", name, s.Entry)
			}
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("%s: %v", name, took)
		}
	}
	// Front matter cannot give a file the id of another one.
	l, dir := remember(t)
	write(t, dir, "memories/preference/20260102T030405Z-AAAAAA.md", "---\n"+valid+"---\nneedle")
	found, err := l.Retrieve(ctx, "needle", 1, layer.RetrieveOptions{})
	if err != nil || len(found) != 1 || found[0].ID != "memories/preference/20260102T030405Z-AAAAAA.md" || found[0].Type != layer.Preference {
		t.Errorf("%+v, %v", found, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "memories")); err != nil {
		t.Error(err)
	}
}

// turns are the lines of the conversations that are turns.
func turns(t *testing.T, dir string) (list []layer.Turn) {
	t.Helper()
	for line := range strings.Lines(read(t, dir, "conversations.jsonl")) {
		var turn layer.Turn
		if json.Unmarshal([]byte(line), &turn) == nil && turn.Role != "" {
			list = append(list, turn)
		}
	}
	return list
}

func TestTurns(t *testing.T) {
	l, dir := remember(t)
	say := func(role, content string) {
		t.Helper()
		if err := l.AppendTurn(ctx, role, content); err != nil {
			t.Fatal(err)
		}
	}
	say("user", "one\nline, <b>\u2028 \x1b[2J")
	const damaged = "{\"role\":\"user\",\"con\n\n[]\n\xff\x00\n{\"role\":\"tool\",\"content\":\"half"
	before := read(t, dir, "conversations.jsonl")
	write(t, dir, "conversations.jsonl", before+damaged)
	say("assistant", "two")
	l.Session = "s2"
	say("tool", "three")
	if got := read(t, dir, "conversations.jsonl"); !strings.HasPrefix(got, before+damaged+"\n{") {
		t.Errorf("what was there was rewritten: %q", got)
	}
	var got []string
	for _, turn := range turns(t, dir) {
		got = append(got, turn.Session+": "+turn.Content)
	}
	if want := "s1: one\nline, <b>\u2028 \x1b[2J|s1: two|s2: three"; strings.Join(got, "|") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for role, content := range map[string]string{"system": "x", "": "x", "user": "", "tool": "\xff", "assistant": strings.Repeat("x", 1<<20+1)} {
		if err := l.AppendTurn(ctx, role, content); !errors.Is(err, layer.ErrInvalid) {
			t.Errorf("%s: %v", role, err)
		}
	}
}
