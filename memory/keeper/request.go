package keeper

import (
	"encoding/json"
	"time"

	"sallyport/memory"
	"sallyport/memory/history"
	"sallyport/memory/layer"
	"sallyport/memory/search"
)

// Requests about a memory. Every field may be missing, unless it says otherwise.

// StoreRequest adds an entry.
type StoreRequest struct {
	Text     string            `json:"text"`           // needed
	Type     string            `json:"type,omitempty"` // default: observation
	Metadata map[string]string `json:"metadata,omitempty"`
	Session  string            `json:"session,omitempty"` // of the agent
}

// Question asks for entries.
type Question struct {
	Query   string    `json:"query"`
	Limit   int       `json:"limit,omitempty"` // default: 10
	Type    string    `json:"type,omitempty"`
	Trusted bool      `json:"trusted,omitempty"` // only what is
	Since   time.Time `json:"since,omitzero"`
	Until   time.Time `json:"until,omitzero"`
	Budget  int       `json:"budget,omitempty"` // of a text for a context, in tokens; default: 2,000
	// Look is that of an Index. The answer is of what that has looked at, without another
	// look at the files, unless the memory has been used since.
	Look string `json:"look,omitempty"`
}

// Results are what a question found.
type Results[T any] struct {
	Found []T `json:"found"`
	// Incomplete says which files were not searched, and why, or is "".
	Incomplete string `json:"incomplete,omitempty"`
}

// Found is a place in a memory's files.
type Found struct {
	search.Hit
	memory.Marks
}

// Text is text for a model.
type Text struct {
	Text       string `json:"text"`
	Incomplete string `json:"incomplete,omitempty"` // as of Results
}

// TurnRequest adds a turn to the conversations.
type TurnRequest struct {
	Role    string `json:"role"`    // user, assistant, tool
	Content string `json:"content"` // needed
	Session string `json:"session,omitempty"`
}

// StateRequest names a key of the working state.
type StateRequest struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value,omitempty"`
	// Digest is of the value that the key has. A value that is set with one takes the place
	// of that value only, and "none" is of no value.
	Digest       memory.Digest `json:"digest,omitempty"`
	memory.Marks               // of the value that is returned
}

// Keys are those of the working state.
type Keys struct {
	Keys []string `json:"keys"`
}

// RunRequest names a script to run, and its arguments.
type RunRequest struct {
	Name string   `json:"name"`
	Args []string `json:"args,omitempty"`
}

// RunStep is what a script writes while it runs, and at the end its exit status.
type RunStep struct {
	Stdout       []byte `json:"stdout,omitempty"` // base64 in JSON
	Stderr       []byte `json:"stderr,omitempty"`
	Status       *int   `json:"status,omitempty"`
	memory.Marks        // of the script, before it runs
}

// Outcome says how a run of a script ended.
type Outcome struct {
	Name string `json:"name"`
	OK   bool   `json:"ok,omitempty"` // it did its task
	Note string `json:"note,omitempty"`
}

// ArtifactRequest has the contents of an artifact, in base64, or names one.
type ArtifactRequest struct {
	Data   []byte        `json:"data,omitempty"`
	Digest memory.Digest `json:"digest,omitempty"`
}

// HistoryRequest selects commits.
type HistoryRequest struct {
	Path        string    `json:"path,omitempty"`
	Since       time.Time `json:"since,omitzero"`
	Until       time.Time `json:"until,omitzero"`
	After       uint64    `json:"after,omitempty"`
	Before      uint64    `json:"before,omitempty"`
	Limit       int       `json:"limit,omitempty"` // default: 100
	Destination string    `json:"destination,omitempty"`
}

// DiffRequest compares two versions.
type DiffRequest struct {
	From uint64 `json:"from"`
	To   uint64 `json:"to,omitempty"` // default: the present one
	Path string `json:"path,omitempty"`
}

// RollbackRequest goes back to a version, by one of its number, its time, the snapshot at
// which it was, and a destination: the last version before the sandbox had contacted it.
type RollbackRequest struct {
	To          uint64    `json:"to,omitempty"`
	Time        time.Time `json:"time,omitzero"`
	Snapshot    string    `json:"snapshot,omitempty"`
	Destination string    `json:"destination,omitempty"`
	Paths       []string  `json:"paths,omitempty"` // default: all
	LeaveOut    bool      `json:"leave_out,omitempty"`
}

// QuarantineRequest takes files out: by path, or all that was written after the sandbox
// had first contacted a destination. A file that was there before is then what it was.
type QuarantineRequest struct {
	Paths       []string `json:"paths,omitempty"`
	Destination string   `json:"destination,omitempty"`
	Reason      string   `json:"reason,omitempty"`
}

// QuarantineID names what is in quarantine.
type QuarantineID struct {
	ID uint64 `json:"id"`
}

// Checkpoint is a version, and the files that have changed since the one before.
type Checkpoint struct {
	Version uint64   `json:"version"`
	Files   []string `json:"files"`
}

// CompactRequest has old entries made summaries.
type CompactRequest struct {
	OlderThan string `json:"older_than,omitempty"` // a duration such as 720h, which is the default
	DryRun    bool   `json:"dry_run,omitempty"`
}

// Step is a step of Compact or Index: how far it is, or its end.
type Step struct {
	Done  int `json:"done,omitempty"`
	Total int `json:"total,omitempty"`
	// Steps of a request: entries, or the files that are recorded, and then those that are
	// indexed.
	What  string      `json:"what,omitempty"`
	Plan  *layer.Plan `json:"plan,omitempty"`  // the end of Compact
	Index *Indexed    `json:"index,omitempty"` // the end of Index
}

// Parts of a Step.
const (
	EntriesCompacted = "entries compacted"
	FilesRecorded    = "files recorded"
	FilesIndexed     = "files indexed"
)

// Indexed is what Index has done: the index has what the last version has.
type Indexed struct {
	Incomplete string `json:"incomplete,omitempty"` // as of Results
	Look       string `json:"look,omitempty"`       // for one Question
}

// Verified says what of a history fits the audit log.
type Verified struct {
	Versions uint64   `json:"versions"`
	Recorded uint64   `json:"recorded"`           // whose digest the log has
	Problems []string `json:"problems,omitempty"` // none: it is as it was recorded
}

// Commits are a page of the history, the newest first.
type Commits struct {
	Commits      []history.Commit `json:"commits"`
	memory.Marks                  // of the file that was asked for, as it is now
}

// FileDiff is how a file differs between two versions.
type FileDiff struct {
	history.FileDiff
	memory.Marks // of the later one, or of the one that is gone
}
