package upstream

import (
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

const (
	maxRootsFiles = 256
	maxRootsSize  = 4 << 20 // bytes
	// rootsAge is for how long a file is taken to be what it was: asking the
	// file system about it for each request would cost more than the look-up of
	// its destination.
	rootsAge = time.Second
)

// roots is one state of a roots file.
type roots struct {
	info    os.FileInfo
	pool    *x509.CertPool
	checked time.Time // when the file was last looked at; guarded by rootsCache.mu
}

// rootsCache reads PEM files again when they change.
type rootsCache struct {
	mu    sync.Mutex
	files *simplelru.LRU[string, *roots]
}

// get returns the same pointer for as long as the file is the same. It notices
// a change within rootsAge.
func (c *rootsCache) get(path string, log *slog.Logger) (*roots, error) {
	now := time.Now()
	if r := c.fresh(path, now); r != nil {
		return r, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxRootsSize {
		return nil, fmt.Errorf("%s is not a file of at most %d bytes", path, maxRootsSize)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.files == nil {
		// The size is a positive constant, the only thing that can be wrong.
		c.files, _ = simplelru.NewLRU[string, *roots](maxRootsFiles, nil)
	}
	old, ok := c.files.Get(path)
	if ok && same(old.info, info) {
		old.checked = now
		return old, nil
	}
	r, err := readRoots(path)
	if err != nil {
		return nil, err
	}
	r.checked = now
	if ok {
		log.Info("roots of an upstream have changed", slog.String("file", path))
	}
	c.files.Add(path, r)
	return r, nil
}

// fresh returns what was looked at a moment ago.
func (c *rootsCache) fresh(path string, now time.Time) *roots {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.files == nil {
		return nil
	}
	if r, ok := c.files.Get(path); ok && now.Sub(r.checked) < rootsAge {
		return r
	}
	return nil
}

func same(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

func readRoots(path string) (*roots, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRootsSize))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s holds no PEM certificate", path)
	}
	return &roots{info: info, pool: pool}, nil
}
