// Package keeper gives a daemon the memories of its sandboxes: each one's folder, history,
// index and layers, together.
//
// An operation that changes a memory records first what the sandbox has changed, and then
// its own change, so that each version has its cause. Each commit is an event of the audit
// log, with its digest: a history that somebody has written anew does not fit the log.
// Files that hold a secret leave the memory when they are found.
//
// Operations on one memory take turns. The files of the history and the index are open
// while a memory is in use, and a minute longer.
package keeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sallyport/audit"
	"sallyport/memory"
	"sallyport/memory/history"
	"sallyport/memory/search"
	"sallyport/memory/secretscan"
)

// Options of New. All are needed but Current, Embedder and Summarize.
type Options struct {
	Dir  string // has a folder for each sandbox
	Hold func(folder string) (release func() error, err error)
	// Contacted returns the destinations that a sandbox, by its ID, has contacted by
	// records of the audit log with larger numbers than after, or was connected to later
	// than since, and the last such number, or after if there is none.
	Contacted func(ctx context.Context, id string, after uint64, since time.Time) (hosts []string, last uint64, err error)
	// Secret says whether a text holds the secret of a credential, and of which. An error is
	// of secrets that could not be read: the others were compared.
	Secret func(ctx context.Context, text string) (credential string, found bool, err error)
	// Recorded returns the digests of a sandbox's commits that the audit log has in records
	// with larger numbers than after, by number.
	Recorded func(ctx context.Context, id string, after uint64) (map[uint64]string, error)
	Record   func(*audit.Event) error
	Trusted  func(host string) bool // whether what is learned from a destination is trusted
	// Current says whether a sandbox's name is still its own: another one, maybe of another
	// tenant, may have it now, and its folder. nil: always.
	Current  func(memory.Owner) bool
	Key      history.Key // seals what is in quarantine
	Most     int64       // bytes of contents that a history keeps
	MaxText  int64       // bytes of text that are searched in a memory; 0 is 64 MiB
	Logger   *slog.Logger
	Embedder search.Embedder // nil: search is by words alone
	// Summarize makes a summary of entries. nil: sentences are chosen from them.
	Summarize Summarizer
}

// Keeper has the memories. It is safe for concurrent use.
type Keeper struct {
	o     Options
	ctx   context.Context // of what nobody waits for
	end   context.CancelFunc
	tasks sync.WaitGroup

	mu         sync.Mutex
	of         map[string]*store // by ID of the sandbox
	done       bool
	recheck    map[string]memory.Owner // due, by ID
	rechecking bool                    // a task does what is due
	told       map[string]string       // by ID, the digest of the last commit that was recorded
}

// New returns a Keeper.
func New(o Options) *Keeper {
	o.MaxText = cmp.Or(o.MaxText, maxText)
	k := &Keeper{o: o, of: map[string]*store{}, recheck: map[string]memory.Owner{}, told: map[string]string{}}
	k.ctx, k.end = context.WithCancel(context.Background())
	return k
}

// store is what is open of one sandbox's memory.
type store struct {
	turn    chan struct{} // has a place for one operation at a time
	owner   memory.Owner
	history *history.Store
	index   *search.Index

	// guarded by turn
	progress search.Progress   // of the record that this operation makes, or nil
	gone     bool              // the sandbox is being removed
	missed   bool              // this operation has noted that not all secrets could be read
	anew     bool              // it compares what may be in the index
	full     bool              // the log says that the memory has more text than is searched
	marks    map[string]string // by path, why it is not trusted, as of the last commit

	// guarded by Keeper.mu
	end     context.CancelCauseFunc // of the operation that has the turn
	users   int
	idle    *time.Timer
	pending []note
	more    int  // others that were too many
	noted   bool // a task will record what is pending
}

// note is a Cause and the caller who is to blame.
type note struct {
	memory.Cause
	caller string
}

const (
	maxText  = 64 << 20
	idleTime = time.Minute
	// noteDelay has one record for commands that follow each other.
	noteDelay  = 50 * time.Millisecond
	maxPending = 16 // different ones: the next version counts the others
	// patience is for how long what is done to a sandbox waits before it ends an operation
	// on its memory.
	patience = 2 * time.Second
)

// ErrEnded is of an operation that something waited for too long.
var ErrEnded = errors.New("the sandbox is being stopped, saved, restored, forked or removed: try again")

// use is one operation on a memory.
type use struct {
	*store
	keeper     *Keeper
	folder     *memory.Folder
	incomplete error // what its search has not
}

// in calls do with a sandbox's memory.
func (k *Keeper) in(ctx context.Context, o memory.Owner, do func(context.Context, *use) error) (err error) {
	s, err := k.take(o)
	if err != nil {
		return err
	}
	defer k.put(s)
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	k.mu.Lock()
	s.end = end
	k.mu.Unlock()
	dir := filepath.Join(k.o.Dir, o.Name)
	release, err := k.o.Hold(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	if s.gone || k.o.Current != nil && !k.o.Current(o) {
		return fmt.Errorf("%w: sandbox %s: %w", ErrNone, o.Name, fs.ErrNotExist)
	}
	s.owner, s.missed, s.marks = o, false, map[string]string{}
	if err := k.open(ctx, s, dir); err != nil {
		return err
	}
	f, err := memory.Open(memory.Dir(dir))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := do(ctx, &use{store: s, keeper: k, folder: f}); err == nil || ctx.Err() == nil {
		return err
	}
	return context.Cause(ctx)
}

// open opens a store's history, unless it is.
func (k *Keeper) open(ctx context.Context, s *store, dir string) error {
	if s.history != nil {
		return nil
	}
	h, err := history.Open(ctx, filepath.Join(dir, memory.HistoryFile), history.Options{
		MaxBytes: k.o.Most, Key: k.o.Key, Of: s.owner.ID,
		Inspect: func(ctx context.Context, path string, data []byte) string { return k.inspect(ctx, s, path, data) },
		Progress: func(done, total int) {
			if s.progress != nil {
				s.progress(done, total)
			}
		},
		Complete: func(ctx context.Context, last history.Commit, c *history.Cause) error {
			return k.contacted(ctx, s.owner.ID, last, c)
		},
		Committed: func(ctx context.Context, c *history.Commit) error {
			clear(s.marks)
			return k.tell(ctx, s, c)
		},
	})
	if err != nil {
		return err
	}
	s.history = h
	if err := k.tellAgain(ctx, s); err != nil {
		return errors.Join(err, s.close())
	}
	return nil
}

// index is the search index of the memory in use. It opens the file at the first question:
// a command, a snapshot and a fork only record.
type index struct{ *use }

// Update implements layer.Searcher.
func (x index) Update(ctx context.Context, f *memory.Folder, progress search.Progress) (err error) {
	if x.use.index == nil {
		x.use.index, err = search.Open(ctx, filepath.Join(x.keeper.o.Dir, x.owner.Name, memory.IndexFile), search.Options{
			Embedder: x.keeper.embedder(), MaxText: x.keeper.o.MaxText,
			// The sandbox may have changed a file since it was recorded: what is found has been
			// inspected, and is what its provenance is of.
			Inspect: func(ctx context.Context, path string, data []byte) string {
				if ok, err := x.history.Has(ctx, path, memory.DigestOf(data)); !ok || err != nil {
					return "not recorded yet"
				}
				return ""
			},
		})
	}
	if err != nil {
		return err
	}
	err = x.use.index.Update(ctx, f, progress)
	if errors.Is(err, memory.ErrTruncated) || errors.Is(err, search.ErrFull) {
		x.incomplete = err
	}
	if full := errors.Is(err, search.ErrFull); full != x.full {
		if x.full = full; full {
			x.keeper.o.Logger.Warn("a memory is searched in part", "sandbox", x.owner.Name, "error", err)
		}
	}
	return err
}

// dropIndex removes the index, which is made of the files again. What was removed from it
// row by row would leave its words there.
func (k *Keeper) dropIndex(s *store) (err error) {
	if s.index != nil {
		err = s.index.Close()
		s.index = nil
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if e := os.Remove(filepath.Join(k.o.Dir, s.owner.Name, memory.IndexFile+suffix)); !gone(e) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// Search implements layer.Searcher. Update comes first.
func (x index) Search(ctx context.Context, q search.Query) ([]search.Hit, error) {
	return x.use.index.Search(ctx, q)
}

// embedder is the model of the embeddings, if there is one. The log has what it fails with:
// a search goes on without it.
func (k *Keeper) embedder() search.Embedder {
	if k.o.Embedder == nil {
		return nil
	}
	return embedder{k.o.Embedder, k.o.Logger}
}

type embedder struct {
	search.Embedder
	log *slog.Logger
}

func (e embedder) Embed(ctx context.Context, texts []string) ([][]float32, error) {
	vectors, err := e.Embedder.Embed(ctx, texts)
	if err != nil {
		e.log.Warn("a memory is searched by words alone: the model of memory.embeddings failed", "error", err)
	}
	return vectors, err
}

func (k *Keeper) take(o memory.Owner) (*store, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.done {
		return nil, errors.New("the daemon is ending")
	}
	s := k.of[o.ID]
	if s == nil {
		s = &store{owner: o, turn: make(chan struct{}, 1)}
		k.of[o.ID] = s
	}
	if s.idle != nil {
		s.idle.Stop()
	}
	s.users++
	return s, nil
}

func (k *Keeper) put(s *store) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.users--; s.users == 0 {
		s.idle = time.AfterFunc(idleTime, func() { k.closeIdle(s) })
	}
}

func (k *Keeper) closeIdle(s *store) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.users == 0 && !s.noted && k.of[s.owner.ID] == s {
		delete(k.of, s.owner.ID)
		if err := s.close(); err != nil {
			k.o.Logger.Warn("the files of a memory could not be closed", "sandbox", s.owner.Name, "error", err)
		}
	}
}

func (s *store) close() (err error) {
	if s.history != nil {
		err = s.history.Close()
	}
	if s.index != nil {
		err = errors.Join(err, s.index.Close())
	}
	s.history, s.index = nil, nil
	return err
}

// Forget closes the files of a sandbox that is being removed.
func (k *Keeper) Forget(id string) error {
	k.mu.Lock()
	s := k.of[id]
	delete(k.of, id)
	delete(k.told, id)
	k.mu.Unlock()
	if s == nil {
		return nil
	}
	k.interrupt(s)
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	s.gone = true
	return s.close()
}

// Interrupt ends the operation on the memory of a sandbox that goes on, if one does.
func (k *Keeper) Interrupt(id string) {
	k.mu.Lock()
	s := k.of[id]
	k.mu.Unlock()
	if s != nil {
		k.interrupt(s)
	}
}

// interrupt ends the operation that has the turn.
func (k *Keeper) interrupt(s *store) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if s.end != nil {
		s.end(ErrEnded)
	}
}

// Close ends what is going on and closes all files.
func (k *Keeper) Close() error {
	k.mu.Lock()
	k.done = true
	open := maps.Clone(k.of)
	k.mu.Unlock()
	k.end()
	for _, s := range open {
		k.interrupt(s)
	}
	k.tasks.Wait()
	var errs []error
	for id := range open {
		errs = append(errs, k.Forget(id))
	}
	return errors.Join(errs...)
}

// Changed tells that a sandbox's memory may have changed. What has is recorded soon.
func (k *Keeper) Changed(ctx context.Context, o memory.Owner, c memory.Cause) {
	s, err := k.take(o)
	if err != nil {
		return
	}
	defer k.put(s)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch n := (note{c, audit.NameOf(ctx)}); {
	case slices.Contains(s.pending, n):
	case len(s.pending) < maxPending:
		s.pending = append(s.pending, n)
	default:
		s.more++
	}
	if s.noted {
		return
	}
	s.noted = true
	ctx = context.WithoutCancel(ctx)
	k.tasks.Go(func() {
		time.Sleep(noteDelay)
		err := k.record(ctx, o, memory.Cause{Operation: memory.Found})
		k.mu.Lock()
		s.noted = false
		k.mu.Unlock()
		if err != nil && !gone(err) {
			k.o.Logger.Error("a version of a sandbox's memory is missing", "sandbox", o.Name, "error", err)
		}
	})
}

// Record returns when what has changed is recorded. An operation of a caller that takes
// long is ended for it.
func (k *Keeper) Record(ctx context.Context, o memory.Owner, c memory.Cause) error {
	k.mu.Lock()
	s := k.of[o.ID]
	k.mu.Unlock()
	if s != nil {
		defer time.AfterFunc(patience, func() { k.interrupt(s) }).Stop()
	}
	return k.record(ctx, o, c)
}

func (k *Keeper) record(ctx context.Context, o memory.Owner, c memory.Cause) error {
	return k.in(ctx, o, func(ctx context.Context, u *use) error {
		_, err := u.record(ctx, c)
		return err
	})
}

// Inherit gives a child, whose memory is not there yet, the versions of its parent.
func (k *Keeper) Inherit(ctx context.Context, parent, child memory.Owner) error {
	return k.in(ctx, parent, func(ctx context.Context, u *use) error {
		if mark, err := k.recheckMark(parent); err != nil {
			return err
		} else if mark != "" {
			if err := MarkRecheck(filepath.Join(k.o.Dir, child.Name)); err != nil {
				return err
			}
		}
		return u.history.Copy(ctx, filepath.Join(k.o.Dir, child.Name, memory.HistoryFile))
	})
}

// record records what has changed since the last commit, and returns the new one, or nil.
// Commands that have ended since are its causes, rather than an operation that is not one
// of the caller's.
func (u *use) record(ctx context.Context, c memory.Cause) (*history.Commit, error) {
	commit, err := u.history.Record(ctx, u.folder, u.cause(ctx, c))
	if commit == nil || err != nil {
		return commit, err
	}
	return commit, u.putBack(ctx, commit)
}

// putBack has the version before in the place of each file that a commit has put in
// quarantine, so that a secret in one line costs an agent that line and not all it knows.
func (u *use) putBack(ctx context.Context, c *history.Commit) error {
	var paths []string
	for _, ch := range c.Changes {
		if ch.Op == history.Quarantined && ch.Previous != "" {
			paths = append(paths, ch.Path)
		}
	}
	if len(paths) == 0 || c.Trimmed {
		return nil
	}
	_, err := u.history.Rollback(ctx, u.folder, history.Target{To: c.Number - 1, Paths: paths, LeaveOut: true}, u.by(ctx, memory.RolledBack))
	return err
}

// cause is a Cause as the history has it.
func (u *use) cause(ctx context.Context, c memory.Cause) history.Cause {
	k := u.keeper
	k.mu.Lock()
	pending, more := u.pending, u.more
	u.pending, u.more, u.noted = nil, 0, false
	k.mu.Unlock()
	cause := history.Cause{Operation: c.Operation, Caller: audit.NameOf(ctx), Command: c.Command, Session: u.owner.Session, From: c.From}
	var commands, callers []string
	for _, p := range pending {
		commands, callers = append(commands, p.Command), append(callers, p.caller)
	}
	if len(pending) > 0 && (c.Operation == memory.Found || c.Operation == memory.Stopped || c.Operation == memory.Snapshot) {
		cause.Operation, cause.Caller, cause.From = pending[0].Operation, distinct(callers), pending[0].From
	}
	if cause.Command == "" {
		cause.Command = distinct(commands)
	}
	if more > 0 {
		cause.Command += fmt.Sprintf(" and %d more", more)
	}
	return cause
}

// distinct has each name once.
func distinct(names []string) string {
	var once []string
	for _, name := range names {
		if name != "" && !slices.Contains(once, name) {
			once = append(once, name)
		}
	}
	return strings.Join(once, ", ")
}

// begin records what the sandbox has changed, before an operation of a caller's.
func (u *use) begin(ctx context.Context) error {
	if _, err := u.record(ctx, memory.Cause{Operation: memory.Found}); err != nil {
		return err
	}
	return u.recheck(ctx)
}

// change records what the sandbox has changed, calls do, and records what that has
// changed.
func (u *use) change(ctx context.Context, operation memory.Operation, do func() error) error {
	if err := u.begin(ctx); err != nil {
		return err
	}
	err := do()
	_, recorded := u.record(ctx, memory.Cause{Operation: operation})
	return errors.Join(err, recorded)
}

// contacted completes the cause of a commit.
func (k *Keeper) contacted(ctx context.Context, id string, last history.Commit, c *history.Cause) error {
	hosts, to, err := k.o.Contacted(ctx, id, last.Cause.AuditTo, last.Time)
	if err != nil {
		return fmt.Errorf("finding what the sandbox has contacted: %w", err)
	}
	c.AuditFrom, c.AuditTo = last.Cause.AuditTo+1, to
	c.Contacted = append(c.Contacted, hosts...)
	return nil
}

// inspect says why a file may not stay in a memory, or "".
func (k *Keeper) inspect(ctx context.Context, s *store, path string, data []byte) (reason string) {
	defer func() {
		if reason != "" && s.anew {
			if err := k.dropIndex(s); err != nil {
				k.o.Logger.Error("the search index of a memory has what is in quarantine", "sandbox", s.owner.Name, "error", err)
			}
		}
	}()
	name, found, err := k.o.Secret(ctx, string(data))
	if err != nil && !found {
		k.miss(s, err)
	}
	if found {
		return "secret: it holds the credential " + name
	}
	if s.anew { // the rules are what they were
		return ""
	}
	if f, ok := secretscan.Find(ctx, path, data); ok {
		return "secret: it holds what the rule " + f.Rule + " finds"
	}
	return ""
}
