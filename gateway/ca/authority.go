// Package ca keeps the certificate authorities of the sandboxes, with their
// private keys, and signs the certificates that the gateway shows to sandboxes.
//
// Each lineage (a sandbox and its forks) has a root that those sandboxes and no
// other machine trusts. Each sandbox has an intermediate below it: what a fork's
// memory already trusts still verifies, and the fork has keys of its own. A leaf
// is for one name of one sandbox and lives for a week.
//
// Guarantees: no private key is on disk unsealed; a root's key is in memory only
// while it signs an intermediate; a root that [Authority.Root] returned is durable;
// a leaf of one sandbox does not verify at a sandbox of another lineage. Keys are
// not protected from root on the host.
//
// The authorities carry no name constraints (RFC 5280, 4.2.1.10): a policy may
// allow a sandbox any name, and nobody outside the lineage trusts the root.
// Intermediates are limited to server authentication and may sign leaves only.
package ca

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"sallyport/internal/durable"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Errors to branch on.
var (
	ErrNoAuthority = errors.New("the sandbox has no certificate authority")
	errBadID       = errors.New("not a sandbox ID")
	errBadKey      = errors.New("not a key on P-256")
)

// maxIssuers bounds the intermediates in memory. Others are read again.
const maxIssuers = 1024

// Sealer encrypts private keys at rest with a key kept elsewhere.
type Sealer interface {
	Seal([]byte) ([]byte, error)
	Open([]byte) ([]byte, error)
}

// Options of an Authority. Dir and Sealer are needed.
type Options struct {
	Dir    string // made with mode 0700 when missing
	Sealer Sealer
	Logger *slog.Logger // default: slog.Default()
}

// Authority keeps the certificate authorities of all sandboxes of one host. It
// is safe for concurrent use; two processes must not share a Dir.
type Authority struct {
	dir    string // <Dir>/lineage
	sealer Sealer
	log    *slog.Logger
	now    func() time.Time

	// change serialises what creates, renews and removes files. It is taken
	// before mu.
	change sync.Mutex

	mu      sync.Mutex
	members map[string]string // sandbox ID -> lineage
	issuers *simplelru.LRU[string, *issuer]
}

// issuer is a sandbox's intermediate, ready to sign.
type issuer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// window is the time in which a certificate is used without renewing it.
type window struct{ from, to time.Time }

func (w window) contains(t time.Time) bool { return !t.Before(w.from) && t.Before(w.to) }

// Open reads which authorities there are. Keys are unsealed when first needed.
func Open(o Options) (*Authority, error) {
	if o.Sealer == nil {
		return nil, errors.New("opening the certificate authorities: no sealer for their keys")
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	a := &Authority{
		dir:     filepath.Join(o.Dir, "lineage"),
		sealer:  o.Sealer,
		log:     o.Logger,
		now:     time.Now,
		members: map[string]string{},
	}
	// The size is a positive constant, the only thing that can be wrong.
	a.issuers, _ = simplelru.NewLRU[string, *issuer](maxIssuers, nil)

	if err := os.MkdirAll(a.dir, 0o700); err != nil {
		return nil, fmt.Errorf("opening the certificate authorities: %w", err)
	}
	if err := durable.RemoveUnfinished(filepath.Join(a.dir, "*")); err != nil {
		return nil, fmt.Errorf("opening the certificate authorities: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(a.dir, "*", memberPrefix+"*"+pemSuffix))
	if err != nil {
		return nil, fmt.Errorf("listing the certificate authorities: %w", err)
	}
	for _, f := range files {
		id := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), memberPrefix), pemSuffix)
		lineage := filepath.Base(filepath.Dir(f))
		if was, twice := a.members[id]; twice {
			return nil, fmt.Errorf("sandbox %q has certificate authorities in two lineages, %q and %q, below %s: remove the one that is not its own", id, was, lineage, a.dir)
		}
		a.members[id] = lineage
	}
	return a, nil
}

// Root returns the PEM certificate of the root that the sandbox must trust,
// making a lineage and the sandbox's intermediate the first time.
func (a *Authority) Root(sandboxID string) ([]byte, error) {
	if err := checkID(sandboxID); err != nil {
		return nil, err
	}
	a.change.Lock()
	defer a.change.Unlock()
	lineage, ok := a.lineage(sandboxID)
	if !ok {
		lineage = sandboxID
		if err := a.found(lineage); err != nil {
			return nil, fmt.Errorf("making the certificate authority of sandbox %q: %w", sandboxID, err)
		}
		if err := a.join(sandboxID, lineage); err != nil {
			return nil, fmt.Errorf("making the certificate authority of sandbox %q: %w", sandboxID, err)
		}
	}
	p, err := readPair(a.rootFile(lineage))
	if err != nil {
		return nil, fmt.Errorf("certificate authority of sandbox %q: %w", sandboxID, err)
	}
	if !a.now().Before(p.cert.NotAfter) {
		return nil, fmt.Errorf("certificate authority of sandbox %q: its root expired on %s: make a new sandbox", sandboxID, p.cert.NotAfter.Format(time.DateOnly))
	}
	return pem.EncodeToMemory(&pem.Block{Type: blockCertificate, Bytes: p.cert.Raw}), nil
}

// Adopt gives a fork an intermediate of its own under its parent's root. It is
// an error when the child already belongs to another lineage.
func (a *Authority) Adopt(childID, parentID string) error {
	if err := checkID(childID); err != nil {
		return err
	}
	a.change.Lock()
	defer a.change.Unlock()
	lineage, ok := a.lineage(parentID)
	if !ok {
		return fmt.Errorf("adopting sandbox %q: parent %q: %w", childID, parentID, ErrNoAuthority)
	}
	switch has, ok := a.lineage(childID); {
	case ok && has == lineage:
		return nil
	case ok:
		return fmt.Errorf("adopting sandbox %q: it already has a certificate authority in lineage %q", childID, has)
	}
	if err := a.join(childID, lineage); err != nil {
		return fmt.Errorf("adopting sandbox %q: %w", childID, err)
	}
	return nil
}

// Forget destroys a sandbox's keys, and the lineage's root with its last member.
// A sandbox that is not known is forgotten already.
func (a *Authority) Forget(sandboxID string) error {
	if err := checkID(sandboxID); err != nil {
		return err
	}
	a.change.Lock()
	defer a.change.Unlock()
	lineage, ok := a.lineage(sandboxID)
	if !ok {
		lineage = sandboxID // a root may be left from a creation cut short
	}
	a.mu.Lock()
	delete(a.members, sandboxID)
	a.issuers.Remove(sandboxID)
	a.mu.Unlock()
	if err := a.remove(sandboxID, lineage); err != nil {
		if ok {
			a.mu.Lock()
			a.members[sandboxID] = lineage // so that Forget can be tried again
			a.mu.Unlock()
		}
		return fmt.Errorf("forgetting the certificate authority of sandbox %q: %w", sandboxID, err)
	}
	return nil
}

func (a *Authority) lineage(sandboxID string) (string, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l, ok := a.members[sandboxID]
	return l, ok
}

// found makes the root of a lineage unless there is one.
func (a *Authority) found(lineage string) error {
	_, err := os.Lstat(a.rootFile(lineage))
	if err == nil {
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := durable.MkdirAll(a.lineageDir(lineage), 0o700); err != nil {
		return err
	}
	p, err := newRoot(lineage, a.now())
	if err != nil {
		return err
	}
	return a.save(a.rootFile(lineage), p)
}

// join signs an intermediate for a sandbox with its lineage's root. It also
// renews one.
func (a *Authority) join(sandboxID, lineage string) error {
	root, err := a.load(a.rootFile(lineage))
	if err != nil {
		return err
	}
	p, err := newIntermediate(sandboxID, root, a.now())
	if err != nil {
		return err
	}
	if err := a.save(a.memberFile(lineage, sandboxID), p); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.members[sandboxID] = lineage
	a.issuers.Add(sandboxID, &issuer{cert: p.cert, key: p.key})
	return nil
}

// issuer returns the sandbox's intermediate, renewed when it is time.
func (a *Authority) issuer(sandboxID string) (*issuer, error) {
	if i := a.cachedIssuer(sandboxID); i != nil {
		return i, nil
	}
	a.change.Lock()
	defer a.change.Unlock()
	if i := a.cachedIssuer(sandboxID); i != nil {
		return i, nil
	}
	lineage, ok := a.lineage(sandboxID)
	if !ok {
		return nil, ErrNoAuthority
	}
	p, err := a.load(a.memberFile(lineage, sandboxID))
	if err != nil {
		return nil, err
	}
	if now := a.now(); !intermediateWindow(p.cert).contains(now) {
		err := a.join(sandboxID, lineage)
		if err == nil {
			return a.cachedIssuer(sandboxID), nil
		}
		if now.Before(p.cert.NotBefore) || !now.Before(p.cert.NotAfter) {
			return nil, fmt.Errorf("renewing the intermediate: %w", err)
		}
		// Still good: carry on with it and try again for the next leaf.
		a.log.Warn("intermediate certificate not renewed", slog.String("sandbox_id", sandboxID),
			slog.Time("not_after", p.cert.NotAfter), slog.Any("error", err))
		return &issuer{cert: p.cert, key: p.key}, nil
	}
	i := &issuer{cert: p.cert, key: p.key}
	a.mu.Lock()
	a.issuers.Add(sandboxID, i)
	a.mu.Unlock()
	return i, nil
}

func (a *Authority) cachedIssuer(sandboxID string) *issuer {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i, ok := a.issuers.Get(sandboxID); ok && intermediateWindow(i.cert).contains(a.now()) {
		return i
	}
	return nil
}
