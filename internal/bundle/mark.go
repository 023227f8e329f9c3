package bundle

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"sallyport/internal/durable"
	"sallyport/policy"
)

// marksFile is in the keeper's folder.
const marksFile = "marks.json"

// Bounds of what is remembered.
const (
	maxMarks = 16   // signers
	maxPast  = 1024 // bundles of each
)

// mark is how far a signer's bundles have come: an older one with a good signature
// is what somebody sends who has no key, but a copy.
type mark struct {
	Signer string `json:"signer"`
	// Issued is when the newest says that it was signed, in seconds since 1970; 0
	// where none has said.
	Issued int64 `json:"issued,omitempty"`
	// Current is the digest of the one in force, Past those that were, the oldest
	// first.
	Current string   `json:"current"`
	Past    []string `json:"past,omitempty"`
}

// content is a digest of what a bundle says, however it is packed and signed.
func content(b *policy.Bundle) string {
	h := sha256.New()
	_ = json.NewEncoder(h).Encode(b.Revision)
	_ = json.NewEncoder(h).Encode(b.Files) // strings and bytes
	return hex.EncodeToString(h.Sum(nil))
}

func moment(seconds int64) string { return time.Unix(seconds, 0).UTC().Format(time.RFC3339) }

// fits says why a bundle is older than the one that was in force last, or nil.
func (k *Keeper) fits(b *policy.Bundle, from policy.BundleSource) error {
	if b.Signer == "" || from.Older {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.marks, func(m mark) bool { return m.Signer == b.Signer })
	if i < 0 {
		return nil
	}
	const hint = "sign it anew, or write policy.bundle.older: true to go back to it"
	m, digest := k.marks[i], content(b)
	switch {
	case digest == m.Current:
		return nil // whoever signed it
	case b.Issued == 0 && m.Issued != 0:
		return fmt.Errorf("%w: %s: its signature does not say when it was made (iat), as that of %s did: %s", policy.ErrBundle, quoted(b), moment(m.Issued), hint)
	case b.Issued < m.Issued:
		return fmt.Errorf("%w: %s is older than what was in force: signed %s, not after %s: %s", policy.ErrBundle, quoted(b), moment(b.Issued), moment(m.Issued), hint)
	case b.Issued == m.Issued && slices.Contains(m.Past, digest):
		return fmt.Errorf("%w: %s was in force already, and another one since: %s", policy.ErrBundle, quoted(b), hint)
	}
	return nil
}

func quoted(b *policy.Bundle) string { return fmt.Sprintf("the revision %.64q", b.Revision) }

// remember notes that a bundle is in force. k.mu is held.
func (k *Keeper) remember(b *policy.Bundle) error {
	if b.Signer == "" {
		return nil
	}
	digest := content(b)
	m := mark{Signer: b.Signer}
	marks := slices.Clone(k.marks)
	if i := slices.IndexFunc(marks, func(m mark) bool { return m.Signer == b.Signer }); i >= 0 {
		m = marks[i]
		marks = slices.Delete(marks, i, i+1)
	}
	if m.Current == digest && m.Issued == b.Issued {
		return nil
	}
	m.Past = slices.DeleteFunc(slices.Clone(m.Past), func(past string) bool { return past == digest })
	if m.Current != "" && m.Current != digest {
		m.Past = append(m.Past, m.Current)
	}
	m.Past = m.Past[max(0, len(m.Past)-maxPast):]
	if m.Current != digest || b.Issued > m.Issued { // which may go back, where that was asked for
		m.Issued = b.Issued
	}
	m.Current = digest
	marks = append(marks, m) // the one that was used last is the last
	marks = marks[max(0, len(marks)-maxMarks):]
	if err := durable.MkdirAll(k.dir, 0o700); err != nil {
		return err
	}
	k.marks = marks
	return durable.WriteJSON(filepath.Join(k.dir, marksFile), marks)
}

// readMarks reads what was remembered.
func readMarks(dir string) (marks []mark, err error) {
	_, err = durable.ReadJSON(filepath.Join(dir, marksFile), &marks)
	return marks, err
}
