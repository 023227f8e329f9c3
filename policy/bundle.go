package policy

import (
	"errors"
	"time"
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

// ErrBundle is wrapped by what is wrong with a bundle.
var ErrBundle = errors.New("the policy bundle cannot be used")

// BundleAlgorithms sign with a key of which another is published, the default
// first: a secret that both sides have would sign in the place of its owner.
var BundleAlgorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512"}
