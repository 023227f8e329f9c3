// Package trust makes a certificate authority trusted by the programs of an image:
// PEM bundles, folders that OpenSSL reads, Java key stores, browsers' policies, NSS
// databases and OpenSSH's known hosts. It reads and plans writes by [Files], and runs nothing of the image, whose
// files it takes for hostile: it allocates nothing in proportion to what they claim.
package trust

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"path"

	"sallyport/sandbox"
)

const (
	// systemBundle is where every image has all its roots after plant: there
	// by itself, or as a link to where it keeps them.
	systemBundle = "/etc/ssl/certs/ca-certificates.crt"
	// anchor is where Debian and Alpine keep roots of the machine's own, and
	// where they are found again when the bundle is made anew.
	anchor = "/usr/local/share/ca-certificates/sallyport.crt"
	// hashed is the folder that OpenSSL looks in by subject.
	hashed = "/etc/ssl/certs"
)

// bundles lists where distributions keep all roots in one PEM file.
var bundles = []string{
	systemBundle, // Debian, Alpine, Arch, Gentoo
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // Red Hat, what the others link to
	"/etc/pki/tls/certs/ca-bundle.crt",                  // Red Hat
	"/etc/pki/tls/cert.pem",                             // Red Hat, OpenSSL's default
	"/etc/ssl/ca-bundle.pem",                            // SUSE
	"/etc/ssl/cert.pem",                                 // Alpine, LibreSSL
}

// families lists distributions that keep roots elsewhere: a path that tells one,
// the bundle of one that has none yet, and the folder of the machine's own roots.
var families = []struct{ mark, bundle, anchors string }{
	{"/etc/redhat-release", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/pki/ca-trust/source/anchors"},
	{"/etc/pki/ca-trust", "", "/etc/pki/ca-trust/source/anchors"},
	{"/etc/zypp", "/etc/ssl/ca-bundle.pem", "/etc/pki/trust/anchors"},
	{"/etc/alpine-release", "/etc/ssl/cert.pem", ""},
	{"/etc/arch-release", "", "/etc/ca-certificates/trust-source/anchors"},
}

// bundleEnv lists the variables that make programs with roots of their own use
// a bundle instead, and nodeEnv those that name roots to add to theirs.
var (
	bundleEnv = []string{
		"SSL_CERT_FILE",                    // OpenSSL built elsewhere, Go, rustls
		"CURL_CA_BUNDLE",                   // curl built elsewhere
		"GIT_SSL_CAINFO",                   // git built elsewhere
		"REQUESTS_CA_BUNDLE",               // Python requests, which carries certifi
		"PIP_CERT",                         // pip, which carries it too
		"AWS_CA_BUNDLE",                    // the AWS command line and SDKs
		"CARGO_HTTP_CAINFO",                // Rust's cargo
		"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", // gRPC's C core
	}
	nodeEnv = []string{"NODE_EXTRA_CA_CERTS", "DENO_CERT"}
)

// Files are those of a container that has not started. Reads show the image's files;
// writes are only planned. Paths are resolved inside the container's root.
type Files interface {
	// Stat says whether something is at p, its mode, and a link's target.
	Stat(ctx context.Context, p string) (there bool, mode os.FileMode, target string, err error)
	// Exists says whether anything is at p, a link to nothing included.
	Exists(ctx context.Context, p string) (bool, error)
	// Read returns the regular file that p leads to: its resolved path, header and
	// content. The header is nil when there is none.
	Read(ctx context.Context, p string) (at string, h *tar.Header, content []byte, err error)
	// Put plans a regular file at p. A nil header is root's, readable by all.
	Put(p string, h *tar.Header, content []byte)
	// Link plans a symbolic link at p.
	Link(p, target string)
}

// Root is a certificate that a sandbox trusts besides its image's own.
type Root struct {
	cert *x509.Certificate
	pem  []byte
	Env  map[string]string // variables that the container needs
	more []string          // bundles that the image's environment names
	java []string          // where Java's roots may be
	dirs []string          // folders like hashed that the image has
}

// NewRoot parses a PEM certificate. A variable that the image's environment already points
// elsewhere stays so, and is merged there.
func NewRoot(text []byte, image map[string]string) (*Root, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("%w: the certificate to trust is not one PEM certificate", sandbox.ErrBadSpec)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%w: the certificate to trust: %w", sandbox.ErrBadSpec, err)
	}
	r := &Root{
		cert: cert,
		pem:  pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}),
		Env:  map[string]string{},
		java: []string{"/etc/ssl/certs/java/cacerts", "/etc/pki/java/cacerts"},
		dirs: []string{"/etc/pki/ca-trust/extracted/pem/directory-hash"},
	}
	name := func(vars []string, file string) {
		for _, v := range vars {
			if own := image[v]; path.IsAbs(own) {
				r.more = append(r.more, path.Clean(own))
			} else {
				r.Env[v] = file
			}
		}
	}
	name(bundleEnv, systemBundle)
	name(nodeEnv, anchor)
	if home := image["JAVA_HOME"]; path.IsAbs(home) {
		r.java = append(r.java, path.Join(home, "lib/security/cacerts"), path.Join(home, "jre/lib/security/cacerts"))
	}
	if dir := image["SSL_CERT_DIR"]; path.IsAbs(dir) {
		r.dirs = append(r.dirs, path.Clean(dir))
	}
	return r, nil
}

// Plant merges the root into every trust store of an image that it knows. The image's
// own tools (update-ca-certificates, update-ca-trust) keep the root when they write
// the bundles anew. A store that cannot take the root is logged and left as it is.
func (r *Root) Plant(ctx context.Context, f Files, log *slog.Logger) error {
	found, err := r.bundle(ctx, f)
	if err != nil {
		return err
	}
	if err := r.anchor(ctx, f, found); err != nil {
		return err
	}
	if err := r.hash(ctx, f); err != nil {
		return err
	}
	if err := r.hosts(ctx, f); err != nil {
		return err
	}
	left, err := r.browser(ctx, f)
	if err != nil {
		return err
	}
	for _, p := range left {
		log.Warn("the image has an NSS database of its own: headless browsers of that user will not trust the gateway", "file", p)
	}
	for _, p := range r.java {
		at, h, store, err := f.Read(ctx, p)
		if err != nil {
			return err
		}
		if h == nil {
			continue
		}
		merged, err := mergeJavaStore(store, r.cert)
		if err != nil {
			log.Warn("Java in this sandbox will not trust the gateway", "file", at, "error", err)
			continue
		}
		f.Put(at, h, merged)
	}
	return nil
}

// bundle merges the root into every bundle and returns the system's, "" when
// the image has none.
func (r *Root) bundle(ctx context.Context, f Files) (string, error) {
	merge := func(p string) (string, error) {
		at, h, content, err := f.Read(ctx, p)
		if err != nil || h == nil {
			return "", err
		}
		if !bytes.Contains(content, r.pem) {
			f.Put(at, h, append(lines(content), r.pem...))
		}
		return at, nil
	}
	system, own := "", ""
	for _, p := range bundles {
		at, err := merge(p)
		if err != nil {
			return "", err
		}
		if p == systemBundle {
			own = at
		}
		system = cmp.Or(system, at)
	}
	switch {
	case own != "":
	case system != "":
		f.Link(systemBundle, system)
	default:
		f.Put(systemBundle, nil, r.pem)
	}
	for _, p := range r.more {
		at, err := merge(p)
		if err != nil {
			return "", err
		}
		if at == "" { // better only our root than none, which no program starts with
			f.Put(p, nil, r.pem)
		}
	}
	return system, nil
}

// anchor puts the root where the image's own tools look for it, and where the
// image's programs look for a bundle if there is none.
func (r *Root) anchor(ctx context.Context, f Files, bundle string) error {
	f.Put(anchor, nil, r.pem)
	for _, d := range families {
		there, err := f.Exists(ctx, d.mark)
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		if d.anchors != "" {
			f.Put(path.Join(d.anchors, path.Base(anchor)), nil, r.pem)
		}
		if bundle == "" && d.bundle != "" {
			f.Put(d.bundle, nil, r.pem)
		}
	}
	return nil
}

// hash names the root by its subject, as OpenSSL looks for it in folders.
func (r *Root) hash(ctx context.Context, f Files) error {
	hash, err := subjectHash(r.cert)
	if err != nil {
		return err
	}
	dirs := []string{hashed}
	for _, dir := range r.dirs {
		there, err := f.Exists(ctx, dir)
		if err != nil {
			return err
		}
		if there {
			dirs = append(dirs, dir)
		}
	}
	for _, dir := range dirs {
		// The name that update-ca-certificates gives to the anchor's link.
		f.Link(path.Join(dir, "sallyport.pem"), anchor)
		if err := r.name(ctx, f, path.Join(dir, hash)); err != nil {
			return err
		}
	}
	return nil
}

// Name links the first free of the names HASH.0, HASH.1 … to the root.
func (r *Root) name(ctx context.Context, f Files, hash string) error {
	const most = 16 // that share a hash
	for n := range most {
		p := fmt.Sprintf("%s.%d", hash, n)
		_, h, content, err := f.Read(ctx, p)
		if err != nil {
			return err
		}
		if h != nil && bytes.Equal(content, r.pem) {
			return nil
		}
		there, err := f.Exists(ctx, p)
		if err != nil {
			return err
		}
		if !there {
			f.Link(p, "sallyport.pem")
			return nil
		}
	}
	return fmt.Errorf("the image has %d files named %s.*", most, hash)
}

// lines returns a copy of content that ends with a line feed.
func lines(content []byte) []byte {
	if n := len(content); n > 0 && content[n-1] != '\n' {
		return append(content[:n:n], '\n')
	}
	return content[:len(content):len(content)]
}
