package manager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"sallyport/audit"
	"sallyport/internal/image"
	"sallyport/sandbox"
	"sallyport/sandbox/imagetar"
)

// isID tells an image's ID from a name.
func isID(name string) bool { return image.Registry(name) == "" }

// Images lists what the engine has, with the sandboxes that are made of each.
func (m *Manager) Images(ctx context.Context) ([]sandbox.Image, error) {
	if m.opt.Images == nil {
		return nil, errNoImages
	}
	list, err := m.opt.Images.List(ctx)
	if err != nil {
		return nil, err
	}
	for n := range list {
		list[n].Default, list[n].Sandboxes = isImage(list[n], m.opt.Defaults.Image), m.madeFrom(list[n])
	}
	return list, nil
}

var errNoImages = fmt.Errorf("%w: this host's images cannot be reached", sandbox.ErrEngine)

// isImage tells whether a name or an ID stands for the image now.
func isImage(i sandbox.Image, text string) bool {
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
func (m *Manager) madeFrom(i sandbox.Image) (names []string) {
	for _, s := range m.List() {
		if s.ImageID == i.ID || s.ImageID == "" && isImage(i, s.Spec.Image) {
			names = append(names, s.FullName())
		}
	}
	return names
}

// PullImage has the engine fetch an image, with the login that there is for its
// registry. It is on record before anything is fetched, and what became of it after.
func (m *Manager) PullImage(ctx context.Context, text string, tell func(sandbox.ImageStep) error) (i sandbox.Image, err error) {
	name, err := image.Parse(text)
	switch {
	case err != nil:
		err = fmt.Errorf("%w: image: %w", sandbox.ErrBadSpec, err)
	case isID(name):
		err = fmt.Errorf("%w: image %q: no registry is named: write the image's name, or NAME@sha256:DIGEST", sandbox.ErrBadSpec, text)
	case strings.HasPrefix(name, imagetar.HostNames):
		err = fmt.Errorf("%w: image %q: this host makes it itself: `make setup` does", sandbox.ErrBadSpec, text)
	}
	if err != nil {
		m.imageFailed(ctx, text, "refused", err)
		return sandbox.Image{}, fmt.Errorf("fetching an image: %w", err)
	}
	i, err = m.pullImage(ctx, name, tell)
	return i, m.imageDone(ctx, "pulled", err, name, i)
}

func (m *Manager) pullImage(ctx context.Context, name string, tell func(sandbox.ImageStep) error) (i sandbox.Image, err error) {
	ctx, done, err := m.beginImage(ctx)
	if err != nil {
		return i, err
	}
	defer func() { err = done(err) }()
	var login sandbox.Login
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
func (m *Manager) LoadImages(ctx context.Context, tar io.Reader) (list []sandbox.Image, err error) {
	names, err := m.load(ctx, tar)
	if err != nil {
		return nil, m.imageDone(ctx, "", err, "an archive", sandbox.Image{})
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
	vetted := imagetar.NewReader(tar, own)
	texts, err := m.opt.Images.Load(ctx, vetted)
	if err := cmp.Or(vetted.Err(), err); err != nil {
		return nil, err
	}
	for _, text := range texts {
		name, err := image.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("%w: an image in it has no name to use it by: %w", sandbox.ErrArchive, err)
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%w: no image is in it", sandbox.ErrArchive)
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
	if err := m.checkDiskFor(m.opt.Reserve); err != nil {
		return nil, nil, err
	}
	ctx, done = m.watchDisk(ctx, m.opt.Reserve)
	return ctx, done, nil
}

// RemoveImage takes an image's name away, and the image with its last one, unless it is
// the default one or a sandbox is made of it.
func (m *Manager) RemoveImage(ctx context.Context, text string) error {
	name, err := image.Parse(text)
	if err != nil {
		err = fmt.Errorf("%w: image: %w", sandbox.ErrBadSpec, err)
		m.imageFailed(ctx, text, "refused", err)
		return fmt.Errorf("removing an image: %w", err)
	}
	if m.opt.Images == nil {
		return errNoImages
	}
	i, err := m.opt.Images.Find(ctx, name)
	if err == nil {
		err = m.needed(i, name)
	}
	if err == nil {
		err = m.opt.Images.Remove(ctx, name)
	}
	return m.imageDone(ctx, "removed", err, name, i)
}

// needed says why an image cannot lose a name.
func (m *Manager) needed(i sandbox.Image, name string) error {
	own, _ := image.Parse(m.opt.Defaults.Image)
	if name == own || isID(name) && isImage(i, own) {
		return fmt.Errorf("%w: it is the default image of new sandboxes (sandbox.image)", sandbox.ErrImageUsed)
	}
	last := isID(name) || len(i.Names) == 0 && len(i.Digests) == 1 || len(i.Names) == 1 && !strings.Contains(name, "@")
	if used := m.madeFrom(i); last && len(used) > 0 {
		return fmt.Errorf("%w: sandboxes are made of it: %s: remove them first", sandbox.ErrImageUsed, few(used))
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
func (m *Manager) imageDone(ctx context.Context, state string, err error, name string, i sandbox.Image) error {
	if err != nil {
		m.imageFailed(ctx, name, "failed", err)
		return fmt.Errorf("image %s: %w", name, err)
	}
	ev := imageEvent(name, state)
	ev.Detail, ev.Entity.UID = strings.Join(append([]string{i.ID}, i.Digests...), ", "), i.ID
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
	ev := audit.Change("image/"+name, state)
	ev.Message = "image " + name + " " + state
	return ev
}
