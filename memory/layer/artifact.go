package layer

import (
	"context"
	"fmt"
	"regexp"

	"sallyport/memory"
)

// artifactFolder has results, each in a file whose name is its digest.
const artifactFolder = "artifacts/"

// Artifact is a result that is kept by its digest.
type Artifact struct {
	Digest memory.Digest `json:"digest"`
	Path   string        `json:"path"`           // relative to the memory
	Data   []byte        `json:"data,omitempty"` // base64 in JSON; at most 16 MiB
	memory.Marks
}

// PutArtifact writes contents to the file that their digest names. A file that the sandbox
// has put in its place is replaced.
func (l *Layers) PutArtifact(ctx context.Context, data []byte) (Artifact, error) {
	a := Artifact{Digest: memory.DigestOf(data)}
	a.Path = artifactFolder + string(a.Digest)
	if old, err := l.Folder.Read(a.Path); err == nil && memory.DigestOf(old) == a.Digest {
		return a, nil
	}
	return a, l.change(ctx, a.Path, func([]byte) ([]byte, error) { return append([]byte{}, data...), nil })
}

var wholeDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Artifact returns the contents of a digest. The error is fs.ErrNotExist if there are none,
// and [memory.ErrChanged] if the file has others.
func (l *Layers) Artifact(_ context.Context, d memory.Digest) (Artifact, error) {
	if !wholeDigest.MatchString(string(d)) {
		return Artifact{}, invalid("the digest %q: a digest is 64 of the characters 0-9 a-f", memory.Clip(string(d), 128))
	}
	a := Artifact{Digest: d, Path: artifactFolder + string(d)}
	data, err := l.contents(a.Path)
	if err == nil && memory.DigestOf(data) != d {
		err = fmt.Errorf("%q: %w: its digest is another one than its name", a.Path, memory.ErrChanged)
	}
	if err != nil {
		return Artifact{}, err
	}
	a.Data = data
	return a, nil
}
