package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"sallyport/policy"
	"sallyport/policy/rego"
)

// Files lists the files and folders that c refers to. Sources of credentials are not
// among them, since they are read at each use.
func (c *Config) Files() []string {
	var files []string
	add := func(list ...string) {
		for _, f := range list {
			if f != "" {
				files = append(files, f)
			}
		}
	}
	add(c.Policy.Dir, c.Vault.Roots)
	if b := c.Policy.Bundle; b != nil {
		add(b.File, b.Key, b.Roots)
	}
	for _, s := range c.Audit.Sinks {
		add(s.TLS.CAFile, s.TLS.CertFile, s.TLS.KeyFile)
	}
	for _, u := range c.Upstreams() {
		add(u.Roots, u.ProxyRoots)
	}
	return files
}

// Print identifies the state of files by their metadata. If two prints are equal, nothing
// was written between them.
type Print [sha256.Size]byte

// maxPrinted bounds how many files of a folder are looked at; a policy has fewer.
const maxPrinted = 10_000

// NewPrint returns the print of files and of the contents of folders, without hidden
// files. It follows links, so that a replaced file and a link with a new target change
// the print.
func NewPrint(files ...string) Print {
	h := sha256.New()
	for _, name := range files {
		look(h, name)
		seen := 0
		root, err := filepath.EvalSymlinks(name)
		if err != nil {
			continue // look has said so
		}
		if i, err := os.Stat(root); err != nil || !i.IsDir() {
			continue
		}
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if seen++; seen > maxPrinted {
				return fs.SkipAll
			}
			if err != nil || path == root {
				return nil // it is as if it were not there
			}
			if strings.HasPrefix(d.Name(), ".") {
				if d.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			look(h, path)
			return nil
		})
	}
	var p Print
	h.Sum(p[:0])
	return p
}

func look(h hash.Hash, path string) {
	i, err := os.Stat(path)
	if err != nil {
		fmt.Fprintf(h, "%q: %v\n", path, errors.Is(err, fs.ErrNotExist))
		return
	}
	s, _ := i.Sys().(*syscall.Stat_t)
	fmt.Fprintf(h, "%q %v %d %d %d %d %d\n", path, i.Mode(), i.Size(), s.Dev, s.Ino, i.ModTime().UnixNano(), s.Ctim.Nano())
}

// ReadBundle reads and verifies a bundle from a file.
func ReadBundle(from policy.BundleSource) (*policy.Bundle, error) {
	f, err := os.Open(from.File)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	archive, err := io.ReadAll(io.LimitReader(f, rego.MaxBundle+1))
	if err != nil {
		return nil, err
	}
	return rego.ReadBundle(archive, from)
}
