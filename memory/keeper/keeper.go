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
	"log/slog"
	"maps"
	"path/filepath"
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
	left     map[string]string // by path, why it has left the memory in this operation
	scanned  []memory.Entry    // the memory as this operation has recorded it, or nil
	cut      error             // why that is not all, or nil
	due      []note            // were pending, and no commit has them yet
	moreDue  int               // others that were too many
	look     string            // of the Index that was the last operation, or ""
	partly   error             // what the index had not then

	// guarded by Keeper.mu
	end     context.CancelCauseFunc // of the operation that has the turn
	yields  bool                    // that operation does, to what hurries
	hurried int                     // what hurries and has waited for long enough
	users   int
	idle    *time.Timer
	pending []note
	others  int  // that were too many for pending
	noted   bool // a task will record what is pending
}

const maxText = 64 << 20

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
		Scanned: func(entries []memory.Entry, cut error) { s.scanned, s.cut = entries, cut },
		Complete: func(ctx context.Context, last history.Commit, c *history.Cause) error {
			return k.contacted(ctx, s.owner.ID, last, c)
		},
		Committed: func(ctx context.Context, c *history.Commit) error {
			clear(s.marks)
			s.due, s.moreDue = nil, 0
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
