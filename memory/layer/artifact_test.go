package layer_test

import (
	"errors"
	"io/fs"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/memory"
	"sallyport/memory/layer"
)

// An artifact is what its digest names, or an error: also after the sandbox has written
// something else to its file.
func TestArtifact(t *testing.T) {
	dir, err := memory.Ensure(t.TempDir())
	must.OK(t, err)
	l := open(t, dir)
	ctx := t.Context()
	for _, data := range []string{"", "a result\x00\xff"} {
		a, err := l.PutArtifact(ctx, []byte(data))
		must.OK(t, err)
		again, err := l.PutArtifact(ctx, []byte(data))
		if err != nil || again.Digest != a.Digest || a.Digest != memory.DigestOf([]byte(data)) {
			t.Errorf("put again: %+v, %v", again, err)
		}
		if got, err := l.Artifact(ctx, a.Digest); err != nil || string(got.Data) != data {
			t.Errorf("got %q, %v, want %q", got.Data, err, data)
		}
		must.OK(t, l.Folder.Write(a.Path, []byte("another"), a.Digest))
		if got, err := l.Artifact(ctx, a.Digest); !errors.Is(err, memory.ErrChanged) {
			t.Errorf("after another was written: %q, %v", got.Data, err)
		}
		_, err = l.PutArtifact(ctx, []byte(data))
		must.OK(t, err)
		if got, err := l.Artifact(ctx, a.Digest); err != nil || string(got.Data) != data {
			t.Errorf("after it was put once more: %q, %v", got.Data, err)
		}
	}
	if _, err := l.Artifact(ctx, memory.DigestOf([]byte("none"))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that is not there: %v", err)
	}
	if _, err := l.Artifact(ctx, "../memories.md"); !errors.Is(err, layer.ErrInvalid) {
		t.Errorf("no digest: %v", err)
	}
}
