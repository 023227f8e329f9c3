package supervisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/gateway/credential/sent"
	"sallyport/gateway/workerapi"
	"sallyport/internal/seal"
	"sallyport/internal/test/must"
)

// The saved secrets are sealed, survive, are a fork's too, and are bounded.
func TestSavedStore(t *testing.T) {
	dir := t.TempDir()
	key, err := seal.Open(filepath.Join(dir, "key", "key"), filepath.Join(dir, "data"))
	must.OK(t, err)
	open := func() *SavedStore {
		s, err := OpenSavedStore(filepath.Join(dir, "data", "sent"), key)
		must.OK(t, err)
		return s
	}
	save := func(s *SavedStore, id string, values ...string) error {
		var more sent.Saved
		for _, v := range values {
			more.Values = append(more.Values, sent.Value{Name: "key", Text: []byte(v)})
		}
		more.Sent = []sent.Host{{Host: "h.example.com", Name: "key"}}
		text, err := json.Marshal(more)
		must.OK(t, err)
		for first := true; ; first = false {
			n := min(len(text), workerapi.SavedChunk)
			c := workerapi.SaveRequest{ID: id, Part: text[:n], First: first, Last: n == len(text)}
			if err := s.add(c); err != nil || c.Last {
				return err
			}
			text = text[n:]
		}
	}
	has := func(s *SavedStore, id string) (texts []string) {
		t.Helper()
		s.mu.Lock()
		defer s.mu.Unlock()
		text, err := s.load(id)
		must.OK(t, err)
		var saved sent.Saved
		if text != nil {
			must.OK(t, json.Unmarshal(text, &saved))
		}
		for _, v := range saved.Values {
			texts = append(texts, string(v.Text))
		}
		return texts
	}
	s := open()
	must.OK(t, save(s, "parent", "first-secret", "\xff\xfe binary"))
	must.OK(t, s.Copy("parent", "child"))
	must.OK(t, s.Copy("nobody", "other"))
	must.OK(t, save(s, "parent", "second-secret", "first-secret"))
	s = open()
	if got := fmt.Sprintf("%q %q %q", has(s, "parent"), has(s, "child"), has(s, "other")); got != `["\xff\xfe binary" "second-secret" "first-secret"] ["first-secret" "\xff\xfe binary"] []` {
		t.Errorf("saved: %s", got)
	}
	files, err := filepath.Glob(filepath.Join(dir, "data", "sent", "*"))
	must.OK(t, err)
	for _, f := range files {
		text, err := os.ReadFile(f)
		must.OK(t, err)
		if bytes.Contains(text, []byte("secret")) {
			t.Errorf("%s is not sealed", f)
		}
	}
	for i := range sent.Max + 5 {
		must.OK(t, save(s, "child", fmt.Sprintf("value-%04d", i)))
	}
	if got := has(s, "child"); len(got) != sent.Max || got[len(got)-1] != fmt.Sprintf("value-%04d", sent.Max+4) {
		t.Errorf("%d values, the last %q", len(got), got[len(got)-1])
	}
	must.OK(t, save(s, "child", strings.Repeat("x", 300<<10))) // in many parts
	if got := has(s, "child"); len(got) != 1 {
		t.Errorf("beside a large one there are %d", len(got)-1)
	}
	must.OK(t, s.Forget("child"))
	must.OK(t, s.Forget("child"))
	if got := has(s, "child"); got != nil {
		t.Errorf("of a sandbox that is gone: %q", got)
	}
	for _, id := range []string{"", ".", "..", "../x", "a/b"} {
		if err := save(s, id, "value-of-some-length"); err == nil {
			t.Errorf("ID %q is taken", id)
		}
	}
	if err := save(s, "parent", strings.Repeat("x", workerapi.MaxSaved)); err == nil {
		t.Error("there is no bound")
	}
	must.OK(t, os.WriteFile(filepath.Join(dir, "data", "sent", "parent.sealed"), []byte("damaged"), 0o600))
	if err := save(s, "parent", "third-secret"); err == nil {
		t.Error("what is damaged is taken for empty")
	}
}
