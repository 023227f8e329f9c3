package manager

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sallyport/internal/image"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// fakeImages stand for an engine's: what the faults of the others are told by.
type fakeImages struct {
	known map[string]sandbox.Image // by parsed name, and by ID
	asked []string                 // what was fetched, with whose login
	fault error
}

func (f *fakeImages) of(c sandbox.Container) (sandbox.Image, error) {
	if f == nil {
		return sandbox.Image{}, nil
	}
	if c.Like != "" {
		return sandbox.Image{}, nil
	}
	if c.Image != "" {
		return f.Find(context.Background(), c.Image)
	}
	name, _ := image.Parse(c.Spec.Image)
	return f.Find(context.Background(), name)
}

func (f *fakeImages) List(context.Context) (list []sandbox.Image, err error) {
	for name, i := range f.known {
		if name != i.ID {
			list = append(list, i)
		}
	}
	return list, f.fault
}

func (f *fakeImages) Find(_ context.Context, name string) (sandbox.Image, error) {
	i, ok := f.known[name]
	if !ok {
		return sandbox.Image{}, sandbox.ErrNoImage
	}
	return i, nil
}

func (f *fakeImages) Pull(ctx context.Context, name string, login sandbox.Login, tell func(sandbox.ImageStep) error) error {
	as := "nobody"
	if login != nil {
		as, _, _ = login.Reveal()
	}
	f.asked = append(f.asked, name+" as "+as)
	if f.fault == nil {
		f.put(name, "1")
	}
	return f.fault
}

func (f *fakeImages) Load(_ context.Context, from io.Reader) ([]string, error) {
	names, err := entriesOf(from)
	for _, name := range names {
		parsed, _ := image.Parse(name)
		f.put(parsed, "2")
	}
	return names, err
}

func (f *fakeImages) Remove(_ context.Context, name string) error {
	i := f.known[name]
	delete(f.known, name)
	delete(f.known, i.ID)
	return nil
}

// put has a name stand for the image of a digit.
func (f *fakeImages) put(name, digit string) sandbox.Image {
	id := "sha256:" + strings.Repeat(digit, 64)
	i := sandbox.Image{ID: id, Names: []string{name}, Digests: []string{name[:strings.LastIndexByte(name, ':')] + "@sha256:" + strings.Repeat(digit, 64)}}
	f.known[name], f.known[id] = i, i
	return i
}

type fakeLogin struct{ name string }

func (l fakeLogin) Reveal() (string, string, string) { return l.name, "password", "" }
func (l fakeLogin) Hide(text string) string          { return text }

func newImages(t *testing.T) (*Manager, *faultHost, *fakeImages) {
	h, f := newFaultHost(), &fakeImages{known: map[string]sandbox.Image{}}
	f.put("docker.io/library/base:latest", "0")
	h.images = f
	m := open(t, h, t.TempDir())
	m.opt.Images = f
	return m, h, f
}

const team = "registry.example.com/team/a:1"

func deedsOf(h *faultHost) (all []string) {
	for _, d := range h.deeds {
		all = append(all, d.State)
	}
	return all
}

// An operator's pull is on record before the registry is asked, and its end after; what
// is no name, is this host's own, or finds no room or login, asks nobody.
func TestPullImage(t *testing.T) {
	m, h, f := newImages(t)
	m.opt.Login = func(_ context.Context, registry string) (sandbox.Login, error) {
		switch registry {
		case "registry.example.com":
			return fakeLogin{"robot"}, nil
		case "broken.example.com":
			return nil, errFault
		}
		return nil, nil
	}
	tell := func(sandbox.ImageStep) error { return nil }
	for _, tt := range []struct {
		name   string
		want   error
		asked  string
		states []string
	}{
		{team, nil, team + " as robot", []string{"pulling", "pulled"}},
		{"debian", nil, "docker.io/library/debian:latest as nobody", []string{"pulling", "pulled"}},
		{"registry.example.com:5000/a", nil, "registry.example.com:5000/a:latest as nobody", []string{"pulling", "pulled"}},
		{"../distribution/203.0.113.1:80/a", sandbox.ErrBadSpec, "", []string{"refused"}},
		{"sha256:" + strings.Repeat("1", 64), sandbox.ErrBadSpec, "", []string{"refused"}},
		{"sallyport/base:bookworm-1", sandbox.ErrBadSpec, "", []string{"refused"}},
		{"broken.example.com/a", errFault, "", []string{"failed"}},
	} {
		f.asked, h.deeds = nil, nil
		i, err := m.PullImage(t.Context(), tt.name, tell)
		if !errors.Is(err, tt.want) || (tt.want == nil) != (i.ID != "") || strings.Join(f.asked, ",") != tt.asked || !slices.Equal(deedsOf(h), tt.states) {
			t.Errorf("%s: got %+v, %v, asked %q, events %q", tt.name, i, err, f.asked, deedsOf(h))
		}
	}
	// An image whose fetching cannot be recorded is not fetched.
	f.asked, h.fault = nil, "record pulling"
	if _, err := m.PullImage(t.Context(), team, tell); err == nil || f.asked != nil {
		t.Errorf("without a log: %v, asked %q", err, f.asked)
	}
	h.fault = ""
	m.opt.Space, m.opt.Reserve = fixedSpace(3<<30), 2<<30
	if _, err := m.PullImage(t.Context(), team, tell); !errors.Is(err, sandbox.ErrDiskFull) || f.asked != nil {
		t.Errorf("on a disk that is nearly full: %v, asked %q", err, f.asked)
	}
	if _, err := m.LoadImages(t.Context(), strings.NewReader(team)); !errors.Is(err, sandbox.ErrDiskFull) {
		t.Errorf("load on a disk that is nearly full: %v", err)
	}
}

// fixedSpace has so many bytes left.
type fixedSpace int64

func (s fixedSpace) Free() (int64, error)     { return int64(s), nil }
func (fixedSpace) Used(string) (int64, error) { return 0, nil }
func (fixedSpace) Yield() error               { return nil }
func (fixedSpace) Settle() error              { return nil }
func (fixedSpace) Cap(string) error           { return nil }
func (fixedSpace) Uncap(string) error         { return nil }

// A sandbox's record has the digest of what it was made of, which a name that stands for
// another image later does not change; its image is kept for it.
func TestImageOfASandbox(t *testing.T) {
	m, h, f := newImages(t)
	first := f.put(team, "3")
	i, _, err := m.GetOrCreate(t.Context(), "box", sandbox.Spec{Image: team})
	if err != nil || i.ImageID != first.ID || i.ImageDigest != first.Digests[0] {
		t.Fatalf("made of %q, %q, %v, want %q", i.ImageID, i.ImageDigest, err, first.ID)
	}
	if err := m.RemoveImage(t.Context(), team); !errors.Is(err, sandbox.ErrImageUsed) || !strings.Contains(err.Error(), "box") {
		t.Errorf("removal of its image: got %v, want %v with its name", err, sandbox.ErrImageUsed)
	}
	for _, name := range []string{"base", f.known["docker.io/library/base:latest"].ID} {
		if err := m.RemoveImage(t.Context(), name); !errors.Is(err, sandbox.ErrImageUsed) {
			t.Errorf("removal of the default image as %s: got %v, want %v", name, err, sandbox.ErrImageUsed)
		}
	}
	list, err := m.Images(t.Context())
	if err != nil || len(list) != 2 {
		t.Fatalf("got %+v, %v", list, err)
	}
	for _, l := range list {
		if l.Default != (l.ID != first.ID) || slices.Contains(l.Sandboxes, "box") != (l.ID == first.ID) {
			t.Errorf("listed: %+v", l)
		}
	}
	gone := func() {
		t.Helper()
		delete(h.containers, i.ID)
		if _, err := m.reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// The name stands for another now, and the first is there by its ID.
	second := f.put(team, "4")
	gone()
	if i, err = m.Recover(t.Context(), "box"); err != nil || i.ImageID != first.ID || i.Lost != "" && strings.Contains(i.Lost, "image") {
		t.Errorf("recovered: of %q, lost %q, %v, want %q", i.ImageID, i.Lost, err, first.ID)
	}
	// The first is gone, which is said.
	delete(f.known, first.ID)
	gone()
	if i, err = m.Recover(t.Context(), "box"); err != nil || i.ImageID != second.ID || !strings.Contains(i.Lost, first.ID) || !strings.Contains(i.Lost, second.ID) {
		t.Errorf("recovered without its image: of %q, lost %q, %v, want %q", i.ImageID, i.Lost, err, second.ID)
	}
	must.OK(t, m.Remove(t.Context(), "box"))
	if err := m.RemoveImage(t.Context(), team); err != nil {
		t.Error(err)
	}
	if _, _, err := m.GetOrCreate(t.Context(), "box", sandbox.Spec{Image: team}); !errors.Is(err, sandbox.ErrNoImage) {
		t.Errorf("of what is not there: got %v, want %v", err, sandbox.ErrNoImage)
	}
}

// Each image of an archive is an event of its own.
func TestLoadImages(t *testing.T) {
	m, h, _ := newImages(t)
	list, err := m.LoadImages(t.Context(), archiveOf("a:1", "b:2"))
	if err != nil || len(list) != 2 || !slices.Equal(deedsOf(h), []string{"loading", "loaded", "loaded"}) {
		t.Errorf("got %+v, %v, events %q", list, err, deedsOf(h))
	}
	if _, err := m.LoadImages(t.Context(), strings.NewReader("")); !errors.Is(err, sandbox.ErrArchive) {
		t.Errorf("of an empty one: got %v, want %v", err, sandbox.ErrArchive)
	}
}

// archiveOf is an archive of empty files.
func archiveOf(names ...string) *bytes.Buffer {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		_ = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644})
	}
	_ = w.Close()
	return &b
}

// entriesOf reads an archive to its end.
func entriesOf(r io.Reader) (names []string, err error) {
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return names, err
		}
		if _, err := io.Copy(io.Discard, in); err != nil {
			return names, err
		}
		names = append(names, h.Name)
	}
}

// Owners have the default image and those that are listed for them, by name; the host's own
// callers any. A text that is no name is refused before anything is made. A sandbox that is
// refused is an event.
func TestImagesOfOwners(t *testing.T) {
	h := newFaultHost()
	m := open(t, h, t.TempDir())
	m.opt.Subnet = netip.MustParsePrefix("10.9.0.0/24")
	m.opt.OwnerImages = image.Patterns{"registry.example.com/team/**"}
	host, acme := t.Context(), sandbox.ForOwner(t.Context(), "acme")
	id := "sha256:" + strings.Repeat("0123456789abcdef", 4)
	for i, tt := range []struct {
		ctx   context.Context
		image string
		want  error
	}{
		{acme, "", nil},
		{acme, m.opt.Defaults.Image, nil},
		{acme, m.opt.Defaults.Image + ":latest", nil},
		{acme, "registry.example.com/team/a:1", nil},
		{acme, "registry.example.com/other/a:1", sandbox.ErrImage},
		{acme, "debian", sandbox.ErrImage},
		{acme, id, sandbox.ErrImage},
		{acme, "a", sandbox.ErrImage},
		{acme, "../containers/sallyport-1", sandbox.ErrBadSpec},
		{acme, "registry.example.com/team/../other/a:1", sandbox.ErrBadSpec},
		{host, "debian", nil},
		{host, id, nil},
		{host, "../distribution/203.0.113.1:80/name", sandbox.ErrBadSpec},
		{host, "debian?", sandbox.ErrBadSpec},
		{host, id[:20], sandbox.ErrBadSpec},
	} {
		name := "box-" + string(rune('a'+i))
		deeds, calls := len(h.deeds), h.calls
		_, created, err := m.GetOrCreate(tt.ctx, name, sandbox.Spec{Image: tt.image})
		if !errors.Is(err, tt.want) || created != (tt.want == nil) {
			t.Errorf("%q: got %v, %v, want %v", tt.image, created, err, tt.want)
		}
		if tt.want == nil {
			continue
		}
		if len(h.deeds) != deeds+1 || h.deeds[deeds].State != "refused" || !strings.Contains(h.deeds[deeds].Detail, "image") {
			t.Errorf("%q: got events %+v, want one that it is refused", tt.image, h.deeds[deeds:])
		}
		if made := h.calls - calls; made != 2 { // of the event, before and after it is written
			t.Errorf("%q: %d calls of engine, network and log", tt.image, made)
		}
	}
}
