package e2e

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"sallyport/internal/test/must"
)

const gitSSHRules = `
egressAuth:
- destination: git.example.test
  authRef: deploy
  paths: [DIR/repo.git]
  inject: {ssh: {user: root, hostKeys: ["KEY"]}}
  upstream: {addresses: [198.51.100.10], resolver: "198.51.100.10:53"}
credentials: [{name: deploy}]
`

// sshServer runs Debian's sshd on port 22 of the upstream. It returns the key that logs in,
// as PEM, and the server's public key.
func (r *rig) sshServer(dir string) (key, host string) {
	r.t.Helper()
	if _, err := os.Stat("/usr/sbin/sshd"); err != nil {
		must.Lack(r.t, "needs sshd: internal/setup/setup.sh test installs it")
	}
	make := func() (string, string) {
		_, private, err := ed25519.GenerateKey(rand.Reader)
		must.OK(r.t, err)
		block, err := ssh.MarshalPrivateKey(private, "")
		must.OK(r.t, err)
		signer, err := ssh.NewSignerFromKey(private)
		must.OK(r.t, err)
		return string(pem.EncodeToMemory(block)), strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
	}
	hostKey, hostLine := make()
	key, line := make()
	for name, text := range map[string]string{
		"host": hostKey, "authorized": line + "\n",
		"sshd_config": strings.Join([]string{
			"ListenAddress 198.51.100.10:22", "HostKey " + dir + "/host", "AuthorizedKeysFile " + dir + "/authorized", "PidFile none", "StrictModes no", "UsePAM no", "PermitRootLogin yes", "AcceptEnv GIT_PROTOCOL", "",
		}, "\n"),
	} {
		must.OK(r.t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	must.OK(r.t, os.MkdirAll("/run/sshd", 0o755))
	server := exec.Command("/usr/sbin/sshd", "-D", "-e", "-f", filepath.Join(dir, "sshd_config"))
	must.OK(r.t, r.host.Do(server.Start))
	r.t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	must.Soon(r.t, "sshd listens", func() bool {
		c, err := r.host.Dial(r.t.Context(), "tcp", "198.51.100.10:22")
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return key, hostLine
}

// git over SSH in a gVisor sandbox with nothing configured inside: no key, no known host.
func TestGitOverSSH(t *testing.T) {
	r := newRig(t, "")
	dir := t.TempDir()
	seedRepository(t, dir)
	key, host := r.sshServer(dir)
	r.configure(baseConfig, strings.NewReplacer("DIR", dir, "KEY", host).Replace(gitSSHRules))
	if _, err := r.host.DNS(map[string][]netip.Addr{"git.example.test": {netip.MustParseAddr(upstreamAddress)}}); err != nil {
		t.Fatal(err)
	}
	r.up()
	if res := r.feed(key, "secret", "set", "deploy", "--field", "privateKey"); res.code != 0 {
		t.Fatal(res)
	}
	// The base image has no client of SSH: it gets this machine's.
	client, err := os.ReadFile("/usr/bin/ssh")
	must.OK(t, err)
	if res := r.feed(string(client), "run", "agent", "--", "sh", "-c", "cat > /usr/bin/ssh && chmod +x /usr/bin/ssh"); res.code != 0 {
		t.Fatal(res)
	}
	url := "git@git.example.test:" + dir
	if res := r.inside("agent", "git clone -q "+url+"/repo.git /tmp/r && git -C /tmp/r log --format=%s"); res.code != 0 || strings.TrimSpace(res.stdout) != "first" {
		t.Fatalf("%s\n%s\n%s", res, r.ok("audit", "tail", "-n", "30"), r.logged())
	}
	for name, command := range map[string]string{
		"another repository": "git clone -q " + url + "/other.git /tmp/other",
		"a push":             "git -C /tmp/r -c user.name=t -c user.email=t@example.test commit -q --allow-empty -m second && git -C /tmp/r push -q",
		"a shell":            "ssh git@git.example.test id",
	} {
		if res := r.inside("agent", command); res.code == 0 || !strings.Contains(res.stderr, "sallyport: denied: ") {
			t.Errorf("%s: %s", name, res)
		}
	}
	if res := r.inside("agent", "! grep -rl PRIVATE /root /etc/ssh /tmp 2>/dev/null"); res.code != 0 {
		t.Errorf("a key is inside: %s", res)
	}
	tail := r.ok("audit", "tail", "-n", "50")
	for _, want := range []string{"git-upload-pack ssh://git.example.test", "git-receive-pack ssh://git.example.test", "exec ssh://git.example.test"} {
		if !strings.Contains(tail, want) {
			t.Errorf("no %q in\n%s", want, tail)
		}
	}
}
