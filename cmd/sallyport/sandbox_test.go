package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"sallyport/internal/api"
	"sallyport/internal/test/clitest"
	"sallyport/sandbox"
)

// Of several names all are tried, each failure is said, and the status is 1 if
// there was one. No sandboxes are an empty list in JSON.
func TestSeveral(t *testing.T) {
	answer := func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		w.Header().Set("Content-Type", "application/json")
		switch {
		case name == "none":
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(api.Problem{Status: http.StatusNotFound, Detail: "no such sandbox: none"})
		case name == "stuck":
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusInternalServerError)
			_ = json.NewEncoder(w).Encode(api.Problem{Status: http.StatusInternalServerError, Detail: "stuck is stuck"})
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
			out, status, _ := run(t, "", append([]string{"--config", file, "sandbox"}, strings.Fields(tt.args)...)...)
			if out != tt.out || status != tt.status {
				t.Errorf("got %d and %q, want %d and %q", status, out, tt.status, tt.out)
			}
		})
	}
}
