package bundle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"sallyport/internal/durable"
	"sallyport/policy"
	"sallyport/policy/rego"
)

// Keeper keeps the last good bundle of one server. It is safe for concurrent use.
type Keeper struct {
	dir string
	log *slog.Logger

	mu     sync.Mutex
	held   *held // nil where there is none
	marks  []mark
	status Status
	since  time.Time // from which on there was no successful check
}

// held is a bundle and where it is from.
type held struct {
	URL     string    `json:"url"`
	Tag     string    `json:"etag,omitempty"`
	Digest  string    `json:"sha256"`
	Fetched time.Time `json:"fetched"`
	archive []byte
	checked time.Time // the time of aboutFile
}

// Status is the state of the bundle.
type Status struct {
	// Source is the file or URL, empty where there is no bundle.
	Source   string `json:"source"`
	Revision string `json:"revision,omitempty"` // as its manifest says
	Signed   bool   `json:"signed"`
	// Checked is when the server last had what is in force, or gave it.
	Checked time.Time `json:"checked,omitzero"`
	// Stale says that this was too long ago.
	Stale   bool   `json:"stale,omitempty"`
	Failure string `json:"failure,omitempty"` // of the last check
}

// Names of the files in the keeper's folder.
const (
	archiveFile = "bundle.tar.gz"
	aboutFile   = "bundle.json"
)

// Open returns a keeper with the bundle stored in the folder, if any. A damaged one is
// ignored and fetched again.
func Open(dir string, log *slog.Logger) *Keeper {
	k := &Keeper{dir: dir, log: log, since: time.Now()}
	var err error
	if k.marks, err = readMarks(dir); err != nil {
		log.Warn("which policy bundles there were is not known: an older one would be taken", "error", err)
	}
	h, err := load(dir)
	switch {
	case err != nil:
		log.Warn("the policy bundle that was kept is of no use", "error", err)
	case h != nil:
		k.held, k.since = h, h.checked
	}
	return k
}

func load(dir string) (*held, error) {
	var h held
	if found, err := durable.ReadJSON(filepath.Join(dir, aboutFile), &h); err != nil || !found {
		return nil, err
	}
	i, err := os.Stat(filepath.Join(dir, aboutFile))
	if err != nil {
		return nil, err
	}
	h.checked = i.ModTime()
	if h.archive, err = os.ReadFile(filepath.Join(dir, archiveFile)); err != nil {
		return nil, err
	}
	if digest(h.archive) != h.Digest {
		return nil, errors.New("it is not the one that was kept")
	}
	return &h, nil
}

func digest(archive []byte) string {
	sum := sha256.Sum256(archive)
	return hex.EncodeToString(sum[:])
}

// Candidate is a bundle that may be put into force.
type Candidate struct {
	*policy.Bundle
	source string
	from   *held     // nil for a file
	asked  time.Time // when the server was, zero where it was not
}

// Get returns the bundle to use: for a file its present contents; for a server the bundle
// in memory, else the server's. If the server gives none, or none with a valid signature,
// Get returns the bundle that the last run stored on disk.
func (k *Keeper) Get(ctx context.Context, from policy.BundleSource, token Token, read func(policy.BundleSource) (*policy.Bundle, error)) (*Candidate, error) {
	if from.File != "" {
		b, err := read(from)
		if err == nil {
			err = k.fits(b, from)
		}
		if err != nil {
			return nil, err
		}
		return &Candidate{Bundle: b, source: from.File}, nil
	}
	k.mu.Lock()
	h, inUse := k.held, k.status.Source == from.URL
	k.mu.Unlock()
	if h != nil && h.URL != from.URL {
		h = nil
	}
	if h != nil && inUse {
		return candidate(h, from, time.Time{})
	}
	c, err := k.Ask(ctx, from, token)
	switch {
	case err == nil && c != nil:
		return c, nil
	case h == nil:
		return nil, err
	case err == nil: // it has what is held
		return candidate(h, from, time.Now())
	}
	k.log.Error("the policy bundle's server gave none; the last good one is used", "url", from.URL, "fetched", h.Fetched, "error", err)
	return candidate(h, from, time.Time{})
}

// Ask asks the server for a new bundle. It returns nil if the server has the same one.
func (k *Keeper) Ask(ctx context.Context, from policy.BundleSource, token Token) (*Candidate, error) {
	k.mu.Lock()
	h := k.held
	k.mu.Unlock()
	tag := ""
	if h != nil && h.URL == from.URL {
		tag = h.Tag
	} else {
		h = nil
	}
	asked := time.Now()
	archive, newer, err := fetch(ctx, from, token, tag)
	if err == nil && (archive == nil && h != nil || h != nil && bytes.Equal(archive, h.archive)) {
		k.checked(asked)
		return nil, nil
	}
	if err == nil {
		var c *Candidate
		h := &held{URL: from.URL, Tag: newer, Digest: digest(archive), Fetched: asked.UTC(), archive: archive}
		if c, err = candidate(h, from, asked); err == nil {
			if err = k.fits(c.Bundle, from); err == nil {
				return c, nil
			}
		}
	}
	k.Failed(err)
	return nil, err
}

func candidate(h *held, from policy.BundleSource, asked time.Time) (*Candidate, error) {
	b, err := rego.ReadBundle(h.archive, from)
	if err != nil {
		return nil, err
	}
	return &Candidate{b, from.URL, h, asked}, nil
}

// Accept notes and stores the candidate that is in force now, or nil for none.
func (k *Keeper) Accept(c *Candidate) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c == nil {
		k.status = Status{}
		return nil
	}
	return errors.Join(k.accept(c), k.remember(c.Bundle))
}

// accept is Accept of a candidate. k.mu is held.
func (k *Keeper) accept(c *Candidate) error {
	if k.status.Source != c.source {
		k.status = Status{Failure: k.status.Failure} // which may be why it is an older one
		if c.from == nil || c.from != k.held {
			k.since = time.Now()
		}
	}
	k.status.Source, k.status.Revision, k.status.Signed = c.source, c.Revision, c.Signed
	if c.from == nil {
		k.status.Failure = ""
		return nil
	}
	if !c.asked.IsZero() {
		k.status.Checked, k.status.Failure, k.since = c.asked, "", c.asked
	}
	if c.from == k.held {
		return nil
	}
	k.held = c.from
	if err := k.keep(c.from); err != nil {
		return fmt.Errorf("keeping the policy bundle: %w", err)
	}
	return nil
}

// keep writes the archive first: what is said about it fits no other.
func (k *Keeper) keep(h *held) error {
	if err := durable.MkdirAll(k.dir, 0o700); err != nil {
		return err
	}
	return errors.Join(
		durable.WriteFile(filepath.Join(k.dir, archiveFile), h.archive, 0o600),
		durable.WriteJSON(filepath.Join(k.dir, aboutFile), h))
}

func (k *Keeper) checked(at time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status.Checked, k.status.Failure, k.since = at, "", at
	_ = os.Chtimes(filepath.Join(k.dir, aboutFile), at, at) // which a restart counts from; nothing else depends on it
}

// Failed notes why a check failed, or why its bundle was not put into force.
func (k *Keeper) Failed(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status.Failure = err.Error()
}

// Grow tells whether the bundle has become stale, or fresh again, since the last call.
func (k *Keeper) Grow(after time.Duration) (changed bool, s Status) {
	k.mu.Lock()
	defer k.mu.Unlock()
	stale := k.held != nil && k.status.Source == k.held.URL && time.Since(k.since) > after
	changed = stale != k.status.Stale
	k.status.Stale = stale
	return changed, k.status
}

// Status returns the state of the bundle.
func (k *Keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}
