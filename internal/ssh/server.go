package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/audit"
	"sallyport/internal/jail"
	"sallyport/internal/ratelimit"
	"sallyport/internal/supervise"
	"sallyport/policy"
	"sallyport/sandbox"
)

// Sandboxes are those of this host. The owner of a context ([sandbox.ForOwner]) sees only
// its own.
type Sandboxes interface {
	Visible(ctx context.Context, name string) (sandbox.Info, error)
	Start(ctx context.Context, name string) (sandbox.Info, error)
	Attach(ctx context.Context, name string, c sandbox.CommandSpec, client sandbox.CommandClient) (sandbox.CommandEnd, error)
	Connect(ctx context.Context, name, host string, port uint16) (sandbox.Conn, error)
	SFTP(ctx context.Context, name string) (sandbox.Conn, error)
}

// Recorder is the audit trail.
type Recorder interface {
	Append(ctx context.Context, events ...*audit.Event) error
	Enqueue(e *audit.Event) error
}

// Key is one that is let in, and what it is good for.
type Key struct {
	Name      string // of the operator
	Key       ssh.PublicKey
	Sandboxes []string // globs over names
	Tenant    string
	Allow     []policy.Protocol // besides shells and commands
}

// Options of Open. All but Args are needed.
type Options struct {
	Listen    string // host:port
	Idle      time.Duration
	Keys      []Key
	HostKey   *HostKey
	View      *jail.View // root of the process, empty
	Sandboxes Sandboxes
	Dial      func(context.Context, netip.AddrPort) (net.Conn, error) // to a sandbox
	Decide    func(ctx context.Context, in policy.Input) policy.Decision
	Identity  func(sandbox.Info) policy.Sandbox
	Recorder  Recorder
	Logger    *slog.Logger
	Crowded   func(source string) // there are too many connections that have not signed; may be nil
	Args      []string            // of the process. Default: sallyport ssh-server

	launch func(jail.Spec) (supervise.Child, error) // a test's
}

// Server is the daemon's side: it answers the worker process, and starts another when
// that one dies. It is safe for concurrent use.
type Server struct {
	o        Options
	refusals *ratelimit.BySource

	supervisor *supervise.Restarter
	listener   net.Listener // the first process's, until it is started
	end        sync.Once

	mu          sync.Mutex // guards what follows
	keys        map[string]Key
	connections map[uint64]*connection
	lastCrowd   time.Time
	calls       map[string]int // of the process's that wait for sandboxes, by key
	last        uint64         // number of a connection or a use
	work        sync.WaitGroup // uses
}

// connection is one that was let in.
type connection struct {
	id     uint64
	key    Key
	info   sandbox.Info
	remote netip.AddrPort
	began  time.Time
	event  *audit.Event // that it was let in
	ctx    context.Context
	cancel context.CancelCauseFunc
	owner  *process

	uses map[uint64]*use // guarded by Server.mu
	sum  traffic         // of its uses
}

// Open takes the address and the keys. Start begins.
func Open(o Options) (*Server, error) {
	if len(o.Args) == 0 {
		o.Args = []string{"sallyport", "ssh-server"}
	}
	d := &Server{o: o, refusals: ratelimit.ForAudit(), connections: map[uint64]*connection{}, calls: map[string]int{}}
	d.supervisor = d.keeper()
	d.Use(o.Keys)
	l, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return nil, err
	}
	d.listener = l
	return d, nil
}

// Use makes these all the keys that are let in. Sessions by others end.
func (d *Server) Use(keys []Key) {
	next := map[string]Key{}
	for _, k := range keys {
		next[string(k.Key.Marshal())] = k
	}
	d.mu.Lock()
	d.keys = next
	d.mu.Unlock()
	d.check()
}

// input is what the policy is asked.
func (d *Server) input(i sandbox.Info, use policy.Protocol, port uint16) policy.Input {
	s := d.o.Identity(i)
	return policy.Input{Phase: policy.PhaseSSH, Sandbox: s, Protocol: use, Destination: policy.Destination{Host: s.Name, Port: port}}
}

// authorize says whether a key opens a sandbox, with the policy's word. Its reason for a
// refusal is for the log alone.
func (d *Server) authorize(ctx context.Context, k Key, name string) (sandbox.Info, policy.Decision) {
	no := func(why string) policy.Decision { return policy.Decision{Action: policy.Deny, Reason: why} }
	owner, alone := k.Tenant, name
	if tenant, rest, full := strings.Cut(name, "/"); full && (owner == "" || owner == tenant) {
		owner, alone = tenant, rest
	}
	if k.Tenant != "" {
		name = alone
	}
	i, err := d.o.Sandboxes.Visible(sandbox.ForOwner(ctx, owner), alone)
	if err != nil || k.Tenant == "" && i.FullName() != name {
		i = sandbox.Info{}
		return i, no("there is no such sandbox for this key")
	}
	if !slices.ContainsFunc(k.Sandboxes, func(glob string) bool { ok, _ := path.Match(glob, name); return ok }) {
		return i, no("the key is not for this sandbox")
	}
	decision := d.o.Decide(ctx, d.input(i, policy.ProtocolShell, policy.SSHPort))
	if decision.Action != policy.Allow && slices.Contains(k.Allow, policy.ProtocolSFTP) {
		if files := d.o.Decide(ctx, d.input(i, policy.ProtocolSFTP, policy.SSHPort)); files.Action == policy.Allow {
			return i, files
		}
	}
	return i, decision
}

// admit lets a key in that has signed, or refuses it without saying why.
func (d *Server) admit(ctx context.Context, by *process, c admitCall) (id uint64, err error) {
	remote, err := netip.ParseAddrPort(c.Remote)
	if err != nil || len(c.User) > maxEnvValue || len(c.Client) > maxEnvValue {
		return 0, errRefused
	}
	d.mu.Lock()
	k, known := d.keys[string(c.Key)]
	d.mu.Unlock()
	decision := policy.Decision{Action: policy.Deny, Reason: "the key is not known"}
	var i sandbox.Info
	if known {
		i, decision = d.authorize(ctx, k, c.User)
	} else if k.Key, err = ssh.ParsePublicKey(c.Key); err != nil {
		return 0, errRefused
	}
	e := d.event(audit.NetworkOpen, "ssh", k, i, remote, decision)
	if decision.Action != policy.Allow {
		d.refuse(e, c.User)
		return 0, errRefused
	}
	e.Message = "SSH client " + strconv.QuoteToASCII(c.Client)
	n := &connection{key: k, info: i, remote: remote, began: time.Now(), event: e, owner: by, uses: map[uint64]*use{}}
	// The operator wakes the sandbox.
	n.ctx, n.cancel = context.WithCancelCause(audit.By(sandbox.ForOwner(by.Context(), k.Tenant), e.Actor, e.Source))
	d.mu.Lock()
	full := len(d.connections) >= maxConnections || d.of(k) >= maxOfKey
	if !full {
		d.last++
		n.id = d.last
		d.connections[n.id] = n
	}
	d.mu.Unlock()
	if full {
		decision = policy.Decision{Action: policy.Deny, Reason: "too many connections are open"}
		d.refuse(d.event(audit.NetworkOpen, "ssh", k, i, remote, decision), c.User)
		return 0, errRefused
	}
	if err := d.o.Recorder.Append(ctx, e); err != nil {
		d.o.Logger.Error("nobody is let in over SSH, since it cannot be recorded", "error", err)
		d.drop(n)
		return 0, errRefused
	}
	return n.id, nil
}

// of is how many connections a key has. d.mu is held.
func (d *Server) of(k Key) (n int) {
	for _, c := range d.connections {
		if bytes.Equal(c.key.Key.Marshal(), k.Key.Marshal()) {
			n++
		}
	}
	return n
}

// wait counts a call that may wait for a connection's sandbox, until done: more of them
// than there are places would have all others stand in line, as long as a sandbox likes.
func (d *Server) wait(n *connection) (done func(), err error) {
	k := string(n.key.Key.Marshal())
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.calls[k] >= callsOfKey {
		return nil, fmt.Errorf("%w: %s", errDenied, tooMany)
	}
	d.calls[k]++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.calls[k]--; d.calls[k] == 0 {
			delete(d.calls, k)
		}
	}, nil
}

// drop forgets a connection, if it is there.
func (d *Server) drop(n *connection) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	there := d.connections[n.id] == n
	if there {
		delete(d.connections, n.id)
	}
	n.cancel(errClosed)
	return there
}

var errClosed = errors.New("the connection has ended")

// close ends a connection and all of its uses, and records it.
func (d *Server) close(n *connection, why error) {
	n.cancel(why)
	if d.drop(n) {
		// After its uses, each of which counts and records its own end.
		uses := d.usesOf(n)
		d.work.Go(func() {
			for _, u := range uses {
				<-u.done
			}
			d.completed(n.event, audit.NetworkClose, n.began, &n.sum, why.Error(), nil)
		})
	}
}

func (d *Server) usesOf(n *connection) []*use {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Values(n.uses))
}

// leave is told that the process has nothing more of a connection.
func (d *Server) leave(by *process, c leaveCall) {
	if c.Connection == 0 {
		if remote, err := netip.ParseAddrPort(c.Remote); err == nil {
			decision := policy.Decision{Action: policy.Deny, Reason: "the client has signed with no key"}
			d.refuse(d.event(audit.NetworkRefuse, "ssh", Key{}, sandbox.Info{}, remote, decision), "")
		}
		return
	}
	d.mu.Lock()
	n := d.connections[c.Connection]
	d.mu.Unlock()
	if n == nil || n.owner != by {
		return
	}
	why := errClosed
	if c.Flooded {
		why = errors.New("the client has sent more than is kept until something takes it")
	}
	d.close(n, why)
}

// crowded passes on that connections which have not signed begin to be closed, no more
// often than once in a minute, as the process should.
func (d *Server) crowded(source string) {
	d.mu.Lock()
	soon := time.Since(d.lastCrowd) < time.Minute
	if !soon {
		d.lastCrowd = time.Now()
	}
	d.mu.Unlock()
	if !soon && d.o.Crowded != nil {
		d.o.Crowded(clip(strconv.QuoteToASCII(source)))
	}
}

// find is a connection of a process, if what it was let in by still holds.
func (d *Server) find(by *process, id uint64) (*connection, error) {
	d.mu.Lock()
	n := d.connections[id]
	d.mu.Unlock()
	if n == nil || n.owner != by {
		return nil, fmt.Errorf("%w: the connection has ended", errDenied)
	}
	if _, why := d.lapsed(n); why != "" {
		d.evict(n, why)
		return nil, fmt.Errorf("%w: %s", errDenied, why)
	}
	return n, nil
}

// lapsed says why a connection would not be let in now, or "", and how its sandbox
// is.
func (d *Server) lapsed(n *connection) (sandbox.Info, string) {
	d.mu.Lock()
	k, ok := d.keys[string(n.key.Key.Marshal())]
	d.mu.Unlock()
	k.Key = n.key.Key
	switch {
	case !ok:
		return n.info, "the key was withdrawn"
	case !reflect.DeepEqual(k, n.key):
		return n.info, "what the key is good for has changed"
	}
	name := n.info.Name
	if k.Tenant == "" {
		name = n.info.FullName()
	}
	i, decision := d.authorize(n.ctx, k, name)
	switch {
	case decision.Action != policy.Allow:
		return i, decision.Reason
	case i.ID != n.info.ID:
		return i, "another sandbox has the name by now"
	}
	return i, ""
}

// evict ends a connection that was let in and would not be now.
func (d *Server) evict(n *connection, why string) {
	d.close(n, errors.New(why))
	n.owner.Notify(answerWithin, callEnd, endCall{n.id, why})
}

// check judges anew what goes on.
func (d *Server) check() {
	d.mu.Lock()
	list := slices.Collect(maps.Values(d.connections))
	d.mu.Unlock()
	for _, n := range list {
		i, why := d.lapsed(n)
		if why != "" {
			d.evict(n, why)
			continue
		}
		for _, u := range d.usesOf(n) {
			if decision := d.o.Decide(n.ctx, d.input(i, u.what, u.port)); decision.Action != policy.Allow {
				u.cancel(errors.New(decision.Reason))
			}
		}
	}
}
