package docker

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"sallyport/sandbox"
)

// Layers returns where a sandbox's files lie, see [sandbox.Layers]. The engine
// keeps a container of the overlay2 driver in folders of the host, as
// overlayfs.rst has them; of other drivers nothing is known.
func (r *Runtime) Layers(ctx context.Context, id string) (upper string, lower []string, err error) {
	info, err := r.inspect(ctx, id)
	if err != nil {
		return "", nil, err
	}
	of, err := engineLayerDir(info)
	if err != nil {
		return "", nil, err
	}
	lower = filepath.SplitList(info.GraphDriver.Data["LowerDir"])
	for _, dir := range append([]string{of}, lower...) {
		if !filepath.IsAbs(dir) || strings.Contains(dir, "..") {
			return "", nil, fmt.Errorf("the engine names %q as a layer of the container", dir)
		}
	}
	if own := info.Config.Labels[labelLayer]; own != "" {
		of = own // which covers the engine's while the sandbox runs
	}
	return filepath.Join(of, "diff"), lower, nil
}

var _ sandbox.Layers = (*Runtime)(nil)
