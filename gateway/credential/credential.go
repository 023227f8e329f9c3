// Package credential is the broker between a decision that names a credential and
// the request that gets its secret: source, lease, injection.
//
// A secret is a [Secret] from the moment it is read: it prints as REDACTED and is
// revealed only while it is written into a request to the destination that it is
// bound to. Package sent keeps the secrets that were sent, so that package scrub
// finds them in responses.
package credential

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// MinSecret is the length in bytes below which the secret part of an injection is
// refused, unless the configuration says otherwise (allowShort).
const MinSecret = 16

// Errors to branch on. Each is wrapped with the credential's name and a hint.
var (
	ErrUnknown     = errors.New("no such credential")
	ErrNotBound    = errors.New("credential is not bound to this destination")
	ErrStale       = errors.New("the policy has changed since the decision")
	ErrNoSecret    = errors.New("the credential has no secret yet")
	ErrShort       = fmt.Errorf("its secret is shorter than %d bytes, which is not injected unless allowShort names the field", MinSecret)
	ErrUnfit       = errors.New("its secret does not fit what it is for")
	ErrUnavailable = errors.New("the secret's source cannot be reached")
	ErrRefused     = errors.New("the secret's source refused")
)

// Binding is the destination that a request with the credential goes to.
type Binding struct {
	Host string
	Port uint16
	// Verified says that it goes over an encrypted channel to a server that is
	// authenticated: by a certificate or, with SSH, by a pinned key.
	Verified bool
	// Sandbox is the ID of the sandbox that sends the request. It matters where each
	// sandbox has a secret of its own: see PerSandbox.
	Sandbox string
	// Policy is the revision of the policy that decided.
	Policy string
}

// Material is what a source returns: named fields of one secret.
type Material struct {
	Fields  map[string]Secret
	Version string // of the secret in its source
	// Accessor is what the source's own audit calls the reading, or the lease; it is no
	// secret. Empty where the source has none.
	Accessor string
	Expires  time.Time // zero: no lease
	// Ends is when the issuer stops taking it, where that can be after Expires; zero: at
	// Expires. Answers are searched for it at least until then.
	Ends time.Time
	// Cached says that the source may have another one by now. The Broker sets it for a
	// Remote source.
	Cached bool
}

// Source reads one credential's secret. Its errors wrap ErrNoSecret,
// ErrUnavailable or ErrRefused.
//
// To add a source: a package beside vault and file that implements it, a key of
// policy.CredentialSource with its check (policy/credential.go, policy/validate/inject.go),
// and a case of the daemon's function sources (internal/daemon/secrets.go).
type Source interface {
	Read(ctx context.Context) (Material, error)
}

// Remote is a Source that is slow or busy: the Broker asks it again only when four fifths
// of its TTL, or of the time until the material expires, if that is shorter, are over. A
// Source that is not Remote is asked for each lease.
type Remote interface {
	Source
	// TTL is how long material holds. It is that of material without expiry; where all
	// of it expires, [UntilExpiry].
	TTL() time.Duration
}

// UntilExpiry is the TTL of a Source whose material says when it expires.
const UntilExpiry = 100 * 365 * 24 * time.Hour

// Lasting is a Remote Source whose material may be leased for a grace after its TTL, and
// never past its expiry, while the source cannot be reached.
type Lasting struct {
	Source
	Grace time.Duration
	// Cache is used in place of the TTL, unless it is nil. With 0 each lease has what was
	// read after it was asked for, and leases that are asked for at the same time share a read.
	Cache *time.Duration
}
