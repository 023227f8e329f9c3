package retention

import (
	"context"
	"time"

	"sallyport/audit"
)

// Status is what there is of a log, as of the last look at it.
type Status struct {
	Oldest     uint64    // number of the oldest record
	Since      time.Time // when it was written
	Segments   int
	Compressed int
	Bytes      int64 // of segments on disk
	Holds      []Hold
	Held       int64  // bytes that would be deleted but for the holds
	Waiting    int64  // bytes that would be deleted but for Sink
	Sink       string // that lacks them
	Deleted    uint64 // records since the start

	Failure      string // of the last look; "" if it did all that it had to
	FailingSince time.Time
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
	all, err := audit.Segments(dir)
	if err == nil {
		_, err = k.due(ctx, all, 0)
	}
	return k.status, err
}
