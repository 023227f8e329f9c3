package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"sallyport/internal/test/must"
)

const sshPort = "2222"

// operator is one who has a key, and OpenSSH.
type operator struct {
	t    *testing.T
	dir  string
	file string // of the private key
	line string // the public one

	patience time.Duration // with a program; 0: five minutes
}

func newOperator(t *testing.T, dir, name string) *operator {
	t.Helper()
	for _, program := range []string{"ssh", "scp", "sftp"} {
		must.Program(t, program)
	}
	public, private, err := ed25519.GenerateKey(nil)
	must.OK(t, err)
	block, err := ssh.MarshalPrivateKey(private, name)
	must.OK(t, err)
	k, err := ssh.NewPublicKey(public)
	must.OK(t, err)
	o := &operator{t: t, dir: dir, file: filepath.Join(dir, name+".key"), line: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k)))}
	must.OK(t, os.WriteFile(o.file, pem.EncodeToMemory(block), 0o600))
	return o
}

// options are OpenSSH's, without whatever the machine has.
func (o *operator) options() []string {
	var list []string
	for _, s := range []string{
		"IdentitiesOnly=yes", "IdentityFile=" + o.file, "UserKnownHostsFile=" + filepath.Join(o.dir, "known_hosts"), "GlobalKnownHostsFile=/dev/null",
		"StrictHostKeyChecking=yes", "BatchMode=yes", "Port=" + sshPort, "LogLevel=ERROR",
	} {
		list = append(list, "-o", s)
	}
	return append([]string{"-F", "none"}, list...)
}

// run runs one of OpenSSH's programs.
func (o *operator) run(stdin string, program string, args ...string) result {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), cmp.Or(o.patience, 5*time.Minute))
	defer cancel()
	c := exec.CommandContext(ctx, program, append(o.options(), args...)...)
	var out, err bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(stdin), &out, &err
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + o.dir, "LC_TEST=carried"}
	failed := c.Run()
	if exit := new(exec.ExitError); failed != nil && !errors.As(failed, &exit) {
		o.t.Fatal(failed)
	}
	return result{out.String(), err.String(), c.ProcessState.ExitCode()}
}

func (o *operator) ssh(name string, args ...string) result {
	o.t.Helper()
	return o.run("", "ssh", append([]string{name + "@127.0.0.1"}, args...)...)
}

// sshRules are what the policy says of SSH.
const sshRules = `
expose:
- {name: shells, sandboxes: {names: [demo, other, kept, large]}, ssh: [shell, sftp]}
- {name: server, sandboxes: {names: [demo]}, ssh: [forward], ports: [8000, 8004, 8005, 8012, 8013]}
`

// sshKeys are the configuration's: alice may all, bob a command.
func sshKeys(alice, bob *operator) string {
	return fmt.Sprintf(`
ssh:
  listen: "127.0.0.1:%s"
  keys:
  - {name: alice, key: %q, sandboxes: [demo, kept, secret, large], allow: [sftp, forward]}
  - {name: bob, key: %q, sandboxes: ["de*"]}
`, sshPort, alice.line, bob.line)
}

// newSSHRig is a daemon with SSH, and two operators with keys.
func newSSHRig(t *testing.T) (r *rig, alice, bob *operator) {
	r = newRig(t, "")
	alice, bob = newOperator(t, r.dir, "alice"), newOperator(t, r.dir, "bob")
	r.configure(baseConfig, ruleConfig+sshRules+sshKeys(alice, bob))
	r.up()
	r.know()
	return r, alice, bob
}

// know has operators know the host's key.
func (r *rig) know() {
	r.t.Helper()
	var s struct {
		SSH struct {
			HostKey     string `json:"host_key"`
			Fingerprint string
			PID, UID    int
		}
	}
	must.OK(r.t, json.Unmarshal([]byte(r.ok("status", "-o", "json")), &s))
	if !strings.Contains(r.ok("status"), "host key "+s.SSH.Fingerprint) {
		r.t.Errorf("the status does not show the host key: %s", r.ok("status"))
	}
	r.write("known_hosts", "[127.0.0.1]:"+sshPort+" "+s.SSH.HostKey+"\n")
}

// sshProcess is the one that speaks SSH.
func (r *rig) sshProcess() (pid, uid int) {
	r.t.Helper()
	var s struct{ SSH struct{ PID, UID int } }
	must.OK(r.t, json.Unmarshal([]byte(r.ok("status", "-o", "json")), &s))
	return s.SSH.PID, s.SSH.UID
}

// Operators use a sandbox with OpenSSH as they would a host of theirs, as far as
// configuration and policy say, and each use is on record.
func TestSSH(t *testing.T) {
	r, alice, bob := newSSHRig(t)
	for _, name := range []string{"demo", "other", "secret"} {
		r.ok("run", name, "--", "true")
	}

	t.Run("commands", func(t *testing.T) {
		res := alice.ssh("demo", "echo out; echo err >&2; echo $LC_TEST; exit 7")
		if res.code != 7 || res.stdout != "out\n\n" || res.stderr != "err\n" {
			t.Errorf("a command: %s", res)
		}
		if res := alice.run("", "ssh", "-o", "SendEnv=LC_TEST HOME", "demo@127.0.0.1", "echo $LC_TEST $HOME"); res.stdout != "carried /root\n" {
			t.Errorf("its environment: %s", res)
		}
		if res := alice.run("a\nb\n", "ssh", "demo@127.0.0.1", "wc -l; echo over"); res.stdout != "2\nover\n" {
			t.Errorf("its input: %s", res)
		}
		if res := alice.ssh("demo", "kill -TERM $$"); res.code != 255 {
			t.Errorf("a command that a signal ends: %s", res)
		}
		if res := alice.ssh("demo", "no-such-program"); res.code != 127 || !strings.Contains(res.stderr, "not found") {
			t.Errorf("no program: %s", res)
		}
		if res := alice.run("head -c 1000000 /dev/zero | wc -c\nexit 3\n", "ssh", "demo@127.0.0.1"); res.code != 3 || !strings.Contains(res.stdout, "1000000") {
			t.Errorf("a shell without a terminal: %s", res)
		}
		if res := alice.run("", "ssh", "-A", "-X", "demo@127.0.0.1", "echo agent=$SSH_AUTH_SOCK display=$DISPLAY"); res.stdout != "agent= display=\n" {
			t.Errorf("an agent or a display: %s", res)
		}
	})
	t.Run("terminal", func(t *testing.T) { testSSHTerminal(t, alice) })
	t.Run("who is not let in", func(t *testing.T) { testSSHRefused(t, r, alice, bob) })
	t.Run("files", func(t *testing.T) { testSSHFiles(t, r, alice, bob) })
	t.Run("forwarding", func(t *testing.T) { testSSHForward(t, r, alice, bob) })

	t.Run("sleep", func(t *testing.T) {
		r.ok("run", "kept", "--", "sh", "-c", "echo memory > /dev/shm/f")
		r.ok("sandbox", "hibernate", "kept")
		if res := alice.ssh("kept", "cat /dev/shm/f"); res.stdout != "memory\n" {
			t.Errorf("of a hibernated sandbox: %s", res)
		}
	})
	t.Run("a process that dies", func(t *testing.T) {
		pid, uid := r.sshProcess()
		if uid != 2031023101 {
			t.Errorf("it runs as %d", uid)
		}
		p, err := os.FindProcess(pid)
		must.OK(t, err)
		must.OK(t, p.Kill())
		r.await("the next process", func() bool { next, _ := r.sshProcess(); return next != pid && next != 0 })
		if res := alice.ssh("demo", "echo again"); res.stdout != "again\n" {
			t.Errorf("of the next process: %s", res)
		}
	})
	t.Run("record", func(t *testing.T) { testSSHRecord(t, r) })
	t.Run("large", func(t *testing.T) { testSSHLarge(t, r.in(t), alice) })
	t.Run("withdrawn", func(t *testing.T) { testSSHWithdrawn(t, r, alice, bob) })
}

// A refused client is told the same, after the same time.
func testSSHRefused(t *testing.T, r *rig, alice, bob *operator) {
	mallory := newOperator(t, r.dir, "mallory")
	for what, tt := range map[string]struct {
		o    *operator
		name string
	}{
		"a key that is not known":             {mallory, "demo"},
		"no such sandbox":                     {alice, "nothing"},
		"a sandbox that is not of the key":    {alice, "other"},
		"a sandbox that the policy keeps":     {alice, "secret"},
		"a name that is none":                 {alice, "../demo"},
		"a key that is not known, no sandbox": {mallory, "nothing"},
	} {
		began := time.Now()
		res := tt.o.ssh(tt.name, "echo in")
		if took := time.Since(began); res.code != 255 || res.stdout != "" || res.stderr != tt.name+"@127.0.0.1: Permission denied (publickey).\r\n" || took < 150*time.Millisecond {
			t.Errorf("%s: after %v: %s", what, took, res)
		}
	}
	if res := bob.ssh("demo", "echo in"); res.stdout != "in\n" {
		t.Errorf("the control: %s", res)
	}
	// A sandbox does not get there.
	var probing sync.WaitGroup
	for _, to := range []string{"127.0.0.1", "10.232.0.1", "198.51.100.1"} {
		probing.Go(func() {
			probe := fmt.Sprintf("import socket; s = socket.create_connection((%q, %s), 5); s.settimeout(5); print(s.recv(4))", to, sshPort)
			if got := r.sallyport("run", "other", "--", "python3", "-c", probe); strings.Contains(got.stdout, "SSH-") {
				t.Errorf("a sandbox reaches %s: %s", to, got)
			}
		})
	}
	probing.Wait()
	// Whether a key is known is not said to who does not have it.
	for _, line := range []string{alice.line, mallory.line} {
		k, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
		must.OK(t, err)
		asked := false
		_, err = ssh.Dial("tcp", "127.0.0.1:"+sshPort, &ssh.ClientConfig{
			User: "demo", Auth: []ssh.AuthMethod{ssh.PublicKeys(&forger{k, &asked})}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
		})
		if err == nil || !asked {
			t.Errorf("a key is refused before it has signed (%v): %v", asked, err)
		}
	}
}

// forger has a public key only.
type forger struct {
	key   ssh.PublicKey
	asked *bool
}

func (f *forger) PublicKey() ssh.PublicKey { return f.key }

func (f *forger) Sign(io.Reader, []byte) (*ssh.Signature, error) {
	*f.asked = true
	return &ssh.Signature{Format: f.key.Type(), Blob: make([]byte, ed25519.SignatureSize)}, nil
}

// testSSHRecord finds what the tests before it did.
func testSSHRecord(t *testing.T, r *rig) {
	out := r.ok("audit", "query", "-o", "json")
	type event struct {
		Class  int    `json:"class_uid"`
		Action int    `json:"action_id"`
		Detail string `json:"status_detail"`
		Actor  struct {
			User struct{ Name, UID string }
		}
		Source   struct{ IP string } `json:"src_endpoint"`
		Traffic  *struct{ In, Out int64 }
		Metadata struct {
			UID         string `json:"uid"`
			Correlation string `json:"correlation_uid"`
		}
		Unmapped struct {
			Sallyport struct{ Kind, Sandbox, Phase, Protocol, Reason string }
		}
	}
	var all []event
	d := json.NewDecoder(strings.NewReader(out))
	for {
		var record struct{ Decision, Completion *event }
		if err := d.Decode(&record); err != nil {
			break
		}
		for _, e := range []*event{record.Decision, record.Completion} {
			if e != nil && e.Class == 4007 {
				all = append(all, *e)
			}
		}
	}
	has := func(what string, f func(e event) bool) {
		if !slices.ContainsFunc(all, f) {
			t.Errorf("not on record: %s", what)
		}
	}
	for _, use := range []string{"ssh", "shell", "sftp", "forward"} {
		has(use, func(e event) bool {
			s := e.Unmapped.Sallyport
			return s.Kind == "decision" && s.Protocol == use && s.Sandbox == "demo" && e.Action == 1 && e.Actor.User.Name == "alice" &&
				strings.HasPrefix(e.Actor.User.UID, "SHA256:") && e.Source.IP == "127.0.0.1" &&
				slices.ContainsFunc(all, func(o event) bool { return o.Metadata.Correlation == e.Metadata.UID })
		})
	}
	has("an exit status", func(e event) bool { return e.Unmapped.Sallyport.Kind == "completion" && e.Detail == "exit 7" })
	for _, why := range []string{"the key is not known", "there is no such sandbox", "the key is not for this sandbox", "no expose rule allows shell over SSH for secret", "files over SSH are off", "forwarding is off"} {
		has(why, func(e event) bool { return e.Action == 2 && strings.Contains(e.Unmapped.Sallyport.Reason, why) })
	}
	for _, typed := range []string{"echo out", "no-such-program", "hello.txt"} {
		if strings.Contains(out, typed) {
			t.Errorf("%q is on record", typed)
		}
	}
}

// A session by a key ends with it, and so it does with the policy's word.
func testSSHWithdrawn(t *testing.T, r *rig, alice, bob *operator) {
	stays := func(o *operator) (ended <-chan error, stop func()) {
		c := exec.Command("ssh", append(o.options(), "demo@127.0.0.1", "echo begun; sleep 600")...)
		out, err := c.StdoutPipe()
		must.OK(t, err)
		must.OK(t, c.Start())
		if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- c.Wait() }()
		return done, func() { _ = c.Process.Kill() }
	}
	within := func(what string, ended <-chan error) {
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s: it ended well", what)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: it goes on", what)
		}
	}
	aliceEnds, stopAlice := stays(alice)
	defer stopAlice()
	bobEnds, stopBob := stays(bob)
	defer stopBob()
	gone := strings.ReplaceAll(sshKeys(alice, bob), bob.line, newOperator(t, r.dir, "nobody").line)
	r.configure(baseConfig, ruleConfig+sshRules+gone)
	r.ok("reload")
	within("a key that was withdrawn", bobEnds)
	if res := bob.ssh("demo", "echo in"); res.code != 255 || res.stdout != "" {
		t.Errorf("and afterwards: %s", res)
	}
	select {
	case <-aliceEnds:
		t.Error("another key's ends too")
	default:
	}
	r.configure(baseConfig, ruleConfig+strings.Replace(sshRules, "names: [demo, other, kept, large]", "names: [other]", 1)+gone)
	r.ok("reload")
	within("a rule that is gone", aliceEnds)
	if res := alice.ssh("demo", "echo in"); res.code != 255 || res.stdout != "" {
		t.Errorf("without the rule: %s", res)
	}
	r.await("the command's end", func() bool { return !strings.Contains(r.ok("sandbox", "exec", "demo", "--", "ps", "ax"), "sleep 600") })
}
