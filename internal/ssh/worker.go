package ssh

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/internal/connlimit"
	"sallyport/internal/ipc"
	"sallyport/internal/jail"
	"sallyport/internal/ssh/key"
)

// Run is the worker process: it confines itself and serves until the Server ends it. It
// returns an error if a Server has not started it.
func Run() error {
	if err := jail.Enter(); err != nil {
		return err
	}
	conn, err := ipc.Inherited(os.NewFile(3, "link"))
	if err != nil {
		return fmt.Errorf("the daemon starts this by itself: %w", err)
	}
	listener, err := net.FileListener(os.NewFile(4, "listener"))
	if err != nil {
		return fmt.Errorf("the daemon starts this by itself: %w", err)
	}
	state, err := jail.Confine()
	if err != nil {
		return err
	}
	return newWorker(conn, listener, state).peer.Serve()
}

// worker is the process that speaks SSH.
type worker struct {
	peer     *ipc.Peer
	listener net.Listener
	state    jail.State
	config   *ssh.ServerConfig
	idle     time.Duration
	alive    time.Duration   // between two questions whether a client is there
	ctx      context.Context // until callStop has had its time, or the link's end
	cancel   context.CancelFunc

	unauthenticated *connlimit.Limit // connections that have not been let in
	channels        *channelLimit
	backlog         *backlog

	mu           sync.Mutex
	sessionHosts map[uint64]*sessionHost // by the Server's number
	work         sync.WaitGroup
}

func newWorker(conn *net.UnixConn, l net.Listener, state jail.State) *worker {
	s := &worker{listener: l, state: state, alive: keepAliveEvery, channels: newChannelLimit(maxChannels, channelsOfKey), backlog: newBacklog(maxBacklog), sessionHosts: map[uint64]*sessionHost{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.unauthenticated = connlimit.New(maxUnauthenticated, maxOfSource, func(source string) {
		s.work.Go(func() { _ = s.peer.Call(s.ctx, callCrowded, source, &ipc.None{}) })
	})
	s.peer = ipc.New(conn, ipc.Options{
		Files: true, Errors: known, MaxFrame: maxFrame, MaxOut: maxAsk,
		Methods: map[ipc.Method]ipc.Handler{
			callServe: ipc.Handle(s.serve),
			callEnd:   ipc.Handle(s.end),
			callStop:  ipc.Handle(s.stop),
		},
	})
	return s
}

// serve takes connections from now on.
func (s *worker) serve(_ context.Context, c serveCall) (jail.State, error) {
	public, err := ssh.ParsePublicKey(c.HostKey)
	if err != nil {
		return jail.State{}, err
	}
	host, ok := public.(ssh.CryptoPublicKey)
	if !ok {
		return jail.State{}, errors.New("the host key is of no use")
	}
	signer, err := ssh.NewSignerFromSigner(&hostSigner{s, host.CryptoPublicKey()})
	if err != nil {
		return jail.State{}, err
	}
	s.idle = c.Idle
	s.config = &ssh.ServerConfig{
		Config:        ssh.Config{KeyExchanges: keyExchanges, Ciphers: ciphers, MACs: macs},
		ServerVersion: "SSH-2.0-Sallyport", MaxAuthTries: maxTries, PublicKeyAuthAlgorithms: key.Algorithms,
		// Which keys are known is not said before one has signed: a public key is
		// no secret, and whom it lets in where is nobody else's business.
		PublicKeyCallback: func(_ ssh.ConnMetadata, k ssh.PublicKey) (*ssh.Permissions, error) { return nil, likely(k) },
	}
	s.config.AddHostKey(signer)
	s.work.Go(func() {
		err := s.accept()
		if s.ctx.Err() == nil {
			_, _ = fmt.Fprintln(os.Stderr, "accepting connections:", err)
			_ = s.peer.Close()
		}
	})
	return s.state, nil
}

// Algorithms that are offered, the best first. x/crypto/ssh's own lists have SHA-1 in
// them, for clients of before 2014.
var (
	keyExchanges = []string{
		ssh.KeyExchangeMLKEM768X25519, ssh.KeyExchangeCurve25519, ssh.KeyExchangeECDHP256, ssh.KeyExchangeECDHP384, ssh.KeyExchangeECDHP521,
	}
	ciphers = []string{ssh.CipherAES128GCM, ssh.CipherAES256GCM, ssh.CipherChaCha20Poly1305, ssh.CipherAES128CTR, ssh.CipherAES192CTR, ssh.CipherAES256CTR}
	macs    = []string{ssh.HMACSHA256ETM, ssh.HMACSHA512ETM, ssh.HMACSHA256, ssh.HMACSHA512}
)

// likely refuses keys of kinds that nobody is let in with.
func likely(k ssh.PublicKey) error {
	if !slices.Contains(key.Types, k.Type()) {
		return errRefused
	}
	return nil
}

// hostSigner has the daemon sign, which has the key.
type hostSigner struct {
	s      *worker
	public crypto.PublicKey
}

func (h *hostSigner) Public() crypto.PublicKey { return h.public.(ed25519.PublicKey) }

func (h *hostSigner) Sign(_ io.Reader, digest []byte, _ crypto.SignerOpts) (signature []byte, err error) {
	ctx, cancel := context.WithTimeout(h.s.ctx, handshakeWithin)
	defer cancel()
	err = h.s.peer.Call(ctx, callSign, digest, &signature)
	return signature, err
}

// end ends a connection whose permission the Server has withdrawn.
func (s *worker) end(_ context.Context, c endCall) (ipc.None, error) {
	s.mu.Lock()
	g := s.sessionHosts[c.Connection]
	s.mu.Unlock()
	if g != nil {
		_ = g.conn.Close()
	}
	return ipc.None{}, nil
}

// stop takes no more connections, and ends those that are left after a time.
func (s *worker) stop(_ context.Context, within time.Duration) (ipc.None, error) {
	s.cancel()
	_ = s.listener.Close()
	for late := time.Now().Add(within); s.busy() && time.Now().Before(late); {
		time.Sleep(min(50*time.Millisecond, time.Until(late)))
	}
	s.hangUp()
	return ipc.None{}, nil
}

// busy tells whether something goes on.
func (s *worker) busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.sessionHosts {
		if g.open.Load() > 0 {
			return true
		}
	}
	return false
}

func (s *worker) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.sessionHosts {
		_ = g.conn.Close()
	}
}
