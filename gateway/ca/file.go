package ca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"sallyport/internal/durable"
)

// Layout: <Dir>/lineage/<lineage>/root.pem and sandbox-<ID>.pem, each holding a
// certificate and the sealed private key. <Dir>/lineage/_issuer has the sandboxes below an
// Issuer, no root, and in each file the issuer's chain as well.
const (
	rootName         = "root.pem"
	sandboxPrefix    = "sandbox-"
	pemSuffix        = ".pem"
	blockCertificate = "CERTIFICATE"
	blockSealedKey   = "SALLYPORT SEALED PRIVATE KEY"
)

var idPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$`)

// checkID refuses what could leave the directory when used as a file's name.
func checkID(id string) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("%w: %q: letters, digits, - and _, 128 at most", errBadID, id)
	}
	return nil
}

func (a *Authority) lineageDir(lineage string) string { return filepath.Join(a.dir, lineage) }
func (a *Authority) rootFile(lineage string) string {
	return filepath.Join(a.dir, lineage, rootName)
}
func (a *Authority) sandboxFile(lineage, id string) string {
	return filepath.Join(a.dir, lineage, sandboxPrefix+id+pemSuffix)
}

// sealedPair is a certificate with its key as it is on disk.
type sealedPair struct {
	cert    *x509.Certificate
	issuers []*x509.Certificate
	key     []byte
}

// readPair reads a file without unsealing its key.
func readPair(path string) (*sealedPair, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var p sealedPair
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		switch block.Type {
		case blockCertificate:
			c, err := x509.ParseCertificate(block.Bytes)
			if err != nil {
				return nil, damaged(path, err)
			}
			if p.cert == nil {
				p.cert = c
			} else {
				p.issuers = append(p.issuers, c)
			}
		case blockSealedKey:
			p.key = block.Bytes
		}
	}
	if p.cert == nil || p.key == nil {
		return nil, damaged(path, errors.New("certificate or key missing"))
	}
	return &p, nil
}

// damaged never leads to a new authority in the old one's place: the sandbox
// would not trust it.
func damaged(path string, err error) error {
	return fmt.Errorf("%s is damaged: %w: restore it from a backup, or remove the sandbox and make it again", path, err)
}

// load reads a file and unseals its key.
func (a *Authority) load(path string) (*pair, error) {
	p, err := readPair(path)
	if err != nil {
		return nil, err
	}
	der, err := a.sealer.Open(p.key)
	if err != nil {
		return nil, fmt.Errorf("unsealing the key in %s (is the key file the one it was sealed with?): %w", path, err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	clear(der)
	if err != nil {
		return nil, damaged(path, err)
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(p.cert.PublicKey) {
		return nil, damaged(path, errors.New("the key is not the certificate's"))
	}
	return &pair{cert: p.cert, issuers: p.issuers, key: key}, nil
}

// save writes a pair so that it is on disk, whole, when save returns.
func (a *Authority) save(path string, p *pair) error {
	der, err := x509.MarshalPKCS8PrivateKey(p.key)
	if err != nil {
		return err
	}
	defer clear(der)
	sealed, err := a.sealer.Seal(der)
	if err != nil {
		return fmt.Errorf("sealing the key for %s: %w", path, err)
	}
	var buf bytes.Buffer
	blocks := []*pem.Block{{Type: blockCertificate, Bytes: p.cert.Raw}, {Type: blockSealedKey, Bytes: sealed}}
	for _, c := range p.issuers {
		blocks = append(blocks, &pem.Block{Type: blockCertificate, Bytes: c.Raw})
	}
	for _, b := range blocks {
		if err := pem.Encode(&buf, b); err != nil {
			return err
		}
	}
	return durable.WriteFile(path, buf.Bytes(), 0o600)
}

// remove deletes a sandbox's file, and its lineage when no member is left.
func (a *Authority) remove(id, lineage string) error {
	dir := a.lineageDir(lineage)
	if err := durable.Remove(a.sandboxFile(lineage, id)); err != nil {
		return err
	}
	left, err := filepath.Glob(filepath.Join(dir, sandboxPrefix+"*"+pemSuffix))
	if err != nil || len(left) > 0 {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return durable.SyncDir(a.dir)
}
