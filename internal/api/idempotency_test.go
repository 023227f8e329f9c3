package api_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/api"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// A call with a key is done once: also after a restart, and never for another body, another
// caller, or with what is shown once shown again.
func TestIdempotencyKey(t *testing.T) {
	c, _, h := serve(t, true)
	_, text := keyed(t, h, "a", "", "admin")
	_, second := keyed(t, h, "b", "", "admin")
	put := func(text, path, body, key string) (int, string, []byte, http.Header) {
		t.Helper()
		return raw(t, h, text, "PUT", path, body, "Idempotency-Key", key)
	}
	status, _, first, head := put(text, "/v1/sandboxes/box", `{}`, "k1")
	if status != 201 || head.Get("Idempotency-Replayed") != "" {
		t.Fatalf("%d %s", status, first)
	}
	status, _, again, head := put(text, "/v1/sandboxes/box", `{}`, "k1")
	if status != 201 || !bytes.Equal(first, again) || head.Get("Idempotency-Replayed") != "true" {
		t.Errorf("again: %d %s", status, again)
	}
	for path, body := range map[string]string{"/v1/sandboxes/box": `{"pids": 100}`, "/v1/sandboxes/other": `{}`} {
		if status, kind, _, _ := put(text, path, body, "k1"); status != 422 || kind != "idempotency-key-reused" {
			t.Errorf("%s %s: %d %s", path, body, status, kind)
		}
	}
	if status, _, _, _ := put(second, "/v1/sandboxes/theirs", `{}`, "k1"); status != 201 {
		t.Errorf("another caller's: %d", status)
	}
	if status, _, _, _ := put(text, "/v1/sandboxes/No", `{}`, "k2"); status != 400 {
		t.Errorf("a bad one: %d", status)
	}
	if status, _, _, _ := put(text, "/v1/sandboxes/yes", `{}`, "k2"); status != 201 {
		t.Errorf("nothing came of it, so the key is free: %d", status)
	}
	if status, _, _, _ := put(text, "/v1/clients/user", `{}`, "k3"); status != 201 {
		t.Errorf("a client: %d", status)
	}
	if status, kind, answer, _ := put(text, "/v1/clients/user", `{}`, "k3"); status != 409 || kind != "shown-once" || bytes.Contains(answer, []byte("token")) {
		t.Errorf("its token again: %d %s", status, answer)
	}
	for _, bad := range []string{strings.Repeat("x", 256), "a b", `""`} {
		if status, _, _, _ := put(text, "/v1/sandboxes/box", `{}`, bad); status != 400 {
			t.Errorf("the key %q: %d", bad, status)
		}
	}
	once := client.WithIdempotencyKey(t.Context(), "the-client's")
	for _, tt := range []struct {
		spec sandbox.Spec
		want string
	}{{sandbox.Spec{}, ""}, {sandbox.Spec{}, ""}, {sandbox.Spec{Pids: 100}, "idempotency-key-reused"}} {
		_, err := c.Create(once, "twice", tt.spec)
		var p *api.Problem
		if tt.want == "" && err != nil || tt.want != "" && (!errors.As(err, &p) || !strings.HasSuffix(p.Type, tt.want)) {
			t.Errorf("by the client, %+v: got %v, want %q", tt.spec, err, tt.want)
		}
	}
	files := need[[]os.DirEntry](t)(os.ReadDir(filepath.Join(h.dir, "once")))
	for _, f := range files {
		if b := need[[]byte](t)(os.ReadFile(filepath.Join(h.dir, "once", f.Name()))); bytes.Contains(b, []byte("token")) {
			t.Errorf("a token is kept: %s", b)
		}
	}

	fingerprint := h.remote.Fingerprint
	h.restart()
	if status, _, again, head := put(text, "/v1/sandboxes/box", `{}`, "k1"); status != 201 || !bytes.Equal(first, again) || head.Get("Idempotency-Replayed") != "true" || h.remote.Fingerprint != fingerprint {
		t.Errorf("after a restart: %d %s", status, again)
	}
	// As a crash leaves them: begun, and nothing more.
	for _, f := range files {
		name := filepath.Join(h.dir, "once", f.Name())
		var k map[string]any
		must.OK(t, json.Unmarshal(need[[]byte](t)(os.ReadFile(name)), &k))
		delete(k, "status")
		must.OK(t, os.WriteFile(name, need[[]byte](t)(json.Marshal(k)), 0o600))
	}
	h.restart()
	if status, kind, _, _ := put(text, "/v1/sandboxes/box", `{}`, "k1"); status != 409 || kind != "outcome-unknown" {
		t.Errorf("after a crash: %d %s", status, kind)
	}
}
