package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
)

// TestSSHTenants has two tenants on one host, each with a sandbox and a key for all of
// theirs: neither learns whether there is another's, and what is taken from a key
// ends.
func TestSSHTenants(t *testing.T) {
	r := newRig(t, "")
	acme, globex, host := newOperator(t, r.dir, "acme"), newOperator(t, r.dir, "globex"), newOperator(t, r.dir, "host")
	keys := func(acmes string) string {
		return fmt.Sprintf(`
api: {listen: "127.0.0.1:8443"}
expose:
- {name: all, ssh: [shell, sftp]}
- {name: ports, ssh: [forward], ports: [8000]}
ssh:
  listen: "127.0.0.1:%s"
  keys:
  - {name: anne, key: %q, sandboxes: ["*"], tenant: %s, allow: [sftp, forward]}
  - {name: gus, key: %q, sandboxes: ["*"], tenant: globex, allow: [sftp, forward]}
  - {name: root, key: %q, sandboxes: ["*", "globex/*"], allow: [sftp, forward]}
`, sshPort, acme.line, acmes, globex.line, host.line)
	}
	r.configure(baseConfig, ruleConfig+keys("acme"))
	r.up()
	r.know()
	var s struct{ Fingerprint string }
	must.OK(t, json.Unmarshal([]byte(r.ok("status", "-o", "json")), &s))
	for _, tenant := range []string{"acme", "globex"} {
		r.write(tenant+".token", r.ok("key", "create", tenant, "--scope", "run,read", "--tenant", tenant))
		r.ok("--host", "https://127.0.0.1:8443", "--key-file", filepath.Join(r.dir, tenant+".token"), "--fingerprint", s.Fingerprint,
			"run", tenant+"-box", "--", "sh", "-c", "echo "+tenant+" > /root/whose")
	}
	r.ok("run", "ours", "--", "true")

	for _, tt := range []struct {
		o   *operator
		own string
	}{{acme, "acme"}, {globex, "globex"}} {
		for _, other := range []string{"acme", "globex"} {
			if res := tt.o.ssh(other+"-box", "cat whose"); (other == tt.own) != (res.stdout == other+"\n" && res.code == 0) {
				t.Errorf("%s's key at %s's sandbox: %s", tt.own, other, res)
			}
		}
	}
	// The answer is the one for a name that nobody has, in what it says and when.
	said := map[string]string{}
	for _, name := range []string{"globex-box", "ours", "nobodys"} {
		for what, args := range map[string][]string{
			"ssh":  {"ssh", name + "@127.0.0.1", "true"},
			"scp":  {"scp", name + "@127.0.0.1:/root/whose", filepath.Join(r.dir, "taken")},
			"port": {"ssh", "-N", "-o", "ExitOnForwardFailure=yes", "-L", "127.0.0.1:7997:localhost:8000", name + "@127.0.0.1"},
		} {
			began := time.Now()
			res := acme.run("", args[0], args[1:]...)
			answer := strings.ReplaceAll(fmt.Sprintf("%d %s %s", res.code, res.stdout, res.stderr), name, "NAME")
			if res.code == 0 || said[what] != "" && said[what] != answer {
				t.Errorf("%s of %s: %q, and of another %q", what, name, answer, said[what])
			}
			if said[what] = answer; time.Since(began) < 150*time.Millisecond {
				t.Errorf("%s of %s: after %v", what, name, time.Since(began))
			}
		}
	}
	if res := host.ssh("globex/globex-box", "cat whose"); res.stdout != "globex\n" {
		t.Errorf("a key of no tenant: %s", res)
	}
	// By a name alone the host's own callers mean the host's sandboxes.
	for _, name := range []string{"globex-box", "acme/acme-box"} {
		if res := host.ssh(name, "cat whose"); res.code != 255 {
			t.Errorf("a key of no tenant, as %s: %s", name, res)
		}
	}
	if res := r.sallyport("run", "globex-box", "--", "cat", "/root/whose"); res.code == 0 || res.stdout != "" || !strings.Contains(res.stderr, "globex/globex-box") {
		t.Errorf("a tenant's by its name alone: %s", res)
	}
	if out := r.ok("run", "globex/globex-box", "--", "cat", "/root/whose"); out != "globex\n" {
		t.Errorf("a tenant's by its full name: %s", out)
	}
	if out := r.ok("sandbox", "ls"); !strings.Contains(out, "globex/globex-box") || !strings.Contains(out, "\nours ") {
		t.Errorf("whose each is does not show:\n%s", out)
	}
	if got := r.ok("audit", "query", "-o", "json"); strings.Count(got, "there is no such sandbox for this key") < 9 {
		t.Errorf("refusals are not on record:\n%s", got)
	}

	// The key becomes another tenant's while it is used: what it did ends, and a shell of
	// who has the other key goes on.
	stays := func(o *operator, name string) (ended chan error, stop func()) {
		c := exec.Command("ssh", append(o.options(), name+"@127.0.0.1", "echo begun; sleep 600")...)
		out, err := c.StdoutPipe()
		must.OK(t, err)
		must.OK(t, c.Start())
		if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		ended = make(chan error, 1)
		go func() { ended <- c.Wait() }()
		return ended, func() { _ = c.Process.Kill(); <-ended }
	}
	anne, stopAnne := stays(acme, "acme-box")
	gus, stopGus := stays(globex, "globex-box")
	defer stopGus()
	r.configure(baseConfig, ruleConfig+keys("globex"))
	r.ok("reload")
	select {
	case err := <-anne:
		if err == nil {
			t.Error("what was taken from a key ended well")
		}
	case <-time.After(time.Minute):
		t.Error("what was taken from a key goes on")
		stopAnne()
	}
	if res := acme.ssh("acme-box", "true"); res.code != 255 {
		t.Errorf("and afterwards: %s", res)
	}
	if res := acme.ssh("globex-box", "cat whose"); res.stdout != "globex\n" {
		t.Errorf("and what it was given: %s", res)
	}
	select {
	case err := <-gus:
		t.Errorf("another's ends too: %v", err)
		gus <- err
	default:
	}
}
