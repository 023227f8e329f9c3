package retention

import (
	"context"
	"fmt"
	"time"

	"sallyport/audit/auditlog"
	"sallyport/internal/size"
)

// Status is what there is of a log, as of the last look at it.
type Status struct {
	Oldest     uint64    `json:"oldest"`         // number of the oldest record
	Since      time.Time `json:"since,omitzero"` // when it was written
	Segments   int       `json:"segments"`
	Compressed int       `json:"compressed"`
	Bytes      int64     `json:"bytes"` // of segments on disk
	Holds      []Hold    `json:"holds,omitempty"`
	Held       int64     `json:"held_bytes,omitempty"`      // that would be deleted but for the holds
	Waiting    int64     `json:"unshipped_bytes,omitempty"` // that would be deleted but for Sink
	Sink       string    `json:"sink,omitempty"`            // that lacks them
	Deleted    uint64    `json:"deleted"`                   // records since the start

	Failure      string    `json:"failure,omitempty"` // of the last look; "" if it did all that it had to
	FailingSince time.Time `json:"failing_since,omitzero"`
}

// Lines say what there is, and what is not as it should be.
func (s Status) Lines() []string {
	if s.Segments == 0 {
		return nil
	}
	lines := []string{fmt.Sprintf("audit log on disk: records from %d on, of %s, %s in segments: %d, of which %d are compressed",
		s.Oldest, s.Since.Local().Format(time.DateTime), size.About(s.Bytes), s.Segments, s.Compressed)}
	if n := len(s.Holds); n > 0 {
		lines = append(lines, fmt.Sprintf("audit log: legal holds: %d, the first is %s since %s", n, s.Holds[0].Name, s.Holds[0].Since.Local().Format(time.DateTime)))
	}
	if s.Held > 0 {
		lines = append(lines, "audit log: holds keep "+size.About(s.Held)+" that would be deleted")
	}
	if s.Waiting > 0 {
		lines = append(lines, fmt.Sprintf("audit log: %s would be deleted, and wait for sink %s", size.About(s.Waiting), s.Sink))
	}
	if s.Failure != "" {
		lines = append(lines, fmt.Sprintf("audit log: not kept within its bounds since %s: %s", s.FailingSince.Local().Format(time.DateTime), s.Failure))
	}
	return lines
}

// Status is that of the last look at the log.
func (k *Keeper) Status() Status {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status
}

// report logs when keeping the log begins to fail, and when it works again.
func (k *Keeper) report(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.status.Failure
	switch {
	case err == nil && was != "":
		k.o.Logger.Info("the audit log is kept within its bounds again")
		k.status.Failure, k.status.FailingSince = "", time.Time{}
	case err != nil:
		if k.status.Failure = err.Error(); was == "" {
			k.status.FailingSince = k.o.now()
			k.o.Logger.Error("the audit log is not kept within its bounds; that is tried again", "error", err)
		}
	}
}

// Look is the Status of a log that no Keeper keeps.
func Look(ctx context.Context, dir string) (Status, error) {
	k := NewKeeper(Options{Dir: dir}, Policy{})
	all, err := auditlog.Segments(dir)
	if err == nil {
		_, err = k.due(ctx, all, 0)
	}
	return k.status, err
}
