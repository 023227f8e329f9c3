package docker

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

type robot struct{}

func (robot) Reveal() (string, string, string) { return "robot", "a-password-of-length", "" }
func (robot) Hide(s string) string             { return s }

// A real engine fetches from a registry, with a login and without, loads and removes.
func TestImagesOfEngine(t *testing.T) {
	l := need(t)
	im := l.engine.Images()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	w.WriteHeader(&tar.Header{Name: "hello", Mode: 0o644, Size: 2})
	w.Write([]byte("hi"))
	w.Close()
	config := fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":["sha256:%x"]}}`, sha256.Sum256(layer.Bytes()))
	manifest := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.docker.distribution.manifest.v2+json","config":{"mediaType":"application/vnd.docker.container.image.v1+json","size":%d,"digest":"sha256:%x"},"layers":[{"mediaType":"application/vnd.docker.image.rootfs.diff.tar","size":%d,"digest":"sha256:%x"}]}`,
		len(config), sha256.Sum256(config), layer.Len(), sha256.Sum256(layer.Bytes()))
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); u != "robot" || p != "a-password-of-length" {
			w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
			w.WriteHeader(401)
			return
		}
		for _, b := range [][]byte{config, layer.Bytes()} {
			if strings.HasSuffix(r.URL.Path, fmt.Sprintf("/blobs/sha256:%x", sha256.Sum256(b))) {
				w.Write(b)
				return
			}
		}
		w.Header().Set("Content-Type", "application/vnd.docker.distribution.manifest.v2+json")
		w.Write(manifest)
	}))
	defer registry.Close()
	name := strings.TrimPrefix(registry.URL, "http://") + "/team/a:1"
	tell := func(sandbox.ImageStep) error { return nil }
	if err := im.Pull(t.Context(), name, nil, tell); !errors.Is(err, sandbox.ErrRegistry) {
		t.Errorf("without a login: %v", err)
	}
	must.OK(t, im.Pull(t.Context(), name, robot{}, tell))
	i, err := im.Find(t.Context(), name)
	if err != nil || i.ID != fmt.Sprintf("sha256:%x", sha256.Sum256(config)) || len(i.Digests) != 1 {
		t.Errorf("got %+v, %v", i, err)
	}
	if err := im.Remove(t.Context(), name); err != nil {
		t.Error(err)
	}
	if _, err := im.Find(t.Context(), name); !errors.Is(err, sandbox.ErrNoImage) {
		t.Errorf("after its removal: %v", err)
	}
	if _, err := im.Load(t.Context(), strings.NewReader("no archive")); !errors.Is(err, sandbox.ErrArchive) {
		t.Errorf("of no archive: %v", err)
	}
}
