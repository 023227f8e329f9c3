package docker

import (
	"archive/tar"
	"os"
	"sync"
)

// Bounds of what is remembered of images' files.
const (
	viewsAll  = 16
	viewPaths = 512      // of one image
	viewBytes = 16 << 20 // of one image
)

// imageCache remember what was looked at in images, by image ID, which stands for their
// content: each look goes through the engine, which mounts the container for it,
// and planting a root takes dozens of them.
type imageCache struct {
	mu  sync.Mutex
	all map[string]*imageView
}

// of is the view of an image.
func (v *imageCache) of(image string) *imageView {
	v.mu.Lock()
	defer v.mu.Unlock()
	if w := v.all[image]; w != nil {
		return w
	}
	if v.all == nil || len(v.all) >= viewsAll {
		v.all = map[string]*imageView{}
	}
	w := &imageView{stats: map[string]statted{}, files: map[string]readFile{}}
	v.all[image] = w
	return w
}

// imageView is of one image, or empty and of one container whose files may differ.
type imageView struct {
	mu    sync.Mutex
	stats map[string]statted
	files map[string]readFile
	bytes int
}

type statted struct {
	there  bool
	mode   os.FileMode
	target string
}

// readFile is a regular file; its content must not be changed.
type readFile struct {
	header  *tar.Header
	content []byte
}

func (v *imageView) stat(p string) (s statted, known bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s, known = v.stats[p]
	return s, known
}

func (v *imageView) sawStat(p string, s statted) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.stats) < viewPaths {
		v.stats[p] = s
	}
}

func (v *imageView) file(p string) (f readFile, known bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f, known = v.files[p]
	return f, known
}

func (v *imageView) sawFile(p string, f readFile) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.files) < viewPaths && v.bytes+len(f.content) <= viewBytes {
		v.files[p] = f
		v.bytes += len(f.content)
	}
}
