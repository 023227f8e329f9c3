package trust

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pavlo-v-chernykh/keystore-go/v4"
	"software.sslmate.com/src/go-pkcs12"

	"sallyport/internal/test/must"
)

// jks returns a JKS key store with the certificates, made by another implementation.
func jks(t testing.TB, password string, certs ...*x509.Certificate) []byte {
	t.Helper()
	ks := keystore.New()
	for i, c := range certs {
		err := ks.SetTrustedCertificateEntry(string(rune('a'+i)), keystore.TrustedCertificateEntry{
			CreationTime: time.Now(), Certificate: keystore.Certificate{Type: "X.509", Content: c.Raw},
		})
		must.OK(t, err)
	}
	var b bytes.Buffer
	must.OK(t, ks.Store(&b, []byte(password)))
	return b.Bytes()
}

// read returns the certificates of a store of either kind.
func read(t *testing.T, store []byte) (certs []*x509.Certificate) {
	t.Helper()
	if !bytes.HasPrefix(store, jksMagic) {
		certs, err := pkcs12.DecodeTrustStore(store, "")
		must.OK(t, err)
		return certs
	}
	ks := keystore.New()
	must.OK(t, ks.Load(bytes.NewReader(store), []byte(storePassword)))
	for _, alias := range ks.Aliases() {
		e, err := ks.GetTrustedCertificateEntry(alias)
		must.OK(t, err)
		c, err := x509.ParseCertificate(e.Certificate.Content)
		must.OK(t, err)
		certs = append(certs, c)
	}
	return certs
}

func TestMergeStore(t *testing.T) {
	ours := newCertificate(t, pkix.Name{CommonName: "ours"})
	a, b := newCertificate(t, pkix.Name{CommonName: "a"}), newCertificate(t, pkix.Name{CommonName: "b"})
	p12, err := pkcs12.Passwordless.EncodeTrustStore([]*x509.Certificate{a, b}, "")
	must.OK(t, err)
	sealed, err := pkcs12.Modern.EncodeTrustStore([]*x509.Certificate{a, b}, storePassword)
	must.OK(t, err)
	huge := jks(t, storePassword, a)
	binary.BigEndian.PutUint32(huge[8:], 1<<31)
	for name, tt := range map[string]struct {
		store []byte
		want  int // certificates, 0 for a refusal
	}{
		"JKS":              {jks(t, storePassword, a, b), 3},
		"empty JKS":        {jks(t, storePassword), 1},
		"JKS, ours inside": {jks(t, storePassword, a, ours), 2},
		"JKS, sealed":      {jks(t, "another password", a), 0},
		"JKS, false count": {huge, 0},
		"PKCS #12":         {p12, 3},
		"PKCS #12, sealed": {sealed, 0},
		"nothing":          {nil, 0},
		"short JKS":        {jksMagic, 0},
		"text":             {[]byte("-----BEGIN CERTIFICATE-----"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := mergeJavaStore(tt.store, ours)
			if tt.want == 0 {
				if err == nil {
					t.Error("it was merged")
				}
				return
			}
			must.OK(t, err)
			certs := read(t, got)
			found := false
			for _, c := range certs {
				found = found || c.Equal(ours)
			}
			if len(certs) != tt.want || !found {
				t.Errorf("got %d certificates, ours among them: %t, want %d", len(certs), found, tt.want)
			}
		})
	}
}

// Java's own tool reads what was merged into Java's own roots.
func TestMergeStoreKeytool(t *testing.T) {
	const roots = "/etc/ssl/certs/java/cacerts"
	store, err := os.ReadFile(roots)
	if err != nil {
		must.Lack(t, "needs a Java of Debian's: %v", err)
	}
	merged, err := mergeJavaStore(store, newCertificate(t, pkix.Name{CommonName: "ours"}))
	must.OK(t, err)
	path := filepath.Join(t.TempDir(), "cacerts")
	must.OK(t, os.WriteFile(path, merged, 0o600))
	count := func(file string) int {
		out, err := exec.Command("keytool", "-list", "-storepass", storePassword, "-keystore", file).CombinedOutput()
		if err != nil {
			t.Fatalf("keytool: %v: %s", err, out)
		}
		return strings.Count(string(out), "trustedCertEntry")
	}
	if got, want := count(path), count(roots)+1; got != want {
		t.Errorf("got %d certificates, want %d", got, want)
	}
}

func FuzzMergeStore(f *testing.F) {
	block := []byte("-----BEGIN CERTIFICATE-----\n")
	f.Add(jks(f, storePassword))
	f.Add(jksMagic)
	f.Add(block)
	f.Add([]byte{0x30, 0x03, 0x02, 0x01, 0x03})
	root := &x509.Certificate{Raw: []byte{0x30, 0x00}}
	f.Fuzz(func(t *testing.T, store []byte) {
		out, err := mergeJavaStore(store, root)
		if err == nil && !bytes.Contains(out, root.Raw) {
			t.Error("merged without the root")
		}
	})
}
