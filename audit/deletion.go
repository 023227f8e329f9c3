package audit

// StateDeleted is the state (unmapped.sallyport.state) of the event that is written before
// segments are deleted.
const StateDeleted = "audit-deleted"

// Deletion says which records are deleted from the log: whole segments, from the oldest
// on. Their hashes stay in the tree.
type Deletion struct {
	Earliest uint64           `json:"earliest"` // all from this one on are deleted, by this event or those before, which may be deleted too
	First    uint64           `json:"first"`
	Forced   bool             `json:"forced,omitempty"` // although a sink may lack some of them
	Last     uint64           `json:"last"`
	Root     string           `json:"root"` // of the tree of all records up to Last, in base64
	Segments []DeletedSegment `json:"segments"`
}

// DeletedSegment is a segment that is deleted.
type DeletedSegment struct {
	First  uint64 `json:"first"`
	SHA256 string `json:"sha256"` // of what it held, which is not compressed, in hexadecimal digits
}
