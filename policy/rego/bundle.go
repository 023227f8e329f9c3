package rego

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

	"sallyport/policy"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"
)

// Bounds of a bundle; maxTeamFiles and maxTeamBytes bound what is in it.
const MaxBundle = 16 << 20 // bytes of the archive

// ReadBundle verifies an archive as its source says, and takes out what takes part
// in a policy. Nothing of it but the framing of gzip and tar is read before the
// signature over its files is verified, and no file before its digest is.
func ReadBundle(archive []byte, from policy.BundleSource) (*policy.Bundle, error) {
	b, err := readBundle(archive, from)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", policy.ErrBundle, err)
	}
	return b, nil
}

func readBundle(archive []byte, from policy.BundleSource) (*policy.Bundle, error) {
	if err := measure(archive); err != nil {
		return nil, err
	}
	var signer string
	r := bundle.NewCustomReader(bundle.NewTarballLoader(bytes.NewReader(archive))).
		WithSizeLimitBytes(maxTeamBytes).
		WithCapabilities(Capabilities()).
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
		return nil, Errors(err)
	case got.Type() != bundle.SnapshotBundleType:
		return nil, errors.New("it is a delta: only whole bundles are taken")
	case len(got.WasmModules)+len(got.PlanModules)+len(got.Wasm) > 0:
		return nil, errors.New("it holds compiled policies: build it with `opa build --target rego`")
	}
	b := &policy.Bundle{Revision: policy.Clean(got.Manifest.Revision), Signed: from.Key != ""}
	if b.Signed {
		b.Signer = signer
		if b.Issued, err = issued(got.Signatures); err != nil {
			return nil, err
		}
	}
	for _, m := range got.Modules {
		b.Files = append(b.Files, policy.BundleFile{Name: strings.TrimPrefix(m.RelativePath, "/"), Text: m.Raw})
	}
	if len(got.Data) > 0 {
		text, err := json.Marshal(got.Data)
		if err != nil {
			return nil, err
		}
		b.Files = append(b.Files, policy.BundleFile{Name: "data.json", Text: text})
	}
	slices.SortFunc(b.Files, func(a, b policy.BundleFile) int { return strings.Compare(a.Name, b.Name) })
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
func verification(from policy.BundleSource, pem string) *bundle.VerificationConfig {
	const any = "policy.bundle.key"
	id := cmp.Or(from.KeyID, any)
	keys := map[string]*bundle.KeyConfig{id: {Key: pem, Algorithm: cmp.Or(from.Algorithm, policy.BundleAlgorithms[0]), Scope: from.Scope}}
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

// AddBundle makes a bundle's files a part of the team's.
func (t *Team) AddBundle(b *policy.Bundle) error {
	var errs []error
	for _, f := range b.Files {
		name := "bundle:" + f.Name
		t.Digest = append(t.Digest, namedSource{name, f.Text})
		if strings.HasSuffix(f.Name, ".rego") {
			errs = append(errs, t.addModule(name, f.Text))
		} else {
			errs = append(errs, t.addData(name, "data.json", f.Text))
		}
	}
	return errors.Join(errs...)
}
