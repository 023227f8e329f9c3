// Package roots reads files of certificate authorities.
package roots

import (
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"syscall"
)

// maxSize bounds a file, in bytes: the one of a whole distribution has 200 KB.
const maxSize = 4 << 20

// Read returns the authorities of a file in PEM. Without a file it returns nil, which package
// crypto/tls takes for the system's.
func Read(path string) (*x509.CertPool, error) {
	if path == "" {
		return nil, nil
	}
	text, err := read(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no PEM certificate", path)
	}
	return pool, nil
}

var errNoFile = fmt.Errorf("not a file of at most %d bytes", maxSize)

func read(path string) ([]byte, error) {
	// O_NONBLOCK: opening a pipe that somebody put there must not hang.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxSize {
		return nil, fmt.Errorf("%s is %w", path, errNoFile)
	}
	return io.ReadAll(io.LimitReader(f, maxSize))
}
