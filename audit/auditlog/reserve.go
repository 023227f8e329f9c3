package auditlog

import (
	"errors"

	"golang.org/x/sys/unix"

	"sallyport/audit"
)

// maxReserve is what a log keeps for itself on the disk ahead of what it has written, in
// bytes, unless a segment is smaller: some thousand events. Nobody else can take it.
const maxReserve = 4 << 20

// worth is what of the reserve an event may be written into when nothing else is left.
type worth int

const (
	ordinary worth = iota // nothing
	denial                // half: a sandbox can make any number
	ending                // all: what became of sandboxes, the daemon and the policy
	worths
)

func worthOf(e *audit.Event) worth {
	switch {
	case e.Unmapped.Sallyport.Kind == audit.KindLifecycle:
		return ending
	case e.Unmapped.Sallyport.Kind == audit.KindDecision && e.Action == audit.ActionDenied:
		return denial
	}
	return ordinary
}

// keep is what has to be left of the reserve behind events of a worth, in bytes.
func (l *Log) keep(w worth) int64 {
	return l.reserve * int64(ending-w) / int64(ending)
}

// full tells that nothing is wrong with the disk but that it has no room.
func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// above is the part of a group that is worth w or more, and the rest.
func (g group) above(w worth) (part, rest group) {
	part, rest = g, g
	part.batches, rest.batches = nil, nil
	for _, b := range g.batches {
		if b.worth >= w {
			part.batches = append(part.batches, b)
		} else {
			rest.batches = append(rest.batches, b)
		}
	}
	return part, rest
}

// Room holds the disk's blocks for n bytes to be written and for keep more behind them,
// without making the file longer (fallocate(2), FALLOC_FL_KEEP_SIZE). Where the file
// system cannot, nothing is held.
func (f *osFile) Room(n int, keep int64) error {
	want := (f.size+int64(n)+block-1)/block*block + keep
	if want <= f.held || f.unheld {
		return nil
	}
	var err error
	// More than is needed, so that it is not asked for each time.
	for _, to := range []int64{want + min(f.size/block*block, maxAhead), want} {
		err = unix.EINTR
		for errors.Is(err, unix.EINTR) {
			err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, f.size, to-f.size)
		}
		if err == nil {
			f.held = to
			return nil
		}
	}
	if full(err) {
		return err
	}
	f.unheld = true
	return nil
}
