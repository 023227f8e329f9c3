package roots

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// root is the PEM of a new authority, and a pool of it and others.
func root(t *testing.T, others ...[]byte) ([]byte, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	must.OK(t, err)
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool := x509.NewCertPool()
	for _, p := range append(others, text) {
		pool.AppendCertsFromPEM(p)
	}
	return text, pool
}

// They are those that package crypto/x509 finds.
func TestSystem(t *testing.T) {
	want, err := x509.SystemCertPool()
	must.OK(t, err)
	got, err := new(System).Read()
	must.OK(t, err)
	if !got.Equal(want) {
		t.Error("other authorities than those of crypto/x509")
	}
}

// A changed file and a folder with other files are read again, and nothing else is.
func TestSystemChanges(t *testing.T) {
	file, dir := filepath.Join(t.TempDir(), "bundle.pem"), t.TempDir()
	t.Setenv("SSL_CERT_FILE", file)
	t.Setenv("SSL_CERT_DIR", filepath.Join(t.TempDir(), "none")+":"+dir)
	var s System
	is := func(when string, want *x509.CertPool) {
		t.Helper()
		got, err := s.Read()
		must.OK(t, err)
		if !got.Equal(want) {
			t.Errorf("%s: other authorities than those that are there", when)
		}
		if again, err := s.Read(); err != nil || again != got {
			t.Errorf("%s: read again without a change, %v", when, err)
		}
	}
	put := func(path string, text []byte) {
		t.Helper()
		must.OK(t, os.WriteFile(path+".new", text, 0o600))
		must.OK(t, os.Rename(path+".new", path))
	}
	one, alone := root(t)
	two, both := root(t, one)
	is("nothing there", x509.NewCertPool())
	put(file, one)
	is("a file", alone)
	put(filepath.Join(dir, "two.pem"), two)
	is("a file and a folder", both)
	must.OK(t, os.Symlink(t.TempDir(), filepath.Join(dir, "folder")))
	is("a link to a folder", both)
	large := filepath.Join(dir, "large")
	must.OK(t, os.WriteFile(large, nil, 0o600))
	must.OK(t, os.Truncate(large, maxSize+1))
	is("a large file", both)
	must.OK(t, errors.Join(os.Remove(large), os.Remove(filepath.Join(dir, "folder"))))
	put(file, two)
	_, err := s.Read()
	must.OK(t, err)
	put(file, one)
	is("the file of before", both)
	must.OK(t, os.Remove(filepath.Join(dir, "two.pem")))
	is("an empty folder", alone)
	must.OK(t, os.Remove(file))
	is("nothing there again", x509.NewCertPool())
}

// An unreadable file is an error where nothing else is there, and is tried again.
func TestSystemUnreadable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bundle.pem")
	t.Setenv("SSL_CERT_FILE", file)
	t.Setenv("SSL_CERT_DIR", t.TempDir())
	must.OK(t, os.Mkdir(file, 0o700))
	var s System
	if _, err := s.Read(); err == nil {
		t.Error("a folder is read as a file")
	}
	must.OK(t, os.Remove(file))
	text, want := root(t)
	must.OK(t, os.WriteFile(file, text, 0o600))
	if got, err := s.Read(); err != nil || !got.Equal(want) {
		t.Errorf("other authorities than those that are there, %v", err)
	}
}
