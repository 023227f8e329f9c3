package ssh

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"sallyport/audit"
	"sallyport/internal/jail"
	"sallyport/internal/supervise"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sshTest is a Server with what speaks SSH for it, in this process: the cell is
// tried by package e2e.
type sshTest struct {
	t       *testing.T
	server  *Server
	process *process
	at      string // address
	block   *block
	book    *book
	rules   *rules
	alice   ssh.Signer
}

// child is that process.
type child struct {
	*worker
	done chan struct{}
}

func (c *child) PID() int              { return os.Getpid() }
func (c *child) Done() <-chan struct{} { return c.done }
func (c *child) Wait() error           { <-c.done; return nil }
func (c *child) Kill()                 { _ = c.peer.Close() }
func (c *child) Pause()                {}
func (c *child) Resume()               {}

type noSeal struct{}

func (noSeal) Seal(p []byte) ([]byte, error) { return bytes.Clone(p), nil }
func (noSeal) Open(p []byte) ([]byte, error) { return bytes.Clone(p), nil }

func newSigner(t *testing.T) ssh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(nil)
	must.OK(t, err)
	s, err := ssh.NewSignerFromKey(private)
	must.OK(t, err)
	return s
}

// change is of what speaks SSH before it does.
func newSSHTest(t *testing.T, change ...func(*worker, *Options)) *sshTest {
	t.Helper()
	p := &sshTest{
		t: t, book: &book{}, rules: &rules{}, alice: newSigner(t),
		block: &block{all: map[string]sandbox.Info{}, ended: map[string]error{}, agent: "127.0.0.1", dir: t.TempDir()},
	}
	for name, owner := range map[string]string{"demo": "", "web": "", "other": "", "theirs": "acme"} {
		p.block.all[name] = sandbox.Info{Name: name, ID: "id-" + name, Address: netip.MustParseAddr("127.0.0.1"), Spec: sandbox.Spec{Owner: owner}}
	}
	p.rules.allow(policy.ProtocolShell, policy.ProtocolSFTP, policy.ProtocolForward)
	host, err := OpenHostKey(t.TempDir()+"/key", noSeal{})
	must.OK(t, err)
	inside := func(s jail.Spec) (supervise.Child, error) {
		conn, err := net.FileConn(s.Files[0])
		if err != nil {
			return nil, err
		}
		l, err := net.FileListener(s.Files[1])
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		c := &child{newWorker(conn.(*net.UnixConn), l, jail.State{}), make(chan struct{})}
		for _, f := range change {
			f(c.worker, &p.server.o)
		}
		go func() { defer close(c.done); _ = c.peer.Serve(); c.cancel(); _ = c.listener.Close(); c.work.Wait() }()
		return c, nil
	}
	p.server, err = Open(Options{
		Listen: "127.0.0.1:0", Idle: time.Hour, HostKey: host, Keys: p.keys(), Sandboxes: p.block, Dial: dialled,
		Decide: p.rules.Decide, Identity: func(i sandbox.Info) policy.Sandbox { return policy.Sandbox{Name: i.Name, ID: i.ID} },
		Recorder: p.book, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), View: &jail.View{}, launch: inside,
	})
	must.OK(t, err)
	p.at = p.server.listener.Addr().String()
	must.OK(t, p.server.Start(t.Context()))
	p.process = p.server.supervisor.Process()
	t.Cleanup(func() {
		if err := p.server.Stop(0); err != nil {
			t.Error(err)
		}
		p.block.serving.Wait()
		p.server.mu.Lock()
		defer p.server.mu.Unlock()
		if n := len(p.server.connections); n != 0 {
			t.Errorf("%d connections are left", n)
		}
	})
	return p
}

func dialled(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp4", to.String())
}

func (p *sshTest) keys() []Key {
	return []Key{{Name: "alice", Key: p.alice.PublicKey(), Sandboxes: []string{"demo", "w*"}, Allow: []policy.Protocol{policy.ProtocolSFTP, policy.ProtocolForward}}}
}

func (p *sshTest) dial(name string, keys ...ssh.Signer) (*ssh.Client, error) {
	return ssh.Dial("tcp", p.at, &ssh.ClientConfig{
		User: name, Auth: []ssh.AuthMethod{ssh.PublicKeys(keys...)}, Timeout: time.Minute,
		HostKeyCallback: ssh.FixedHostKey(p.server.o.HostKey.public),
	})
}

// in is a connection of alice's to demo.
func (p *sshTest) in() *ssh.Client {
	p.t.Helper()
	c, err := p.dial("demo", p.alice)
	must.OK(p.t, err)
	p.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (p *sshTest) session(c *ssh.Client) *ssh.Session {
	p.t.Helper()
	s, err := c.NewSession()
	must.OK(p.t, err)
	return s
}

func (p *sshTest) await(what string, f func() bool) {
	p.t.Helper()
	must.Soon(p.t, what, f)
}

func TestAdmit(t *testing.T) {
	p := newSSHTest(t)
	mallory := newSigner(t)
	tenant := newSigner(t)
	all, wide := newSigner(t), newSigner(t)
	p.server.Use(append(p.keys(), Key{Name: "ten", Key: tenant.PublicKey(), Sandboxes: []string{"*"}, Tenant: "acme"},
		Key{Name: "all", Key: all.PublicKey(), Sandboxes: []string{"*"}}, Key{Name: "wide", Key: wide.PublicKey(), Sandboxes: []string{"acme/*"}}))
	var said string
	for _, tt := range []struct {
		what, user string
		key        ssh.Signer
		why        string // on record; empty: let in
	}{
		{"its own", "demo", p.alice, ""},
		{"by a glob", "web", p.alice, ""},
		{"a tenant's own", "theirs", tenant, ""},
		{"a tenant's, by its name alone", "theirs", all, "there is no such sandbox for this key"},
		{"a tenant's, by a glob for the host's", "acme/theirs", all, "the key is not for this sandbox"},
		{"a tenant's, by its full name", "acme/theirs", wide, ""},
		{"the host's, by a tenant's name", "acme/demo", wide, "there is no such sandbox for this key"},
		{"a tenant's own, by its full name", "acme/theirs", tenant, ""},
		{"another's", "other", p.alice, "the key is not for this sandbox"},
		{"of no tenant", "demo", tenant, "there is no such sandbox for this key"},
		{"none", "nothing", p.alice, "there is no such sandbox for this key"},
		{"no key", "demo", mallory, "the key is not known"},
		{"a long name", strings.Repeat("x", 5000), p.alice, "there is no such sandbox for this key"},
	} {
		began := time.Now()
		c, err := p.dial(tt.user, tt.key)
		if (err == nil) != (tt.why == "") {
			t.Errorf("%s: %v", tt.what, err)
		}
		if err == nil {
			_ = c.Close()
			continue
		}
		if took := time.Since(began); took < refuseAfter {
			t.Errorf("%s: refused after %v", tt.what, took)
		}
		if said == "" {
			said = err.Error()
		}
		if err.Error() != said {
			t.Errorf("%s: is told %q, others %q", tt.what, err, said)
		}
		if !p.book.has(audit.KindDecision, "ssh", tt.why) {
			t.Errorf("%s: is not on record", tt.what)
		}
	}
	p.rules.allow()
	if _, err := p.dial("demo", p.alice); err == nil || err.Error() != said {
		t.Errorf("without a rule: %v", err)
	}
	p.rules.allow(policy.ProtocolSFTP)
	c := p.in()
	if out, err := p.session(c).CombinedOutput("both"); err == nil || !strings.Contains(string(out), "no rule allows shell") {
		t.Errorf("a command where files are allowed: %q, %v", out, err)
	}
	p.rules.allow(policy.ProtocolShell)
	p.book.mu.Lock()
	p.book.full = true
	p.book.mu.Unlock()
	if _, err := p.dial("demo", p.alice); err == nil || err.Error() != said {
		t.Errorf("without a record: %v", err)
	}
}

// Six keys are looked at, and strangers have places of a number.
func TestStrangers(t *testing.T) {
	p := newSSHTest(t)
	keys := []ssh.Signer{}
	for range maxTries {
		keys = append(keys, newSigner(t))
	}
	if _, err := p.dial("demo", append(keys, p.alice)...); err == nil {
		t.Error("a seventh key is let in")
	}
	if _, err := p.dial("demo", append(keys[:maxTries-1], p.alice)...); err != nil {
		t.Errorf("a sixth key: %v", err)
	}
	var all []net.Conn
	defer func() {
		for _, c := range all {
			_ = c.Close()
		}
	}()
	for range maxOfSource {
		c, err := net.Dial("tcp", p.at)
		must.OK(t, err)
		all = append(all, c)
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
	}
	c, err := p.dial("demo", p.alice)
	if err != nil {
		t.Fatalf("strangers keep an operator of their own address out: %v", err)
	}
	_ = c.Close()
	for i, c := range all[:2] { // the oldest of them made room, and no other
		wait := time.Second
		if i == 0 {
			wait = time.Minute
		}
		_ = c.SetReadDeadline(time.Now().Add(wait))
		_, err := io.Copy(io.Discard, c)
		if late := errors.Is(err, os.ErrDeadlineExceeded); late != (i > 0) {
			t.Errorf("stranger %d: %v", i, err)
		}
	}
	for _, c := range all {
		_ = c.Close()
	}
	p.await("a record", func() bool { return p.book.has(audit.KindDecision, "ssh", "signed with no key") })
}

func TestCommands(t *testing.T) {
	p := newSSHTest(t)
	c := p.in()
	var out, errs bytes.Buffer
	s := p.session(c)
	s.Stdout, s.Stderr = &out, &errs
	var exit *ssh.ExitError
	if err := s.Run("both"); !errors.As(err, &exit) || exit.ExitStatus() != 7 || out.String() != "out" || errs.String() != "err" {
		t.Errorf("two streams: %q %q %v", out.String(), errs.String(), err)
	}
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<18) // 4 MiB
	s = p.session(c)
	s.Stdin = bytes.NewReader(big)
	if got, err := s.Output("cat"); err != nil || !bytes.Equal(got, big) {
		t.Errorf("%d bytes came back: %v", len(got), err)
	}
	s = p.session(c)
	for name, value := range map[string]string{"LANG": "de_DE.UTF-8", "LC_ALL": "C", "LD_PRELOAD": "x", "PATH": "/", "LC_x": "y", "LC_CTYPE": "\x1b[1m"} {
		err := s.Setenv(name, value)
		if taken := name == "LANG" || name == "LC_ALL"; (err == nil) != taken {
			t.Errorf("%s=%q: %v", name, value, err)
		}
	}
	if err := s.RequestPty("xterm", 25, 80, nil); err != nil {
		t.Error(err)
	}
	must.OK(t, s.Start("size"))
	if err := s.WindowChange(40, 132); err != nil {
		t.Error(err)
	}
	if err := s.Wait(); err != nil {
		t.Error(err)
	}
	p.block.mu.Lock()
	if e := p.block.env; len(e) != 3 || e["LANG"] != "de_DE.UTF-8" || e["TERM"] != "xterm" {
		t.Errorf("the environment is %v", e)
	}
	p.block.mu.Unlock()
	s = p.session(c)
	s.Stderr = &errs
	if err := s.Run("nothing"); !errors.As(err, &exit) || exit.ExitStatus() != 255 || strings.Contains(errs.String(), "\x1b") || !strings.Contains(errs.String(), "no such") {
		t.Errorf("what cannot be run: %q, %v", errs.String(), err)
	}
	s = p.session(c)
	must.OK(t, s.Start("wait"))
	must.OK(t, s.Signal(ssh.SIGTERM))
	if err := s.Wait(); !errors.As(err, &exit) || exit.Signal() != "TERM" {
		t.Errorf("a signal: %v", err)
	}
	// A client that closes the channel, or the connection, ends the command.
	for what, end := range map[string]func(*ssh.Session, *ssh.Client){
		"a channel": func(s *ssh.Session, _ *ssh.Client) { _ = s.Close() }, "a connection": func(_ *ssh.Session, c *ssh.Client) { _ = c.Close() },
	} {
		c := p.in()
		s := p.session(c)
		r, err := s.StdoutPipe()
		must.OK(t, err)
		p.block.mu.Lock()
		delete(p.block.ended, "wait")
		p.block.mu.Unlock()
		must.OK(t, s.Start("wait"))
		if _, err := io.ReadFull(r, make([]byte, 8)); err != nil {
			t.Fatal(err)
		}
		end(s, c)
		p.await("the end of "+what, func() bool { p.block.mu.Lock(); defer p.block.mu.Unlock(); return p.block.ended["wait"] != nil })
	}
	p.await("a record of its end", func() bool { return p.book.has(audit.KindCompletion, "shell", "the client went away") })
	if !p.book.has(audit.KindCompletion, "shell", "exit 7") || !p.book.has(audit.KindCompletion, "shell", "signal TERM") {
		t.Error("how commands ended is not on record")
	}
}

// A connection has places of a number.
func TestUses(t *testing.T) {
	p := newSSHTest(t)
	c := p.in()
	for range maxUses {
		must.OK(t, p.session(c).Start("wait"))
	}
	_, err := c.NewSession()
	full := new(ssh.OpenChannelError)
	if !errors.As(err, &full) || full.Reason != ssh.ResourceShortage || !strings.Contains(full.Message, "16 sessions and forwarded connections are open by this connection") {
		t.Errorf("one more: %v", err)
	}
	for range maxOfSandbox/maxUses - 1 {
		c := p.in()
		for range maxUses {
			must.OK(t, p.session(c).Start("wait"))
		}
	}
	p.await("all of them", func() bool {
		p.server.mu.Lock()
		defer p.server.mu.Unlock()
		all := 0
		for _, n := range p.server.connections {
			all += len(n.uses)
		}
		return all == maxOfSandbox
	})
	if out, err := p.session(p.in()).CombinedOutput("both"); err == nil || !strings.Contains(string(out), tooMany) {
		t.Errorf("one more of the sandbox: %q, %v", out, err)
	}
}

// A session ends with the key, the rule or the sandbox that let it in.
func TestLapse(t *testing.T) {
	for what, lapse := range map[string]func(*sshTest){
		"the key":   func(p *sshTest) { p.server.Use(nil) },
		"its reach": func(p *sshTest) { k := p.keys(); k[0].Sandboxes = []string{"demo"}; p.server.Use(k) },
		"the rule":  func(p *sshTest) { p.rules.allow(); p.server.check() },
		"the use":   func(p *sshTest) { p.rules.allow(policy.ProtocolSFTP); p.server.check() },
		"the sandbox": func(p *sshTest) {
			p.block.mu.Lock()
			delete(p.block.all, "demo")
			p.block.mu.Unlock()
			p.server.check()
		},
		"its name": func(p *sshTest) {
			p.block.mu.Lock()
			p.block.all["demo"] = sandbox.Info{Name: "demo", ID: "another"}
			p.block.mu.Unlock()
			p.server.check()
		},
	} {
		t.Run(what, func(t *testing.T) {
			p := newSSHTest(t)
			c := p.in()
			s := p.session(c)
			r, err := s.StdoutPipe()
			must.OK(t, err)
			must.OK(t, s.Start("wait"))
			if _, err := io.ReadFull(r, make([]byte, 8)); err != nil {
				t.Fatal(err)
			}
			p.server.Use(p.keys()) // the same: nothing ends
			p.block.mu.Lock()
			if p.block.ended["wait"] != nil {
				t.Error("it has ended before")
			}
			p.block.mu.Unlock()
			lapse(p)
			p.await("its end", func() bool { p.block.mu.Lock(); defer p.block.mu.Unlock(); return p.block.ended["wait"] != nil })
			if err := s.Wait(); err == nil {
				t.Error("it ended well")
			}
		})
	}
}

// A process that has been taken over gets nothing by other processes' numbers, nor
// signatures of what is no exchange.
func TestTakenOver(t *testing.T) {
	p := newSSHTest(t)
	c := p.in()
	must.OK(t, p.session(c).Start("wait"))
	p.await("the use", func() bool { return p.book.has(audit.KindDecision, "shell", "allowed") })
	other := &process{}
	for id := range uint64(10) {
		if _, _, err := p.server.open(t.Context(), other, openCall{Connection: id, Use: policy.ProtocolShell, Command: "cat"}); !errors.Is(err, errDenied) {
			t.Errorf("another process's connection %d: %v", id, err)
		}
		if p.server.used(other, 1, id) != nil {
			t.Errorf("another process's use %d", id)
		}
		p.server.leave(other, leaveCall{Connection: id})
	}
	if p.server.Status().Connections != 1 {
		t.Error("another process ends it")
	}
	for _, c := range []openCall{{Use: "telnet"}, {Use: policy.ProtocolShell, Command: strings.Repeat("x", maxCommand+1)}, {}} {
		c.Connection = 1
		if _, _, err := p.server.open(t.Context(), p.process, c); !errors.Is(err, errDenied) {
			t.Errorf("%.40v: %v", c, err)
		}
	}
	for _, n := range []int{0, 20, 33, 65, 4096} {
		if _, err := p.server.o.HostKey.sign(make([]byte, n)); err == nil {
			t.Errorf("it signs %d bytes", n)
		}
	}
	if _, err := p.server.admit(t.Context(), p.process, admitCall{User: "demo", Key: []byte("x"), Remote: "198.51.100.1:1"}); !errors.Is(err, errRefused) {
		t.Errorf("what is no key: %v", err)
	}
}

// The host key stays, and is nobody else's file.
func TestHostKey(t *testing.T) {
	at := t.TempDir() + "/ssh.key"
	first, err := OpenHostKey(at, noSeal{})
	must.OK(t, err)
	again, err := OpenHostKey(at, noSeal{})
	if err != nil || again.Fingerprint() != first.Fingerprint() || again.Known() != first.Known() {
		t.Errorf("the second time: %v", err)
	}
	if _, err := OpenHostKey(at, otherSeal{}); err == nil {
		t.Error("what is sealed with another key is taken")
	}
}

type otherSeal struct{ noSeal }

func (otherSeal) Open([]byte) ([]byte, error) { return []byte("sallyport agent key/1\nxxx"), nil }

// No client agrees with the server on an algorithm that is built on SHA-1 or known to
// be weak.
func TestWeakAlgorithms(t *testing.T) {
	p := newSSHTest(t)
	dial := func(c ssh.Config) error {
		conn, err := ssh.Dial("tcp", p.at, &ssh.ClientConfig{
			Config: c, User: "demo", Auth: []ssh.AuthMethod{ssh.PublicKeys(p.alice)}, HostKeyCallback: ssh.FixedHostKey(p.server.o.HostKey.public),
		})
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	weak := ssh.InsecureAlgorithms()
	for _, k := range weak.KeyExchanges {
		if err := dial(ssh.Config{KeyExchanges: []string{k}}); err == nil {
			t.Errorf("key exchange %s", k)
		}
	}
	for _, c := range weak.Ciphers {
		if err := dial(ssh.Config{Ciphers: []string{c}}); err == nil {
			t.Errorf("cipher %s", c)
		}
	}
	for _, m := range append(weak.MACs, ssh.HMACSHA1) {
		if err := dial(ssh.Config{MACs: []string{m}, Ciphers: []string{ssh.CipherAES128CTR}}); err == nil {
			t.Errorf("MAC %s", m)
		}
	}
	for what, c := range map[string]ssh.Config{
		"its own":            {},
		"an AEAD":            {Ciphers: []string{ssh.CipherChaCha20Poly1305}},
		"a MAC of its own":   {Ciphers: []string{ssh.CipherAES128CTR}, MACs: []string{ssh.HMACSHA256ETM}},
		"elliptic curves":    {KeyExchanges: []string{ssh.KeyExchangeECDHP256}},
		"what came in 2024+": {KeyExchanges: []string{ssh.KeyExchangeMLKEM768X25519}},
	} {
		if err := dial(c); err != nil {
			t.Errorf("the control, %s: %v", what, err)
		}
	}
}
