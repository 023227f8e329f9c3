package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"

	cerrdefs "github.com/containerd/errdefs"
	apiimage "github.com/moby/moby/api/types/image"
	"github.com/moby/moby/client"

	"sallyport/sandbox/docker/apierror"
)

// withoutVolumes returns an image of the same layers whose configuration declares no
// volumes, and the folders that were to be such. The engine would make each a folder of
// the host's disk, which is in no limit, snapshot or fork of the sandbox; without that
// they are folders like others. The image has no name and costs a few hundred bytes.
//
// An archive for [client.Client.ImageLoad] need not have the layers that the engine has
// (moby, image/tarexport).
func (i Store) withoutVolumes(ctx context.Context, of apiimage.InspectResponse) (id string, folders []string, err error) {
	for p := range of.Config.Volumes {
		folders = append(folders, path.Clean("/"+p))
	}
	slices.Sort(folders)
	plain := *of.Config
	plain.Volumes = nil
	config, err := json.Marshal(map[string]any{
		"architecture": of.Architecture, "variant": of.Variant, "os": of.Os, "os.version": of.OsVersion,
		"config": plain,
		"rootfs": map[string]any{"type": of.RootFS.Type, "diff_ids": of.RootFS.Layers},
	})
	if err != nil {
		return "", nil, err
	}
	sum := sha256.Sum256(config)
	id = "sha256:" + hex.EncodeToString(sum[:]) // as the engine names it
	if _, err := i.client.ImageInspect(ctx, id); err == nil {
		return id, folders, nil
	} else if !cerrdefs.IsNotFound(err) {
		return "", nil, err
	}
	layers := make([]string, len(of.RootFS.Layers))
	for n := range layers {
		layers[n] = "absent"
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "Layers": layers}})
	if err != nil {
		return "", nil, err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	files := map[string][]byte{"config.json": config, "manifest.json": manifest}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(files[name]))}); err != nil {
			return "", nil, err
		}
		if _, err := w.Write(files[name]); err != nil {
			return "", nil, err
		}
	}
	if err := w.Close(); err != nil {
		return "", nil, err
	}
	res, err := i.client.ImageLoad(ctx, &archive, client.ImageLoadWithQuiet(true))
	if err != nil {
		return "", nil, apierror.Map(fmt.Errorf("making an image without volumes: %w", err))
	}
	defer res.Close()
	if err := readImport("without volumes", res); err != nil {
		return "", nil, err
	}
	return id, folders, nil
}
