package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// A configuration with a mistake is refused with the line and what to write.
func TestBadConfiguration(t *testing.T) {
	r := newRig(t, "")
	for _, c := range []struct {
		name, rules string
		want        []string
	}{
		{"unknown key", "egresss: []\n", []string{"sallyport.yaml:", "egresss", "egress"}},
		{"unknown key in a rule", "egress:\n- destination: a.example.test\n  mehtods: [GET]\n", []string{"mehtods", "methods"}},
		{"bad CIDR", "egress:\n- {destination: 10.0.0.0/40, ports: [5432]}\n", []string{"10.0.0.0/40"}},
		{"missing credential", "egressAuth:\n- {destination: a.example.test, authRef: nobody}\n", []string{"nobody", "credentials"}},
		{"unknown action", "egress:\n- {destination: a.example.test, action: alow}\n", []string{"alow", "allow"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.configure(baseConfig, c.rules)
			for _, args := range [][]string{{"up"}, {"policy", "check"}} {
				res := r.sallyport(args...)
				if res.code != 1 {
					t.Errorf("%q: got %s, want exit 1", args, res)
				}
				for _, w := range c.want {
					if !strings.Contains(res.stderr+res.stdout, w) {
						t.Errorf("%q: %s does not say %q", args, res, w)
					}
				}
			}
		})
	}
}

// A mistyped command exits with 2, a failed one with 1, each saying what to do.
func testBadInput(t *testing.T, r *rig) {
	for _, c := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no such command", []string{"rnu"}, 2, "rnu"},
		{"no such flag", []string{"run", "--nope", "a", "--", "true"}, 2, "--nope"},
		{"no command after the name", []string{"run", "a"}, 2, "COMMAND"},
		{"a secret as an argument", []string{"secret", "set", "key", "value"}, 2, "standard input"},
		{"a name that is none", []string{"run", "No_Name", "--", "true"}, 1, "lower-case"},
		{"a name that is a path", []string{"run", "../x", "--", "true"}, 1, "lower-case"},
		{"an image that does not exist", []string{"run", "a", "--image", "nobody/nothing:1", "--", "true"}, 1, "nobody/nothing:1"},
		{"an unknown runtime", []string{"run", "a", "--runtime", "kata", "--", "true"}, 1, "runsc"},
		{"a known secret in the environment", []string{"run", "a", "-e", "TOKEN=" + r.key, "--", "true"}, 1, "credential"},
		{"a sandbox that is not there", []string{"sandbox", "stop", "nobody"}, 1, "nobody"},
		{"a program that is not there", []string{"run", "b", "--", "/no/such/program"}, 127, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			res := r.sallyport(c.args...)
			if res.code != c.code || !strings.Contains(res.stderr, c.want) {
				t.Errorf("got %s, want exit %d and %q", res, c.code, c.want)
			}
			if strings.Contains(res.stderr, r.key) {
				t.Error("the secret is printed")
			}
		})
	}
	if out := r.ok("sandbox", "ls"); strings.Contains(out, "\na ") {
		t.Errorf("something half-made is left:\n%s", out)
	}
	if out, err := r.docker("ps", "-aq", "--filter", "label=sallyport.name=a").CombinedOutput(); err != nil || len(out) != 0 {
		t.Errorf("a container is left: %q, %v", out, err)
	}
	if _, err := os.Stat(filepath.Join(r.dir, "data/sandboxes/a")); err == nil {
		t.Error("a folder is left")
	}
}

// endless is a path of the upstream whose answer has no end.
type endless struct{ begun, ended chan struct{} }

const endlessPath = "/endless"

func serveEndlessly(r *rig) *endless {
	e := &endless{make(chan struct{}, 1), make(chan struct{}, 1)}
	api := testnet.API(testnet.KeyOf(r.key))
	r.api = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != endlessPath {
			api.ServeHTTP(w, req)
			return
		}
		e.begun <- struct{}{}
		for {
			if _, err := w.Write(make([]byte, 1<<10)); err != nil {
				break
			}
			w.(http.Flusher).Flush()
			time.Sleep(time.Millisecond)
		}
		e.ended <- struct{}{}
	})
	return e
}

// A sandbox that is killed in the middle of an answer leaves nothing behind: the
// upstream is told, and the log says how it ended.
func (e *endless) testVanishing(t *testing.T, r *rig) {
	r.ok("run", "gone", "--", "sh", "-c", "curl -sS -o /dev/null https://api.example.test"+endlessPath+" </dev/null >/dev/null 2>&1 &")
	<-e.begun
	id, err := r.docker("ps", "-q", "--filter", "label=sallyport.name=gone").Output()
	if err != nil || len(id) == 0 {
		t.Fatalf("its container: %q, %v", id, err)
	}
	killed := time.Now()
	r.must(r.docker("kill", "-s", "KILL", strings.TrimSpace(string(id))))
	select {
	case <-e.ended:
		t.Logf("the upstream was told after %v", time.Since(killed))
	case <-time.After(time.Minute):
		t.Fatal("the upstream's answer goes on")
	}
	r.await("the completion", func() bool {
		for record, err := range auditlog.Pair(t.Context(), filepath.Join(r.dir, "data/audit"), auditlog.Query{Sandbox: "gone"}, 0) {
			must.OK(t, err)
			if d, c := record.Decision, record.Completion; d != nil && c != nil && d.HTTPRequest.URL.Path == endlessPath {
				if c.StatusID != audit.StatusFailure || c.Detail == "" {
					t.Errorf("completion %d %q", c.StatusID, c.Detail)
				}
				return true
			}
		}
		return false
	})
	r.ok("sandbox", "rm", "gone")
}

// A Vault that cannot be reached stops the requests that need it, and only
// those; nothing of them leaves.
func TestVaultUnreachable(t *testing.T) {
	r := newRig(t, `
- name: far
  source: {vault: {path: secret/data/far, field: token}}
vault: {address: "http://127.0.0.1:1", auth: {tokenFile: token}}
`)
	r.write("token", "none")
	rules := strings.Replace(ruleConfig, "egress:", "- destination: unlisted.example.test\n  authRef: far\n  upstream: {addresses: [198.51.100.10], roots: ca.pem, resolver: \"198.51.100.10:53\"}\negress:", 1)
	r.configure(baseConfig, rules+`
- name: far
  source: {vault: {path: secret/data/far, field: token}}
vault: {address: "http://127.0.0.1:1", auth: {tokenFile: token}}
`)
	r.serve()
	r.up()
	r.setKey()
	r.ok("run", "agent", "--", "true")
	arrived, err := r.host.Capture(nil)
	must.OK(t, err)
	res := r.inside("agent", "curl -sS -D - https://unlisted.example.test/")
	if !strings.Contains(res.stdout, " 503 ") || !strings.Contains(res.stdout, "far") || !strings.Contains(res.stdout, "cannot be reached") {
		t.Errorf("got %s, want a 503 that names the credential and says that its source cannot be reached", res)
	}
	if n := count(t, arrived); n != 0 {
		t.Errorf("%d packets left for it", n)
	}
	if res := r.inside("agent", "curl -sS https://api.example.test/"); !strings.Contains(res.stdout, `"saw_key":true`) {
		t.Errorf("another credential: got %s", res)
	}
	if res := r.sallyport("doctor"); !strings.Contains(res.stdout, "Vault") {
		t.Errorf("doctor says nothing of it: %s", res)
	}
}

// A log that cannot be written means that nothing leaves, until it can be again.
// The file system has more than the log keeps for itself.
func TestDiskFull(t *testing.T) {
	r := newRig(t, "")
	r.serve()
	trail := filepath.Join(r.dir, "data/audit")
	must.OK(t, os.MkdirAll(trail, 0o700))
	must.OK(t, syscall.Mount("tmpfs", trail, "tmpfs", 0, "size=16m"))
	t.Cleanup(func() { _ = syscall.Unmount(trail, syscall.MNT_DETACH) })
	r.up()
	r.setKey()
	r.ok("run", "agent", "--", "true")
	filler := filepath.Join(trail, "filler")
	must.OK(t, fill(filler))
	arrived, err := r.host.Capture(speaks)
	must.OK(t, err)
	// The last page of the segment may still have room for a few records.
	var res result
	before := 0
	for range 20 {
		time.Sleep(300 * time.Millisecond) // for the last acknowledgements of the one before
		before = count(t, arrived)
		if res = r.inside("agent", "curl -sS -D - https://api.example.test/"); strings.Contains(res.stdout, " 503 ") {
			break
		}
	}
	if !strings.Contains(res.stdout, " 503 ") {
		t.Fatalf("got %s, want a 503", res)
	}
	if n := count(t, arrived) - before; n != 0 {
		t.Errorf("%d packets left without a record", n)
	}
	must.OK(t, os.Remove(filler))
	r.await("recovery", func() bool {
		return strings.Contains(r.inside("agent", "curl -sS https://api.example.test/").stdout, `"saw_key":true`)
	})
}

// fill writes until the file system is full.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for size := 4096; size > 0; size /= 2 {
		for {
			if _, err := f.Write(make([]byte, size)); err != nil {
				break
			}
		}
	}
	return nil
}

// An engine that is not there is said so, and nothing starts.
func TestNoEngine(t *testing.T) {
	r := newRig(t, "")
	r.configure(strings.Replace(baseConfig, "engine: {runsc: %[2]s}", "engine: {kind: existing, host: \"unix:///nowhere/docker.sock\", runsc: %[2]s}", 1), ruleConfig)
	if res := r.sallyport("up"); res.code != 1 || !strings.Contains(res.stderr, "/nowhere/docker.sock") {
		t.Errorf("got %s, want exit 1 and the socket's path", res)
	}
}
