package tmpfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/internal/size"
)

// Errors of Budget.Reserve.
var (
	ErrTooLarge = errors.New("there is less room in memory than it needs")
	ErrBusy     = errors.New("there is no room in memory now")
)

const (
	// maxWaiting is how many requests of one owner wait.
	maxWaiting = 1024
	// lookEvery is how often a Budget measures the folder while a reservation waits.
	lookEvery = time.Second
)

// Budget shares the memory of a folder out among owners, in bytes, before they write.
//
// An owner has at most half of it at a time, so that another owner finds the other half.
// One reservation may be for more if its owner has no other. Among waiting owners the one
// with the least memory comes first, then the one whose last turn was longest ago, then
// the first to come; reservations of one owner are served in order. The first in line
// keeps memory that others release, so that many small reservations do not starve a large
// one; an owner who may not have more now is skipped.
//
// Files in the folder without a reservation, of an earlier process for instance, count as
// they are found (statfs(2)), and so do files that are larger than their reservation. A
// Budget does not prevent writes.
type Budget struct {
	dir  string
	most int64

	mu           sync.Mutex // guards what follows
	reservations map[*Reservation]bool
	queue        []*waiter         // by arrival
	served       uint64            // turns so far
	turns        map[string]uint64 // last turn of each owner that has memory or waits
	look         *time.Timer       // nil while no reservation waits
}

// NewBudget shares out the size of dir's file system, but not more than most bytes, where
// that is not 0.
func NewBudget(dir string, most int64) *Budget {
	return &Budget{dir: dir, most: most, reservations: map[*Reservation]bool{}, turns: map[string]uint64{}}
}

type waiter struct {
	reservation *Reservation
	granted     chan struct{} // closed when it has its memory
}

// Reservation is memory for files that are about to be written. All methods of a nil
// Reservation do nothing.
type Reservation struct {
	budget *Budget
	owner  string

	bytes int64    // guarded by budget.mu, as the next field
	names []string // of its folders
}

// Reserve takes so many bytes for an owner. It waits for up to the given time, or not at
// all if that is 0, and then returns ErrBusy with the figures. More than the whole budget
// is ErrTooLarge at once.
func (r *Budget) Reserve(ctx context.Context, owner string, bytes int64, wait time.Duration) (*Reservation, error) {
	w, err := r.enqueue(owner, bytes)
	if err != nil {
		return nil, err
	}
	patience := time.NewTimer(wait)
	defer patience.Stop()
	if wait <= 0 {
		select {
		case <-w.granted:
			return w.reservation, nil
		default:
			return r.abandon(w, nil)
		}
	}
	select {
	case <-w.granted:
		return w.reservation, nil
	case <-patience.C:
		return r.abandon(w, nil)
	case <-ctx.Done():
		return r.abandon(w, context.Cause(ctx))
	}
}

func (r *Budget) enqueue(owner string, bytes int64) (*waiter, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, err := r.state()
	if err != nil {
		return nil, err
	}
	if bytes > s.total {
		return nil, fmt.Errorf("%w: %s are needed, and there are %s in all", ErrTooLarge, size.About(bytes), size.About(s.total))
	}
	n := 0
	for _, w := range r.queue {
		if w.reservation.owner == owner {
			n++
		}
	}
	if n >= maxWaiting {
		return nil, fmt.Errorf("%w: %d of this owner's wait for it: try again later", ErrBusy, n)
	}
	w := &waiter{&Reservation{budget: r, owner: owner, bytes: bytes}, make(chan struct{})}
	r.queue = append(r.queue, w)
	r.serve(s)
	return w, nil
}

// abandon removes a waiter, for a reason of its own or, with nil, because its time is
// over.
func (r *Budget) abandon(w *waiter, why error) (*Reservation, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(r.queue, w)
	if i < 0 { // it has come just now
		if why == nil {
			return w.reservation, nil
		}
		delete(r.reservations, w.reservation)
		r.serveNow()
		return nil, why
	}
	r.queue = slices.Delete(r.queue, i, i+1)
	if why == nil {
		s, err := r.state()
		if err != nil {
			return nil, err
		}
		why = fmt.Errorf("%w: %s are needed, %s of %s are free, and this owner has %s, where one may have %s: try again when fewer are put to sleep, woken, forked or kept at once",
			ErrBusy, size.About(w.reservation.bytes), size.About(max(s.free, 0)), size.About(s.total), size.About(s.held[w.reservation.owner]), size.About(s.share()))
	}
	r.serveNow() // it may have stood before others
	return nil, why
}

// state is the memory there is, in bytes.
type state struct {
	total int64
	free  int64 // and not reserved; below 0 where more was written than reserved
	held  map[string]int64
}

// share is half of the memory that would be free if there were no reservations.
func (s state) share() int64 {
	n := s.free
	for _, held := range s.held {
		n += held
	}
	return max(n/2, 0)
}

// state measures the folder. r.mu is held.
func (r *Budget) state() (s state, err error) {
	s.held = map[string]int64{}
	var promised int64
	for l := range r.reservations {
		written, err := l.written()
		if err != nil {
			return s, err
		}
		s.held[l.owner] += max(l.bytes, written)
		promised += max(l.bytes-written, 0)
	}
	// Afterwards, so that what is written meanwhile counts twice rather than not at
	// all.
	var fs unix.Statfs_t
	if err := unix.Statfs(r.dir, &fs); err != nil {
		return s, &os.PathError{Op: "statfs", Path: r.dir, Err: err}
	}
	s.total, s.free = int64(fs.Blocks)*fs.Frsize, int64(fs.Bavail)*fs.Frsize
	if r.most > 0 {
		used, err := usage(r.dir)
		if err != nil {
			return s, err
		}
		s.total, s.free = min(s.total, r.most), min(s.free, r.most-used)
	}
	s.free -= promised
	return s, nil
}

// usage is the size of the files below a path, in bytes; 0 if it does not exist.
func usage(path string) (n int64, err error) {
	err = filepath.WalkDir(path, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var info fs.FileInfo
			if info, err = e.Info(); err == nil {
				n += info.Sys().(*syscall.Stat_t).Blocks * 512 // stat(2)
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed, or renamed, as we looked
		}
		return err
	})
	return n, err
}

// serveNow is serve with the folder's present state. r.mu is held.
func (r *Budget) serveNow() {
	var s state
	if len(r.queue) > 0 {
		var err error
		if s, err = r.state(); err != nil {
			s = state{} // none is served; those whose time is over get the error
		}
	}
	r.serve(s)
}

// serve grants reservations in turn. r.mu is held.
func (r *Budget) serve(s state) {
	for {
		w := r.next(s)
		if w == nil || w.reservation.bytes > s.free {
			break
		}
		r.queue = slices.DeleteFunc(r.queue, func(o *waiter) bool { return o == w })
		r.reservations[w.reservation] = true
		r.served++
		r.turns[w.reservation.owner] = r.served
		s.held[w.reservation.owner] += w.reservation.bytes
		s.free -= w.reservation.bytes
		close(w.granted)
	}
	for owner := range r.turns {
		waits := slices.ContainsFunc(r.queue, func(w *waiter) bool { return w.reservation.owner == owner })
		if s.held[owner] == 0 && !waits {
			delete(r.turns, owner)
		}
	}
	switch {
	case len(r.queue) == 0 && r.look != nil:
		r.look.Stop()
		r.look = nil
	case len(r.queue) > 0 && r.look == nil:
		r.look = time.AfterFunc(lookEvery, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.look = nil
			r.serveNow()
		})
	}
}

// next is the waiter whose turn it is, or nil.
func (r *Budget) next(s state) (first *waiter) {
	seen, share := map[string]bool{}, s.share()
	for _, w := range r.queue {
		owner := w.reservation.owner
		if seen[owner] {
			continue
		}
		seen[owner] = true
		has := s.held[owner]
		if has > 0 && has+w.reservation.bytes > share {
			continue
		}
		if first == nil {
			first = w
			continue
		}
		other := first.reservation.owner
		if cmp.Or(cmp.Compare(has, s.held[other]), cmp.Compare(r.turns[owner], r.turns[other])) < 0 {
			first = w
		}
	}
	return first
}

// Share is the memory that one owner may have, in bytes; 0 if it cannot be measured.
func (r *Budget) Share() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, err := r.state()
	if err != nil {
		return 0
	}
	return s.share()
}

// Bytes is its size.
func (l *Reservation) Bytes() int64 {
	if l == nil {
		return 0
	}
	l.budget.mu.Lock()
	defer l.budget.mu.Unlock()
	return l.bytes
}

// Left is the part, in bytes, that is not written yet; 0 if it cannot be measured.
func (l *Reservation) Left() int64 {
	if l == nil {
		return 0
	}
	l.budget.mu.Lock()
	defer l.budget.mu.Unlock()
	n, err := l.written()
	if err != nil {
		return 0
	}
	return max(l.bytes-n, 0)
}

// AddFolder names a folder that the reservation is for, and name.part with it. One
// reservation can be for several.
func (l *Reservation) AddFolder(name string) {
	if l == nil {
		return
	}
	l.budget.mu.Lock()
	defer l.budget.mu.Unlock()
	l.names = append(l.names, name)
}

// Settle reduces it to the size of the files in its folders, once all are written.
func (l *Reservation) Settle() error {
	if l == nil {
		return nil
	}
	l.budget.mu.Lock()
	defer l.budget.mu.Unlock()
	bytes, err := l.written()
	if err != nil {
		return err
	}
	l.bytes = bytes
	l.budget.serveNow()
	return nil
}

// written is the size of the files in its folders, in bytes. budget.mu is held.
func (l *Reservation) written() (bytes int64, err error) {
	for _, name := range l.names {
		for _, path := range []string{name, name + ".part"} {
			n, err := usage(filepath.Join(l.budget.dir, path))
			if err != nil {
				return 0, err
			}
			bytes += n
		}
	}
	return bytes, nil
}

// Release gives the memory back, once the folders are removed; files that are left count
// without a reservation. A second call does nothing.
func (l *Reservation) Release() {
	if l == nil {
		return
	}
	l.budget.mu.Lock()
	defer l.budget.mu.Unlock()
	if l.budget.reservations[l] {
		delete(l.budget.reservations, l)
		l.budget.serveNow()
	}
}
