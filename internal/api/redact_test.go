package api_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/api"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// Where things are on the host is its operators' affair.
func TestHostPathsAreNotTold(t *testing.T) {
	root, _, h := serve(t, true)
	ctx := t.Context()
	acme, text := keyed(t, h, "acme", "acme", "admin")
	_, reader := keyed(t, h, "reader", "", "read", "run")
	box := need[sandbox.Info](t)(acme.Create(ctx, "box", sandbox.Spec{}))
	if box.Memory != "" {
		t.Errorf("made: %+v", box)
	}
	if i := need[sandbox.Info](t)(root.Sandbox(ctx, "acme/box")); !strings.HasPrefix(i.Memory, h.dir) {
		t.Errorf("to root: %+v", i)
	}
	for _, key := range []string{text, reader} {
		for _, call := range [][2]string{
			{"GET", "/v1/sandboxes"}, {"GET", "/v1/sandboxes/acme%2Fbox"}, {"PUT", "/v1/sandboxes/acme%2Fbox"}, {"POST", "/v1/sandboxes/acme%2Fbox/start"}, {"POST", "/v1/sandboxes/acme%2Fbox/stop"},
			{"POST", "/v1/sandboxes/acme%2Fbox/fork"},
		} {
			if status, _, answer, _ := raw(t, h, key, call[0], call[1], map[string]string{"/v1/sandboxes/acme%2Fbox PUT": "{}", "/v1/sandboxes/acme%2Fbox/fork POST": "{}"}[call[1]+" "+call[0]]); status/100 != 2 || strings.Contains(string(answer), h.dir) {
				t.Errorf("%s: %d %s", call, status, answer)
			}
		}
	}
	var broken error = &fs.PathError{Op: "open", Path: "/var/lib/sallyport/ca/root.sealed", Err: fs.ErrPermission}
	h.root.Store(&broken)
	must.OK(t, os.MkdirAll(filepath.Join(h.dir, "sandboxes", "inway"), 0o700))
	for what, of := range map[string]func(*client.Client) error{
		"its authority":  func(c *client.Client) error { _, err := c.SandboxRoot(ctx, "acme/box"); return err },
		"one in the way": func(c *client.Client) error { _, err := c.Create(ctx, "inway", sandbox.Spec{}); return err },
	} {
		var p *api.Problem
		if err := of(acme); !errors.As(err, &p) || strings.Contains(p.Detail, "/var/lib") || strings.Contains(p.Detail, h.dir) || p.Detail == "" {
			t.Errorf("%s: %v", what, err)
		}
		if err := of(root); what != "one in the way" && (!errors.As(err, &p) || !strings.Contains(p.Detail, "/var/lib")) {
			t.Errorf("%s, to root: %v", what, err)
		}
	}
}
