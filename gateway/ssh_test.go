package gateway_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/gateway/credential"
	gatewayssh "sallyport/gateway/ssh"
	"sallyport/gateway/wire"
	"sallyport/internal/config"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
)

// fields is a source of named fields.
type fields map[string]string

func (f fields) Read(context.Context) (credential.Material, error) {
	m := credential.Material{Fields: map[string]credential.Secret{}, Version: "v1"}
	for name, value := range f {
		m.Fields[name] = credential.NewSecret(value)
	}
	return m, nil
}

// sshEnv is an env with a real sshd as the upstream git.example.test, and a port on loopback
// that leads a real client through the gateway to it.
type sshEnv struct {
	*env
	folder  string
	port    string // of the way through the gateway
	key     string // PEM, that logs in
	hostKey string // of the server, as a rule pins it
	known   string // known_hosts of the sandbox
	asked   gateway.Approvals
}

// sshKey returns a new private key as PEM, and its public line.
func sshKey(t *testing.T) (string, ssh.Signer, string) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	must.OK(t, err)
	block, err := ssh.MarshalPrivateKey(key, "")
	must.OK(t, err)
	signer, err := ssh.NewSignerFromKey(key)
	must.OK(t, err)
	return string(pem.EncodeToMemory(block)), signer, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
}

// newSSHEnv starts it with rules, in which KEY is the server's host key and REPO the folder of
// repositories. secret changes what the credential key has.
func newSSHEnv(t *testing.T, rules string, change ...func(l *sshEnv, secret fields)) *sshEnv {
	t.Helper()
	for _, program := range []string{"/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/git"} {
		if _, err := os.Stat(program); err != nil || os.Getuid() != 0 {
			must.Lack(t, "needs root and %s: internal/setup/setup.sh test installs it", program)
		}
	}
	l := &sshEnv{folder: t.TempDir()}
	must.OK(t, os.Chmod(l.folder, 0o755))
	serverKey, _, serverLine := sshKey(t)
	clientKey, _, clientLine := sshKey(t)
	l.key, l.hostKey = clientKey, serverLine
	secret := fields{"privateKey": clientKey}
	must.OK(t, os.WriteFile(l.folder+"/host", []byte(serverKey), 0o600))
	must.OK(t, os.WriteFile(l.folder+"/authorized", []byte(clientLine+"\n"), 0o600))
	for _, f := range change {
		f(l, secret)
	}
	address := l.sshd(t)
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
	l.env = newEnv(t, speaksFirst, func(o *gateway.Options) {
		o.Approvals = l.asked
		o.Handlers = map[policy.Protocol]wire.Handler{policy.ProtocolSSH: &gatewayssh.Handler{
			HostKeys: keys,
			Logger:   slog.New(slog.NewTextHandler(logWriter{t}, nil)),
		}}
	})
	l.known = l.folder + "/known_hosts"
	must.OK(t, os.WriteFile(l.known, append([]byte("@cert-authority * "), ssh.MarshalAuthorizedKey(ca.PublicKey())...), 0o600))
	l.hosts["git.example.test"] = address
	p := l.compile(t, rules)
	l.policy(func(in policy.Input) policy.Decision { return p.Decide(context.Background(), in) })
	l.env.broker = credential.New(credential.Options{Sources: map[string]credential.Source{"key": secret}, Bound: p.Bound, AllowShort: p.AllowsShort})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	t.Cleanup(func() { ln.Close() })
	_, l.port, _ = net.SplitHostPort(ln.Addr().String())
	to := netip.AddrPortFrom(l.name("git.example.test"), 22)
	go func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				far, err := l.listener.dial(sandboxAddr, to)
				if err != nil {
					near.Close()
					return
				}
				go func() { _, _ = io.Copy(far, near); far.Close() }()
				_, _ = io.Copy(near, far)
				near.Close()
			}()
		}
	}()
	return l
}

// compile makes a policy of rules: see newSSHEnv.
func (l *sshEnv) compile(t *testing.T, rules string) *engine.Policy {
	t.Helper()
	c, err := config.Parse("sallyport.yaml", []byte(strings.NewReplacer("KEY", `"`+l.hostKey+`"`, "REPO", l.folder).Replace(rules)))
	must.OK(t, err)
	p, err := engine.Compile(t.Context(), c.Document, engine.Options{Timeout: patience})
	must.OK(t, err)
	return p
}

// sshd starts Debian's server and returns its address.
func (l *sshEnv) sshd(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must.OK(t, err)
	address := ln.Addr().String()
	ln.Close()
	_, port, _ := net.SplitHostPort(address)
	must.OK(t, os.MkdirAll("/run/sshd", 0o755))
	lines := []string{
		"ListenAddress 127.0.0.1:" + port, "HostKey " + l.folder + "/host", "AuthorizedKeysFile " + l.folder + "/authorized", "PidFile none",
		"StrictModes no", "UsePAM no", "PermitRootLogin yes", "PasswordAuthentication no", "AcceptEnv GIT_PROTOCOL LANG LC_*", "Subsystem sftp internal-sftp", "MaxStartups 100",
	}
	if _, err := os.Stat(l.folder + "/ca.pub"); err == nil {
		lines = append(lines, "TrustedUserCAKeys "+l.folder+"/ca.pub")
	}
	must.OK(t, os.WriteFile(l.folder+"/sshd_config", []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	cmd := exec.Command("/usr/sbin/sshd", "-D", "-e", "-f", l.folder+"/sshd_config")
	var log bytes.Buffer
	cmd.Stderr = &log
	must.OK(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("sshd:\n%s", log.String())
		}
	})
	must.Soon(t, "sshd listens", func() bool {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return address
}

// client is the sandbox's ssh with its options.
func (l *sshEnv) options() []string {
	return []string{
		"-F", "none", "-p", l.port, "-o", "HostName=127.0.0.1", "-o", "HostKeyAlias=git.example.test", "-o", "GlobalKnownHostsFile=" + l.known,
		"-o", "UserKnownHostsFile=/dev/null", "-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes", "-o", "IdentityFile=none", "-o", "IdentityAgent=none", "-o", "LogLevel=INFO",
	}
}

// run runs a program of the sandbox.
func (l *sshEnv) run(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = l.folder
	cmd.Env = append(os.Environ(), "GIT_SSH_COMMAND=ssh "+strings.Join(l.options(), " "), "GIT_TERMINAL_PROMPT=0", "HOME="+l.folder,
		"GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.test", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.test", "GIT_CONFIG_NOSYSTEM=1")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (l *sshEnv) git(t *testing.T, args ...string) string {
	t.Helper()
	out, err := l.run(t, "git", args...)
	if err != nil {
		t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (l *sshEnv) ssh(t *testing.T, args ...string) (string, error) {
	return l.run(t, "ssh", append(append(l.options(), "git@git.example.test"), args...)...)
}

// repository makes one with a file in it.
func (l *sshEnv) repository(t *testing.T, name, content string) {
	t.Helper()
	l.git(t, "init", "-q", "--bare", "-b", "main", name)
	work := t.TempDir()
	l.git(t, "init", "-q", "-b", "main", work)
	must.OK(t, os.WriteFile(work+"/file", []byte(content), 0o600))
	l.git(t, "-C", work, "add", "file")
	l.git(t, "-C", work, "commit", "-qm", "first")
	l.git(t, "-C", work, "push", "-q", l.folder+"/"+name, "main")
}

const gitRule = `
egressAuth:
- {name: clone, destination: git.example.test, authRef: key, paths: [REPO/mine.git, REPO/large.git], inject: {ssh: {user: root, hostKeys: [KEY]}}}
- {name: push, destination: git.example.test, authRef: key, paths: [REPO/large.git], methods: [git-receive-pack], inject: {ssh: {user: root, hostKeys: [KEY]}}}
credentials: [{name: key}]
`

func (l *sshEnv) requests(kind audit.Kind) (list []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if e.Unmapped.Sallyport.Kind == kind && e.HTTPRequest != nil && e.HTTPRequest.URL != nil {
			list = append(list, fmt.Sprintf("%s %s %s", e.Unmapped.Sallyport.Decision, e.Method(), strings.TrimPrefix(e.HTTPRequest.URL.Path, l.folder)))
		}
	}
	return list
}

func TestSSHGit(t *testing.T) {
	l := newSSHEnv(t, gitRule)
	l.repository(t, "mine.git", "hello")
	l.repository(t, "large.git", strings.Repeat("many lines\n", 10))
	l.repository(t, "other.git", "secret")
	l.git(t, "clone", "-q", "root@git.example.test:"+l.folder+"/mine.git", "clone")
	if text, err := os.ReadFile(l.folder + "/clone/file"); string(text) != "hello" {
		t.Errorf("%q %v", text, err)
	}
	l.git(t, "-C", "clone", "fetch", "-q")
	if out, err := l.run(t, "git", "clone", "-q", "git@git.example.test:"+l.folder+"/other.git", "stolen"); err == nil || !strings.Contains(out, "sallyport: denied: ") || !strings.Contains(out, "decision ") {
		t.Errorf("another repository: %v %s", err, out)
	}
	must.OK(t, os.WriteFile(l.folder+"/clone/file", []byte("changed"), 0o600))
	l.git(t, "-C", "clone", "commit", "-qam", "second")
	if out, err := l.run(t, "git", "-C", "clone", "push", "-q"); err == nil || !strings.Contains(out, "sallyport: denied: ") {
		t.Errorf("a push: %v %s", err, out)
	}
	// A push of more than all windows together.
	l.git(t, "clone", "-q", "git@git.example.test:"+l.folder+"/large.git", "large")
	big := make([]byte, 24<<20)
	_, _ = rand.Read(big)
	must.OK(t, os.WriteFile(l.folder+"/large/big", big, 0o600))
	l.git(t, "-C", "large", "add", "big")
	l.git(t, "-C", "large", "commit", "-qm", "big")
	l.git(t, "-C", "large", "push", "-q")
	l.git(t, "clone", "-q", "git@git.example.test:"+l.folder+"/large.git", "again")
	if text, err := os.ReadFile(l.folder + "/again/big"); !bytes.Equal(text, big) {
		t.Errorf("%d bytes came back, %v", len(text), err)
	}
	decisions := l.requests(audit.KindDecision)
	for _, want := range []string{"allow git-upload-pack /mine.git", "deny git-upload-pack /other.git", "deny git-receive-pack /mine.git", "allow git-receive-pack /large.git"} {
		if !strings.Contains(strings.Join(decisions, "\n")+"\n", want+"\n") {
			t.Errorf("no decision %q in %q", want, decisions)
		}
	}
	must.Soon(t, "each allowed request has a completion", func() bool {
		allowed := strings.Count(strings.Join(l.requests(audit.KindDecision), "\n"), "allow ")
		return len(l.requests(audit.KindCompletion)) == allowed
	})
}

func TestSSHRefusals(t *testing.T) {
	l := newSSHEnv(t, gitRule)
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"a command":         {[]string{"id"}, "sallyport: denied: "},
		"a shell":           {[]string{"-T"}, "sallyport: denied: "},
		"sftp":              {[]string{"-s", "sftp"}, "sallyport: denied: "},
		"another subsystem": {[]string{"-s", "netconf"}, "subsystem request failed"},
		"a path with dots":  {[]string{"git-upload-pack '" + l.folder + "/x/../mine.git'"}, "is not plain"},
		"two commands":      {[]string{"git-upload-pack '" + l.folder + "/mine.git'; id"}, "is not plain"},
		"a home":            {[]string{"git-upload-pack '~root/mine.git'"}, "is not plain"},
		"a port":            {[]string{"-W", "127.0.0.1:22"}, "denied"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := l.ssh(t, tt.args...)
			if err == nil || !strings.Contains(out, tt.want) {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	if out, err := l.run(t, "ssh", append(l.options(), "-o", "ExitOnForwardFailure=yes", "-N", "-R", "0:127.0.0.1:1", "git@git.example.test")...); err == nil || !strings.Contains(out, "failed") {
		t.Errorf("a port the other way: %v %s", err, out)
	}
	for _, step := range l.steps() {
		if strings.HasPrefix(step, "dial") {
			t.Errorf("%s", step)
		}
	}
}

// A client whose connection is denied is told why, and no more than a client of HTTP.
func TestSSHDenied(t *testing.T) {
	l := newSSHEnv(t, `
egress:
- {destination: git.example.test, ports: [22], action: deny, name: no-git}
egressAuth:
- {destination: other.example.test, authRef: key, inject: {ssh: {user: git, hostKeys: [KEY]}}}
credentials: [{name: key}]
`)
	out, err := l.ssh(t, "git-upload-pack 'mine.git'")
	_, said, _ := strings.Cut(out, "Received disconnect")
	e := l.await(1)[0]
	if err == nil || !strings.Contains(said, "sallyport: denied by rule no-git ") || !strings.Contains(said, "(decision "+e.ID()+")") || strings.Contains(said, "key") {
		t.Errorf("%v: %s", err, out)
	}
	for _, step := range l.steps() {
		if strings.HasPrefix(step, "dial") || strings.HasPrefix(step, "lease") {
			t.Errorf("%s", step)
		}
	}
}

const execRule = `
egressAuth:
- {destination: git.example.test, authRef: key, methods: [exec, shell, sftp], inject: {ssh: {user: root, hostKeys: [KEY]}}}
credentials: [{name: key}]
`

func TestSSHCommands(t *testing.T) {
	l := newSSHEnv(t, execRule)
	if out, err := l.ssh(t, "echo out; echo err >&2; exit 7"); exitOf(err) != 7 || !strings.Contains(out, "out\n") || !strings.Contains(out, "err\n") {
		t.Errorf("%v %q", err, out)
	}
	if out, err := l.ssh(t, "cat "+l.folder+"/host; kill -TERM $$"); exitOf(err) == 0 {
		t.Errorf("a signal: %v %q", err, out)
	}
	if out, err := l.ssh(t, "git-upload-pack '"+l.folder+"/mine.git'"); err == nil || !strings.Contains(out, "sallyport: denied: ") {
		t.Errorf("a method that the rule does not name: %v %s", err, out)
	}
	// The key in what the server says.
	must.OK(t, os.WriteFile(l.folder+"/leak", []byte(l.key), 0o600))
	for _, command := range []string{"cat " + l.folder + "/leak", "cat " + l.folder + "/leak >&2", "printf '%s' x; sed 's/$/\\r/' " + l.folder + "/leak"} {
		out, err := l.ssh(t, command)
		must.OK(t, err)
		for _, line := range strings.Split(strings.TrimSpace(l.key), "\n")[1:3] {
			if strings.Contains(out, line) {
				t.Errorf("%s: %q", command, out)
			}
		}
		if !strings.Contains(out, "****") {
			t.Errorf("%s: %q", command, out)
		}
	}
	if out, err := l.run(t, "sh", "-c", "echo pwd | sftp -q "+strings.Join(sftpOptions(l.options()), " ")+" git@git.example.test"); err != nil || !strings.Contains(out, "Remote working directory") {
		t.Errorf("sftp: %v %s", err, out)
	}
	if out, err := l.ssh(t, "-tt", "test -t 0 && stty size && echo $TERM"); err != nil || !strings.Contains(out, "\n") {
		t.Errorf("a terminal: %v %q", err, out)
	}
}

func sftpOptions(options []string) []string {
	out := []string{}
	for i := range options {
		if options[i] == "-p" {
			out = append(out, "-P")
			continue
		}
		out = append(out, options[i])
	}
	return out
}

func exitOf(err error) int {
	if e, ok := err.(*exec.ExitError); ok {
		return e.ExitCode()
	}
	return 0
}

func TestSSHImpostor(t *testing.T) {
	l := newSSHEnv(t, execRule, func(l *sshEnv, _ fields) { _, _, l.hostKey = sshKey(t) })
	out, err := l.ssh(t, "id")
	if exitOf(err) != 128 || !strings.Contains(out, wire.ErrImpostor.Error()) {
		t.Errorf("%v %s", err, out)
	}
	must.Soon(t, "a finding", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, f := range l.findings {
			if f.Unmapped.Sallyport.State == audit.FindingImpostor {
				return true
			}
		}
		return false
	})
}

func TestSSHCertificate(t *testing.T) {
	l := newSSHEnv(t, execRule, func(l *sshEnv, secret fields) {
		_, ca, line := sshKey(t)
		must.OK(t, os.WriteFile(l.folder+"/ca.pub", []byte(line+"\n"), 0o600))
		must.OK(t, os.WriteFile(l.folder+"/authorized", nil, 0o600))
		key, signer, _ := sshKey(t)
		cert := &ssh.Certificate{Key: signer.PublicKey(), CertType: ssh.UserCert, ValidPrincipals: []string{"root"}, ValidBefore: ssh.CertTimeInfinity}
		must.OK(t, cert.SignCert(rand.Reader, ca))
		secret["privateKey"], secret["signed_key"] = key, string(ssh.MarshalAuthorizedKey(cert))
	})
	if out, err := l.ssh(t, "echo in"); err != nil || !strings.Contains(out, "in\n") {
		t.Errorf("%v %s", err, out)
	}
	refused := newSSHEnv(t, execRule, func(l *sshEnv, secret fields) { secret["privateKey"], _, _ = sshKey(t) })
	if out, err := refused.ssh(t, "id"); exitOf(err) != 128 || !strings.Contains(out, wire.ErrRefused.Error()) {
		t.Errorf("another key: %v %s", err, out)
	}
}

// TestSSHHostile: what is no SSH, and a client that opens channels without end.
func TestSSHHostile(t *testing.T) {
	l := newSSHEnv(t, execRule)
	to := netip.AddrPortFrom(l.name("git.example.test"), 22).String()
	c := l.raw(to)
	_, _ = c.Write(append([]byte("SSH-2.0-x\r\n"), bytes.Repeat([]byte{0xff}, 100<<10)...))
	if _, err := io.ReadAll(c); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("garbage: %v", err)
	}
	slow := l.raw(to)
	for _, b := range []byte("SSH-2.0-slow\r\n") {
		_, err := slow.Write([]byte{b})
		must.OK(t, err)
	}
	head := make([]byte, 8)
	if _, err := io.ReadFull(slow, head); string(head) != "SSH-2.0-" {
		t.Errorf("byte by byte: %q %v", head, err)
	}
	silent := l.raw(to)
	if _, err := io.ReadFull(silent, head); string(head) != "SSH-2.0-" {
		t.Errorf("a client that waits: %q %v", head, err)
	}
	raw := l.raw(to)
	_ = raw.SetDeadline(time.Now().Add(time.Minute))
	conn, channels, requests, err := ssh.NewClientConn(raw, "git.example.test:22", &ssh.ClientConfig{HostKeyCallback: ssh.InsecureIgnoreHostKey(), Auth: []ssh.AuthMethod{ssh.Password("anything")}})
	must.OK(t, err)
	client := ssh.NewClient(conn, channels, requests)
	opened := 0
	for range 10_000 {
		if ch, requests, err := client.OpenChannel("session", nil); err == nil {
			opened++
			go ssh.DiscardRequests(requests)
			_ = ch
		}
	}
	if opened == 0 || opened > 10 {
		t.Errorf("%d channels are open", opened)
	}
	_ = client.Close()
	if out, err := l.ssh(t, "echo still"); err != nil || !strings.Contains(out, "still") {
		t.Errorf("another client: %v %s", err, out)
	}
}

const askRule = `egress: [{destination: "git.example.test:22", action: approve}]` + execRule

// TestSSHPanic: a fault in a session ends its connection alone.
func TestSSHPanic(t *testing.T) {
	l := newSSHEnv(t, execRule)
	rules := l.compile(t, execRule)
	l.policy(func(in policy.Input) policy.Decision {
		if in.Phase == policy.PhaseRequest {
			panic("a fault")
		}
		return rules.Decide(context.Background(), in)
	})
	if out, err := l.ssh(t, "echo out"); exitOf(err) != 255 || strings.Contains(out, "out\n") {
		t.Errorf("%v %s", err, out)
	}
	l.policy(func(in policy.Input) policy.Decision { return rules.Decide(context.Background(), in) })
	if out, err := l.ssh(t, "echo out"); err != nil || out != "out\n" {
		t.Errorf("another connection: %v %s", err, out)
	}
}
