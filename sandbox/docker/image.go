package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	imagename "sallyport/internal/image"
	"sallyport/sandbox"
)

// image is what of an image's configuration decides how its containers are made.
type image struct {
	id   string
	of   sandbox.Image // as it was found
	user string
	env  map[string]string
	// folders are what the image declares as volumes, and has to have.
	folders []string
}

// image is that of a name; or, for a container like another one, the very image of
// that, whose volumes the memory of a sandbox that an earlier version made may know.
func (r *Runtime) image(ctx context.Context, ref string, like bool) (image, error) {
	if ref == "" {
		ref = r.cfg.Image
	}
	// The client makes it a part of a URL's path as it is, and the engine takes for
	// the beginning of an ID what may be one.
	name, err := imagename.Parse(ref)
	if err != nil {
		return image{}, fmt.Errorf("%w: %w", sandbox.ErrNoImage, err)
	}
	res, err := r.client.ImageInspect(ctx, name)
	if cerrdefs.IsNotFound(err) || cerrdefs.IsInvalidArgument(err) {
		hint := "the host's operators can load one"
		if sandbox.OwnerOf(ctx) == "" {
			hint = fmt.Sprintf("`sallyport image pull %s` fetches it from its registry, `sallyport image load FILE` takes it from a file", ref)
		}
		return image{}, fmt.Errorf("%w: %q: %s", sandbox.ErrNoImage, ref, hint)
	}
	if err != nil {
		return image{}, Map(fmt.Errorf("inspecting image %q: %w", ref, err))
	}
	img := image{id: res.ID, of: describe(res.InspectResponse), env: map[string]string{}}
	if c := res.Config; c != nil {
		img.user = c.User
		for _, kv := range c.Env {
			k, v, _ := strings.Cut(kv, "=")
			img.env[k] = v
		}
		if len(c.Volumes) > 0 && r.Layered() && !like {
			img.id, img.folders, err = r.withoutVolumes(ctx, res.InspectResponse)
		}
	}
	return img, err
}

// EnsureImage imports the tarball of a root file system as ref, unless the
// engine has an image of that name.
func (r *Runtime) EnsureImage(ctx context.Context, ref, tarball string) error {
	name, err := imagename.Parse(ref)
	if err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrNoImage, err)
	}
	if _, err = r.client.ImageInspect(ctx, name); err == nil {
		return nil
	}
	if !cerrdefs.IsNotFound(err) {
		return Map(fmt.Errorf("inspecting image %q: %w", ref, err))
	}
	f, err := os.Open(tarball)
	if err != nil {
		return fmt.Errorf("%w: %q, and its root file system cannot be read: %w: run `make setup`", sandbox.ErrNoImage, ref, err)
	}
	defer f.Close()
	res, err := r.client.ImageImport(ctx, client.ImageImportSource{Source: f, SourceName: "-"}, ref, client.ImageImportOptions{
		Message: "imported by sallyport",
		Changes: []string{
			"ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"WORKDIR /root",
		},
	})
	if err != nil {
		return Map(fmt.Errorf("importing image %q: %w", ref, err))
	}
	defer res.Close()
	return readImport(ref, res)
}

// readImport reads an import's progress to its end, where a failure would be.
func readImport(ref string, progress io.Reader) error {
	d := json.NewDecoder(progress)
	for {
		var m struct {
			Error string `json:"error"`
		}
		switch err := d.Decode(&m); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return Map(fmt.Errorf("importing image %q: %w", ref, err))
		case m.Error != "":
			return fmt.Errorf("importing image %q: %s", ref, m.Error)
		}
	}
}
