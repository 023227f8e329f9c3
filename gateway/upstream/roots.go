package upstream

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"sallyport/internal/roots"
)

const (
	maxRootsFiles = 256
	// rootsAge is for how long a file is taken to be what it was: reading it for each request
	// would cost more than the look-up of its destination.
	rootsAge = time.Second
)

// rootsFile is what was read of a roots file.
type rootsFile struct {
	pool *x509.CertPool
	read time.Time
}

// rootsCache reads PEM files again when they change.
type rootsCache struct {
	mu     sync.Mutex
	system roots.System
	files  *simplelru.LRU[string, rootsFile]
}

// get returns the same pointer for as long as a file, or the system without one, has the same
// authorities. It notices a change within rootsAge.
func (c *rootsCache) get(path string, log *slog.Logger) (*x509.CertPool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.files == nil {
		// The size is a positive constant, the only thing that can be wrong.
		c.files, _ = simplelru.NewLRU[string, rootsFile](maxRootsFiles, nil)
	}
	old, ok := c.files.Get(path)
	if ok && time.Since(old.read) < rootsAge {
		return old.pool, nil
	}
	read := c.system.Read
	if path != "" {
		read = func() (*x509.CertPool, error) { return roots.Read(path) }
	}
	pool, err := read()
	switch {
	case err != nil:
		return nil, err
	case ok && pool.Equal(old.pool):
		pool = old.pool
	case ok:
		log.Info("roots of an upstream have changed", slog.String("file", cmp.Or(path, "the system's")))
	}
	c.files.Add(path, rootsFile{pool, time.Now()})
	return pool, nil
}

// trusted returns the roots of a file that a rule names by a key, or the system's, for a host.
func (p *Pool) trusted(file, key, host string, port uint16) (*x509.CertPool, error) {
	pool, err := p.roots.get(file, p.o.Logger)
	if err != nil {
		if key = "upstream." + key; file == "" {
			key = "the system's authorities"
		}
		return nil, &Error{Kind: KindRoots, Host: host, Port: port, Err: fmt.Errorf("%s: %w", key, err)}
	}
	return pool, nil
}

// trusted returns the roots of the rule's file for the destination, or the system's, nil where
// nobody needs them.
func (r *Route) trusted(p *Pool) (*x509.CertPool, error) {
	file := ""
	if r.Upstream != nil {
		file = r.Upstream.Roots
	}
	if file == "" && !r.TLS {
		return nil, nil
	}
	return p.trusted(file, "roots", r.Host, r.Port)
}

// clientTLS verifies a server's certificate for a host.
func clientTLS(host string, roots *x509.CertPool) *tls.Config {
	return &tls.Config{ServerName: host, RootCAs: roots, MinVersion: tls.VersionTLS12, VerifyConnection: acceptable}
}
