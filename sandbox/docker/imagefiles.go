package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// fileLimit bounds what is read of one file of an image, in bytes. The largest
// trust stores in use are below 1 MiB.
const fileLimit = 16 << 20

// imageFiles reads and changes the files of a container that has not started. Paths
// are resolved by the engine inside the container's root, never on the host.
type imageFiles struct {
	client *client.Client
	id     string
	view   *imageView // of its image

	files map[string]*tar.Header // to write
	data  map[string][]byte
	order []string
}

func newImageFiles(c *client.Client, id string, v *imageView) *imageFiles {
	return &imageFiles{client: c, id: id, view: v, files: map[string]*tar.Header{}, data: map[string][]byte{}}
}

// Stat says whether something is at p, its mode, and where it leads to if it is
// a link.
func (f *imageFiles) Stat(ctx context.Context, p string) (bool, os.FileMode, string, error) {
	if s, known := f.view.stat(p); known {
		return s.there, s.mode, s.target, nil
	}
	res, err := f.client.ContainerStatPath(ctx, f.id, client.ContainerStatPathOptions{Path: p})
	if cerrdefs.IsNotFound(err) {
		f.view.sawStat(p, statted{})
		return false, 0, "", nil
	}
	if err != nil {
		return false, 0, "", fmt.Errorf("looking at %s in the image: %w", p, err)
	}
	f.view.sawStat(p, statted{true, res.Stat.Mode, res.Stat.LinkTarget})
	return true, res.Stat.Mode, res.Stat.LinkTarget, nil
}

// Exists says whether anything is at p, a link to nothing included.
func (f *imageFiles) Exists(ctx context.Context, p string) (bool, error) {
	there, _, _, err := f.Stat(ctx, p)
	return there, err
}

// Read returns the regular file that p leads to: where it really is, its
// header and content. The header is nil when there is none.
func (f *imageFiles) Read(ctx context.Context, p string) (string, *tar.Header, []byte, error) {
	there, mode, target, err := f.Stat(ctx, p)
	if err != nil || !there {
		return "", nil, nil, err
	}
	if mode&os.ModeSymlink != 0 {
		p = target
	} else if !mode.IsRegular() {
		return "", nil, nil, nil
	}
	if h, ok := f.files[p]; ok {
		return p, h, f.data[p], nil
	}
	if seen, known := f.view.file(p); known {
		return p, seen.header, seen.content, nil
	}
	res, err := f.client.CopyFromContainer(ctx, f.id, client.CopyFromContainerOptions{SourcePath: p})
	if cerrdefs.IsNotFound(err) {
		return "", nil, nil, nil // a link to nothing
	}
	if err != nil {
		return "", nil, nil, fmt.Errorf("reading %s of the image: %w", p, err)
	}
	defer res.Content.Close()
	t := tar.NewReader(res.Content)
	h, err := t.Next()
	if errors.Is(err, io.EOF) || err == nil && h.Typeflag != tar.TypeReg {
		return "", nil, nil, nil
	}
	if err != nil {
		return "", nil, nil, fmt.Errorf("reading %s of the image: %w", p, err)
	}
	if h.Size > fileLimit {
		return "", nil, nil, fmt.Errorf("reading %s of the image: it has %d bytes, more than %d", p, h.Size, fileLimit)
	}
	b, err := io.ReadAll(t)
	if err != nil {
		return "", nil, nil, fmt.Errorf("reading %s of the image: %w", p, err)
	}
	f.view.sawFile(p, readFile{h, b})
	return p, h, b, nil
}

// Put plans to write a regular file at p. A nil header is root's, for all to read.
func (f *imageFiles) Put(p string, h *tar.Header, content []byte) {
	mode := int64(0o644)
	var uid, gid int
	if h != nil {
		mode, uid, gid = h.Mode, h.Uid, h.Gid
	}
	f.add(p, &tar.Header{Typeflag: tar.TypeReg, Mode: mode, Uid: uid, Gid: gid, Size: int64(len(content))}, content)
}

// Link plans to make a symbolic link at p.
func (f *imageFiles) Link(p, target string) {
	f.add(p, &tar.Header{Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: target}, nil)
}

func (f *imageFiles) add(p string, h *tar.Header, content []byte) {
	if _, ok := f.files[p]; !ok {
		f.order = append(f.order, p)
	}
	h.Name = strings.TrimPrefix(p, "/")
	h.ModTime = time.Now()
	f.files[p], f.data[p] = h, content
}

// commit writes what was planned, and the folders that it needs, and more that are
// missing.
func (f *imageFiles) commit(ctx context.Context, folders []string) error {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	made := map[string]bool{}
	for _, p := range folders {
		if err := f.folders(ctx, w, p, &tar.Header{}, made); err != nil {
			return err
		}
	}
	for _, p := range f.order {
		if err := f.folders(ctx, w, path.Dir(p), f.files[p], made); err != nil {
			return err
		}
		if err := w.WriteHeader(f.files[p]); err != nil {
			return fmt.Errorf("writing %s: %w", p, err)
		}
		if _, err := w.Write(f.data[p]); err != nil {
			return fmt.Errorf("writing %s: %w", p, err)
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	_, err := f.client.CopyToContainer(ctx, f.id, client.CopyToContainerOptions{DestinationPath: "/", Content: &buf})
	if err != nil {
		return fmt.Errorf("writing into the container: %w", err)
	}
	return nil
}

// folders adds the missing ones of dir and those above it, with the owner of the
// file that they are for. One that exists is left out: the engine would give it
// our mode and owner.
func (f *imageFiles) folders(ctx context.Context, w *tar.Writer, dir string, file *tar.Header, made map[string]bool) error {
	if dir == "/" || made[dir] {
		return nil
	}
	made[dir] = true
	there, err := f.Exists(ctx, dir)
	if err != nil || there {
		return err
	}
	if err := f.folders(ctx, w, path.Dir(dir), file, made); err != nil {
		return err
	}
	return w.WriteHeader(&tar.Header{
		Typeflag: tar.TypeDir, Name: strings.TrimPrefix(dir, "/") + "/", Mode: 0o755, ModTime: time.Now(),
		Uid: file.Uid, Gid: file.Gid,
	})
}
