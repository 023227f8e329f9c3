package roots

import (
	"cmp"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// bundles and folders have the system's authorities: the first of the files that can be read,
// and all files of the folders (root_linux.go of package crypto/x509).
var (
	bundles = []string{
		"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/pki/tls/cacert.pem",
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
	}
	folders = []string{"/etc/ssl/certs", "/etc/pki/tls/certs"}
)

// Bundles are the files that the system's authorities can be in.
func Bundles() []string { return slices.Clone(bundles) }

// System is the system's authorities where package crypto/x509 finds them, which reads them
// once. The zero System works. It is not safe for concurrent use.
type System struct {
	pool *x509.CertPool
	seen []fs.FileInfo // of the files and folders when they were read, nil for none
}

// Read reads them again if a file was replaced or written, or if a folder has other files.
func (s *System) Read() (*x509.CertPool, error) {
	files, dirs := bundles, folders
	if f := os.Getenv("SSL_CERT_FILE"); f != "" {
		files = []string{f}
	}
	if d := os.Getenv("SSL_CERT_DIR"); d != "" {
		dirs = strings.Split(d, ":")
	}
	var seen []fs.FileInfo // what changes meanwhile shows against this
	for _, name := range slices.Concat(files, dirs) {
		info, _ := os.Stat(name)
		seen = append(seen, info)
	}
	if s.pool != nil && slices.EqualFunc(seen, s.seen, same) {
		return s.pool, nil
	}
	pool := x509.NewCertPool()
	var failed error
	note := func(err error) {
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return
		}
		if failed = cmp.Or(failed, err); !errors.Is(err, fs.ErrPermission) && !errors.Is(err, errNoFile) {
			seen = nil // as with too many open files: the next try may do better
		}
	}
	add := func(name string) bool {
		text, err := read(name)
		note(err)
		if err == nil {
			pool.AppendCertsFromPEM(text)
		}
		return err == nil
	}
	for _, name := range files {
		if add(name) {
			break
		}
	}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		note(err)
		for _, e := range entries {
			if !e.IsDir() {
				add(filepath.Join(dir, e.Name()))
			}
		}
	}
	if failed != nil && pool.Equal(x509.NewCertPool()) {
		return nil, failed
	}
	s.pool, s.seen = pool, seen
	return pool, nil
}

// same reports whether a file is the one of before, unchanged, or none is there as before.
func same(now, before fs.FileInfo) bool {
	if now == nil || before == nil {
		return now == before
	}
	return os.SameFile(now, before) && now.ModTime().Equal(before.ModTime()) && now.Size() == before.Size()
}
