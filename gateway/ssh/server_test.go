package ssh_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/gateway/credential"
	"sallyport/gateway/credential/scrub"
	gatewayssh "sallyport/gateway/ssh"
	"sallyport/gateway/wire"
	"sallyport/internal/test/must"
	"sallyport/policy"
)

// conn is a sandbox's connection.
type conn struct {
	net.Conn
	timeout time.Duration
	closed  sync.Once
	over    chan struct{} // Serve has returned

	mu      sync.Mutex
	grant   *grant // nil: nothing is allowed
	room    int64  // that is left of the sandbox's memory
	last    int64  // that was left when the connection was closed
	refused int
}

func (c *conn) Destination() policy.Destination {
	return policy.Destination{Host: "git.example.test", Port: 22}
}
func (c *conn) Sandbox() string                    { return "sandbox" }
func (c *conn) InTLS() bool                        { return false }
func (c *conn) Secure(...string) (net.Conn, error) { return nil, errors.ErrUnsupported }
func (c *conn) HandshakeTimeout() time.Duration    { return c.timeout }
func (c *conn) Go(work *sync.WaitGroup, f func())  { work.Go(f) }
func (c *conn) Refuse(wire.Request, string, string) *wire.Denied {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refused++
	return &wire.Denied{ID: "1", Reason: "no"}
}

func (c *conn) Ask(_ context.Context, r wire.Request) (wire.Grant, error) {
	c.mu.Lock()
	g := c.grant
	c.mu.Unlock()
	if g != nil {
		return g, nil
	}
	return nil, c.Refuse(r, "", "")
}

func (c *conn) Reserve(n int64) (func(), error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > c.room {
		return nil, errors.New("no room")
	}
	c.room -= n
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.room += n
	}, nil
}

func (c *conn) Close() error {
	c.closed.Do(func() { c.last = c.left() })
	return c.Conn.Close()
}

func (c *conn) left() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.room
}

func (c *conn) denials() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused
}

// client is a client's side that can stop reading.
type client struct {
	net.Conn
	mu sync.Mutex
}

func (c *client) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	return n, err
}

const room = 32 << 20

// serve returns a connection with a client that has shaken hands on it.
func serve(t *testing.T, timeout time.Duration) (*conn, *client, ssh.Conn) {
	t.Helper()
	authority, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	ca, err := ssh.NewSignerFromKey(authority)
	must.OK(t, err)
	keys, err := gatewayssh.NewHostKeys(func(_, host string, public []byte) ([]byte, error) {
		key, err := ssh.ParsePublicKey(public)
		must.OK(t, err)
		cert := &ssh.Certificate{Key: key, CertType: ssh.HostCert, ValidPrincipals: []string{host}, ValidBefore: ssh.CertTimeInfinity}
		err = cert.SignCert(rand.Reader, ca)
		return cert.Marshal(), err
	})
	must.OK(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer ln.Close()
	far, err := net.Dial("tcp", ln.Addr().String())
	must.OK(t, err)
	near, err := ln.Accept()
	must.OK(t, err)
	c := &conn{Conn: near, timeout: timeout, over: make(chan struct{}), room: room}
	go func() {
		defer close(c.over)
		(&gatewayssh.Handler{HostKeys: keys, Logger: slog.New(slog.DiscardHandler)}).Serve(t.Context(), c)
		_ = c.Close()
	}()
	reads := &client{Conn: far}
	session, channels, requests, err := ssh.NewClientConn(reads, "git.example.test:22", &ssh.ClientConfig{HostKeyCallback: ssh.InsecureIgnoreHostKey()})
	must.OK(t, err)
	go ssh.DiscardRequests(requests)
	go func() {
		for range channels {
		}
	}()
	t.Cleanup(func() { _ = session.Close() })
	return c, reads, session
}

func (c *conn) ended(t *testing.T) {
	t.Helper()
	must.Soon(t, "the connection's end", func() bool {
		select {
		case <-c.over:
			return true
		default:
			return false
		}
	})
	if c.left() != room {
		t.Errorf("%d bytes are held still", room-c.left())
	}
}

func command(text string) []byte { return ssh.Marshal(struct{ Value string }{text}) }

// TestTalkers: clients that go on with requests once their channel is over.
func TestTalkers(t *testing.T) {
	for name, first := range map[string]string{"no exec": "", "a command that is refused": "git-upload-pack 'x'; id", "one that is denied": "id"} {
		t.Run(name, func(t *testing.T) {
			c, reads, session := serve(t, time.Minute)
			channel, _, err := session.OpenChannel("session", nil)
			must.OK(t, err)
			reads.mu.Lock() // it hears nothing of its channel's end
			defer reads.mu.Unlock()
			if first != "" {
				_, err = channel.SendRequest("exec", false, command(first))
				must.OK(t, err)
			}
			for range 200 {
				_, err = channel.SendRequest("env", false, ssh.Marshal(struct{ Name, Value string }{"LANG", "C"}))
				must.OK(t, err)
			}
			must.OK(t, session.Close())
			c.ended(t)
		})
	}
}

// TestMemory: a channel is counted before the client can fill its window, until it no longer can.
func TestMemory(t *testing.T) {
	const window = 2 << 20
	c, _, session := serve(t, time.Minute)
	must.Soon(t, "the connection to be counted", func() bool { return c.left() < room })
	var open []ssh.Channel
	for {
		channel, _, err := session.OpenChannel("session", nil)
		if refused := (*ssh.OpenChannelError)(nil); errors.As(err, &refused) && refused.Reason == ssh.ResourceShortage {
			break
		}
		must.OK(t, err)
		open = append(open, channel)
		if held := room - c.left(); held < int64(len(open))*window {
			t.Fatalf("%d bytes are counted for %d channels", held, len(open))
		}
	}
	if c.denials() != 1 || len(open) == 0 {
		t.Errorf("%d channels, %d denials", len(open), c.denials())
	}
	full := c.left()
	must.OK(t, open[0].Close())
	must.Soon(t, "the memory of a closed channel", func() bool { return c.left() > full })
	if _, _, err := session.OpenChannel("session", nil); err != nil {
		t.Error(err)
	}
	must.OK(t, session.Close())
	c.ended(t)
	if poor, _, other := serve(t, time.Minute); poor.left() == room {
		t.Error("a connection without channels is not counted")
	} else {
		must.OK(t, other.Close())
		poor.ended(t)
	}
}

// TestMemoryOfHalfClosed: a client that does not close its end can fill the window still.
func TestMemoryOfHalfClosed(t *testing.T) {
	const window = 2 << 20
	c, reads, session := serve(t, 5*time.Second)
	channel, _, err := session.OpenChannel("session", nil)
	must.OK(t, err)
	reads.mu.Lock()
	defer reads.mu.Unlock()
	_, err = channel.SendRequest("exec", false, command("id"))
	must.OK(t, err)
	c.ended(t) // a connection without a channel that goes on has an end
	if held := room - c.last; held < window {
		t.Errorf("%d bytes were counted", held)
	}
}

// grant leads to a server.
type grant struct {
	wire.Grant
	t       *testing.T
	address string
	hostKey ssh.PublicKey
}

func (g *grant) ID() string               { return "1" }
func (g *grant) Context() context.Context { return g.t.Context() }
func (g *grant) Hold() func()             { return func() {} }
func (g *grant) Sent(int) error           { return nil }
func (g *grant) Received(int) error       { return nil }

func (g *grant) Injection() policy.Injection {
	return policy.Injection{Inject: policy.Inject{SSH: &policy.SSHInject{User: "git", HostKeys: []string{string(ssh.MarshalAuthorizedKey(g.hostKey))}}}}
}

func (g *grant) Lease(context.Context) (map[string]credential.Secret, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	must.OK(g.t, err)
	block, err := ssh.MarshalPrivateKey(key, "")
	return map[string]credential.Secret{credential.FieldPrivateKey: credential.NewSecret(string(pem.EncodeToMemory(block)))}, err
}

func (g *grant) Dial(context.Context) (net.Conn, error) { return net.Dial("tcp", g.address) }

func (g *grant) Scrub(dst io.Writer, pause time.Duration) *scrub.Writer {
	return scrub.New(nil).Writer(dst, pause, func(scrub.Found) {})
}

func (g *grant) End(err error) string {
	if err != nil {
		return err.Error()
	}
	return ""
}

// TestTalkingServer: a server that says much before it begins.
func TestTalkingServer(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	must.OK(t, err)
	signer, err := ssh.NewSignerFromKey(key)
	must.OK(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	defer ln.Close()
	go func() {
		near, err := ln.Accept()
		if err != nil {
			return
		}
		defer near.Close()
		config := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, nil }}
		config.AddHostKey(signer)
		_, channels, requests, err := ssh.NewServerConn(near, config)
		if err != nil {
			return
		}
		go ssh.DiscardRequests(requests)
		for c := range channels {
			channel, requests, err := c.Accept()
			if err != nil {
				return
			}
			for range 100 {
				_, _ = channel.SendRequest("hello", false, nil)
			}
			for r := range requests {
				_ = r.Reply(true, nil)
				_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Status uint32 }{7}))
				_ = channel.Close()
			}
		}
	}()
	c, _, session := serve(t, time.Minute)
	c.mu.Lock()
	c.grant = &grant{t: t, address: ln.Addr().String(), hostKey: signer.PublicKey()}
	c.mu.Unlock()
	channel, requests, err := session.OpenChannel("session", nil)
	must.OK(t, err)
	_, err = channel.SendRequest("exec", false, command("id"))
	must.OK(t, err)
	var status struct{ Status uint32 }
	must.Soon(t, "the command's end", func() bool {
		select {
		case r := <-requests:
			return r != nil && ssh.Unmarshal(r.Payload, &status) == nil
		default:
			return false
		}
	})
	if status.Status != 7 {
		t.Errorf("status %d", status.Status)
	}
	must.OK(t, session.Close())
	c.ended(t)
}
