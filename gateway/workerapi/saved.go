package workerapi

// SavedChunk bounds the data of one SaveRequest, in bytes.
const SavedChunk = 8 << 10

// MaxSaved bounds a sent.Saved in JSON, in bytes. Its values have 256 KiB, and so
// may one alone.
const MaxSaved = 2 << 20

// SavedRequest asks for what was saved of a sandbox or a client.
type SavedRequest struct{ ID string }

// SavedReply is a sent.Saved in JSON; none if nothing was saved.
type SavedReply struct{ Saved []byte }

// SaveRequest adds to it: a part of a sent.Saved in JSON. The worker sends the parts
// of one before the next one's.
type SaveRequest struct {
	ID          string
	Part        []byte
	First, Last bool
}
