package sink

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit/auditlog"
	"sallyport/internal/durable"
)

// ErrOtherLog says that a cursor is not of this log.
var ErrOtherLog = errors.New("the cursor is of another log")

// cursor is the last record that a receiver has acknowledged. The record's leaf hash ties
// it to one log.
type cursor struct {
	Sequence uint64    `json:"sequence"`
	UID      string    `json:"uid"`
	Leaf     tlog.Hash `json:"leaf"`
}

func cursorPath(dir, name string) string { return filepath.Join(dir, name+".json") }

// load reads the cursor, if there is one, and compares it with the log. A log that has
// removed the record, and has later ones, is taken for the same.
func (s *Shipper) load(ctx context.Context) error {
	if err := durable.MkdirAll(s.opt.Dir, 0o700); err != nil {
		return err
	}
	path := cursorPath(s.opt.Dir, s.config.Name)
	found, err := durable.ReadJSON(path, &s.at)
	if err != nil {
		return fmt.Errorf("%w: remove it to have the log sent from its beginning", err)
	}
	if !found || s.at.Sequence == 0 {
		s.at = cursor{}
		return nil
	}
	for r, err := range auditlog.Undamaged(auditlog.Entries(ctx, s.opt.Log, auditlog.Query{From: s.at.Sequence})) {
		switch {
		case errors.Is(err, os.ErrNotExist):
			return s.foreign(path)
		case err != nil:
			return err
		case r.Number > s.at.Sequence:
			return nil
		case r.Event.ID() != s.at.UID || tlog.RecordHash(r.JSON) != s.at.Leaf:
			return s.foreign(path)
		}
		if i, err := s.item(r); err == nil {
			s.last = &i
		}
		return nil
	}
	return s.foreign(path)
}

func (s *Shipper) foreign(path string) error {
	return fmt.Errorf("%w: record %d is not the one that %s names", ErrOtherLog, s.at.Sequence, path)
}

// save makes a cursor durable.
func (s *Shipper) save(to cursor) error {
	if err := durable.WriteJSON(cursorPath(s.opt.Dir, s.config.Name), to); err != nil {
		return err
	}
	s.at = to
	return nil
}
