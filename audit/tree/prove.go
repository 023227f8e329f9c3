package tree

import (
	"context"
	"fmt"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit/auditlog"
)

// Proof shows that a log has a record: docs/operate/audit-proof.md says how to check it
// without this program.
type Proof struct {
	Record     string      `json:"record"` // the line of the log
	Index      uint64      `json:"index"`  // of the leaf: its number less one
	Size       uint64      `json:"size"`   // of the tree
	Hashes     []tlog.Hash `json:"hashes"` // from the leaf up, in base64
	Checkpoint string      `json:"checkpoint"`
	Key        string      `json:"key"`
}

// Prove proves that the record with a number is in the log in a folder, by the newest
// checkpoint that its folder has.
func Prove(ctx context.Context, logDir string, number uint64) (*Proof, error) {
	key, err := ReadKey(logDir)
	if err != nil {
		return nil, err
	}
	c, err := newest(logDir, key)
	if err != nil {
		return nil, err
	}
	if c == nil || c.Size < number {
		return nil, fmt.Errorf("record %d: %w: wait until the daemon has signed the next, in ten seconds at most", number, ErrNotCovered)
	}
	store, err := OpenStore(logDir)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	for l, err := range auditlog.Entries(ctx, logDir, auditlog.Query{From: number}) {
		if err != nil {
			return nil, err
		}
		if l.Number != number {
			if first, err := auditlog.Segments(logDir); err == nil && number < first[0].First {
				return nil, fmt.Errorf("record %d was deleted: see `sallyport audit verify`", number)
			}
			break
		}
		p, err := tlog.ProveRecord(int64(c.Size), int64(number)-1, store)
		if err != nil {
			return nil, err
		}
		if err := tlog.CheckRecord(p, int64(c.Size), c.Root, int64(number)-1, tlog.RecordHash(l.JSON)); err != nil {
			return nil, fmt.Errorf("record %d is not as it was signed, or its hashes are not: see `sallyport audit verify`: %w", number, err)
		}
		return &Proof{string(l.JSON), number - 1, c.Size, p, c.Note, key.String()}, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	return nil, fmt.Errorf("record %d is missing in the log: see `sallyport audit verify`", number)
}
