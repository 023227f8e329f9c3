package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/internal/test/must"
)

// untar reads an archive, and fails where a file's folder does not come before it.
func untar(t *testing.T, text []byte) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(text)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		must.OK(t, err)
		files[h.Name], err = io.ReadAll(r)
		must.OK(t, err)
		if dir := filepath.Dir(filepath.Clean(h.Name)); dir != "." && files[dir+"/"] == nil {
			t.Errorf("%s comes before its folder", h.Name)
		}
		if h.ModTime.Unix() != 0 {
			t.Errorf("%s has the time %v", h.Name, h.ModTime)
		}
	}
}

func TestImage(t *testing.T) {
	dir := t.TempDir()
	program, roots := filepath.Join(dir, "program"), filepath.Join(dir, "roots.pem")
	must.OK(t, os.WriteFile(program, []byte("the program"), 0o700))
	must.OK(t, os.WriteFile(roots, []byte("the roots"), 0o600))
	first, second := filepath.Join(dir, "first.tar"), filepath.Join(dir, "second.tar")
	for _, out := range []string{first, second} {
		must.OK(t, save(out, "localhost/sallyport:devel", roots, []string{program}))
	}
	archive, err := os.ReadFile(first)
	must.OK(t, err)
	again, err := os.ReadFile(second)
	must.OK(t, err)
	if !bytes.Equal(archive, again) {
		t.Error("the same files made another image")
	}

	files := untar(t, archive)
	// blob returns what a descriptor names, which has to be that.
	blob := func(d descriptor) []byte {
		t.Helper()
		text := files["blobs/sha256/"+d.Digest[len("sha256:"):]]
		if sum := fmt.Sprintf("sha256:%x", sha256.Sum256(text)); sum != d.Digest || len(text) != d.Size {
			t.Errorf("%s has %d bytes and the digest %s", d.Digest, len(text), sum)
		}
		return text
	}
	var index struct{ Manifests []descriptor }
	must.OK(t, json.Unmarshal(files["index.json"], &index))
	if len(index.Manifests) != 1 || index.Manifests[0].Annotations["io.containerd.image.name"] != "localhost/sallyport:devel" {
		t.Fatalf("index %s", files["index.json"])
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	must.OK(t, json.Unmarshal(blob(index.Manifests[0]), &manifest))
	var config struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	must.OK(t, json.Unmarshal(blob(manifest.Config), &config))
	z, err := gzip.NewReader(bytes.NewReader(blob(manifest.Layers[0])))
	must.OK(t, err)
	layer, err := io.ReadAll(z)
	must.OK(t, err)
	if want := []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}; !slices.Equal(config.RootFS.DiffIDs, want) {
		t.Errorf("diff_ids %v, want %v", config.RootFS.DiffIDs, want)
	}
	inside := untar(t, layer)
	want := []string{"etc/", "etc/group", "etc/passwd", "etc/ssl/", "etc/ssl/certs/", "etc/ssl/certs/ca-certificates.crt", "tmp/",
		"usr/", "usr/local/", "usr/local/bin/", "usr/local/bin/program"}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(inside)), want); diff != "" {
		t.Errorf("got - want +\n%s", diff)
	}
	if string(inside["usr/local/bin/program"]) != "the program" || string(inside["etc/ssl/certs/ca-certificates.crt"]) != "the roots" {
		t.Errorf("contents are others")
	}
}
