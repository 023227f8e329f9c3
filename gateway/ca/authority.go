// Package ca keeps the certificate authorities of the sandboxes, with their
// private keys, and signs the certificates that the gateway shows to sandboxes.
//
// Each lineage (a sandbox and its forks) has a root that those sandboxes and no
// other machine trusts. Each sandbox has an intermediate below it: what a fork's
// memory already trusts still verifies, and the fork has keys of its own. A leaf
// is for one name of one sandbox and lives for a week.
//
// With an [Issuer], as on a node of Kubernetes, there are no roots of this
// package's: the sandboxes trust whatever root is above the issuer, and each has an
// intermediate below it. Another issuer takes its place while all goes on: an intermediate
// is renewed below it when the next leaf is signed, and what was signed stays good for as
// long as its own chain.
//
// Guarantees: no private key is on disk unsealed; a root's key is in memory only
// while it signs an intermediate; a root that [Authority.Root] returned is durable;
// a leaf of one sandbox does not verify at a sandbox of another lineage, where lineages
// have roots of their own. Keys are
// not protected from root on the host.
//
// The authorities carry no name constraints (RFC 5280, 4.2.1.10): a policy may
// allow a sandbox any name, and nobody outside the lineage trusts the root.
// Intermediates are limited to server authentication and may sign leaves only.
package ca

import (
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

// maxIntermediates bounds the intermediates in memory. Others are read again.
const maxIntermediates = 1024

// Options of an Authority. Dir and Sealer are needed.
type Options struct {
	Dir    string // made with mode 0700 when missing
	Sealer durable.Sealer
	// Issuer is above all intermediates. Default: each lineage has a root of its own.
	Issuer *Issuer
	Logger *slog.Logger // default: slog.Default()
}

// Authority keeps the certificate authorities of all sandboxes of one host. It
// is safe for concurrent use; two processes must not share a Dir.
type Authority struct {
	dir    string // <Dir>/lineage
	sealer durable.Sealer
	log    *slog.Logger
	now    func() time.Time

	// change serialises what creates, renews and removes files. It is taken
	// before mu.
	change sync.Mutex

	mu            sync.Mutex
	issuer        *Issuer                       // nil: each lineage has a root of its own
	lineages      map[string]string             // sandbox ID -> lineage
	intermediates *simplelru.LRU[string, *pair] // by sandbox ID
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
		dir:      filepath.Join(o.Dir, "lineage"),
		sealer:   o.Sealer,
		log:      o.Logger,
		now:      time.Now,
		lineages: map[string]string{},
		issuer:   o.Issuer,
	}
	// The size is a positive constant, the only thing that can be wrong.
	a.intermediates, _ = simplelru.NewLRU[string, *pair](maxIntermediates, nil)

	if err := os.MkdirAll(a.dir, 0o700); err != nil {
		return nil, fmt.Errorf("opening the certificate authorities: %w", err)
	}
	if err := durable.RemoveUnfinished(filepath.Join(a.dir, "*")); err != nil {
		return nil, fmt.Errorf("opening the certificate authorities: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(a.dir, "*", sandboxPrefix+"*"+pemSuffix))
	if err != nil {
		return nil, fmt.Errorf("listing the certificate authorities: %w", err)
	}
	for _, f := range files {
		id := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), sandboxPrefix), pemSuffix)
		lineage := filepath.Base(filepath.Dir(f))
		if was, twice := a.lineages[id]; twice {
			return nil, fmt.Errorf("sandbox %q has certificate authorities in two lineages, %q and %q, below %s: remove the one that is not its own", id, was, lineage, a.dir)
		}
		a.lineages[id] = lineage
	}
	return a, nil
}

// issuerLineage is the lineage of all sandboxes below an Issuer. It is no sandbox's ID.
const issuerLineage = "_issuer"

// SetIssuer has another issuer in the place of the one before.
func (a *Authority) SetIssuer(i *Issuer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.issuer = i
}

func (a *Authority) currentIssuer() *Issuer {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.issuer
}

// Root returns the PEM certificate of the root that the sandbox must trust, or the topmost
// of the Issuer's, making a lineage and the sandbox's intermediate the first time.
func (a *Authority) Root(sandboxID string) ([]byte, error) {
	if err := checkID(sandboxID); err != nil {
		return nil, err
	}
	a.change.Lock()
	defer a.change.Unlock()
	if i := a.currentIssuer(); i != nil {
		if _, ok := a.lineage(sandboxID); !ok {
			if _, err := a.makeIntermediate(sandboxID, issuerLineage); err != nil {
				return nil, fmt.Errorf("making the certificate authority of sandbox %q: %w", sandboxID, err)
			}
		}
		return i.root(), nil
	}
	lineage, ok := a.lineage(sandboxID)
	if !ok {
		lineage = sandboxID
		if err := a.makeRoot(lineage); err != nil {
			return nil, fmt.Errorf("making the certificate authority of sandbox %q: %w", sandboxID, err)
		}
		if _, err := a.makeIntermediate(sandboxID, lineage); err != nil {
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
	if _, err := a.makeIntermediate(childID, lineage); err != nil {
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
	delete(a.lineages, sandboxID)
	a.intermediates.Remove(sandboxID)
	a.mu.Unlock()
	if err := a.remove(sandboxID, lineage); err != nil {
		if ok {
			a.mu.Lock()
			a.lineages[sandboxID] = lineage // so that Forget can be tried again
			a.mu.Unlock()
		}
		return fmt.Errorf("forgetting the certificate authority of sandbox %q: %w", sandboxID, err)
	}
	return nil
}

func (a *Authority) lineage(sandboxID string) (string, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l, ok := a.lineages[sandboxID]
	return l, ok
}

// makeRoot makes the root of a lineage unless there is one.
func (a *Authority) makeRoot(lineage string) error {
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

// makeIntermediate signs one for a sandbox with the Issuer, or its lineage's root. It also
// renews one.
func (a *Authority) makeIntermediate(sandboxID, lineage string) (*pair, error) {
	signer := a.currentIssuer()
	var issuers []*x509.Certificate
	if signer != nil {
		issuers = signer.chain
		if err := durable.MkdirAll(a.lineageDir(lineage), 0o700); err != nil {
			return nil, err
		}
	} else {
		root, err := a.load(a.rootFile(lineage))
		if err != nil {
			return nil, err
		}
		signer = &Issuer{chain: []*x509.Certificate{root.cert}, key: root.key}
	}
	p, err := newIntermediate(sandboxID, signer, a.now())
	if err != nil {
		return nil, err
	}
	p.issuers = issuers
	if err := a.save(a.sandboxFile(lineage, sandboxID), p); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lineages[sandboxID] = lineage
	a.intermediates.Add(sandboxID, p)
	return p, nil
}

// intermediate returns the sandbox's intermediate, renewed when it is time.
func (a *Authority) intermediate(sandboxID string) (*pair, error) {
	if p := a.cachedIntermediate(sandboxID); p != nil {
		return p, nil
	}
	a.change.Lock()
	defer a.change.Unlock()
	if p := a.cachedIntermediate(sandboxID); p != nil {
		return p, nil
	}
	lineage, ok := a.lineage(sandboxID)
	if !ok {
		return nil, ErrNoAuthority
	}
	p, err := a.load(a.sandboxFile(lineage, sandboxID))
	if err != nil {
		return nil, err
	}
	if now := a.now(); !a.current(p) {
		made, err := a.makeIntermediate(sandboxID, lineage)
		if err == nil {
			return made, nil // below an issuer that is set meanwhile the next leaf renews it
		}
		if now.Before(p.cert.NotBefore) || !now.Before(p.cert.NotAfter) {
			return nil, fmt.Errorf("renewing the intermediate: %w", err)
		}
		// Still good: carry on with it and try again for the next leaf.
		a.log.Warn("intermediate certificate not renewed", slog.String("sandbox_id", sandboxID),
			slog.Time("not_after", p.cert.NotAfter), slog.Any("error", err))
		return p, nil
	}
	a.mu.Lock()
	a.intermediates.Add(sandboxID, p)
	a.mu.Unlock()
	return p, nil
}

func (a *Authority) cachedIntermediate(sandboxID string) *pair {
	a.mu.Lock()
	p, ok := a.intermediates.Get(sandboxID)
	a.mu.Unlock()
	if ok && a.current(p) {
		return p
	}
	return nil
}

// current reports whether an intermediate signs leaves as it is: it is not to be renewed
// yet, and is below the issuer of now and all that is above that one.
func (a *Authority) current(p *pair) bool {
	top := a.currentIssuer()
	return intermediateWindow(p.cert).contains(a.now()) && (top == nil || top.has(p.issuers))
}
