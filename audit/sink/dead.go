package sink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"sallyport/audit"
	"sallyport/internal/durable"
)

// maxDead is the size in bytes at which a file of dead letters is set aside. One that was
// set aside before is removed: the records are in the log.
const maxDead = 64 << 20

// deadLetter is a record that a receiver refused for good.
type deadLetter struct {
	Time     time.Time `json:"time"`
	Sequence uint64    `json:"sequence"`
	UID      string    `json:"uid"`
	Reason   string    `json:"reason"`
	Data     string    `json:"data"`
}

type refusal struct {
	item   Item
	reason string
}

// bury keeps refused records, and records the gap. A refused record of a gap makes no
// other one: there would be no end.
func (s *Shipper) bury(ctx context.Context, refused []refusal) error {
	var lines []byte
	var first, last refusal
	count := 0
	for _, r := range refused {
		b, err := json.Marshal(deadLetter{time.Now().UTC(), r.item.Sequence, r.item.UID, r.reason, string(r.item.Data)})
		if err != nil {
			return err
		}
		lines = append(append(lines, b...), '\n')
		if r.item.gap {
			continue
		}
		if count++; count == 1 {
			first = r
		}
		last = r
	}
	if err := appendDead(filepath.Join(s.opt.Dead, s.config.Name+".jsonl"), lines); err != nil {
		return err
	}
	if count > 0 {
		if err := s.recordGap(ctx, first.item.Sequence, last.item.Sequence, count, "the receiver refused: "+first.reason); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Refused += uint64(len(refused))
	return nil
}

func appendDead(path string, lines []byte) error {
	dir := filepath.Dir(path)
	if err := durable.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if i, err := os.Stat(path); err == nil && i.Size() >= maxDead {
		if err := os.Rename(path, path+".1"); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(lines)
	return errors.Join(err, f.Sync(), f.Close(), durable.SyncDir(dir))
}

// recordGap records that records from first to last did not reach the receiver: count of
// them.
func (s *Shipper) recordGap(ctx context.Context, first, last uint64, count int, reason string) error {
	e := audit.Change("sink/"+s.config.Name, audit.StateGap)
	e.StatusID, e.SeverityID = audit.StatusFailure, audit.SeverityHigh
	e.Message = fmt.Sprintf("sink %s lacks records %d to %d", s.config.Name, first, last)
	e.Detail = reason
	e.Unmapped.Sallyport.Gap = &audit.Gap{Count: count, First: first, Last: last, Reason: reason, Sink: s.config.Name}
	s.opt.Logger.Error("records do not reach a sink", "sink", s.config.Name, "first", first, "last", last, "count", count, "reason", reason)
	if err := s.opt.Record(ctx, e); err != nil {
		return fmt.Errorf("recording a gap: %w", err)
	}
	return nil
}
