package ssh

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/internal/connlimit"
	"sallyport/internal/ipc"
)

// accept takes connections until the listener is closed.
func (s *worker) accept() error {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			if t, ok := err.(net.Error); ok && t.Timeout() {
				continue
			}
			return err
		}
		known := s.unauthenticated.Enter(connlimit.Source(c.RemoteAddr()), func() { _ = c.Close() })
		s.work.Go(func() {
			defer known()
			s.welcome(c, known)
		})
	}
}

// sessionHost is a connection that was let in.
type sessionHost struct {
	s       *worker
	metered *meteredConn
	id      uint64
	key     string // in SSH's form
	conn    *ssh.ServerConn
	ctx     context.Context // until it ends
	open    atomic.Int32    // channels
	last    atomic.Int64    // when a use carried something, as Unix time in nanoseconds
}

// touch notes that something is carried.
func (g *sessionHost) touch() { g.last.Store(time.Now().UnixNano()) }

// idle tells whether nothing has been for too long.
func (g *sessionHost) idle() bool { return time.Since(time.Unix(0, g.last.Load())) > g.s.idle }

// welcome lets a connection in or not, and serves it until it ends.
// known gives its place among those that have not signed back.
func (s *worker) welcome(c net.Conn, known func()) {
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(handshakeWithin))
	config := *s.config
	var id uint64
	var by string
	tried := false
	config.VerifiedPublicKeyCallback = func(m ssh.ConnMetadata, k ssh.PublicKey, _ *ssh.Permissions, _ string) (*ssh.Permissions, error) {
		began := time.Now()
		tried = true
		ctx, cancel := context.WithTimeout(s.ctx, handshakeWithin)
		defer cancel()
		err := s.peer.Call(ctx, callAdmit, admitCall{
			User: cut(m.User()), Key: k.Marshal(), Remote: c.RemoteAddr().String(), Client: cut(string(m.ClientVersion())),
		}, &id)
		if err != nil {
			time.Sleep(time.Until(began.Add(refuseAfter)))
			return nil, errRefused
		}
		by = string(k.Marshal())
		return &ssh.Permissions{}, nil
	}
	f := &meteredConn{Conn: c, kept: s.backlog}
	conn, channels, requests, err := ssh.NewServerConn(f, &config)
	if id != 0 {
		defer func() {
			_ = s.peer.Call(context.Background(), callLeave, leaveCall{Connection: id, Flooded: f.flooded()}, &ipc.None{})
		}()
	}
	if err != nil {
		if !tried {
			_ = s.peer.Call(s.ctx, callLeave, leaveCall{Remote: c.RemoteAddr().String()}, &ipc.None{})
		}
		return
	}
	known()
	_ = c.SetDeadline(time.Time{})
	loop := f.count(by)
	defer f.end()
	g := &sessionHost{s: s, metered: f, id: id, key: by, conn: conn}
	g.touch()
	var cancel context.CancelFunc
	g.ctx, cancel = context.WithCancel(context.Background())
	defer cancel()
	s.mu.Lock()
	s.sessionHosts[id] = g
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.sessionHosts, id)
		s.mu.Unlock()
	}()
	if s.ctx.Err() != nil {
		return // it is being stopped
	}
	go g.look()
	// Ports of this side for the sandbox to be reached by there are not, and whether it
	// is still there is answered by any answer.
	go refuse(each(f.enter(), requests))
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	for c := range each(loop, channels) {
		serve := map[string]func(ssh.NewChannel, *consumer){"session": g.session, "direct-tcpip": g.forward}[c.ChannelType()]
		if serve == nil {
			_ = c.Reject(ssh.UnknownChannelType, "there is no such thing here")
			continue
		}
		if err := g.enter(); err != nil {
			_ = c.Reject(ssh.ResourceShortage, err.Error())
			continue
		}
		t := f.channel()
		work.Go(func() {
			defer g.leave()
			defer t.leave()
			serve(c, t)
		})
	}
}

// enter makes a place for a channel, until leave.
func (g *sessionHost) enter() error {
	if g.open.Add(1) > maxUses {
		g.open.Add(-1)
		return fmt.Errorf("%d sessions and forwarded connections are open by this connection, and no more can be: end some, or connect again", maxUses)
	}
	err := g.s.channels.enter(g.key)
	if err != nil {
		g.open.Add(-1)
	}
	return err
}

func (g *sessionHost) leave() {
	g.s.channels.leave(g.key)
	g.open.Add(-1)
}

// cut bounds what a client says, which the Server refuses where it is longer.
func cut(s string) string { return s[:min(len(s), maxEnvValue)] }

// look ends a connection whose client does not answer, or that nothing is done with.
func (g *sessionHost) look() {
	tick := time.NewTicker(g.s.alive)
	defer tick.Stop()
	asked := make(chan struct{}, 1)
	missed := 0
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-tick.C:
		}
		if g.idle() {
			_ = g.conn.Close()
			return
		}
		select {
		case asked <- struct{}{}:
			missed = 0
			go func() {
				_, _, _ = g.conn.SendRequest("keepalive@openssh.com", true, nil)
				<-asked
			}()
		default:
			if missed++; missed >= keepAliveMisses {
				_ = g.conn.Close()
				return
			}
		}
	}
}

// begin begins a use.
func (g *sessionHost) begin(c openCall) (use uint64, socket *net.UnixConn, err error) {
	c.Connection = g.id
	f, err := g.s.peer.CallFile(g.ctx, callOpen, c, &use)
	if err != nil || f == nil {
		return use, nil, err
	}
	if socket, err = ipc.Inherited(f); err != nil {
		err = fmt.Errorf("beginning: %w", err)
	}
	return use, socket, err
}
