package docker

import (
	"errors"
	"net"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// The name of an image is no path of the engine's API: it makes the engine, which
// is root on the host's network, ask nobody, and reads nothing but images. An
// image that is not there is never fetched.
func TestImageIsNoPath(t *testing.T) {
	l := need(t)
	registry, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	asked := make(chan struct{}, 64)
	go func() {
		for {
			c, err := registry.Accept()
			if err != nil {
				close(asked)
				return
			}
			c.Close()
			asked <- struct{}{}
		}
	}()
	id := l.create(t, l.container(t, ""))
	images, err := l.engine.Images().Resolve(t.Context(), testImage, true)
	must.OK(t, err)
	digits := strings.TrimPrefix(images.ID, "sha256:")
	at := registry.Addr().String()
	for name, ref := range map[string]string{
		"a registry":               "../distribution/" + at + "/name",
		"a registry, encoded":      "%2e%2e/distribution/" + at + "/name",
		"a registry, by name":      at + "/name:latest",
		"another's container":      "../containers/" + containerName(id),
		"a path within":            testImage + "/../../version?",
		"a query":                  testImage + "?manifests=1",
		"a fragment":               testImage + "#",
		"one digit of an ID":       digits[:1],
		"twelve digits of an ID":   digits[:12],
		"digits, said to be an ID": "sha256:" + digits[:12],
	} {
		t.Run(name, func(t *testing.T) {
			c := l.container(t, ref)
			_, err := l.runtime.Create(t.Context(), c)
			if err == nil {
				l.runtime.Remove(t.Context(), c.ID)
			}
			if !errors.Is(err, sandbox.ErrNoImage) && !errors.Is(err, sandbox.ErrBadSpec) {
				t.Errorf("%q: got %v, want ErrNoImage or ErrBadSpec", ref, err)
			}
		})
	}
	registry.Close()
	n := 0
	for range asked {
		n++
	}
	if n > 0 {
		t.Errorf("the engine has asked the server that an image names %d times", n)
	}
	for name, ref := range map[string]string{"its name": testImage, "its whole name": "docker.io/" + testImage, "its ID": images.ID} {
		t.Run(name, func(t *testing.T) {
			if got, err := l.engine.Images().Resolve(t.Context(), ref, true); err != nil || got.ID != images.ID {
				t.Errorf("%q: got %q, %v, want %q", ref, got.ID, err, images.ID)
			}
		})
	}
}
