package docker

import (
	"context"
	"crypto/x509/pkix"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/sandbox"
)

// The second sandbox of an image trusts its own root and not the first's, and its
// files are as they would be had nothing been remembered.
func TestSecondOfAnImage(t *testing.T) {
	l := need(t)
	l.runtime.views = imageCache{}
	list := func(c sandbox.Container) string {
		t.Helper()
		id := l.start(t, c)
		return l.sh(t, id, "find /etc/ssl /usr/local/share -printf '%p %y %m %U %s %l\\n' | sort; tail -c 4096 /etc/ssl/certs/ca-certificates.crt | grep -c BEGIN")
	}
	one, two := l.container(t, ""), l.container(t, "")
	one.Trust, two.Trust = newAuthority(t, pkix.Name{CommonName: "one"}).pem, newAuthority(t, pkix.Name{CommonName: "two"}).pem
	first, second := list(one), list(two)
	if len(l.runtime.views.all) != 1 {
		t.Errorf("%d images are remembered", len(l.runtime.views.all))
	}
	l.runtime.views = imageCache{}
	again := l.container(t, "")
	again.Trust = two.Trust
	if third := list(again); third != second || first == "" {
		t.Errorf("remembered:\n%s\nand not:\n%s", second, third)
	}
	if bundle := l.sh(t, two.ID, "cat /etc/ssl/certs/ca-certificates.crt"); !strings.Contains(bundle, strings.TrimSpace(string(two.Trust))) || strings.Contains(bundle, strings.TrimSpace(string(one.Trust))) {
		t.Error("the second's bundle does not hold its own root alone")
	}
}

// A layer that has begun is not the image any more.
func TestBegunLayerIsNotRemembered(t *testing.T) {
	l := need(t)
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "begun"), nil, 0o600))
	l.runtime.views = imageCache{}
	c := l.container(t, "")
	c.Trust, c.Layer = newAuthority(t, pkix.Name{CommonName: "three"}).pem, dir
	_, _ = l.runtime.Create(t.Context(), c) // on a folder that is no layer
	t.Cleanup(func() { l.runtime.Remove(context.Background(), c.ID) })
	for _, v := range l.runtime.views.all {
		if len(v.stats)+len(v.files) > 0 {
			t.Errorf("%d paths are remembered", len(v.stats))
		}
	}
}
