package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"sallyport/audit"
	"sallyport/internal/image"
)

// Image is one that the engine has.
type Image struct {
	// ID is the digest of its configuration, which names all its layers: sha256:HEX.
	ID string `json:"id"`
	// Names are all that stand for it now, as debian:bookworm.
	Names []string `json:"names"`
	// Digests are what registries have it as, NAME@sha256:HEX. One that came from a file
	// has none.
	Digests []string  `json:"digests,omitempty"`
	Size    int64     `json:"size"` // bytes, those of layers that it shares included
	Created time.Time `json:"created,omitzero"`
	// Default says that sandboxes are made of it that name none.
	Default bool `json:"default,omitempty"`
	// Sandboxes are the full names of those that are made of it.
	Sandboxes []string `json:"sandboxes,omitempty"`
}

// ImageStep is how far a part of an image is that is being fetched.
type ImageStep struct {
	Layer  string `json:"layer,omitempty"` // the first digits of its digest
	Status string `json:"status"`
	Done   int64  `json:"done,omitempty"` // bytes
	Total  int64  `json:"total,omitempty"`
}

// Login is what a registry is shown: a username and a password, or a token. Reveal is
// called where that is sent, and nowhere else.
type Login interface {
	Reveal() (username, password, token string)
	// Hide returns a text that may have come from the registry, without what Reveal gives.
	Hide(text string) string
}

// Images are those of an engine. Names are as image.Parse gives them. Errors wrap
// ErrNoImage, ErrImageUsed, ErrRegistry, ErrArchive and ErrEngine.
type Images interface {
	List(context.Context) ([]Image, error)
	Find(ctx context.Context, name string) (Image, error)
	// Pull has the engine fetch an image from its registry, from the host's own network.
	// What it has fetched when it fails, or tell does, it gives up.
	Pull(ctx context.Context, name string, login Login, tell func(ImageStep) error) error
	// Load has the engine read images out of a tar archive, and returns their names, or
	// IDs of those without one.
	Load(ctx context.Context, tar io.Reader) (names []string, err error)
	// Remove takes a name away, and the image with its last one.
	Remove(ctx context.Context, name string) error
}

// madeOf notes what image a sandbox is made of.
func (r *record) madeOf(i Image) {
	r.ImageID, r.ImageDigest = i.ID, ""
	for _, d := range i.Digests {
		if r.ImageDigest == "" || repository(d) == repository(r.Spec.Image) {
			r.ImageDigest = d
		}
	}
}

// repository is a name without tag and digest.
func repository(text string) string {
	name, err := image.Parse(text)
	if err != nil {
		return ""
	}
	name, _, _ = strings.Cut(name, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	return name
}

// isID tells an image's ID from a name.
func isID(name string) bool { return image.Registry(name) == "" }

// Images lists what the engine has, with the sandboxes that are made of each.
func (m *Manager) Images(ctx context.Context) ([]Image, error) {
	if m.opt.Images == nil {
		return nil, errNoImages
	}
	list, err := m.opt.Images.List(ctx)
	if err != nil {
		return nil, err
	}
	for n := range list {
		list[n].Default, list[n].Sandboxes = list[n].is(m.opt.Defaults.Image), m.madeFrom(list[n])
	}
	return list, nil
}

var errNoImages = fmt.Errorf("%w: this host's images cannot be reached", ErrEngine)

// is tells whether a name or an ID stands for the image now.
func (i Image) is(text string) bool {
	name, err := image.Parse(text)
	if err != nil {
		return false
	}
	return name == i.ID || slices.ContainsFunc(slices.Concat(i.Names, i.Digests), func(own string) bool {
		parsed, err := image.Parse(own)
		return err == nil && parsed == name
	})
}

// madeFrom lists the sandboxes of an image by their full names. One that an earlier
// version made knows a name only.
func (m *Manager) madeFrom(i Image) (names []string) {
	for _, s := range m.List() {
		if s.ImageID == i.ID || s.ImageID == "" && i.is(s.Spec.Image) {
			names = append(names, s.FullName())
		}
	}
	return names
}

// ownNames begins the names of images that this host makes itself. No registry is asked
// for them, where they could be anybody's.
const ownNames = "docker.io/sallyport/"

// PullImage has the engine fetch an image, with the login that there is for its
// registry. It is on record before anything is fetched, and what became of it after.
func (m *Manager) PullImage(ctx context.Context, text string, tell func(ImageStep) error) (i Image, err error) {
	name, err := image.Parse(text)
	switch {
	case err != nil:
		err = fmt.Errorf("%w: image: %w", ErrBadSpec, err)
	case isID(name):
		err = fmt.Errorf("%w: image %q: no registry is named: write the image's name, or NAME@sha256:DIGEST", ErrBadSpec, text)
	case strings.HasPrefix(name, ownNames):
		err = fmt.Errorf("%w: image %q: this host makes it itself: `make setup` does", ErrBadSpec, text)
	}
	if err != nil {
		m.imageFailed(ctx, text, "refused", err)
		return Image{}, fmt.Errorf("fetching an image: %w", err)
	}
	i, err = m.pull(ctx, name, tell)
	return i, m.imageDone(ctx, "pulled", err, name, i)
}

func (m *Manager) pull(ctx context.Context, name string, tell func(ImageStep) error) (i Image, err error) {
	ctx, done, err := m.beginImage(ctx)
	if err != nil {
		return i, err
	}
	defer func() { err = done(err) }()
	var login Login
	if m.opt.Login != nil {
		if login, err = m.opt.Login(ctx, image.Registry(name)); err != nil {
			return i, fmt.Errorf("the login of registry %s: %w", image.Registry(name), err)
		}
	}
	if err := m.opt.Recorder.Append(ctx, imageEvent(name, "pulling")); err != nil {
		return i, err
	}
	if err := m.opt.Images.Pull(ctx, name, login, tell); err != nil {
		return i, err
	}
	return m.opt.Images.Find(ctx, name)
}

// LoadImages has the engine read images out of a tar archive, as `docker save` writes
// it, and returns them.
func (m *Manager) LoadImages(ctx context.Context, tar io.Reader) (list []Image, err error) {
	names, err := m.load(ctx, tar)
	if err != nil {
		return nil, m.imageDone(ctx, "", err, "an archive", Image{})
	}
	for _, name := range names {
		i, err := m.opt.Images.Find(ctx, name)
		if err := m.imageDone(ctx, "loaded", err, name, i); err != nil {
			return list, err
		}
		list = append(list, i)
	}
	return list, nil
}

func (m *Manager) load(ctx context.Context, tar io.Reader) (names []string, err error) {
	ctx, done, err := m.beginImage(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = done(err) }()
	if err := m.opt.Recorder.Append(ctx, imageEvent("an archive", "loading")); err != nil {
		return nil, err
	}
	own, _ := image.Parse(m.opt.Defaults.Image)
	vetted := newImageTar(tar, own)
	texts, err := m.opt.Images.Load(ctx, vetted)
	if err := cmp.Or(vetted.failure(), err); err != nil {
		return nil, err
	}
	for _, text := range texts {
		name, err := image.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("%w: an image in it has no name to use it by: %w", ErrArchive, err)
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%w: no image is in it", ErrArchive)
	}
	return names, nil
}

// beginImage makes sure of room for an image, before and while it comes: twice the
// reserve is left, so that no sandbox's disk is capped for it. done says of an error that
// there was none.
func (m *Manager) beginImage(ctx context.Context) (_ context.Context, done func(error) error, err error) {
	if m.opt.Images == nil {
		return nil, nil, errNoImages
	}
	if err := m.roomyFor(m.opt.Reserve); err != nil {
		return nil, nil, err
	}
	ctx, roomy := m.whileRoomyFor(ctx, m.opt.Reserve)
	return ctx, func(err error) error {
		defer roomy()
		if full := context.Cause(ctx); err != nil && errors.Is(full, ErrFull) {
			return full
		}
		return err
	}, nil
}

// RemoveImage takes an image's name away, and the image with its last one, unless it is
// the default one or a sandbox is made of it.
func (m *Manager) RemoveImage(ctx context.Context, text string) error {
	name, err := image.Parse(text)
	if err != nil {
		err = fmt.Errorf("%w: image: %w", ErrBadSpec, err)
		m.imageFailed(ctx, text, "refused", err)
		return fmt.Errorf("removing an image: %w", err)
	}
	if m.opt.Images == nil {
		return errNoImages
	}
	i, err := m.opt.Images.Find(ctx, name)
	if err == nil {
		err = m.needed(ctx, i, name)
	}
	if err == nil {
		err = m.opt.Images.Remove(ctx, name)
	}
	return m.imageDone(ctx, "removed", err, name, i)
}

// needed says why an image cannot lose a name.
func (m *Manager) needed(ctx context.Context, i Image, name string) error {
	own, _ := image.Parse(m.opt.Defaults.Image)
	if name == own || isID(name) && i.is(own) {
		return fmt.Errorf("%w: it is the default image of new sandboxes (sandbox.image)", ErrImageUsed)
	}
	last := isID(name) || len(i.Names) == 0 && len(i.Digests) == 1 || len(i.Names) == 1 && !strings.Contains(name, "@")
	if used := m.madeFrom(i); last && len(used) > 0 {
		return fmt.Errorf("%w: sandboxes are made of it: %s: remove them first", ErrImageUsed, few(used))
	}
	return nil
}

// few are the first of some names.
func few(names []string) string {
	const most = 5
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// imageDone records what became of an image, and returns the error with its name.
func (m *Manager) imageDone(ctx context.Context, state string, err error, name string, i Image) error {
	if err != nil {
		m.imageFailed(ctx, name, "failed", err)
		return fmt.Errorf("image %s: %w", name, err)
	}
	ev := imageEvent(name, state)
	ev.Detail = strings.Join(append([]string{i.ID}, i.Digests...), ", ")
	if err := m.opt.Recorder.Append(context.WithoutCancel(ctx), ev); err != nil {
		return errors.Join(fmt.Errorf("image %s is %s, but this could not be recorded", name, state), err)
	}
	return nil
}

// imageFailed records what was not done; the rate of these events is bounded.
func (m *Manager) imageFailed(ctx context.Context, name, state string, err error) {
	ev := imageEvent(clip(name), state) // it may be any text
	ev.StatusID, ev.SeverityID = audit.StatusFailure, audit.SeverityLow
	ev.Detail = err.Error()
	m.recordRefusal(ctx, ev)
}

func imageEvent(name, state string) *audit.Event {
	ev := audit.New(audit.KindLifecycle, audit.ClassLifecycle, audit.ActivityOther)
	ev.App = &audit.Product{Name: "image/" + name}
	ev.StatusID = audit.StatusSuccess
	ev.Message = "image " + name + " " + state
	ev.Unmapped.Sallyport.State = state
	return ev
}
