// Package e2e plays the whole product from outside: the built binaries, a
// private engine, gVisor sandboxes, and test hosts that count packets. Each run
// has network and mount namespaces of its own.
package e2e

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"sallyport/internal/supervise"
	"sallyport/internal/test/env"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// tools are the programs and the base image; TestMain builds them.
var tools *env.Programs

func TestMain(m *testing.M) {
	if err := testnet.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, "isolating:", err)
		os.Exit(1)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run() // everything skips, or fails where CI is true
	}
	var err error
	tools, err = env.Build("", "../..", "./client", "../test/testhost", "../../examples/demo", "../../examples/agent")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer tools.Remove()
	return m.Run()
}

// rig is one daemon with its upstream.
type rig struct {
	t      testing.TB
	dir    string
	config string
	host   *testnet.Host
	ca     *testnet.CA
	key    string       // the secret of the credential "key"
	api    http.Handler // of the upstream; nil is testnet.API
	daemon *env.Daemon
	set    string // of images, that the engine begins with
	pkg    []byte // ca-certificates.deb for its sandboxes
}

// upstreamAddress is the test host's; documentation addresses (RFC 5737).
const upstreamAddress = "198.51.100.10"

const baseConfig = `
dataDir: %[1]s/data
runDir: %[1]s/run
keyFile: %[1]s/key/key
network: {bridge: spe2e0, subnet: 10.232.0.0/24}
metrics: {listen: "127.0.0.1:9464"}
engine: {runsc: %[2]s}
sandbox: {tarball: %[3]s}
`

const ruleConfig = `
egressAuth:
- destination: api.example.test
  authRef: key
  upstream: {addresses: [198.51.100.10], roots: ca.pem, resolver: "198.51.100.10:53"}
- destination: git.example.test
  authRef: key
  inject: {basic: {username: x-access-token, password: "{{ .token }}"}}
  upstream: {addresses: [198.51.100.10], roots: ca.pem, resolver: "198.51.100.10:53"}
egress:
- destination: "denied.example.test"
  action: deny
credentials:
- name: key
`

// newRig makes the upstream and the configuration; the daemon is not started.
func newRig(t testing.TB, extra string) *rig {
	t.Helper()
	testnet.Privileged(t)
	tools.Need(t)
	r := &rig{t: t, dir: t.TempDir(), key: "sk-e2e-" + rand.Text(), set: "base"}
	r.daemon = env.NewDaemon(tools, r.dir)
	r.config = r.daemon.Config()
	r.configure(baseConfig, ruleConfig+extra)
	r.host = testnet.NewHost(t, testnet.Config{Name: "upstream", Address: netip.MustParsePrefix(upstreamAddress + "/24")})
	var err error
	if r.ca, err = testnet.NewCA(); err != nil {
		t.Fatal(err)
	}
	r.write("ca.pem", string(r.ca.PEM()))
	return r
}

func (r *rig) configure(base, rules string) {
	r.write("sallyport.yaml", fmt.Sprintf(base, r.dir, tools.Runsc, tools.Image)+rules)
}

func (r *rig) write(name, text string) {
	r.t.Helper()
	must.OK(r.t, r.daemon.Write(name, text))
}

// serve puts the usual sites on the upstream.
func (r *rig) serve() {
	r.t.Helper()
	key := testnet.KeyOf(r.key)
	git := filepath.Join(r.dir, "git")
	seedRepository(r.t, git)
	handler, err := testnet.Git(git)
	must.OK(r.t, err)
	names := []string{"api.example.test", "git.example.test", "denied.example.test", "unlisted.example.test"}
	zone := map[string][]netip.Addr{}
	for _, n := range names {
		zone[n] = []netip.Addr{netip.MustParseAddr(upstreamAddress)}
	}
	if _, err := r.host.DNS(zone); err != nil {
		r.t.Fatal(err)
	}
	mux, api := hostMux{"git.example.test": testnet.RequireKey(key, handler)}, r.api
	if api == nil {
		api = testnet.API(key)
	}
	if _, err := r.host.HTTPS(r.ca, 443, mux.orElse(api), names...); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.host.HTTP(80, testnet.API(key)); err != nil {
		r.t.Fatal(err)
	}
}

// up starts the daemon and waits until it answers.
func (r *rig) up() {
	r.t.Helper()
	if err := r.tryUp(); err != nil {
		r.t.Fatalf("starting the daemon: %v\n%s", err, r.logged())
	}
}

func (r *rig) tryUp() error {
	if r.daemon.PID() == 0 {
		if err := tools.Templates.Copy(r.set, filepath.Join(r.dir, "data")); err != nil {
			return err
		}
		r.t.Cleanup(r.down)
	}
	return r.daemon.Start()
}

// gatewayPID is the gateway's process's.
func (r *rig) gatewayPID() int {
	r.t.Helper()
	return r.gateway().PID
}

// gateway is what the status says of that process.
func (r *rig) gateway() supervise.Status {
	r.t.Helper()
	var s struct{ Gateway supervise.Status }
	must.OK(r.t, json.Unmarshal([]byte(r.ok("status", "-o", "json")), &s))
	return s.Gateway
}

// kill ends the daemon by a signal and waits for its end.
func (r *rig) kill(s syscall.Signal) {
	r.t.Helper()
	must.OK(r.t, r.daemon.Signal(s))
	must.Soon(r.t, fmt.Sprintf("the daemon's end after signal %v", s), func() bool { return syscall.Kill(r.daemon.PID(), 0) != nil })
}

// down stops everything that the rig started.
func (r *rig) down() {
	if err := r.daemon.Down(); err != nil {
		r.t.Errorf("%v\n%s", err, r.logged())
		return
	}
	if r.t.Failed() {
		r.t.Logf("the daemon's log:\n%s", r.logged())
	}
}

// logged is the end of what the daemon has logged.
func (r *rig) logged() string { return r.daemon.Log() }

// whole is all of it.
func (r *rig) whole() string {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, "daemon.log"))
	must.OK(r.t, err)
	return string(text)
}

// result is what a command printed and how it ended.
type result struct {
	stdout, stderr string
	code           int
}

func (r result) String() string {
	return fmt.Sprintf("exit %d, stdout %q, stderr %q", r.code, r.stdout, r.stderr)
}

// sallyport runs the command line.
func (r *rig) sallyport(args ...string) result { return r.feed("", args...) }

// feed runs the command line with standard input.
func (r *rig) feed(stdin string, args ...string) result {
	res, err := r.daemon.Run(stdin, args...)
	must.OK(r.t, err)
	return result{res.Stdout, res.Stderr, res.Code}
}

// ok runs the command line and fails the test unless it exits with 0.
func (r *rig) ok(args ...string) string {
	r.t.Helper()
	res := r.sallyport(args...)
	if res.code != 0 {
		r.t.Fatalf("sallyport %q: %s\n%s", args, res, r.logged())
	}
	return res.stdout
}

// inside runs a shell command in a sandbox.
func (r *rig) inside(name, shell string) result {
	return r.sallyport("run", name, "--", "sh", "-c", shell)
}

// part is one of the tests that share a daemon.
type part struct {
	name string
	test func(*testing.T, *rig)
}

// parts runs tests that leave the daemon as it was. Their sandboxes go after each.
func (r *rig) parts(t *testing.T, all ...part) {
	for _, p := range all {
		t.Run(p.name, func(t *testing.T) {
			r := r.in(t)
			p.test(t, r)
			for _, name := range r.list() {
				r.ok("sandbox", "rm", name)
			}
		})
	}
}

// in is the rig for a part of a test.
func (r *rig) in(t *testing.T) *rig {
	in := *r
	in.t = t
	return &in
}

// setKey puts the secret into the embedded store.
func (r *rig) setKey() {
	r.t.Helper()
	if res := r.feed(r.key+"\n", "secret", "set", "key"); res.code != 0 {
		r.t.Fatalf("setting the secret: %s", res)
	}
}

// keyID is how the upstream names the key that it saw.
func (r *rig) keyID() string {
	sum := sha256.Sum256([]byte(r.key))
	return hex.EncodeToString(sum[:])[:12]
}
