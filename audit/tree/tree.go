// Package tree makes the audit log evidence: a Merkle tree over its records, whose root
// is signed again and again.
//
// Each record is a leaf of a tree as in RFC 6962, whose hash is SHA-256(0x00 || line):
// the line of the log without its newline. The leaf's index is the record's number less
// one. A number whose record is lost or cannot be read has the leaf of the empty line.
//
// A [Checkpoint] is a signed note (https://c2sp.org/tlog-checkpoint, Ed25519) over the
// size and the root. It is a record of the log itself, so that it goes wherever records
// go: a copy outside of the host anchors all records that it covers. The [Sealer] signs
// one each 4096 records, ten seconds after the one before if there are new records, and
// when the daemon ends.
//
// The promise: with the public key, [VerifyLog] and [VerifyExport] find each record
// that was changed, removed, reordered or inserted among those that a checkpoint covers.
// [Prove] gives the proof that one record is covered, in 32 bytes for each doubling of
// the log. The worker, which writes the log, has neither the tree nor the key: when it
// is taken over it can write false records from then on, and rewrite nothing.
//
// The limits: root on the host has the key, and can rewrite and sign again what no
// checkpoint outside of the host covers. Records after the newest checkpoint are not
// covered yet. A record may say what is not true: the tree keeps it as it was written.
package tree

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"math/bits"
	"path/filepath"

	"golang.org/x/mod/sumdb/tlog"
)

// Errors to branch on.
var (
	// ErrNotCovered is Prove's error for a record that no checkpoint covers yet.
	ErrNotCovered = errors.New("no checkpoint covers the record yet")
	// ErrNoKey is the error for a log that was never sealed, or whose key is gone.
	ErrNoKey = errors.New("the log has no key")
)

// Dir is the folder of the tree of the log in a folder.
func Dir(logDir string) string { return filepath.Join(logDir, "tree") }

// Files of the folder.
const (
	hashesFile     = "hashes"     // 32 bytes a hash, in the order of tlog.StoredHashIndex
	checkpointFile = "checkpoint" // the newest note
	keyFile        = "key"        // sealed
	publicFile     = "key.pub"
)

// lost is the leaf of a number whose record is lost.
var lost = tlog.RecordHash(nil)

// edge is the right edge of a tree: the roots of the perfect subtrees that it consists
// of, largest first. More leaves need nothing else of the tree.
type edge struct {
	size  uint64
	roots []tlog.Hash
}

// add appends a leaf, and returns its hash and those of the subtrees that it completes:
// what is stored for it.
func (e *edge) add(leaf tlog.Hash, stored []tlog.Hash) []tlog.Hash {
	stored = append(stored, leaf)
	for i := e.size; i&1 == 1; i >>= 1 {
		last := len(e.roots) - 1
		leaf = tlog.NodeHash(e.roots[last], leaf)
		e.roots = e.roots[:last]
		stored = append(stored, leaf)
	}
	e.roots = append(e.roots, leaf)
	e.size++
	return stored
}

// root is the root of the tree.
func (e *edge) root() tlog.Hash {
	last := len(e.roots) - 1
	if last < 0 {
		return sha256.Sum256(nil)
	}
	h := e.roots[last]
	for i := last - 1; i >= 0; i-- {
		h = tlog.NodeHash(e.roots[i], h)
	}
	return h
}

// whole reports whether there are as many roots as the size has subtrees.
func (e *edge) whole() bool { return len(e.roots) == bits.OnesCount64(e.size) }

func (e *edge) clone() edge { return edge{e.size, append([]tlog.Hash(nil), e.roots...)} }

// indexes are where the roots are stored.
func (e *edge) indexes() []int64 {
	var at []int64
	done := uint64(0)
	for level := 63; level >= 0; level-- {
		if e.size>>level&1 == 1 {
			at = append(at, tlog.StoredHashIndex(level, int64(done>>level)))
			done += 1 << level
		}
	}
	return at
}

// sequenceKey is before a record's number: a quote within text is always escaped.
var sequenceKey = []byte(`"sequence":`)

// bare is a checkpoint's record without its number and without the note: what the note
// has the hash of.
func bare(line []byte, noteText string) []byte {
	head, rest, ok := bytes.Cut(line, sequenceKey)
	if !ok {
		return nil
	}
	digits := 0
	for digits < len(rest) && '0' <= rest[digits] && rest[digits] <= '9' {
		digits++
	}
	rest = rest[digits:]
	before, after, ok := bytes.Cut(rest, quote(noteText))
	if !ok {
		return nil
	}
	return bytes.Join([][]byte{head, sequenceKey, []byte("0"), before, []byte(`""`), after}, nil)
}
