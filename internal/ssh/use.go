package ssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"sallyport/audit"
	"sallyport/internal/ipc"
	"sallyport/policy"
	"sallyport/sandbox"
	"sallyport/sandbox/agent/wire"
)

// use is one thing that a connection is used for.
type use struct {
	id    uint64
	of    *connection
	what  policy.Protocol
	port  uint16
	began time.Time
	event *audit.Event // that it was allowed

	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when nothing of it goes on

	left chan struct{} // the client has left a forwarded connection
	sum  traffic
}

// Messages that say which line of the configuration would allow a use.
const (
	sftpOff    = "files over SSH are off for this key: an operator can write allow: [sftp] beside it under ssh.keys in sallyport.yaml"
	forwardOff = "forwarding is off for this key: an operator can write allow: [forward] beside it under ssh.keys in sallyport.yaml"
	onlyInside = "only ports of the sandbox itself are forwarded to: write localhost"
	tooMany    = "too much goes on at once"
)

// localNames are the sandbox's own host, to its agent too.
var localNames = []string{wire.HostLocal, wire.HostLoopback, wire.HostLoopback6}

// inside tells whether a host is the sandbox itself.
func inside(i sandbox.Info, host string) bool {
	return slices.Contains(localNames, host) || i.Address.IsValid() && host == i.Address.String()
}

// open begins a use, once it is on record.
func (d *Server) open(ctx context.Context, by *process, c openCall) (id uint64, socket *os.File, err error) {
	n, err := d.find(by, c.Connection)
	if err != nil {
		return 0, nil, err
	}
	done, err := d.wait(n)
	if err != nil {
		return 0, nil, err
	}
	defer done()
	if len(c.Command) > maxCommand || len(c.Env) > maxEnv {
		return 0, nil, fmt.Errorf("%w: the command is too long", errDenied)
	}
	i, err := d.o.Sandboxes.Visible(sandbox.ForOwner(ctx, n.key.Tenant), n.info.Name)
	if err != nil || i.ID != n.info.ID {
		return 0, nil, fmt.Errorf("%w: the sandbox is gone", errDenied)
	}
	port := uint16(policy.SSHPort)
	if c.Use == policy.ProtocolForward {
		port = c.Port
	}
	u := &use{
		of: n, what: c.Use, port: port, began: time.Now(), done: make(chan struct{}),
		left: make(chan struct{}, 1),
	}
	u.ctx, u.cancel = context.WithCancelCause(n.ctx)
	decision := policy.Decision{Action: policy.Deny}
	switch {
	case c.Use != policy.ProtocolShell && !slices.Contains(n.key.Allow, c.Use):
		decision.Reason = map[policy.Protocol]string{policy.ProtocolSFTP: sftpOff, policy.ProtocolForward: forwardOff}[c.Use]
	case c.Use == policy.ProtocolForward && !inside(i, c.Host):
		decision.Reason = onlyInside
	default:
		decision = d.o.Decide(ctx, d.input(i, c.Use, port))
	}
	if decision.Action == policy.Allow && !d.enter(u) {
		decision = policy.Decision{Action: policy.Deny, Reason: tooMany}
	}
	u.event = d.event(audit.NetworkOpen, string(c.Use), n.key, i, n.remote, decision)
	u.event.Detail = "connection " + n.event.ID()
	if c.Use == policy.ProtocolForward && u.event.Destination != nil {
		u.event.Destination.Port = int(port)
	}
	if decision.Action != policy.Allow {
		u.cancel(errClosed)
		d.refuse(u.event, "")
		return 0, nil, fmt.Errorf("%w: %s", errDenied, decision.Reason)
	}
	if err := d.o.Recorder.Append(ctx, u.event); err != nil {
		d.leaveUse(u)
		return 0, nil, fmt.Errorf("%w: it cannot be recorded", errDenied)
	}
	f, err := d.begin(u, c)
	if err != nil {
		d.over(u, "", err)
		return 0, nil, err
	}
	return u.id, f, nil
}

// enter makes a place for a use.
func (d *Server) enter(u *use) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := 0
	for _, n := range d.connections {
		if n.info.ID == u.of.info.ID {
			all += len(n.uses)
		}
	}
	if d.connections[u.of.id] != u.of || len(u.of.uses) >= maxUses || all >= maxOfSandbox {
		return false
	}
	d.last++
	u.id = d.last
	u.of.uses[u.id] = u
	return true
}

func (d *Server) leaveUse(u *use) {
	u.cancel(errClosed)
	d.mu.Lock()
	delete(u.of.uses, u.id)
	d.mu.Unlock()
	close(u.done)
}

// errEnding is how a command is recorded whose client was hung up on.
var errEnding = errors.New("the daemon is shutting down")

// over ends a use and records it.
func (d *Server) over(u *use, detail string, err error) {
	if d.supervisor.Stopping() && (errors.Is(err, errGone) || errors.Is(err, errClosed)) {
		err = errEnding
	}
	u.of.sum.in.Add(u.sum.in.Load())
	u.of.sum.out.Add(u.sum.out.Load())
	d.completed(u.event, audit.NetworkClose, u.began, &u.sum, detail, err)
	d.leaveUse(u)
}

// begin starts what carries a use.
func (d *Server) begin(u *use, c openCall) (*os.File, error) {
	var to sandbox.Conn // of a use that is no command
	if u.what != policy.ProtocolShell {
		var err error
		if to, err = d.connect(u, c.Host); err != nil {
			return nil, err
		}
	}
	here, there, err := ipc.Pair()
	if err != nil {
		if to != nil {
			_ = to.Close()
		}
		return nil, err
	}
	d.work.Go(func() {
		defer here.Close()
		if to != nil {
			d.over(u, "", forward(u, here, to))
			return
		}
		end, err := d.command(u, here, c)
		detail := "exit " + strconv.Itoa(end.Code)
		if end.Signal != "" {
			detail = "signal " + clip(end.Signal)
		}
		d.over(u, detail, err)
	})
	return there, nil
}

// wakeWithin bounds the wait for a sandbox to run.
const wakeWithin = 60 * time.Second

// connect runs the sandbox and connects to what a use is of: its files, or a port.
func (d *Server) connect(u *use, host string) (sandbox.Conn, error) {
	ctx, cancel := context.WithTimeout(u.ctx, wakeWithin)
	defer cancel()
	i, err := d.o.Sandboxes.Start(ctx, u.of.info.Name)
	if err != nil {
		return nil, err
	}
	if i.ID != u.of.info.ID {
		return nil, sandbox.ErrNotFound
	}
	if !slices.Contains(localNames, host) {
		host = "" // its own address
	}
	var to sandbox.Conn
	if u.what == policy.ProtocolSFTP {
		to, err = d.o.Sandboxes.SFTP(ctx, i.Name)
	} else {
		to, err = d.reach(ctx, i, host, u.port)
	}
	if err != nil {
		return nil, err
	}
	// A sandbox keeps its name for as long as it is there: if it is now, it was the
	// one that was connected to.
	if now, err := d.o.Sandboxes.Visible(ctx, i.Name); err != nil || now.ID != i.ID {
		return nil, errors.Join(sandbox.ErrNotFound, to.Close())
	}
	return to, nil
}

// reach connects to a port of a sandbox that runs.
func (d *Server) reach(ctx context.Context, i sandbox.Info, host string, port uint16) (sandbox.Conn, error) {
	to, err := d.o.Sandboxes.Connect(ctx, i.Name, host, port)
	if !errors.Is(err, sandbox.ErrEarlier) {
		return to, err
	}
	// From here no agent is needed, and what listens for the sandbox alone not reached.
	dialling, cancel := context.WithTimeout(ctx, dialWithin)
	defer cancel()
	c, err := d.o.Dial(dialling, netip.AddrPortFrom(i.Address, port))
	if err != nil {
		return nil, fmt.Errorf("nothing listens on port %d of the sandbox's own address, and its agent is of an earlier version, which reaches no other: "+
			"stop the sandbox and use it again, or let the program listen on 0.0.0.0", port)
	}
	return c.(*net.TCPConn), nil
}

// forward carries bytes both ways until both sides have ended, or the use has. A
// client that has left has sent all that it wanted to, and hears nothing more.
func forward(u *use, client *net.UnixConn, to sandbox.Conn) error {
	defer to.Close()
	defer context.AfterFunc(u.ctx, func() { _ = client.Close(); _ = to.Close() })()
	sent, over := make(chan struct{}), make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-u.left:
		case <-over:
			return
		}
		select {
		case <-sent:
		case <-over:
		case <-time.After(takeWithin):
		}
		u.cancel(errClosed)
	}()
	var both errgroup.Group
	both.Go(func() error {
		defer close(sent)
		n, err := io.Copy(to, client)
		u.sum.in.Add(n)
		if err == nil {
			_ = to.CloseWrite()
		}
		return err
	})
	both.Go(func() error {
		n, err := ipc.WritePieces(client, to)
		u.sum.out.Add(n)
		if err != nil {
			_ = client.Close()
		}
		return err
	})
	err := both.Wait()
	switch why := context.Cause(u.ctx); {
	case errors.Is(why, errClosed):
		return nil // the client went away
	case why != nil:
		return why
	}
	return err
}

// bestShell runs its argument as the shell of sandbox.LoginShell would.
const bestShell = `if command -v bash >/dev/null 2>&1; then exec bash -c "$1"; else exec sh -c "$1"; fi`

var (
	envForm = regexp.MustCompile(`^(TERM|LANG|LC_[A-Z]{1,32})$`)
	// Signals that RFC 4254, section 6.9, names.
	signalForm = regexp.MustCompile(`^(ABRT|ALRM|FPE|HUP|ILL|INT|KILL|PIPE|QUIT|SEGV|TERM|USR1|USR2)$`)
)

// variable tells whether an environment may have it.
func variable(name, value string) bool {
	plain := func(r rune) bool { return r < ' ' || r > '~' }
	return envForm.MatchString(name) && len(value) <= maxEnvValue && !strings.ContainsFunc(value, plain)
}

// arguments are a command's.
func arguments(c openCall) []string {
	if c.Shell {
		return sandbox.LoginShell
	}
	return []string{"sh", "-c", bestShell, "sh", c.Command}
}

// leftUse tells a use that its client has left it.
func (d *Server) leftUse(by *process, c leftUseCall) {
	if u := d.used(by, c.Connection, c.Use); u != nil {
		if c.Refused {
			u.cancel(errSFTP)
		}
		select {
		case u.left <- struct{}{}:
		default:
		}
	}
}

// used is a use of a process's connection, or nil.
func (d *Server) used(by *process, connection, id uint64) *use {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.connections[connection]
	if n == nil || n.owner != by {
		return nil
	}
	return n.uses[id]
}
