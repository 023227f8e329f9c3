package policy

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
)

// BundleSource is where an OPA bundle comes from: File or URL. It adds to the
// team's folder what that may hold, packages below sallyport.team and data
// outside of data.sallyport, and is in force together with the rest or not at all.
type BundleSource struct {
	// File is a bundle.tar.gz as `opa build` and `opa sign` make it.
	// Example: /etc/sallyport/egress.tar.gz
	File string `yaml:"file"`
	// URL is a bundle's on an HTTPS server, as https://bundles.example.com/egress.tar.gz;
	// http:// for this host's own. It needs Key.
	// Example: https://bundles.example.com/egress.tar.gz
	URL string `yaml:"url"`
	// Key is a PEM file with the public key that the bundle is signed for. A bundle
	// without its signature is refused then. Default: none, for a File only.
	// Example: /etc/sallyport/bundle.pem
	Key string `yaml:"key"`
	// KeyID is what the signature calls its key (kid). Default: anything.
	// Example: egress-2026
	KeyID string `yaml:"keyID"`
	// Algorithm is the signature's: RS256, RS384, RS512, PS256, PS384, PS512,
	// ES256, ES384 or ES512. Default: RS256.
	// Example: ES256
	Algorithm string `yaml:"algorithm"`
	// Scope is what the signature must say that it is for. Default: nothing.
	// Example: write
	Scope string `yaml:"scope"`
	// Older takes a bundle with a good signature also when it is older than one
	// that was in force: to go back to it. Default: such a bundle is refused.
	// Example: true
	Older bool `yaml:"older"`
	// AuthRef names a credential whose field token, or only field, the server is
	// sent as a bearer token. Default: none.
	// Example: bundle-server
	AuthRef string `yaml:"authRef"`
	// Roots is a PEM file of the certificate authorities to trust instead of the
	// system's. Default: the system's.
	// Example: /etc/sallyport/corporate.pem
	Roots string `yaml:"roots"`
	// Poll is how often the server is asked, from 1s to 24h. Default: 1m.
	// Example: 30s
	Poll Duration `yaml:"poll"`
	// StaleAfter is for how long no check may have succeeded before an alarm: an
	// event, a metric and a line of `sallyport status`. The bundle stays in
	// force. Default: 24h.
	// Example: 6h
	StaleAfter Duration `yaml:"staleAfter"`
}

// Defaults of a bundle from a URL.
const (
	DefaultPoll       = time.Minute
	DefaultStaleAfter = 24 * time.Hour
)

// Bundle is what an archive held, once its signature has been verified.
type Bundle struct {
	Revision string // as its manifest says, fit for a terminal
	Signed   bool
	Signer   string       // a digest of the key and scope that it was verified by, if it was
	Issued   int64        // when its signature says that it was made, in seconds since 1970, or 0
	Files    []BundleFile // in the order of their names
}

// BundleFile is one that takes part in a policy.
type BundleFile struct {
	Name string
	Text []byte
}

// Bounds of a bundle; maxTeamFiles and maxTeamBytes bound what is in it.
const MaxBundle = 16 << 20 // bytes of the archive

// ErrBundle is wrapped by what is wrong with a bundle.
var ErrBundle = errors.New("the policy bundle cannot be used")

// ReadBundle verifies an archive as its source says, and takes out what takes part
// in a policy. Nothing of it but the framing of gzip and tar is read before the
// signature over its files is verified, and no file before its digest is.
func ReadBundle(archive []byte, from BundleSource) (*Bundle, error) {
	b, err := readBundle(archive, from)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBundle, err)
	}
	return b, nil
}

func readBundle(archive []byte, from BundleSource) (*Bundle, error) {
	if err := measure(archive); err != nil {
		return nil, err
	}
	var signer string
	r := bundle.NewCustomReader(bundle.NewTarballLoader(bytes.NewReader(archive))).
		WithSizeLimitBytes(maxTeamBytes).
		WithCapabilities(capabilities()).
		WithProcessAnnotations(true).
		WithRegoVersion(ast.RegoV1)
	if from.Key == "" {
		r = r.WithSkipBundleVerification(true) // who asks has warned
	} else {
		pem, err := os.ReadFile(from.Key)
		if err != nil {
			return nil, fmt.Errorf("reading its key: %w", err)
		}
		config := verification(from, string(pem))
		signer = fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(pem, "\n%s", from.Scope)))
		r = r.WithBundleVerificationConfig(config)
	}
	got, err := r.Read()
	switch {
	case err != nil && strings.Contains(err.Error(), "missing .signatures.json"):
		return nil, fmt.Errorf("it is not signed, and policy.bundle has a key: sign it with `opa build --signing-key` (%w)", err)
	case err != nil:
		return nil, regoErrors(err)
	case got.Type() != bundle.SnapshotBundleType:
		return nil, errors.New("it is a delta: only whole bundles are taken")
	case len(got.WasmModules)+len(got.PlanModules)+len(got.Wasm) > 0:
		return nil, errors.New("it holds compiled policies: build it with `opa build --target rego`")
	}
	b := &Bundle{Revision: clean(got.Manifest.Revision), Signed: from.Key != ""}
	if b.Signed {
		b.Signer = signer
		if b.Issued, err = issued(got.Signatures); err != nil {
			return nil, err
		}
	}
	for _, m := range got.Modules {
		b.Files = append(b.Files, BundleFile{strings.TrimPrefix(m.RelativePath, "/"), m.Raw})
	}
	if len(got.Data) > 0 {
		text, err := json.Marshal(got.Data)
		if err != nil {
			return nil, err
		}
		b.Files = append(b.Files, BundleFile{"data.json", text})
	}
	slices.SortFunc(b.Files, func(a, b BundleFile) int { return strings.Compare(a.Name, b.Name) })
	return b, nil
}

// measure goes over an archive without keeping any of it: what it unfolds to is
// bounded before anyone holds it.
func measure(archive []byte) error {
	if len(archive) > MaxBundle {
		return fmt.Errorf("it has more than %d MiB", MaxBundle>>20)
	}
	z, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return fmt.Errorf("it is not an archive of tar and gzip: %w", err)
	}
	whole := &io.LimitedReader{R: z, N: maxTeamBytes + 1}
	t := tar.NewReader(whole)
	for files := 0; ; files++ {
		_, err := t.Next()
		switch {
		case whole.N <= 0:
			return fmt.Errorf("it unfolds to more than %d MiB", maxTeamBytes>>20)
		case err == io.EOF:
			return nil
		case err != nil:
			return fmt.Errorf("it is not an archive of tar and gzip: %w", err)
		case files >= maxTeamFiles:
			return fmt.Errorf("it holds more than %d files", maxTeamFiles)
		}
	}
}

// verification is what OPA's reader verifies by. A key without a name in the
// configuration is the key whatever the signature calls it.
func verification(from BundleSource, pem string) *bundle.VerificationConfig {
	const any = "policy.bundle.key"
	id := cmp.Or(from.KeyID, any)
	keys := map[string]*bundle.KeyConfig{id: {Key: pem, Algorithm: cmp.Or(from.Algorithm, bundleAlgorithms[0]), Scope: from.Scope}}
	if from.KeyID != "" {
		id = "" // the signature says it, and no other is there
	}
	return bundle.NewVerificationConfig(keys, id, from.Scope, nil)
}

// issued reads iat (RFC 7519, section 4.1.6) of a signature that was verified.
func issued(s bundle.SignaturesConfig) (int64, error) {
	if len(s.Signatures) != 1 {
		return 0, errors.New("it has not one signature")
	}
	parts := strings.Split(s.Signatures[0], ".")
	if len(parts) != 3 {
		return 0, errors.New("its signature is no JWT")
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return 0, fmt.Errorf("its signature: %w", err)
	}
	var claims bundle.DecodedSignature
	if err := json.Unmarshal(text, &claims); err != nil {
		return 0, fmt.Errorf("its signature: %w", err)
	}
	return claims.IssuedAt, nil
}

// bundleAlgorithms sign with a key of which another is published, the default
// first: a secret that both sides have would sign in the place of its owner.
var bundleAlgorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"}

// addBundle makes a bundle's files a part of the team's.
func (t *team) addBundle(b *Bundle) error {
	var errs []error
	for _, f := range b.Files {
		name := "bundle:" + f.Name
		t.digest = append(t.digest, namedSource{name, f.Text})
		if strings.HasSuffix(f.Name, ".rego") {
			errs = append(errs, t.addModule(name, f.Text))
		} else {
			errs = append(errs, t.addData(name, "data.json", f.Text))
		}
	}
	return errors.Join(errs...)
}
