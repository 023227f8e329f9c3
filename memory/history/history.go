// Package history keeps every version of a sandbox's memory, on the host and out of the
// sandbox's reach, in one SQLite file.
//
// A [Store] records what differs from the last commit each time that it is asked to
// ([Store.Record]): what was added, changed and removed, by which cause, and which
// destinations the sandbox had contacted. The commits are a chain: the digest of each is
// of all that it holds and of the digest before it. [Store.Verify] finds any change to
// what is stored. That the newest commits were cut off is found by comparing the last
// digest with one that is kept elsewhere, such as in the audit log.
//
// Contents are kept by their digest, compressed, within a bound: older ones that no present
// file has go first, and the commit says which. Of a file that grows at its end each version
// takes what it adds. The list of commits is bounded too: one that has
// become too large begins anew, with a commit of all that there is. Contents in quarantine are sealed with the
// installation's key, have left the memory, and are in no other place of the store.
//
// A sandbox may change its memory while it is recorded: a version is then what was read at
// one moment, and the next Record finds the rest. A file that is mapped into memory and
// written to is recorded once the kernel changes its time (mmap(2)). Owners, extended
// attributes, hard links and the contents of pipes and devices have no versions.
package history

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"sallyport/memory"
)

// Errors to branch on.
var (
	// ErrNoCommit: there is no such commit, or none so early.
	ErrNoCommit = errors.New("the history has no such version")
	// ErrNotKept: the contents are too large, were dropped, or are in quarantine.
	ErrNotKept = errors.New("the contents are not kept")
	// ErrNoQuarantine: nothing in quarantine has the id.
	ErrNoQuarantine = errors.New("nothing in quarantine has this id")
	// ErrDamaged: what is stored is not what was recorded.
	ErrDamaged = errors.New("the history is damaged")
)

// Ops of a Change.
const (
	Added   = "added"
	Changed = "changed"
	Removed = "removed"
	// Quarantined contents are sealed in the store, and the file has left the memory.
	Quarantined = "quarantined"
	// Discarded contents had been in quarantine and exist no more.
	Discarded = "discarded"
)

// Cause says what made the changes of a commit.
type Cause struct {
	Operation memory.Operation `json:"operation"`
	Caller    string           `json:"caller,omitempty"`
	Command   string           `json:"command,omitempty"` // the programs' names
	Session   string           `json:"session,omitempty"`
	// Contacted are destinations that the sandbox contacted since the commit before,
	// sorted; there were MoreContacted others.
	Contacted     []string `json:"contacted,omitempty"`
	MoreContacted int      `json:"more_contacted,omitempty"`
	// AuditFrom and AuditTo are the first and last number of the audit records about it.
	AuditFrom uint64 `json:"audit_from,omitempty"`
	AuditTo   uint64 `json:"audit_to,omitempty"`
	// From is the sandbox or snapshot that a fork or restore took the memory from, and
	// FromCommit the commit there; of a rollback, the commit that it went back to.
	From       string `json:"from,omitempty"`
	FromCommit uint64 `json:"from_commit,omitempty"`
}

// Commit is a step of the history.
type Commit struct {
	Number uint64    `json:"number"` // from 1 on
	Time   time.Time `json:"time"`
	// Parent is the Digest of the commit before, "" of the first one. Digest is the
	// SHA-256, in hexadecimal digits, of this JSON without it.
	Parent  string   `json:"parent,omitempty"`
	Digest  string   `json:"digest,omitempty"`
	Cause   Cause    `json:"cause"`
	Changes []Change `json:"changes,omitempty"`
	// Dropped are contents that the store has not any more from this commit on.
	Dropped []memory.Digest `json:"dropped,omitempty"`
	// Trimmed: the commits before it are gone. Its changes are all that there is, and its
	// cause has all their destinations.
	Trimmed bool `json:"trimmed,omitempty"`
	// Incomplete: the memory had more entries than are recorded, or deeper ones.
	Incomplete bool `json:"incomplete,omitempty"`
}

// Change is what a commit does to one path.
type Change struct {
	// Path is relative to the memory, as the sandbox chose it: it may hold any byte but
	// NUL. In JSON one that is not UTF-8 has path_bytes too, in base64.
	Path   string        `json:"path"`
	Op     string        `json:"op"`
	Kind   memory.Kind   `json:"kind"`
	Digest memory.Digest `json:"digest,omitempty"` // "" of a file over 16 MiB, and of what is no file
	// Previous is the Digest of the version before.
	Previous memory.Digest `json:"previous,omitempty"`
	Size     int64         `json:"size"`             // bytes, of files
	Mode     string        `json:"mode,omitempty"`   // permission bits, such as 0644
	Target   string        `json:"target,omitempty"` // of a link
	Kept     bool          `json:"kept,omitempty"`   // the contents were stored
	Reason   string        `json:"reason,omitempty"` // of a quarantine
}

// Version is what a path is at a commit.
type Version struct {
	Commit uint64        `json:"commit"` // that made it so
	Kind   memory.Kind   `json:"kind"`
	Digest memory.Digest `json:"digest,omitempty"`
	Size   int64         `json:"size"`
	Mode   string        `json:"mode,omitempty"`
	Target string        `json:"target,omitempty"`
	Kept   bool          `json:"kept"` // the contents are in the store now
}

// Filter chooses commits. Its zero value chooses all.
type Filter struct {
	// Path is of a file, or of a folder with all below it.
	Path         string
	Since, Until time.Time        // both included
	After        uint64           // only commits with a larger number
	Before       uint64           // only commits with a smaller number; 0 is any
	Limit        int              // the newest so many, at most 1000; 0 is 100
	Operation    memory.Operation // of the cause
	Destination  string           // only commits that name it in their cause
}

// FileDiff is how one path differs between two commits.
type FileDiff struct {
	Path string   `json:"path"`
	Op   string   `json:"op"`
	From *Version `json:"from,omitempty"`
	To   *Version `json:"to,omitempty"`
	// Text is a unified diff. If there is none of contents that differ, Note says why.
	Text string `json:"text,omitempty"`
	Note string `json:"note,omitempty"`
}

// Target is what a rollback goes back to.
type Target struct {
	To uint64 // the commit's number
	// Paths are files, or folders with all below them; none is everything.
	Paths []string
	// LeaveOut leaves files as they are whose contents then are not kept, instead of
	// failing.
	LeaveOut bool
}

// Provenance says where a file's present contents come from.
type Provenance struct {
	Commit uint64 `json:"commit"` // that gave them to this path
	First  uint64 `json:"first"`  // the earliest that has a part in them
	// Contacted are all destinations of the commits that have a part in them, sorted:
	// there were at least MoreContacted others.
	Contacted     []string `json:"contacted,omitempty"`
	MoreContacted int      `json:"more_contacted,omitempty"`
}

// Quarantine is a version that has left the memory.
type Quarantine struct {
	ID     uint64        `json:"id"`
	Commit uint64        `json:"commit"` // that put it there
	Time   time.Time     `json:"time"`
	Path   string        `json:"path"`
	Digest memory.Digest `json:"digest"`
	Size   int64         `json:"size"`
	Mode   string        `json:"mode"`
	Reason string        `json:"reason"`
}

// Options of a Store.
type Options struct {
	// MaxFile is the most that the contents of a version add to those that the file had, in
	// bytes, if they are kept: all of them, unless they begin with what it had. 0 is 1 MiB.
	// Up to 16 MiB a version has a digest, above only a size.
	MaxFile int64
	// MaxBytes is what all contents that are kept take, compressed, and those in quarantine
	// as they are; 0 is 256 MiB.
	MaxBytes int64
	// MaxLog is the size of the store besides the contents, in bytes: a commit that takes it
	// beyond is trimmed; 0 is 256 MiB.
	MaxLog int64
	// Inspect returns a reason to quarantine contents, or "". Record asks it before it
	// stores them: of contents that begin with those that the file had, about the new ones
	// and a MiB before them. A reason must not tell the secret that was found.
	Inspect func(ctx context.Context, path string, data []byte) (reason string)
	// Progress, if not nil, is told how many of the memory's entries Record has compared,
	// each time that it has read one more of them and 64 have passed.
	Progress func(done, total int)
	// Scanned, if not nil, is told each time which entries the memory has, and ErrTruncated if
	// there are more.
	Scanned func(entries []memory.Entry, cut error)
	// Complete, if not nil, adds to the cause of a commit that is about to be stored: the
	// destinations, since the commit before.
	Complete func(ctx context.Context, before Commit, c *Cause) error
	// Committed, if not nil, is told of each commit once it is stored. It may read the store
	// and must not write to it. Its error comes with the commit.
	Committed func(ctx context.Context, c *Commit) error
	// Key seals what is in quarantine, and proofs of commits; a *seal.Key is one.
	Key Key
	// Of names the sandbox in the proofs of its commits.
	Of string
	// Now is the time; nil is time.Now.
	Now func() time.Time
}

// Key seals and opens.
type Key interface {
	Seal(plain []byte) ([]byte, error)
	Open(sealed []byte) ([]byte, error)
}

// odd is a path that JSON has no text for.
type odd struct {
	PathBytes   string `json:"path_bytes,omitempty"`
	TargetBytes string `json:"target_bytes,omitempty"`
}

func oddBytes(s *string) (encoded string) {
	if !utf8.ValidString(*s) {
		encoded = base64.StdEncoding.EncodeToString([]byte(*s))
		*s = strings.ToValidUTF8(*s, "\uFFFD")
	}
	return encoded
}

// MarshalJSON implements json.Marshaler.
func (c Change) MarshalJSON() ([]byte, error) {
	type plain Change
	o := odd{oddBytes(&c.Path), oddBytes(&c.Target)}
	return json.Marshal(struct {
		plain
		odd
	}{plain(c), o})
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *Change) UnmarshalJSON(data []byte) error {
	type plain Change
	var v struct {
		plain
		odd
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	*c = Change(v.plain)
	path, err := base64.StdEncoding.DecodeString(v.PathBytes)
	if err != nil {
		return err
	}
	target, err := base64.StdEncoding.DecodeString(v.TargetBytes)
	if err != nil {
		return err
	}
	c.Path, c.Target = cmp.Or(string(path), c.Path), cmp.Or(string(target), c.Target)
	return nil
}
