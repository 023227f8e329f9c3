package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/api"
	"sallyport/internal/test/clitest"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// Images are pulled with their progress shown, loaded, listed with the sandboxes that are
// made of them, and removed; a registry's refusal is passed on.
func TestImage(t *testing.T) {
	id := "sha256:" + strings.Repeat("a", 64)
	image := sandbox.Image{ID: id, Names: []string{"debian:bookworm"}, Digests: []string{"debian@" + id}, Size: 1 << 20, Sandboxes: []string{"demo"}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/images/pull", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		lines := json.NewEncoder(w)
		if !strings.Contains(string(body), "debian") {
			_ = lines.Encode(client.ImagePull{Problem: &api.Problem{Status: http.StatusBadGateway, Detail: "the registry has no such image"}})
			return
		}
		_ = lines.Encode(client.ImagePull{Step: &sandbox.ImageStep{Layer: "a1", Status: "Downloading", Done: 1, Total: 2}})
		_ = lines.Encode(client.ImagePull{Image: &image})
	})
	mux.HandleFunc("PUT /v1/images/archive", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_ = json.NewEncoder(w).Encode([]sandbox.Image{image})
	})
	mux.HandleFunc("GET /v1/images", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode([]sandbox.Image{image}) })
	mux.HandleFunc("DELETE /v1/images", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	file := clitest.FakeDaemon(t, mux)
	tar := filepath.Join(t.TempDir(), "image.tar")
	must.OK(t, os.WriteFile(tar, []byte("tar"), 0o600))
	there := "debian:bookworm is there: " + id + ", debian@" + id + "\n"
	for _, tt := range []struct {
		args   string
		status int
		says   []string
	}{
		{"pull debian:bookworm", 0, []string{"a1  Downloading\n", there}},
		{"pull other:1", 1, []string{"the registry has no such image"}},
		{"load " + tar, 0, []string{there}},
		{"load " + filepath.Dir(tar), 2, []string{"is a folder: name a tar archive"}},
		{"ls", 0, []string{"debian:bookworm", "sha256:aaaaaaaaaaaa ", "demo"}},
		{"rm debian:bookworm", 0, []string{"debian:bookworm is removed\n"}},
	} {
		t.Run(tt.args, func(t *testing.T) {
			out, status, err := run(t, "", append([]string{"--config", file, "image"}, strings.Fields(tt.args)...)...)
			if err != nil {
				out += err.Error()
			}
			for _, says := range tt.says {
				if status != tt.status || !strings.Contains(out, says) {
					t.Errorf("got %d and\n%s\nwant %d with %q", status, out, tt.status, says)
				}
			}
		})
	}
}
