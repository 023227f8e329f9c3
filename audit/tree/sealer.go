package tree

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/durable"
	"sallyport/internal/periodic"
	"sallyport/internal/seal"
)

// Log is the log that a Sealer seals.
type Log interface {
	// Append makes events durable.
	Append(ctx context.Context, events ...*audit.Event) error
	// Durable is the number of the last event that is known to be durable. One that is
	// not may be taken back, and its number given to another.
	Durable() uint64
}

// Options of a Sealer.
type Options struct {
	Dir    string // of the log's segments
	Log    Log
	Key    *seal.Key // that seals the log's own
	Logger *slog.Logger

	// Seen, unless nil, is called with each record that the tree has the hash of, and Settled
	// after each look at the log, also one that failed.
	Seen    func(auditlog.Entry)
	Settled func()

	Records uint64        // between two checkpoints. Default: 4096
	Every   time.Duration // between two checkpoints, if there are new records. Default: 10 s
	Poll    time.Duration // between two looks at the log. Default: 1 s

	open func(file) file // for tests of faults
}

const (
	// maxTurn is how many records are taken at a time: after so many, the disk and the
	// processor are left to others for as long.
	maxTurn = 1 << 16
	// maxBatch is how many records' hashes one write has, and maxHeld how many bytes those
	// records, unless the last makes it more.
	maxBatch = 1 << 10
	maxHeld  = 4 << 20
	// maxUnsynced is of how many checkpoints' records the hashes may not be durable, and in
	// memory until they are: no more records are taken before that.
	maxUnsynced = 64
	// maxOwn is more checkpoints than are signed while the log is read once.
	maxOwn = 1 << 10
	// appendWithin bounds the wait for a log that cannot be written.
	appendWithin = 10 * time.Second
)

// Status is how a Sealer is.
type Status struct {
	Log        string    // sallyport/ID; "" before the key is open
	Size       uint64    // records in the tree
	Covered    uint64    // records that the newest checkpoint covers
	Saved      uint64    // those of them whose hashes are on stable storage
	Checkpoint time.Time // when it was signed; zero if there is none
	Unanchored uint64    // durable records that it does not cover
	Failure    string    // why records are not sealed now; "" if they are
	Since      time.Time // of Failure
	Failures   uint64    // since the start
}

// Sealer keeps the tree of a log and signs its checkpoints. It tries again to write when it
// could not: an event says when that begins and ends, and the log waits for nothing of it.
type Sealer struct {
	o      Options
	signer *Signer
	store  *Store

	newest *Checkpoint     // nil before the first
	kept   *Checkpoint     // with which the tree was made durable last
	saved  time.Time       // when that was
	fresh  uint64          // records after the newest checkpoint that are no checkpoint's own
	own    map[string]bool // notes of checkpoints whose records were not seen yet
	gone   uint64          // records that could not be read, not reported yet
	ahead  uint64          // last record that was not durable at the last look; 0 if there was none
	looked time.Time       // when that was

	mu     sync.Mutex
	status Status
}

// NewSealer makes a Sealer, which does nothing before Run.
func NewSealer(o Options) *Sealer {
	o.Records = cmp.Or(o.Records, 4096)
	o.Every = cmp.Or(o.Every, 10*time.Second)
	o.Poll = cmp.Or(o.Poll, time.Second)
	if o.Seen == nil {
		o.Seen = func(auditlog.Entry) {}
	}
	if o.Settled == nil {
		o.Settled = func() {}
	}
	return &Sealer{o: o}
}

// Status is how the Sealer is now.
func (s *Sealer) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Run seals the log until ctx is done.
func (s *Sealer) Run(ctx context.Context) error {
	for {
		began := time.Now()
		more, err := s.turn(ctx, false)
		s.report(ctx, err)
		s.o.Settled()
		wait := s.o.Poll
		if more {
			wait = min(wait, time.Since(began))
		}
		if !periodic.Sleep(ctx, wait) {
			return nil
		}
	}
}

// Close seals what is there, after Run has returned.
func (s *Sealer) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), appendWithin)
	defer cancel()
	var err error
	for more := true; more && err == nil; {
		more, err = s.turn(ctx, true)
	}
	s.report(ctx, err)
	if s.store != nil {
		err = errors.Join(err, s.store.Close())
	}
	return err
}

// turn takes what is new in the log. more reports that there is more of it.
func (s *Sealer) turn(ctx context.Context, last bool) (more bool, err error) {
	if err := s.open(ctx); err != nil {
		return false, err
	}
	if s.store.unsynced()/maxUnsynced >= s.o.Records {
		if err := s.store.sync(); err != nil {
			return false, err
		}
	}
	reached, before := s.o.Log.Durable(), s.store.Size()
	if more, err = s.take(ctx, reached); err == nil {
		s.tell(ctx)
		due := last && !more || s.newest == nil || time.Since(s.newest.Time) >= s.o.Every || time.Now().Before(s.newest.Time)
		if s.fresh > 0 && due && s.store.Size() > s.covered() {
			err = s.seal(ctx)
		}
	}
	if last && s.store.Size() > before && s.o.Log.Durable() > s.store.Size() {
		more = true // the checkpoint's own record: the tree ends where the log does
	}
	if err == nil && !more && !last {
		err = s.lag(ctx, reached)
	}
	if err == nil && s.newest != s.kept && (s.kept == nil || last && !more || time.Since(s.saved) >= s.o.Every) {
		err = s.save()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Size = s.store.Size()
	s.status.Unanchored = max(reached, s.status.Covered) - s.status.Covered
	return more, err
}

// open opens the key and the tree, unless they are, and compares the tree with the log.
func (s *Sealer) open(ctx context.Context) error {
	if s.store != nil {
		return nil
	}
	f, size, err := create(s.o.Dir)
	if err != nil {
		return fmt.Errorf("opening the tree: %w", err)
	}
	var of file = f
	if s.o.open != nil {
		of = s.o.open(f)
	}
	var damaged error
	store, damaged, err := func() (*Store, error, error) {
		if s.signer, err = OpenSigner(s.o.Dir, s.o.Key); err != nil {
			return nil, nil, err
		}
		if s.newest, err = newest(s.o.Dir, s.signer.Key); err != nil {
			return nil, nil, err
		}
		return openStore(of, size, s.newest)
	}()
	if err == nil {
		err = s.compare(ctx, store)
	}
	if err != nil {
		return errors.Join(err, of.Close())
	}
	s.store, s.kept, s.saved = store, s.newest, time.Now()
	if damaged != nil {
		s.o.Logger.Error("hashes of the audit log's tree are lost, and with them proofs about records before now", "error", damaged)
		s.find(ctx, fmt.Sprintf("the tree of the audit log was damaged: %v", damaged))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Log = s.signer.Log()
	if s.newest != nil {
		s.status.Covered, s.status.Checkpoint, s.status.Saved = s.newest.Size, s.newest.Time, s.newest.Size
	}
	return nil
}

// compare looks for records of the log that are not those that the tree has, from the
// newest checkpoint on. Those before it are Verify's.
func (s *Sealer) compare(ctx context.Context, store *Store) error {
	from := uint64(1)
	if s.newest != nil {
		from = s.newest.Size + 1
		s.owns(s.newest)
	}
	s.fresh = 0
	first, count, next := uint64(0), 0, from
	differs := func(n uint64) {
		if count++; first == 0 {
			first = n
		}
	}
	for l, err := range auditlog.Undamaged(auditlog.Entries(ctx, s.o.Dir, auditlog.Query{From: from})) {
		if err != nil {
			return err
		}
		for ; next < l.Number && next <= store.Size(); next++ {
			if h, err := store.Leaf(next); err != nil || h != lost {
				differs(next)
			}
		}
		if l.Number > store.Size() {
			break
		}
		s.count(l.Event)
		if h, err := store.Leaf(l.Number); err != nil || h != tlog.RecordHash(l.JSON) {
			differs(l.Number)
		}
		next = l.Number + 1
	}
	if count > 0 {
		s.find(ctx, fmt.Sprintf("%d records of the audit log, from number %d on, are not those that were written: see `sallyport audit verify`", count, first))
	}
	return ctx.Err()
}

// count counts a record towards the next checkpoint, unless it is one's own.
func (s *Sealer) count(e *audit.Event) {
	if x := &e.Unmapped.Sallyport; x.State == State && s.own[x.Checkpoint] {
		delete(s.own, x.Checkpoint)
		return
	}
	s.fresh++
}

// owns notes a checkpoint whose record is to come. The log's writer may not write it.
func (s *Sealer) owns(c *Checkpoint) {
	if s.own == nil || len(s.own) == maxOwn {
		s.own = map[string]bool{}
	}
	s.own[c.Note] = true
}

// lag is the error for a log that has records which are not durable for long: the disk
// hangs, or the log's writer does not say how far it is, and nothing would be sealed, or late.
func (s *Sealer) lag(ctx context.Context, durable uint64) error {
	switch {
	case time.Since(s.looked) < s.o.Every:
		return nil
	case s.ahead > durable:
		return fmt.Errorf("record %d is in the log since %s, and is not said to be durable", s.ahead, s.looked.UTC().Format(time.RFC3339))
	}
	s.ahead, s.looked = 0, time.Now()
	for l, err := range auditlog.Undamaged(auditlog.Entries(ctx, s.o.Dir, auditlog.Query{From: durable + 1})) {
		if err != nil {
			return err
		}
		if s.ahead = l.Number; time.Since(s.looked) > s.o.Every { // the log may grow faster than it is read
			break
		}
	}
	return nil
}

// take appends the log's records up to a number to the tree.
func (s *Sealer) take(ctx context.Context, to uint64) (more bool, err error) {
	next := s.store.Size() + 1
	if next > to {
		return false, nil
	}
	var batch []tlog.Hash
	var entries []auditlog.Entry // those that can be read
	held, began := 0, next
	flush := func() error {
		if err := s.store.add(batch); err != nil {
			return err
		}
		for _, l := range entries { // a record that is not in the tree may be another when it is read again
			s.o.Seen(l)
		}
		batch, entries, held = batch[:0], entries[:0], 0
		if s.fresh > 0 && s.store.Size() >= s.covered()+s.o.Records {
			return s.seal(ctx)
		}
		return nil
	}
	// The numbers tell what is missing.
	for l, err := range auditlog.Undamaged(auditlog.Entries(ctx, s.o.Dir, auditlog.Query{From: next})) {
		if err != nil {
			return false, err
		}
		if l.Number > to {
			break
		}
		for next <= l.Number && next-began < maxTurn {
			if next == l.Number {
				batch = append(batch, tlog.RecordHash(l.JSON))
				s.count(l.Event)
				l.JSON = bytes.Clone(l.JSON)
				entries, held = append(entries, l), held+len(l.JSON)
			} else {
				batch = append(batch, lost)
				s.gone++
				s.fresh++
			}
			next++
			if len(batch) == maxBatch || held >= maxHeld || s.store.Size()+uint64(len(batch)) >= s.covered()+s.o.Records {
				if err := flush(); err != nil {
					return false, err
				}
			}
		}
		if more = next-began == maxTurn; more {
			break
		}
	}
	return more, flush()
}

// covered is how many records the newest checkpoint covers.
func (s *Sealer) covered() uint64 {
	if s.newest == nil {
		return 0
	}
	return s.newest.Size
}

// seal signs a checkpoint of the tree and appends it to the log.
func (s *Sealer) seal(ctx context.Context) error {
	c, event, err := s.signer.sign(s.store.edge, time.Now())
	if err != nil {
		return err
	}
	if err := s.append(ctx, event); err != nil {
		return fmt.Errorf("recording a checkpoint: %w", err)
	}
	s.newest, s.fresh = c, 0
	s.owns(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Covered, s.status.Checkpoint = c.Size, c.Time
	return nil
}

// save makes the tree durable, and then the newest checkpoint, from which the next start
// goes on. Later hashes that a power cut loses are made anew from the log.
func (s *Sealer) save() error {
	if err := s.store.sync(); err != nil {
		return err
	}
	if err := durable.WriteFile(filepath.Join(Dir(s.o.Dir), checkpointFile), []byte(s.newest.Note), 0o600); err != nil {
		return fmt.Errorf("keeping the newest checkpoint: %w", err)
	}
	s.kept, s.saved = s.newest, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Saved = s.newest.Size
	return nil
}

// tell records that records could not be read.
func (s *Sealer) tell(ctx context.Context) {
	if s.gone > 0 {
		s.find(ctx, fmt.Sprintf("%d records of the audit log up to number %d are missing or cannot be read: see `sallyport audit verify`", s.gone, s.store.Size()))
		s.gone = 0
	}
}

// find records that the log is not as it was written.
func (s *Sealer) find(ctx context.Context, message string) {
	s.notice(ctx, "audit-altered", message, audit.SeverityCritical)
}

// report tells when sealing begins to fail, and when it works again.
func (s *Sealer) report(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	was := s.status.Failure
	switch {
	case err == nil:
		s.status.Failure, s.status.Since = "", time.Time{}
	default:
		s.status.Failures++
		s.status.Failure = err.Error()
		if was == "" {
			s.status.Since = time.Now()
		}
	}
	s.mu.Unlock()
	switch {
	case err != nil && was == "":
		s.o.Logger.Error("the audit log is not sealed; that is tried again", "error", err)
		s.notice(ctx, "audit-unsealed", "records of the audit log are not sealed: "+err.Error(), audit.SeverityHigh)
	case err == nil && was != "":
		s.o.Logger.Info("the audit log is sealed again")
		s.notice(ctx, "audit-sealed", "records of the audit log are sealed again", audit.SeverityInformational)
	}
}

func (s *Sealer) notice(ctx context.Context, state, message string, severity audit.Severity) {
	e := audit.Change("sallyport", state)
	e.SeverityID, e.StatusID = severity, audit.StatusFailure
	if severity == audit.SeverityInformational {
		e.StatusID = audit.StatusSuccess
	}
	e.Message = message
	if err := s.append(ctx, e); err != nil {
		s.o.Logger.Error("an event was lost", "message", message, "error", err)
	}
}

func (s *Sealer) append(ctx context.Context, e *audit.Event) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), appendWithin)
	defer cancel()
	return s.o.Log.Append(ctx, e)
}
