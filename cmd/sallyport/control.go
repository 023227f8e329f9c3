package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"net"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sallyport/audit"
	"sallyport/internal/api"
	"sallyport/internal/secretfile"
	"sallyport/internal/webhook"
)

// listenControl makes the unix socket, for root and the users that the
// configuration names: for all others it cannot be reached, which access control
// lists see to (acl(5)), and they may do nothing, which the API sees to.
func (d *daemon) listenControl() (net.Listener, map[uint32][]api.Scope, error) {
	users, err := d.users()
	if err != nil {
		return nil, nil, err
	}
	path := socketPath(d.cfg)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	if err := admit(d.cfg.RunDir, 0o700, nil, 0); err != nil {
		return nil, nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, nil, err
	}
	uids := slices.Sorted(maps.Keys(users))
	const write, search = 2 | 4, 1
	if err = admit(path, 0o600, uids, write); err == nil {
		err = admit(d.cfg.RunDir, 0o700, uids, search)
	}
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return l, users, nil
}

// users are those of api.users by number.
func (d *daemon) users() (map[uint32][]api.Scope, error) {
	users := map[uint32][]api.Scope{}
	for name, words := range d.cfg.API.Users {
		scopes, err := api.ParseScopes(words)
		if err != nil {
			return nil, fmt.Errorf("api.users.%s: %w", name, err)
		}
		id := name
		if u, err := user.Lookup(name); err == nil {
			id = u.Uid
		}
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("api.users: there is no user %q here: write a name from /etc/passwd, or a number", name)
		}
		users[uint32(n)] = scopes
	}
	return users, nil
}

// admit sets the mode of a file and lets some users do a little with it besides:
// a POSIX access control list in the form of linux/posix_acl_xattr.h.
func admit(path string, mode fs.FileMode, uids []uint32, perm uint16) error {
	const list = "system.posix_acl_access"
	if err := unix.Removexattr(path, list); err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP) {
		return fmt.Errorf("%s: %w", path, err)
	}
	if err := os.Chmod(path, mode); err != nil || len(uids) == 0 {
		return err
	}
	const userObj, named, groupObj, mask, other, nobody = 0x01, 0x02, 0x04, 0x10, 0x20, 0xffffffff
	acl := binary.LittleEndian.AppendUint32(nil, 2) // POSIX_ACL_XATTR_VERSION
	entry := func(tag, perm uint16, id uint32) {
		acl = binary.LittleEndian.AppendUint16(acl, tag)
		acl = binary.LittleEndian.AppendUint16(acl, perm)
		acl = binary.LittleEndian.AppendUint32(acl, id)
	}
	entry(userObj, uint16(mode>>6&7), nobody)
	for _, uid := range uids {
		entry(named, perm, uid)
	}
	entry(groupObj, 0, nobody)
	entry(mask, perm, nobody)
	entry(other, 0, nobody)
	if err := unix.Setxattr(path, list, acl, 0); err != nil {
		return fmt.Errorf("api.users: %s cannot be opened to them: %w: have runDir on a file system with access control lists, as tmpfs has, or name no users", path, err)
	}
	return nil
}

// serveRemote listens where others reach the API too, if that is configured.
func (d *daemon) serveRemote(ctx context.Context, g *errgroup.Group, routes http.Handler) error {
	c := d.cfg.API
	if c.Listen == "" {
		return nil
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return fmt.Errorf("api: %w: set api.listen", err)
	}
	server, over := api.Remote(l, *d.certificate, routes, d.log, d.crowded("api"))
	serveHTTP(ctx, g, over, server)
	d.log.Info("the API listens", "address", l.Addr().String(), "fingerprint", api.Fingerprint(*d.certificate))
	return nil
}

// openControl opens what the API keeps.
func (d *daemon) openControl(context.Context) (err error) {
	index := indexDir(d.cfg)
	if d.apiKeys, err = api.OpenKeys(filepath.Join(index, "keys.json"), d.log); err != nil {
		return err
	}
	if d.once, err = api.OpenOnce(filepath.Join(index, "requests"), d.log); err != nil {
		return err
	}
	c := d.cfg.API
	if c.Listen == "" {
		return nil
	}
	var pair tls.Certificate
	if c.Certificate != "" {
		pair, err = keyPair(c.Certificate, c.Key)
	} else {
		host, _, _ := net.SplitHostPort(c.Listen)
		pair, err = api.Certificate(filepath.Join(caDir(d.cfg), "api.sealed"), d.key, host)
	}
	if err != nil {
		return fmt.Errorf("api: %w", err)
	}
	d.certificate = &pair
	return nil
}

// maxSecretFile bounds a file that holds a secret, in bytes.
const maxSecretFile = 1 << 20

// keyPair reads a certificate, and its key, which nobody else may read.
func keyPair(certificate, key string) (none tls.Certificate, err error) {
	public, err := os.ReadFile(certificate)
	if err != nil {
		return none, err
	}
	private, err := secretfile.Read(key, maxSecretFile)
	if err != nil {
		return none, err
	}
	return tls.X509KeyPair(public, private)
}

// lifecycles yields the events of lifecycles from a number on, or with 0 from now
// on, and waits for more.
func (d *daemon) lifecycles(ctx context.Context, from uint64) iter.Seq2[*audit.Event, error] {
	if from == 0 {
		from = d.lastEvent(ctx) + 1
	}
	dir := auditDir(d.cfg)
	return func(yield func(*audit.Event, error) bool) {
		// Events that are in the log already are read in turns of their caller; later
		// events are passed on as they come.
		who := api.PrincipalOf(ctx)
		for more := who.ID != ""; more; {
			var found []scanned
			var err error
			if found, more, err = d.scans.turn(ctx, who.Owner(), dir, &from); err != nil {
				return // nobody waits for it any more
			}
			for _, f := range found {
				if !yield(f.event, f.err) {
					return
				}
			}
		}
		for e, err := range audit.Read(ctx, dir, audit.Query{From: from, Kind: audit.KindLifecycle, Follow: true}) {
			if !yield(e, err) {
				return
			}
		}
	}
}

// A caller who reads the log from far back has a turn at a time for so many events, by
// all of its streams, or a tenant by those of all of its keys; after each it waits
// scanRest times as long as the turn took. However much there is to read, that leaves
// three quarters of a core, and all others, to everybody else.
const (
	scanTurn = 10_000
	scanRest = 3
)

// scans are the turns of callers.
type scans struct {
	mu sync.Mutex
	of map[string]*scanning
}

type scanning struct {
	turn  chan struct{} // has an element while somebody has it
	users int
}

// scanned is an event, or what is wrong with the log.
type scanned struct {
	event *audit.Event
	err   error
}

// turn waits for that of a caller, reads up to scanTurn events from a number on, which it
// moves, and returns those of lifecycles and whether there may be more.
func (s *scans) turn(ctx context.Context, who, dir string, from *uint64) (found []scanned, more bool, err error) {
	s.mu.Lock()
	if s.of == nil {
		s.of = map[string]*scanning{}
	}
	of := s.of[who]
	if of == nil {
		of = &scanning{turn: make(chan struct{}, 1)}
		s.of[who] = of
	}
	of.users++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if of.users--; of.users == 0 {
			delete(s.of, who)
		}
	}
	select {
	case of.turn <- struct{}{}:
	case <-ctx.Done():
		leave()
		return nil, false, ctx.Err()
	}
	began := time.Now()
	n := 0
	for e, err := range audit.Read(ctx, dir, audit.Query{From: *from}) {
		if e != nil {
			*from = e.Metadata.Sequence + 1
		}
		if e == nil || e.Unmapped.Sallyport.Kind == audit.KindLifecycle {
			found = append(found, scanned{e, err})
		}
		if n++; n == scanTurn {
			break
		}
	}
	time.AfterFunc(scanRest*time.Since(began), func() { <-of.turn; leave() })
	return found, n == scanTurn, ctx.Err()
}

// lastEvent is the number of the log's last event.
func (d *daemon) lastEvent(ctx context.Context) (last uint64) {
	for e, err := range audit.Read(ctx, auditDir(d.cfg), audit.Query{Last: 1}) {
		if err == nil {
			last = e.Metadata.Sequence
		}
	}
	return last
}

// tellWebhooks starts what tells servers of events. One that cannot go on takes
// nothing else with it.
func (d *daemon) tellWebhooks(ctx context.Context, g *errgroup.Group) error {
	for i, w := range d.cfg.Webhooks {
		text, err := secretfile.Read(w.SecretFile, maxSecretFile)
		if err != nil {
			return fmt.Errorf("webhooks[%d].secretFile: %w", i, err)
		}
		secret, err := webhook.ParseSecret(string(text))
		if err != nil {
			return fmt.Errorf("webhooks[%d].secretFile: %s: %w", i, w.SecretFile, err)
		}
		s, err := webhook.New(webhook.Hook{URL: w.URL, Events: w.Events, Secret: secret, Addresses: w.Addresses}, webhook.Options{
			Dir: filepath.Join(indexDir(d.cfg), "webhooks"), Last: d.lastEvent(ctx), Logger: d.log,
			Events: func(ctx context.Context, from uint64, follow bool) iter.Seq2[*audit.Event, error] {
				return audit.Read(ctx, auditDir(d.cfg), audit.Query{From: from, Kind: audit.KindLifecycle, Follow: follow})
			},
		})
		if err != nil {
			return err
		}
		g.Go(func() error {
			if err := s.Run(ctx); err != nil {
				d.log.Error("a webhook ends", "url", w.URL, "error", err)
			}
			return nil
		})
	}
	return nil
}
