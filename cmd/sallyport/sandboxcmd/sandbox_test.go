package sandboxcmd

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/api"
	"sallyport/internal/test/clitest"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
	"sallyport/sandbox/client"
)

// run is the command line with `sallyport sandbox` alone.
func run(t *testing.T, args ...string) (out string, status int, err error) {
	t.Helper()
	return clitest.Run(t, cli.Root("devel", Command), "", args...)
}

// Of several names all are tried, each failure is said, and the status is 1 if
// there was one. No sandboxes are an empty list in JSON.
func TestSeveral(t *testing.T) {
	problems := map[string]api.Problem{
		"none":  {Status: http.StatusNotFound, Detail: "no such sandbox: none"},
		"stuck": {Status: http.StatusInternalServerError, Detail: "stuck is stuck"},
	}
	answer := func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		w.Header().Set("Content-Type", "application/json")
		switch problem, fails := problems[name]; {
		case fails:
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(problem.Status)
			_ = json.NewEncoder(w).Encode(problem)
		case r.Method == http.MethodDelete:
			w.WriteHeader(http.StatusNoContent)
		default:
			_ = json.NewEncoder(w).Encode(sandbox.Info{Name: name, State: sandbox.Stopped})
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("DELETE /v1/sandboxes/{name}", answer)
	mux.HandleFunc("POST /v1/sandboxes/{name}/stop", answer)
	mux.HandleFunc("GET /v1/sandboxes", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("[]\n")) })
	file := clitest.FakeDaemon(t, mux)
	for _, tt := range []struct {
		args   string
		status int
		out    string
	}{
		{"rm a", 0, "a is removed\n"},
		{"rm a b", 0, "a is removed\nb is removed\n"},
		{"rm a none b", 1, "a is removed\nsallyport: no such sandbox: none\nb is removed\n"},
		{"rm none", 1, ""},
		{"rm -f none", 0, ""},
		{"rm -f a none stuck", 1, "a is removed\nsallyport: stuck is stuck\n"},
		{"rm -f stuck", 1, ""},
		{"ls -o json", 0, "[]\n"},
		{"stop a b", 0, "a is stopped\nb is stopped\n"},
		{"stop stuck none", 1, "sallyport: stuck is stuck\nsallyport: no such sandbox: none\n"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			out, status, _ := run(t, append([]string{"--config", file, "sandbox"}, strings.Fields(tt.args)...)...)
			if out != tt.out || status != tt.status {
				t.Errorf("got %d and %q, want %d and %q", status, out, tt.status, tt.out)
			}
		})
	}
}

// Text from a sandbox about itself and its files is fit for a terminal however it is listed.
func TestListingsOfHostileText(t *testing.T) {
	const text = "\x1b[2J\u009b2J\u202e\x7f\u200b"
	info := sandbox.Info{Name: "a", State: sandbox.Failed, Reason: text, Lost: text}
	mux := http.NewServeMux()
	for route, v := range map[string]any{
		"GET /v1/sandboxes":              []sandbox.Info{info},
		"POST /v1/sandboxes/a/start":     info,
		"GET /v1/sandboxes/a/files/list": wire.Listing{Files: []sandbox.File{{Name: text, Type: wire.Link, Target: text}}},
		"GET /v1/sandboxes/a/changes":    client.Change{Kind: text, Path: text},
	} {
		mux.HandleFunc(route, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v)
		})
	}
	file := clitest.FakeDaemon(t, mux)
	for _, args := range []string{"ls", "start a", "files ls a /", "changes a"} {
		for _, form := range []string{"text", "json"} {
			out, status, err := run(t, append([]string{"--config", file, "-o", form, "sandbox"}, strings.Fields(args)...)...)
			if status != 0 || !strings.Contains(out, "202e") {
				t.Errorf("%s as %s: got %d, %v and %q", args, form, status, err, out)
			}
			if strings.ContainsFunc(out, func(r rune) bool { return r != '\n' && !strconv.IsPrint(r) }) {
				t.Errorf("%s as %s: got %q", args, form, out)
			}
		}
	}
}
