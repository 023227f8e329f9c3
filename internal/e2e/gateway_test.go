package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Without an engine Sallyport is a gateway for sandboxes that run elsewhere.
func TestGatewayOnly(t *testing.T) {
	r := newRig(t, "")
	r.configure(strings.Replace(baseConfig, "engine: {runsc: %[2]s}", "engine: {kind: none} # not %[2]s", 1)+
		"proxy: {listen: \"127.0.0.1:3128\"}\n", ruleConfig)
	r.serve()
	r.up()
	r.setKey()
	token := strings.TrimSpace(r.ok("client", "add", "platform"))
	r.write("platform.pem", r.ok("ca", "--client", "platform"))
	another := strings.TrimSpace(r.ok("client", "add", "another"))
	r.write("another.pem", r.ok("ca", "--client", "another"))
	saw := `"saw_key":true,"key_sha256":"` + r.keyID() + `"`

	for _, c := range []struct {
		name, proxy, root, url string
		args                   []string
		code                   int
		want                   string
	}{
		{"an allowed host", "http://platform:" + token + "@127.0.0.1:3128", "platform.pem", "https://api.example.test/v1", nil, 0, saw},
		{"a key of its own", "http://platform:" + token + "@127.0.0.1:3128", "platform.pem", "https://api.example.test/v1", []string{"-H", "Authorization: Bearer attacker"}, 0, saw},
		{"another client", "http://another:" + another + "@127.0.0.1:3128", "another.pem", "https://api.example.test/v1", nil, 0, saw},
		{"another client's root", "http://platform:" + token + "@127.0.0.1:3128", "another.pem", "https://api.example.test/v1", nil, 60, "certificate"},
		{"a denied host", "http://platform:" + token + "@127.0.0.1:3128", "platform.pem", "https://unlisted.example.test/", nil, 0, "Sallyport denied this request."},
		{"a denied host, plain", "http://platform:" + token + "@127.0.0.1:3128", "platform.pem", "http://unlisted.example.test/", nil, 0, "Sallyport denied this request."},
		{"a bare address", "http://platform:" + token + "@127.0.0.1:3128", "platform.pem", "http://" + upstreamAddress + "/", nil, 0, "Sallyport denied this request."},
		{"the metadata address", "http://platform:" + token + "@127.0.0.1:3128", "platform.pem", "http://169.254.169.254/latest/meta-data/", nil, 0, "Sallyport denied this request."},
		{"the gateway's own metrics", "http://platform:" + token + "@127.0.0.1:3128", "platform.pem", "http://127.0.0.1:9464/metrics", nil, 0, "Sallyport denied this request."},
		{"no token", "http://127.0.0.1:3128", "platform.pem", "https://api.example.test/v1", nil, 56, "407"},
		{"no token, plain", "http://127.0.0.1:3128", "platform.pem", "http://api.example.test/v1", nil, 0, " 407 "},
		{"a wrong token", "http://platform:" + another + "@127.0.0.1:3128", "platform.pem", "https://api.example.test/v1", nil, 56, "407"},
		{"an unknown name", "http://nobody:" + token + "@127.0.0.1:3128", "platform.pem", "https://api.example.test/v1", nil, 56, "407"},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer r.within(t)()
			args := append([]string{"-sS", "-i", "-m", "60", "--proxy", c.proxy, "--cacert", filepath.Join(r.dir, c.root)}, c.args...)
			res := curl(t, append(args, c.url)...)
			if res.code != c.code || !strings.Contains(res.stdout+res.stderr, c.want) {
				t.Fatalf("got %s, want exit %d and %q", res, c.code, c.want)
			}
			if !strings.HasPrefix(c.want, "Sallyport denied") {
				return
			}
			if !strings.Contains(res.stdout, " 403 ") || !strings.Contains(res.stdout, "reason: ") {
				t.Errorf("got %s, want a 403 with a reason", res)
			}
			id := decisionID(res.stdout)
			r.await("the record of "+id, func() bool { return strings.Contains(r.ok("audit", "tail", "-n", "50"), id) })
		})
	}
	t.Run("a client that was removed", func(t *testing.T) {
		defer r.within(t)()
		r.ok("client", "rm", "another")
		res := curl(t, "-sS", "-m", "60", "--proxy", "http://another:"+another+"@127.0.0.1:3128", "https://api.example.test/v1")
		if res.code != 56 || !strings.Contains(res.stderr, "407") {
			t.Errorf("got %s, want a 407", res)
		}
	})
	t.Run("after a restart", func(t *testing.T) {
		defer r.within(t)()
		r.kill(9)
		r.up()
		res := curl(t, "-sS", "-m", "60", "--proxy", "http://platform:"+token+"@127.0.0.1:3128", "--cacert", filepath.Join(r.dir, "platform.pem"), "https://api.example.test/v1")
		if !strings.Contains(res.stdout, saw) {
			t.Errorf("got %s, want %q", res, saw)
		}
	})
	t.Run("sandboxes", func(t *testing.T) {
		defer r.within(t)()
		if res := r.sallyport("run", "agent", "--", "true"); res.code != 1 || !strings.Contains(res.stderr, "engine") {
			t.Errorf("got %s, want exit 1 and the reason", res)
		}
	})
	t.Run("tokens", func(t *testing.T) {
		defer r.within(t)()
		h := newHunt(map[string]string{"the token": token, "the secret": r.key})
		q := h.begin()
		q.tree(t, filepath.Join(r.dir, "data"))
		_ = q.read("the log", strings.NewReader(r.logged()))
		if found := append(q.of("the token"), q.of("the secret")...); len(found) > 0 {
			t.Errorf("kept in the clear: %v", found)
		}
	})
}

// curl runs on this host, in this test's network namespace.
func curl(t *testing.T, args ...string) result {
	t.Helper()
	c := exec.Command("curl", args...)
	c.Env = []string{"PATH=" + os.Getenv("PATH")}
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{out.String(), errs.String(), c.ProcessState.ExitCode()}
}
