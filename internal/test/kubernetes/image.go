package kubernetes

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"sallyport/internal/test/must"
)

// Image is the name of the base image on every node. Its command sleeps, so that it is the
// image of pods' sandboxes too.
const Image = "docker.io/sallyport/base:test"

// Import gives the node an image with one layer, an uncompressed tar archive.
func (n *Node) Import(t testing.TB, name, layer string) {
	t.Helper()
	must.OK(t, n.importImage(name, layer))
}

func (n *Node) importImage(name, layer string) error {
	file := filepath.Join(n.disk, "image.tar")
	defer os.Remove(file)
	if err := writeImage(file, name, layer); err != nil {
		return fmt.Errorf("image %s: %w", name, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), ready)
	defer cancel()
	_, err := n.Exec(ctx, n.c.program("ctr"), "--namespace=k8s.io", "images", "import", "--local", file)
	return err
}

// writeImage writes an archive of an image (OCI Image Layout 1.0).
func writeImage(file, name, layer string) (err error) {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() {
		if closed := out.Close(); err == nil {
			err = closed
		}
	}()
	from, err := os.Open(layer)
	if err != nil {
		return err
	}
	defer from.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, from)
	if err != nil {
		return err
	}
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return err
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	archive := tar.NewWriter(out)
	if err := archive.WriteHeader(&tar.Header{Name: "blobs/sha256/" + digest, Mode: 0o644, Size: size}); err != nil {
		return err
	}
	if _, err := io.Copy(archive, from); err != nil {
		return err
	}
	add := func(name string, content any) (object, error) {
		raw, err := json.Marshal(content)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(raw)
		digest := hex.EncodeToString(sum[:])
		if name == "" {
			name = "blobs/sha256/" + digest
		}
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(raw))}); err != nil {
			return nil, err
		}
		_, err = archive.Write(raw)
		return object{"digest": "sha256:" + digest, "size": len(raw)}, err
	}
	config, err := add("", object{
		"architecture": runtime.GOARCH, "os": "linux", "rootfs": object{"type": "layers", "diff_ids": []string{"sha256:" + digest}},
		"config": object{"Cmd": []string{"sleep", "infinity"}, "Env": []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}},
	})
	if err != nil {
		return err
	}
	config["mediaType"] = "application/vnd.oci.image.config.v1+json"
	manifest, err := add("", object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": config,
		"layers": []object{{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": "sha256:" + digest, "size": size}},
	})
	if err != nil {
		return err
	}
	manifest["mediaType"] = "application/vnd.oci.image.manifest.v1+json"
	manifest["annotations"] = object{"io.containerd.image.name": name}
	if _, err := add("index.json", object{"schemaVersion": 2, "manifests": []object{manifest}}); err != nil {
		return err
	}
	if _, err := add("oci-layout", object{"imageLayoutVersion": "1.0.0"}); err != nil {
		return err
	}
	return archive.Close()
}

type object map[string]any
