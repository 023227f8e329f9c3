package docker

import (
	"cmp"
	"context"
	"path/filepath"

	"sallyport/sandbox"
)

// Layer is the folder of the host with what the container has written of its
// image's files, as overlayfs keeps it: what is removed is there as a device 0/0,
// and folders may carry trusted.overlay.* attributes
// (Documentation/filesystems/overlayfs.rst). It may be read while the container
// stands still, and written before it is started.
func (r *Runtime) Layer(ctx context.Context, id string) (string, error) {
	info, err := r.inspect(ctx, id)
	if err != nil {
		return "", err
	}
	if own := info.Config.Labels[labelLayer]; own != "" {
		return filepath.Join(own, "diff"), nil
	}
	of, err := engineLayerDir(info)
	if err != nil {
		return "", err
	}
	return filepath.Join(of, "diff"), nil
}

// origin is the image that a container is to be made of: by what its spec says, or
// the very one of the container that it is to be like.
func (r *Runtime) origin(ctx context.Context, c sandbox.Container) (string, error) {
	if c.Like == "" {
		return cmp.Or(c.Image, c.Spec.Image), nil
	}
	info, err := r.inspect(ctx, c.Like)
	return info.Image, err
}
