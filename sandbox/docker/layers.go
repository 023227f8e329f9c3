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
	if info.GraphDriver == nil || info.GraphDriver.Name != "overlay2" {
		return "", nil, fmt.Errorf("%w: this engine does not keep containers in overlay2, so that their files cannot be compared: use engine.kind: private", sandbox.ErrBadSpec)
	}
	upper = info.GraphDriver.Data["UpperDir"]
	lower = filepath.SplitList(info.GraphDriver.Data["LowerDir"])
	for _, dir := range append([]string{upper}, lower...) {
		if !filepath.IsAbs(dir) || strings.Contains(dir, "..") {
			return "", nil, fmt.Errorf("the engine names %q as a layer of the container", dir)
		}
	}
	return upper, lower, nil
}

var _ sandbox.Layers = (*Runtime)(nil)
