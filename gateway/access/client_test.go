package access_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	"sallyport/gateway/access"
	"sallyport/internal/test/must"
)

func TestClientStore(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/clients.json"
	s, err := access.OpenClients(path)
	must.OK(t, err)
	added, token, err := s.Add("ci", map[string]string{"team": "build"})
	must.OK(t, err)
	if len(token) != 43 {
		t.Errorf("token of %d characters, want 256 bits", len(token))
	}
	if _, _, err := s.Add("ci", nil); !errors.Is(err, access.ErrClientExists) {
		t.Errorf("adding twice: %v", err)
	}
	for _, name := range []string{"", "CI", "-x", "a b", strings.Repeat("a", 64), "a/b", "a:b"} {
		if _, _, err := s.Add(name, nil); !errors.Is(err, access.ErrClientName) {
			t.Errorf("%q: %v", name, err)
		}
	}
	raw, err := os.ReadFile(path)
	if err != nil || strings.Contains(string(raw), token) {
		t.Errorf("the file has the token: %s %v", raw, err)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}

	again, err := access.OpenClients(path)
	must.OK(t, err)
	id, ok := again.Authenticate("ci", token)
	if !ok || id.Name != "ci" || id.ID != added.ID || id.Tags["team"] != "build" {
		t.Errorf("%+v %v", id, ok)
	}
	if list := again.List(); len(list) != 1 || list[0].Name != "ci" {
		t.Errorf("list %+v", list)
	}
	must.OK(t, again.Remove("ci"))
	if _, ok := again.Authenticate("ci", token); ok {
		t.Error("a removed client's token is good")
	}
	if err := again.Remove("ci"); !errors.Is(err, access.ErrClientUnknown) {
		t.Errorf("removing twice: %v", err)
	}
	renewed, _, err := again.Add("ci", nil)
	if err != nil || renewed.ID == added.ID {
		t.Errorf("the same identity came back: %v", err)
	}
	// A client with an all-zero digest must not be what an unknown name stands for.
	if _, ok := again.Authenticate("nobody", ""); ok {
		t.Error("an unknown name is good")
	}

	must.OK(t, os.WriteFile(path, []byte(`[{"name":"ci","id":"x","digest":"00"}]`), 0o600))
	if _, err := access.OpenClients(path); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("a damaged file: %v", err)
	}
}
