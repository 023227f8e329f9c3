package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

// The main job, on one daemon.
func TestMainJob(t *testing.T) {
	r := newRig(t, "")
	endless := serveEndlessly(r)
	r.serve()
	r.up()
	r.setKey()
	for _, p := range []part{
		{"clients", testClients},
		{"refusals are legible", testRefusals},
		{"sandboxes persist", testPersistence},
		{"concurrent creation", testConcurrentCreate},
		{"sandbox that vanishes", endless.testVanishing},
		{"bad input", testBadInput},
		{"doctor", testDoctor},
		{"metrics", testMetrics},
		{"explain", testExplain},
	} {
		t.Run(p.name, func(t *testing.T) { p.test(t, r.in(t)) })
	}
}

// Unmodified clients with their defaults, in a sandbox that knows no proxy and
// no key, reach the upstream with the credential.
func testClients(t *testing.T, r *rig) {
	r.ok("run", "agent", "--", "true")
	// The sandbox's own program, for Go's way of finding roots.
	client, err := os.ReadFile(filepath.Join(tools.Dir, "client"))
	must.OK(t, err)
	if res := r.feed(string(client), "run", "agent", "--", "sh", "-c", "cat > /usr/local/bin/client && chmod +x /usr/local/bin/client"); res.code != 0 {
		t.Fatal(res)
	}
	saw := `"saw_key":true,"key_sha256":"` + r.keyID() + `"`
	for _, c := range []struct{ name, shell, want string }{
		{"curl", "curl -sS https://api.example.test/v1/models", saw},
		{"curl without environment", "env -i /usr/bin/curl -sS https://api.example.test/v1/models", saw},
		{"curl with a key of its own", "curl -sS -H 'Authorization: Bearer attacker' https://api.example.test/v1/models", saw},
		{"wget", "wget -qO- https://api.example.test/v1/models", saw},
		{"git", "rm -rf /tmp/r && git clone -q https://git.example.test/repo.git /tmp/r && git -C /tmp/r log --format=%s", "first"},
		{"python urllib", `python3 -c 'import urllib.request as u; print(u.urlopen("https://api.example.test/v1/models").read().decode())'`, saw},
		{"python without environment", `env -i /usr/bin/python3 -c 'import urllib.request as u; print(u.urlopen("https://api.example.test/v1/models").read().decode())'`, saw},
		{"go net/http", "client https://api.example.test/v1/models", saw},
		{"go without environment", "env -i /usr/local/bin/client https://api.example.test/v1/models", saw},
	} {
		t.Run(c.name, func(t *testing.T) {
			if res := r.inside("agent", c.shell); res.code != 0 || !strings.Contains(res.stdout, c.want) {
				t.Errorf("got %s\nwant exit 0 and %q", res, c.want)
			}
		})
	}
	t.Run("audit", func(t *testing.T) {
		tail := r.ok("audit", "tail", "-n", "100")
		for _, want := range []string{"api.example.test", "git.example.test", "/v1/models"} {
			if !strings.Contains(tail, want) {
				t.Errorf("no %q in\n%s", want, tail)
			}
		}
		if strings.Contains(tail, "attacker") || strings.Contains(tail, r.key) {
			t.Errorf("a header's value is in the audit:\n%s", tail)
		}
	})
}

// A request that no rule allows is refused in words, with reason and decision id.
func testRefusals(t *testing.T, r *rig) {
	for _, c := range []struct{ name, url string }{
		{"https", "https://unlisted.example.test/"},
		{"http", "http://unlisted.example.test/"},
		{"by a deny rule", "https://denied.example.test/"},
		{"http where only https is allowed", "http://api.example.test/"},
		{"a bare address", "http://" + upstreamAddress + "/"},
	} {
		t.Run(c.name, func(t *testing.T) {
			res := r.inside("agent", "curl -sS -D - "+c.url)
			if res.code != 0 || !strings.Contains(res.stdout, " 403 ") || !strings.Contains(strings.ToLower(res.stdout), "sallyport-decision: ") {
				t.Fatalf("got %s, want a 403 with a decision id", res)
			}
			id := decisionID(res.stdout)
			r.await("the record of "+id, func() bool { return strings.Contains(r.ok("audit", "tail", "-n", "50"), id) })
			if tail := r.ok("audit", "tail", "-n", "50"); strings.Count(tail, id) != 1 {
				t.Errorf("decision %q is not one record of\n%s", id, tail)
			}
		})
	}
}

func decisionID(headers string) string {
	for line := range strings.Lines(headers) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.EqualFold(k, "Sallyport-Decision") {
			return strings.TrimSpace(v)
		}
	}
	return "none"
}

// A sandbox is durable: same files, packages and memory after a stop.
func testPersistence(t *testing.T, r *rig) {
	steps := []struct {
		args []string
		want string
	}{
		{[]string{"run", "keeper", "--", "sh", "-c", "echo kept > /root/file; echo remembered >> /memory/memories.md; echo out; echo err >&2"}, "out\n"},
		{[]string{"sandbox", "stop", "keeper"}, "keeper is stopped\n"},
		{[]string{"run", "keeper", "--", "cat", "/root/file"}, "kept\n"},
		{[]string{"run", "keeper", "--", "tail", "-n", "1", "/memory/memories.md"}, "remembered\n"},
	}
	for _, s := range steps {
		if got := r.ok(s.args...); got != s.want {
			t.Errorf("sallyport %q printed %q, want %q", s.args, got, s.want)
		}
	}
	if res := r.inside("keeper", "echo err >&2; exit 7"); res.code != 7 || res.stderr != "err\n" || res.stdout != "" {
		t.Errorf("got %s, want exit 7 and stderr only", res)
	}
	if res := r.feed("from outside", "run", "keeper", "--", "cat"); res.stdout != "from outside" {
		t.Errorf("standard input: got %s", res)
	}
	data, err := os.ReadFile(filepath.Join(r.dir, "data/sandboxes/keeper/memory/memories.md"))
	if err != nil || !strings.Contains(string(data), "remembered") {
		t.Errorf("on the host: %q, %v", data, err)
	}
	r.ok("sandbox", "rm", "keeper")
	if list := r.ok("sandbox", "ls"); strings.Contains(list, "keeper") {
		t.Errorf("after removal: %s", list)
	}
	if _, err := os.Stat(filepath.Join(r.dir, "data/sandboxes/keeper")); err == nil {
		t.Error("the removed sandbox's folder is still there")
	}
}

// Concurrent calls for one name make one sandbox.
func testConcurrentCreate(t *testing.T, r *rig) {
	answers := make(chan result)
	const n = 6
	for i := range n {
		go func() { answers <- r.sallyport("run", "same", "--", "echo", fmt.Sprint(i)) }()
	}
	for range n {
		if res := <-answers; res.code != 0 {
			t.Errorf("got %s", res)
		}
	}
	if got := strings.Count(r.ok("sandbox", "ls"), "\nsame "); got != 1 {
		t.Errorf("%d sandboxes of that name, want 1", got)
	}
}
