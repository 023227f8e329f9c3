// Package ssh ends SSH with a sandbox and logs in to the server with a credential.
//
// The sandbox is known by where it comes from: whatever it says in the handshake is taken
// and worth nothing. The host key that it sees is certified for the name that it dialled by
// an authority that it trusts. Each session channel asks for one thing, which the policy
// decides on, and has a connection of its own to the server, whose key the rule pins.
//
// Never carried: forwarding of ports, sockets, agents and X11, subsystems but sftp, and
// variables but GIT_PROTOCOL and those of the language.
package ssh

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/gateway/wire"
)

// Bounds of one connection.
const (
	// maxChannels are the session channels that are open at once, as OpenSSH's MaxSessions.
	maxChannels = 10
	// connectionMemory and channelMemory are what a connection, from its handshake on, and a
	// channel with its connection to the server, can make the gateway hold, in bytes: the
	// windows of both ends (2 MiB each in x/crypto/ssh).
	connectionMemory = 256 << 10
	channelMemory    = 4 << 20
	version          = "SSH-2.0-Sallyport"

	memoryRule   = "ssh-memory"
	memoryReason = "too much is under way over SSH for this sandbox: wait until some of it has ended"
)

// Handler speaks SSH. It is a wire.Handler. All fields are needed.
type Handler struct {
	HostKeys *HostKeys
	Logger   *slog.Logger
}

// Serve implements wire.Handler.
func (h *Handler) Serve(ctx context.Context, c wire.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	release, err := c.Reserve(connectionMemory)
	if err != nil {
		c.Refuse(wire.Request{Method: "connect", Path: "/"}, memoryRule, memoryReason)
		return
	}
	defer release()
	conn, channels, requests := h.shake(c)
	if conn == nil {
		return
	}
	defer conn.Close()
	var work sync.WaitGroup
	s := &server{Handler: h, conn: c, server: conn, work: &work}
	// A client that opens no channel is of no use.
	s.idle = time.AfterFunc(c.HandshakeTimeout(), func() { _ = conn.Close() })
	defer s.idle.Stop()
	ctx, cancel := context.WithCancel(ctx)
	defer work.Wait()
	defer func() { // there are more only after a panic
		cancel()
		_ = conn.Close()
		for range channels {
		}
	}()
	c.Go(&work, func() { ssh.DiscardRequests(requests) }) // each is answered: no
	for channel := range channels {
		s.open(ctx, channel)
	}
}

// shake is the handshake with the sandbox (RFC 4253, RFC 4252). It returns nil where that
// fails.
func (h *Handler) shake(c wire.Conn) (*ssh.ServerConn, <-chan ssh.NewChannel, <-chan *ssh.Request) {
	key, err := h.HostKeys.signer(c.Sandbox(), c.Destination().Host)
	if err != nil {
		h.Logger.Error("no host key for an SSH connection", "host", c.Destination().Host, "error", err)
		return nil, nil, nil
	}
	config := &ssh.ServerConfig{
		NoClientAuth:      true,
		ServerVersion:     version,
		PasswordCallback:  func(ssh.ConnMetadata, []byte) (*ssh.Permissions, error) { return nil, nil },
		PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, nil },
	}
	config.AddHostKey(key)
	_ = c.SetDeadline(time.Now().Add(c.HandshakeTimeout()))
	conn, channels, requests, err := ssh.NewServerConn(c, config)
	if err != nil {
		h.Logger.Info("a sandbox did not finish its SSH handshake", "host", c.Destination().Host, "error", err)
		var broken net.Error
		if !errors.As(err, &broken) {
			c.Refuse(wire.Request{Method: "connect", Path: "/"}, "ssh", "the SSH handshake was not finished: a client that does not take the sandbox's certificate authority for hosts, or no algorithm in common")
		}
		return nil, nil, nil
	}
	_ = c.SetDeadline(time.Time{})
	return conn, channels, requests
}

// server is one connection of a sandbox.
type server struct {
	*Handler
	conn   wire.Conn
	server *ssh.ServerConn
	work   *sync.WaitGroup // that Serve waits for
	idle   *time.Timer
	count  atomic.Int32
}

// open begins a channel, or refuses it.
func (s *server) open(ctx context.Context, channel ssh.NewChannel) {
	kind := channel.ChannelType()
	if kind != "session" {
		if kind == "direct-tcpip" || kind == "direct-streamlocal@openssh.com" || kind == "tun@openssh.com" {
			s.conn.Refuse(wire.Request{Method: "forward", Path: "/"}, "ssh-forward", "no port is forwarded over SSH")
		}
		_ = channel.Reject(ssh.Prohibited, "sallyport: denied: sessions only, nothing is forwarded")
		return
	}
	if s.count.Load() >= maxChannels {
		_ = channel.Reject(ssh.ResourceShortage, "sallyport: too many channels on this connection")
		return
	}
	// A client can fill the window of a channel as soon as it is accepted.
	release, err := s.conn.Reserve(channelMemory)
	if err != nil {
		s.conn.Refuse(wire.Request{Method: "connect", Path: "/"}, memoryRule, memoryReason)
		_ = channel.Reject(ssh.ResourceShortage, "sallyport: "+memoryReason)
		return
	}
	s.count.Add(1)
	s.idle.Stop()
	s.conn.Go(s.work, func() {
		near, requests, err := channel.Accept()
		defer func() {
			if s.count.Add(-1) == 0 {
				s.idle.Reset(s.conn.HandshakeTimeout())
			}
			if err != nil {
				release()
				return
			}
			// The client's end is open until it closes that too: until then it can fill the
			// window, and the connection reads nothing while a request is not taken.
			s.conn.Go(s.work, func() {
				defer release()
				_ = near.Close()
				ssh.DiscardRequests(requests)
			})
		}()
		if err == nil {
			(&session{server: s, near: near, requests: requests}).run(ctx)
		}
	})
}

// HostKeys keeps the host keys that are shown to sandboxes.
type HostKeys struct {
	key     ssh.Signer
	certify func(sandboxID, host string, public []byte) ([]byte, error)
	now     func() time.Time

	mu    sync.Mutex
	certs map[[2]string]certified
}

type certified struct {
	signer ssh.Signer
	until  time.Time
}

// maxCerts bounds the certificates in memory, and certUse is how long one is used.
const (
	maxCerts = 8192
	certUse  = 24 * time.Hour
)

// NewHostKeys returns HostKeys with one new key. For that certify returns certificates by an
// authority that the sandbox trusts; both are in the form of RFC 4253, section 6.6.
func NewHostKeys(certify func(sandboxID, host string, public []byte) ([]byte, error)) (*HostKeys, error) {
	key, err := newKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return &HostKeys{key: key, certify: certify, now: time.Now, certs: map[[2]string]certified{}}, nil
}

// signer returns the key with a certificate for the host that a sandbox dialled.
func (k *HostKeys) signer(sandboxID, host string) (ssh.Signer, error) {
	of, now := [2]string{sandboxID, host}, k.now()
	k.mu.Lock()
	have := k.certs[of]
	k.mu.Unlock()
	if now.Before(have.until) {
		return have.signer, nil
	}
	text, err := k.certify(sandboxID, host, k.key.PublicKey().Marshal())
	if err != nil {
		return nil, err
	}
	public, err := ssh.ParsePublicKey(text)
	if err != nil {
		return nil, err
	}
	cert, ok := public.(*ssh.Certificate)
	if !ok {
		return nil, errors.New("the authority returned no certificate")
	}
	signer, err := ssh.NewCertSigner(cert, k.key)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.certs) >= maxCerts {
		clear(k.certs)
	}
	k.certs[of] = certified{signer, now.Add(certUse)}
	return signer, nil
}
