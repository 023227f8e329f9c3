// Package image lists, fetches, loads and removes the images of a Docker Engine, and says
// how a container is made of one.
package image

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	apiimage "github.com/moby/moby/api/types/image"
	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"

	imagename "sallyport/internal/image"
	"sallyport/sandbox"
	"sallyport/sandbox/docker/apierror"
)

// Store holds the images of an engine. It implements manager.Images.
type Store struct{ client *client.Client }

// NewStore returns the images of an engine.
func NewStore(c *client.Client) Store { return Store{c} }

// List returns the images, those without a name included, and no parts of them.
func (i Store) List(ctx context.Context) ([]sandbox.Image, error) {
	res, err := i.client.ImageList(ctx, client.ImageListOptions{})
	if err != nil {
		return nil, apierror.Map(fmt.Errorf("listing images: %w", err))
	}
	var list []sandbox.Image
	for _, s := range res.Items {
		list = append(list, sandbox.Image{ID: s.ID, Names: tagged(s.RepoTags), Digests: tagged(s.RepoDigests), Size: s.Size, Created: time.Unix(s.Created, 0).UTC()})
	}
	return list, nil
}

// tagged are the names that are such: the engine lists an image without one as <none>.
func tagged(all []string) []string {
	names := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return strings.HasPrefix(s, "<none>") })
	if names == nil {
		names = []string{}
	}
	return names
}

// Find returns the image of a name.
func (i Store) Find(ctx context.Context, name string) (sandbox.Image, error) {
	res, err := i.client.ImageInspect(ctx, name)
	if cerrdefs.IsNotFound(err) {
		return sandbox.Image{}, fmt.Errorf("%w: `sallyport image ls` shows those there are", sandbox.ErrNoImage)
	}
	if err != nil {
		return sandbox.Image{}, apierror.Map(fmt.Errorf("inspecting it: %w", err))
	}
	return describe(res.InspectResponse), nil
}

func describe(r apiimage.InspectResponse) sandbox.Image {
	s := sandbox.Image{ID: r.ID, Names: tagged(r.RepoTags), Digests: tagged(r.RepoDigests), Size: r.Size}
	s.Created, _ = time.Parse(time.RFC3339Nano, r.Created) // an image need not say it
	return s
}

// Pull has the engine fetch an image.
func (i Store) Pull(ctx context.Context, name string, login sandbox.Login, tell func(sandbox.ImageStep) error) error {
	var opts client.ImagePullOptions
	hide := func(text string) string { return text }
	if login != nil {
		hide = login.Hide
		shown, err := authHeader(login, imagename.Registry(name))
		if err != nil {
			return err
		}
		opts.RegistryAuth = shown
	}
	res, err := i.client.ImagePull(ctx, name, opts)
	if err != nil {
		return pullError(ctx, err, hide, login != nil)
	}
	defer res.Close()
	err = readProgress(ctx, res, func(m jsonstream.Message) error {
		s := sandbox.ImageStep{Layer: m.ID, Status: hide(m.Status)}
		if m.Progress != nil {
			s.Done, s.Total = m.Progress.Current, m.Progress.Total
		}
		return tell(s)
	})
	if err != nil {
		return pullError(ctx, err, hide, login != nil)
	}
	return nil
}

// authHeader is the value of the header that the engine reads a login from.
func authHeader(login sandbox.Login, host string) (string, error) {
	if host == "docker.io" {
		host = "https://index.docker.io/v1/" // as the engine calls Docker Hub
	}
	a := registry.AuthConfig{ServerAddress: host}
	a.Username, a.Password, a.RegistryToken = login.Reveal()
	text, err := json.Marshal(a)
	return base64.URLEncoding.EncodeToString(text), err
}

// pullError is why an image was not fetched: the engine's words, which may be those of
// the registry.
func pullError(ctx context.Context, err error, hide func(string) string, loggedIn bool) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if client.IsErrConnectionFailed(err) || errors.Is(err, errListenerGone) {
		return apierror.Map(err)
	}
	text := hide(strings.TrimPrefix(err.Error(), "Error response from daemon: "))
	if low := strings.ToLower(text); !loggedIn && (strings.Contains(low, "denied") || strings.Contains(low, "unauthorized") || strings.Contains(low, "no basic auth")) {
		text += ": a registry that wants a login has it under registries: in sallyport.yaml"
	}
	return fmt.Errorf("%w: %s", sandbox.ErrRegistry, text)
}

// errListenerGone: nobody listens any more.
var errListenerGone = errors.New("how it goes on cannot be told")

// readProgress reads what the engine says to its end, where a failure would be.
func readProgress(ctx context.Context, from io.Reader, tell func(jsonstream.Message) error) error {
	for d := json.NewDecoder(from); ; {
		var m jsonstream.Message
		switch err := d.Decode(&m); {
		case errors.Is(err, io.EOF):
			return ctx.Err()
		case err != nil:
			return err
		case m.Error != nil:
			return m.Error
		}
		if err := tell(m); err != nil {
			return fmt.Errorf("%w: %w", errListenerGone, err)
		}
	}
}

// Load has the engine read images out of an archive.
func (i Store) Load(ctx context.Context, tar io.Reader) (names []string, err error) {
	res, err := i.client.ImageLoad(ctx, tar, client.ImageLoadWithQuiet(true))
	if err == nil {
		defer res.Close()
		err = readProgress(ctx, res, func(m jsonstream.Message) error {
			for line := range strings.Lines(m.Stream) {
				line = strings.TrimSuffix(line, "\n")
				// As moby's image/tarexport says it.
				if name, ok := strings.CutPrefix(line, "Loaded image: "); ok {
					names = append(names, name)
				} else if id, ok := strings.CutPrefix(line, "Loaded image ID: "); ok {
					names = append(names, id)
				}
			}
			return nil
		})
	}
	switch {
	case err == nil:
		return names, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case client.IsErrConnectionFailed(err):
		return nil, apierror.Map(err)
	}
	return nil, fmt.Errorf("%w: %s", sandbox.ErrArchive, strings.TrimPrefix(err.Error(), "Error response from daemon: "))
}

// Remove takes a name away, and the image with its last one. The engine refuses where a
// container is made of it.
func (i Store) Remove(ctx context.Context, name string) error {
	_, err := i.client.ImageRemove(ctx, name, client.ImageRemoveOptions{PruneChildren: true})
	switch {
	case err == nil:
		return nil
	case cerrdefs.IsConflict(err):
		return fmt.Errorf("%w: %s", sandbox.ErrImageUsed, strings.TrimPrefix(err.Error(), "Error response from daemon: "))
	case cerrdefs.IsNotFound(err):
		return fmt.Errorf("%w: `sallyport image ls` shows those there are", sandbox.ErrNoImage)
	}
	return apierror.Map(fmt.Errorf("removing it: %w", err))
}
