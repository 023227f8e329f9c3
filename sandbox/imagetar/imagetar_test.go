package imagetar

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"sallyport/sandbox"
)

func archiveOf(entries ...tar.Header) *bytes.Buffer {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		content := h.Uname // stands for it
		h.Uname, h.Mode, h.Size = "", 0o644, int64(len(content))
		_ = w.WriteHeader(&h)
		_, _ = io.WriteString(w, content)
	}
	_ = w.Close()
	return &b
}

func member(name, content string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Uname: content}
}

// An archive reaches the engine with all that an image needs, and with no name that the
// host's own images or the default one have, however it is written.
func TestImageTar(t *testing.T) {
	const own = "docker.io/team/base:1"
	link := func(kind byte, name, to string) tar.Header {
		return tar.Header{Typeflag: kind, Name: name, Linkname: to}
	}
	tagged := func(name string) string { return `[{"Config":"c.json","RepoTags":["` + name + `"],"Layers":["l"]}]` }
	for _, tt := range []struct {
		name    string
		entries []tar.Header
		want    []string // what the engine sees; nil where it is refused
	}{
		{"one", []tar.Header{member("l", strings.Repeat("x", 200<<10)), member("manifest.json", tagged("team/base:2")), link(tar.TypeSymlink, "k", "l")}, []string{"l", "manifest.json", "k"}},
		{"of OCI", []tar.Header{{Typeflag: tar.TypeDir, Name: "blobs/"}, member("index.json", `{"manifests":[{"annotations":{"io.containerd.image.name":"docker.io/team/a:1"}}]}`)}, []string{"blobs/", "index.json"}},
		{"with names twice", []tar.Header{member("repositories", `{"sallyport/base":{"bookworm-1":"1"}}`), member("manifest.json", tagged("a:1"))}, []string{"manifest.json"}},
		{"the default", []tar.Header{member("manifest.json", tagged("team/base:1"))}, nil},
		{"the default in full", []tar.Header{member("manifest.json", tagged("docker.io/team/base:1"))}, nil},
		{"the default by an old name of Docker Hub", []tar.Header{member("manifest.json", tagged("index.docker.io/team/base:1"))}, nil},
		{"with escapes", []tar.Header{member("manifest.json", tagged(`t\u0065am/base:1`))}, nil},
		{"a key in other case", []tar.Header{member("manifest.json", `[{"repotags":["team/base:1"],"x":1}]`)}, nil},
		{"a key twice", []tar.Header{member("manifest.json", `[{"RepoTags":["team/base:1"],"RepoTags":["a:1"]}]`)}, nil},
		{"a file twice", []tar.Header{member("manifest.json", tagged("a:1")), member("./manifest.json", tagged("team/base:1"))}, nil},
		{"through a link of folders", []tar.Header{link(tar.TypeSymlink, "x", "."), member("x/manifest.json", tagged("team/base:1"))}, nil},
		{"a link to it", []tar.Header{member("x", tagged("team/base:1")), link(tar.TypeSymlink, "manifest.json", "x")}, nil},
		{"a hard link to it", []tar.Header{member("x", tagged("team/base:1")), link(tar.TypeLink, "a/../manifest.json", "x")}, nil},
		{"this host's", []tar.Header{member("manifest.json", tagged("sallyport/runtimes:bookworm-1"))}, nil},
		{"of OCI, the default", []tar.Header{member("index.json", `{"manifests":[{"annotations":{"io.containerd.image.name":"docker.io/team/base:1"}}]}`)}, nil},
		{"no JSON", []tar.Header{member("manifest.json", `[{"RepoTags":["a:1"`)}, nil},
		{"too much JSON", []tar.Header{member("manifest.json", strings.Repeat(" ", mostNaming+1))}, nil},
		{"a device", []tar.Header{{Typeflag: tar.TypeChar, Name: "d"}}, nil},
	} {
		plain := archiveOf(tt.entries...)
		var packed bytes.Buffer
		z := gzip.NewWriter(&packed)
		_, _ = z.Write(plain.Bytes())
		_ = z.Close()
		for how, from := range map[string]io.Reader{"": plain, ", by gzip": &packed} {
			a := NewReader(from, own)
			got, err := entriesOf(a)
			if tt.want == nil {
				if !errors.Is(a.Err(), sandbox.ErrArchive) || err == nil {
					t.Errorf("%s%s: got %q, %v, %v, want %v", tt.name, how, got, err, a.Err(), sandbox.ErrArchive)
				}
				continue
			}
			if err != nil || a.Err() != nil || !slices.Equal(got, tt.want) {
				t.Errorf("%s%s: got %q, %v, want %q", tt.name, how, got, err, tt.want)
			}
		}
	}
	whole := archiveOf(member("l", strings.Repeat("x", 200<<10))).Bytes()
	for _, b := range [][]byte{[]byte("no archive"), whole[:len(whole)/2], []byte("\x1f\x8bno")} {
		a := NewReader(bytes.NewReader(b), own)
		if _, err := io.Copy(io.Discard, a); !errors.Is(err, sandbox.ErrArchive) || !errors.Is(a.Err(), sandbox.ErrArchive) {
			t.Errorf("of %d bytes: got %v, want %v", len(b), err, sandbox.ErrArchive)
		}
	}
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
		if n, err := io.Copy(io.Discard, in); err != nil || n != h.Size {
			return names, errors.Join(err, io.ErrUnexpectedEOF)
		}
		names = append(names, h.Name)
	}
}
