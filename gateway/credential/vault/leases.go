package vault

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/vault/api"
	"golang.org/x/sync/errgroup"

	"sallyport/internal/durable"
)

// Lease is what an engine of Vault made for a sandbox, until Vault has revoked it.
type Lease struct {
	ID         string `json:"id"` // Vault's; it opens nothing
	Address    string `json:"address"`
	Namespace  string `json:"namespace,omitempty"`
	Credential string `json:"credential"`
	Sandbox    string `json:"sandbox,omitempty"` // ID
	// Expires is when Vault ends it by itself: not before, whatever its secret says, and
	// also if the token it was asked for with is renewed.
	Expires time.Time `json:"expires"`
	// Ending says that it is to be revoked, and Error why that did not work so far.
	Ending bool   `json:"ending,omitempty"`
	Error  string `json:"error,omitempty"`

	client *Client
	tries  int
	next   time.Time
}

// LeasesOptions configure Leases.
type LeasesOptions struct {
	Sealer durable.Sealer
	// OnRevoke is told of each lease that was revoked, or of the first time in a row that
	// one could not be, and with ErrExpired of one that ended before it could be. It must
	// not block. Default: none.
	OnRevoke func(Lease, error)
	// Logger gets what cannot be returned. Default: none.
	Logger *slog.Logger
}

// Leases are the leases that Vault has given and not ended. A lease is on the disk, sealed,
// before its secret is used, so that one that outlives the daemon is revoked by the next.
// It is safe for concurrent use.
type Leases struct {
	file string
	o    LeasesOptions
	wake chan struct{}

	mu     sync.Mutex
	all    map[string]*Lease // by ID
	latest *Client           // for leases from before the start
}

// ErrExpired says that a lease that could not be revoked has reached its end, and is not
// tried again.
var ErrExpired = errors.New("the lease was not revoked before its end")

const (
	// revokePause is how long after a failure a lease is revoked again; it doubles up to
	// maxRevokePause.
	revokePause    = time.Second
	maxRevokePause = time.Minute
	// atOnce is how many are revoked at once.
	atOnce = 8
	// keepAlive is how often the tokens that leases hang on are looked after.
	keepAlive = 5 * time.Second
)

// OpenLeases reads what is there from before, all of it to be revoked.
func OpenLeases(file string, o LeasesOptions) (*Leases, error) {
	if o.OnRevoke == nil {
		o.OnRevoke = func(Lease, error) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Leases{file: file, o: o, wake: make(chan struct{}, 1), all: map[string]*Lease{}}
	plain, err := durable.ReadSealed(file, o.Sealer)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the leases of Vault: %w; put the file back from its backup, or remove it: the leases in it then end by themselves", err)
	}
	var before []*Lease
	if err := json.Unmarshal(plain, &before); err != nil {
		return nil, fmt.Errorf("%s is damaged; remove it: the leases in it then end by themselves", file)
	}
	for _, lease := range before {
		lease.Ending = true
		l.all[lease.ID] = lease
	}
	return l, nil
}

// add keeps a lease, durably.
func (l *Leases) add(lease *Lease) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all[lease.ID] = lease
	if err := l.save(); err != nil {
		lease.Ending = true // its secret is not used
		l.poke()
		return fmt.Errorf("writing down a lease: %w", err)
	}
	return nil
}

// extend notes a renewal. Of what is on the disk only the expiry is behind if it fails.
func (l *Leases) extend(id string, expires time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lease := l.all[id]; lease != nil {
		lease.Expires = expires
		if err := l.save(); err != nil {
			l.o.Logger.Warn("a lease's renewal is not on the disk", "error", err)
		}
	}
}

// save writes all of it. l.mu is held.
func (l *Leases) save() error {
	plain, err := json.Marshal(l.sorted())
	if err != nil {
		return err
	}
	return durable.WriteSealed(l.file, l.o.Sealer, plain)
}

func (l *Leases) sorted() []*Lease {
	list := make([]*Lease, 0, len(l.all))
	for _, lease := range l.all {
		list = append(list, lease)
	}
	slices.SortFunc(list, func(a, b *Lease) int {
		return cmp.Or(cmp.Compare(a.Credential, b.Credential), cmp.Compare(a.Sandbox, b.Sandbox), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// List returns all leases, by credential and sandbox.
func (l *Leases) List() []Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]Lease, 0, len(l.all))
	for _, lease := range l.sorted() {
		list = append(list, *lease)
	}
	return list
}

// Use has the leases from before the start, and those that nobody revokes otherwise,
// revoked through a Client, if it is of the server that gave them.
func (l *Leases) Use(c *Client) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latest = c
	l.poke()
}

func (l *Leases) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// end has leases revoked. It does not wait.
func (l *Leases) end(which func(*Lease) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range l.all {
		if (!lease.Ending || lease.tries == 0) && which(lease) {
			lease.Ending, lease.next = true, time.Time{}
		}
	}
	l.poke()
}

// retire has a lease revoked after some time, or sooner if end does. It does not wait.
func (l *Leases) retire(id string, after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lease := l.all[id]; lease != nil && !lease.Ending {
		lease.Ending, lease.next = true, time.Now().Add(after)
	}
	l.poke()
}

// Run revokes what is to be revoked, and keeps the tokens alive that the other leases
// hang on, until ctx is done.
func (l *Leases) Run(ctx context.Context) error {
	tick := time.NewTicker(revokePause)
	defer tick.Stop()
	kept := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		case <-tick.C:
		}
		l.revokeDue(ctx, time.Now())
		if time.Since(kept) >= keepAlive {
			l.keepTokens(ctx)
			kept = time.Now()
		}
	}
}

// Close revokes all leases, as far as that can be done before ctx is done. The next start
// does the rest.
func (l *Leases) Close(ctx context.Context) error {
	l.end(func(*Lease) bool { return true })
	l.revokeDue(ctx, time.Time{})
	if left := len(l.List()); left > 0 {
		l.o.Logger.Warn("leases of Vault are left, which the next start revokes", "leases", left)
	}
	return nil
}

// keepTokens renews tokens whose time has come: with a token end its leases.
func (l *Leases) keepTokens(ctx context.Context) {
	clients := map[*Client]bool{}
	l.mu.Lock()
	for _, lease := range l.all {
		if lease.client != nil && !lease.Ending {
			clients[lease.client] = true
		}
	}
	l.mu.Unlock()
	for c := range clients {
		if _, err := c.auth.token(ctx); err != nil && ctx.Err() == nil {
			l.o.Logger.Debug("the token that leases of Vault hang on could not be renewed", "error", err)
		}
	}
}

// revokeDue revokes the leases whose turn it is, or all of those that end for the zero
// time.
func (l *Leases) revokeDue(ctx context.Context, now time.Time) {
	l.mu.Lock()
	var due, over []Lease
	dropped := false
	for _, lease := range l.all {
		switch {
		case !now.IsZero() && now.After(lease.Expires.Add(time.Minute)): // Vault has ended it
			delete(l.all, lease.ID)
			dropped = true
			if lease.Ending {
				over = append(over, *lease)
			}
		case lease.Ending && !now.Before(lease.next) || lease.Ending && now.IsZero():
			due = append(due, *lease)
		}
	}
	latest := l.latest
	l.mu.Unlock()
	for _, lease := range over {
		l.o.OnRevoke(lease, ErrExpired)
	}
	if len(due) == 0 && !dropped {
		return
	}
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, lease := range due {
		group.Go(func() error {
			c := lease.client
			if c == nil && latest != nil && latest.address == lease.Address && latest.namespace == lease.Namespace {
				c = latest
			}
			var err error
			if c == nil {
				err = fmt.Errorf("Vault at %s, which gave it, is not in the configuration now", lease.Address)
			} else {
				err = c.revoke(ctx, lease.ID)
			}
			l.revoked(lease.ID, err)
			return nil
		})
	}
	_ = group.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.save(); err != nil {
		l.o.Logger.Warn("the leases of Vault could not be written", "error", err)
	}
}

func (l *Leases) revoked(id string, err error) {
	l.mu.Lock()
	lease := l.all[id]
	if lease == nil {
		l.mu.Unlock()
		return
	}
	first := lease.tries == 0
	if err == nil {
		delete(l.all, id)
	} else {
		lease.Error = err.Error()
		lease.next = time.Now().Add(min(revokePause<<min(lease.tries, 8), maxRevokePause))
		lease.tries++
	}
	told := *lease
	l.mu.Unlock()
	if err == nil || first {
		l.o.OnRevoke(told, err)
	}
}

// revoke ends a lease, and waits until what it stands for is gone.
func (v *Client) revoke(ctx context.Context, id string) error {
	return v.do(ctx, "revoking a lease", "update on sys/leases/revoke", func(c *api.Client) error {
		_, err := c.Logical().WriteWithContext(ctx, "sys/leases/revoke", map[string]any{"lease_id": id, "sync": true})
		if status(err) == http.StatusNotFound {
			err = nil // it has ended
		}
		return err
	})
}
