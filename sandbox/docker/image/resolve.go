package image

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
	"sallyport/sandbox/docker/apierror"
)

// Config is the part of an image's configuration that decides how its containers are
// made.
type Config struct {
	ID      string        // of the image that a container is made of
	Image   sandbox.Image // that was asked for
	User    string
	Env     map[string]string
	Folders []string // that the image declares as volumes; the container needs them
}

// Resolve returns the configuration of the image of a name or an ID. With plain, a
// container is made of the same layers without the volumes that the image declares: see
// withoutVolumes. An image that is not there is never fetched.
func (i Store) Resolve(ctx context.Context, ref string, plain bool) (Config, error) {
	// The client makes it a part of a URL's path as it is, and the engine takes for
	// the beginning of an ID what may be one.
	name, err := imagename.Parse(ref)
	if err != nil {
		return Config{}, fmt.Errorf("%w: %w", sandbox.ErrNoImage, err)
	}
	res, err := i.client.ImageInspect(ctx, name)
	if cerrdefs.IsNotFound(err) || cerrdefs.IsInvalidArgument(err) {
		hint := "the host's operators can load one"
		if sandbox.OwnerOf(ctx) == "" {
			hint = fmt.Sprintf("`sallyport image pull %s` fetches it from its registry, `sallyport image load FILE` takes it from a file", ref)
		}
		return Config{}, fmt.Errorf("%w: %q: %s", sandbox.ErrNoImage, ref, hint)
	}
	if err != nil {
		return Config{}, apierror.Map(fmt.Errorf("inspecting image %q: %w", ref, err))
	}
	img := Config{ID: res.ID, Image: describe(res.InspectResponse), Env: map[string]string{}}
	if c := res.Config; c != nil {
		img.User = c.User
		for _, kv := range c.Env {
			k, v, _ := strings.Cut(kv, "=")
			img.Env[k] = v
		}
		if len(c.Volumes) > 0 && plain {
			img.ID, img.Folders, err = i.withoutVolumes(ctx, res.InspectResponse)
		}
	}
	return img, err
}

// Ensure imports the tarball of a root file system as ref, unless the engine has an
// image of that name.
func (i Store) Ensure(ctx context.Context, ref, tarball string) error {
	name, err := imagename.Parse(ref)
	if err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrNoImage, err)
	}
	if _, err = i.client.ImageInspect(ctx, name); err == nil {
		return nil
	}
	if !cerrdefs.IsNotFound(err) {
		return apierror.Map(fmt.Errorf("inspecting image %q: %w", ref, err))
	}
	f, err := os.Open(tarball)
	if err != nil {
		return fmt.Errorf("%w: %q, and its root file system cannot be read: %w: run `make setup`", sandbox.ErrNoImage, ref, err)
	}
	defer f.Close()
	res, err := i.client.ImageImport(ctx, client.ImageImportSource{Source: f, SourceName: "-"}, ref, client.ImageImportOptions{
		Message: "imported by sallyport",
		Changes: []string{
			"ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
			"WORKDIR /root",
		},
	})
	if err != nil {
		return apierror.Map(fmt.Errorf("importing image %q: %w", ref, err))
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
			return apierror.Map(fmt.Errorf("importing image %q: %w", ref, err))
		case m.Error != "":
			return fmt.Errorf("importing image %q: %s", ref, m.Error)
		}
	}
}
