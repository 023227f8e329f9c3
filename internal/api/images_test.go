package api_test

import (
	gotar "archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os/user"
	"strings"
	"sync"
	"testing"

	"sallyport/internal/api"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// images stand for an engine's, where the API is to be told of faults, and of callers
// who go.
type images struct {
	mu   sync.Mutex
	list []sandbox.Image
	gone chan struct{} // closed when a pull's context is done
}

func (f *images) List(context.Context) ([]sandbox.Image, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.list, nil
}

func (f *images) Find(_ context.Context, name string) (sandbox.Image, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range f.list {
		if strings.HasSuffix(name, i.Names[0]) || name == i.ID {
			return i, nil
		}
	}
	return sandbox.Image{}, sandbox.ErrNoImage
}

func (f *images) put(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, sandbox.Image{ID: "sha256:" + strings.Repeat("1", 64), Names: []string{name}, Size: 7})
}

func (f *images) Pull(ctx context.Context, name string, _ sandbox.Login, tell func(sandbox.ImageStep) error) error {
	if strings.Contains(name, "early") {
		return sandbox.ErrRegistry
	}
	if err := tell(sandbox.ImageStep{Layer: "abc", Status: "Downloading", Done: 1, Total: 2}); err != nil {
		return err
	}
	switch {
	case strings.Contains(name, "late"):
		return sandbox.ErrRegistry
	case strings.Contains(name, "slow"):
		<-ctx.Done()
		close(f.gone)
		return ctx.Err()
	}
	f.put("team/a:1")
	return nil
}

func (f *images) Load(_ context.Context, tar io.Reader) ([]string, error) {
	if _, err := gotar.NewReader(tar).Next(); err != nil {
		return nil, errors.Join(sandbox.ErrArchive, err)
	}
	f.put("team/b:1")
	return []string{"team/b:1"}, nil
}

func (f *images) Remove(context.Context, string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = nil
	return nil
}

// A pull tells how it goes on, and ends with the image or with the problem, whether that
// comes before the first line or after; who goes away ends it.
func TestImages(t *testing.T) {
	c, _, h := serve(t, true)
	ctx := t.Context()
	var steps []sandbox.ImageStep
	tell := func(s sandbox.ImageStep) { steps = append(steps, s) }
	i, err := c.PullImage(ctx, "team/a:1", tell)
	if err != nil || i.Names[0] != "team/a:1" || len(steps) != 1 || steps[0] != (sandbox.ImageStep{Layer: "abc", Status: "Downloading", Done: 1, Total: 2}) {
		t.Errorf("got %+v, %v, told %+v", i, err, steps)
	}
	for name, want := range map[string]int{"early": 502, "late": 502, "../containers/x": 400, "sallyport/base": 400} {
		var p *api.Problem
		if _, err := c.PullImage(ctx, name, tell); !errors.As(err, &p) || p.Status != want {
			t.Errorf("%s: got %v, want %d", name, err, want)
		}
	}
	h.images.gone = make(chan struct{})
	going, stop := context.WithCancel(ctx)
	if _, err := c.PullImage(going, "slow:1", func(sandbox.ImageStep) { stop() }); !errors.Is(err, context.Canceled) {
		t.Errorf("broken off: %v", err)
	}
	<-h.images.gone
	var archive bytes.Buffer
	w := gotar.NewWriter(&archive)
	_ = w.WriteHeader(&gotar.Header{Name: "layer.tar"})
	_ = w.Close()
	if list, err := c.LoadImages(ctx, &archive); err != nil || len(list) != 1 || list[0].Names[0] != "team/b:1" {
		t.Errorf("loaded %+v, %v", list, err)
	}
	var p *api.Problem
	if _, err := c.LoadImages(ctx, strings.NewReader("")); !errors.As(err, &p) || p.Status != 400 {
		t.Errorf("of an empty archive: %v", err)
	}
	if list, err := c.Images(ctx); err != nil || len(list) != 2 {
		t.Errorf("listed %+v, %v", list, err)
	}
	if err := c.RemoveImage(ctx, "base"); !errors.As(err, &p) {
		t.Errorf("removal of the default: %v", err)
	}
	if err := c.RemoveImage(ctx, "team/a:1"); err != nil {
		t.Error(err)
	}
	long := "registry.example.com/a-team-with-a-long-name/of-many-parts/and/more-parts:early"
	if _, err := c.PullImage(ctx, long, tell); err == nil {
		t.Error("what the registry does not have is pulled")
	}
	me, err := user.Current()
	must.OK(t, err)
	said := strings.Join(h.said(), "\n")
	for _, want := range []string{"image " + long + " pulling by ", "image docker.io/team/a:1 pulling by ", "image docker.io/team/a:1 pulled by ", "image ../containers/x refused by ",
		"image docker.io/library/late:latest failed by ", "image docker.io/team/b:1 loaded by ", "image docker.io/team/a:1 removed by "} {
		if want += me.Username; !strings.Contains(said, want) {
			t.Errorf("no event %q in\n%s", want, said)
		}
	}
}
