package bypass

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/env"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
)

// Addresses (RFC 5737, RFC 3849): the one test host is every name's, and every
// name's resolver.
const (
	upstreamAddress  = "198.51.100.10"
	upstreamAddress6 = "2001:db8::10"
	hostAddress      = "198.51.100.1" // of the machine that Sallyport runs on
	gatewayAddress   = "10.232.0.1"   // on the sandboxes' network
	proxyAddress     = "127.0.0.1:3128"
)

// config is the whole configuration. No rule is for unlisted.example.test.
const config = `
dataDir: %[1]s/data
runDir: %[1]s/run
keyFile: %[1]s/key/key
network: {bridge: spbypass, subnet: 10.232.0.0/24}
metrics: {listen: "127.0.0.1:9464"}
proxy: {listen: "127.0.0.1:3128"}
engine: {runsc: %[2]s}
sandbox: {tarball: %[3]s}
audit: {segmentSize: 1048576} # the tests read on from where they were
gateway: {found: 1000} # times that a secret comes from where it was never sent
egressAuth:
- name: api
  destination: api.example.test
  methods: [GET, POST]
  paths: ["/v1/**"]
  authRef: key
  upstream: &there {addresses: [198.51.100.10], roots: ca.pem, resolver: "198.51.100.10:53"}
egress:
- {name: api-keys, destination: api.example.test, action: deny, paths: ["/v1/admin/**", "/v1/p/*/f/secret/*"]}
- {name: other, destination: other.example.test, plain: true, action: allow, upstream: *there}
- {name: idn, destination: xn--bcher-kva.example.test, action: allow, upstream: *there}
- {name: rebound, destination: "*.rebound.example.test", action: allow, upstream: *there}
- {name: many, destination: "*.many.example.test", action: allow, upstream: *there}
- {name: pinned, destination: "pinned.example.test:443", action: tunnel, upstream: *there}
- {name: odd, destination: "other.example.test:8080", plain: true, action: allow, upstream: *there}
- {name: raw, destination: "raw.example.test:2222", action: tunnel, upstream: *there}
- {name: denied, destination: denied.example.test, action: deny}
- {name: denied-below, destination: "*.denied.example.test", action: deny}
credentials:
- name: key
`

// Names that the sandbox uses.
const (
	api      = "api.example.test"
	other    = "other.example.test"
	denied   = "denied.example.test"
	unlisted = "unlisted.example.test"
	idn      = "xn--bcher-kva.example.test"
	pinned   = "pinned.example.test"
)

var programs *env.Programs

func TestMain(m *testing.M) {
	if err := testnet.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, "isolating:", err)
		os.Exit(1)
	}
	os.Exit(func() int {
		if os.Geteuid() != 0 {
			return m.Run() // everything skips, or fails where CI is true
		}
		var err error
		if programs, err = env.Build("", "../../..", "./probe"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer programs.Remove()
		return m.Run()
	}())
}

// rig is one daemon, its upstream, and the sandboxes.
type rig struct {
	daemon   *env.Daemon
	upstream *upstream
	key      string // the secret of the credential
	log      string // the folder of the audit log
	// Most is tried from a. Slow attempts go on beside that, in slow and full.
	a, b, slow, full *sandbox
	// elsewhere is a client of the explicit proxy, nobody whoever says that he is
	// one and is not.
	elsewhere, nobody *sandbox
	token             string // of elsewhere
}

func newRig(t *testing.T) *rig {
	t.Helper()
	testnet.Privileged(t)
	programs.Need(t)
	dir := t.TempDir()
	r := &rig{
		daemon: env.NewDaemon(programs, dir), key: "sk-bypass-" + rand.Text(), log: filepath.Join(dir, "data/audit"),
	}
	must.OK(t, programs.Templates.Copy("base", filepath.Join(dir, "data")))
	r.upstream = newUpstream(t, r.key)
	for name, text := range map[string]string{
		"sallyport.yaml": fmt.Sprintf(config, dir, programs.Runsc, programs.Image),
		"ca.pem":         string(r.upstream.ca.PEM()),
	} {
		must.OK(t, r.daemon.Write(name, text))
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", r.daemon.Log())
		}
		if err := r.daemon.Down(); err != nil {
			t.Error(err)
		}
	})
	if err := r.daemon.Start(); err != nil {
		t.Fatalf("%v\n%s", err, r.daemon.Log())
	}
	r.run(t, r.key+"\n", "secret", "set", "key")
	r.a, r.b = r.sandbox(t, "agent"), r.sandbox(t, "neighbour")
	r.slow, r.full = r.sandbox(t, "slow"), r.sandbox(t, "full")
	r.token = strings.TrimSpace(r.run(t, "", "client", "add", "elsewhere"))
	r.elsewhere = r.remote(t, "elsewhere")
	r.nobody = &sandbox{name: "", rig: r, probe: r.elsewhere.probe}
	return r
}

// run is the command line, which must succeed.
func (r *rig) run(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	res, err := r.daemon.Run(stdin, args...)
	if err != nil || res.Code != 0 {
		t.Fatalf("sallyport %q: %v, %s\n%s", args, err, res, r.daemon.Log())
	}
	return res.Stdout
}

// sandbox is one with a probe that runs in it.
type sandbox struct {
	name string
	rig  *rig
	*probe

	read uint64 // the last event of the log that was read for it
}

// probe is the program in there.
type probe struct {
	mu      sync.Mutex
	in      *json.Encoder
	next    int
	waiting map[int]chan Result
}

func (r *rig) sandbox(t *testing.T, name string) *sandbox {
	t.Helper()
	program, err := os.ReadFile(filepath.Join(programs.Dir, "probe"))
	must.OK(t, err)
	r.run(t, string(program), "run", name, "--", "sh", "-c", "cat > /probe && chmod +x /probe")
	ctx, cancel := context.WithCancel(context.Background())
	return &sandbox{name: name, rig: r, probe: start(t, r.daemon.Command(ctx, "run", name, "--", "/probe"), cancel)}
}

// bundle describes a container that has the probe and nothing else, on the
// network of whoever starts it.
const bundle = `{"ociVersion": "1.0.0", "process": {"args": ["/probe"], "cwd": "/"}, "root": {"path": "root"},
	"linux": {"namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}]}}`

// remote is a sandbox that is not ours: gVisor's, where it can reach the
// explicit proxy.
func (r *rig) remote(t *testing.T, name string) *sandbox {
	t.Helper()
	program, err := os.ReadFile(filepath.Join(programs.Dir, "probe"))
	must.OK(t, err)
	dir := t.TempDir()
	if err := errors.Join(
		os.Mkdir(filepath.Join(dir, "root"), 0o755),
		os.WriteFile(filepath.Join(dir, "root/probe"), program, 0o755),
		os.WriteFile(filepath.Join(dir, "config.json"), []byte(bundle), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := exec.CommandContext(ctx, programs.Runsc, "--root", filepath.Join(dir, "state"), "--platform=systrap", "--network=host", "--ignore-cgroups",
		"run", "--bundle", dir, name)
	t.Cleanup(func() { // runsc leaves it mounted
		if err := unix.Unmount(filepath.Join(dir, "state/null-netns"), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
			t.Error(err)
		}
	})
	return &sandbox{name: name, rig: r, probe: start(t, c, cancel)}
}

// start starts a probe by its command.
func start(t *testing.T, c *exec.Cmd, cancel func()) *probe {
	t.Helper()
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	must.OK(t, err)
	out, err := c.StdoutPipe()
	must.OK(t, err)
	must.OK(t, c.Start())
	s := &probe{in: json.NewEncoder(in), waiting: map[int]chan Result{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.listen(out)
	}()
	t.Cleanup(func() { finish(t, c, in, done, cancel) })
	return s
}

func finish(t *testing.T, c *exec.Cmd, in io.Closer, done chan struct{}, cancel func()) {
	defer cancel()
	_ = in.Close() // which ends the probe
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Error("the probe does not end")
		cancel()
		<-done
	}
	_ = c.Wait()
}

func (s *probe) listen(out io.Reader) {
	for d := json.NewDecoder(out); ; {
		var r Result
		if d.Decode(&r) != nil {
			break
		}
		s.mu.Lock()
		ch := s.waiting[r.ID]
		delete(s.waiting, r.ID)
		s.mu.Unlock()
		if ch != nil {
			ch <- r
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, ch := range s.waiting {
		delete(s.waiting, id)
		close(ch)
	}
}

// do has the probe do a job. Any goroutine may call it.
func (s *probe) do(t *testing.T, j Job) Result {
	t.Helper()
	ch := make(chan Result, 1)
	s.mu.Lock()
	s.next++
	j.ID = s.next
	s.waiting[j.ID] = ch
	err := s.in.Encode(j)
	s.mu.Unlock()
	if err != nil {
		t.Error(err)
		return Result{}
	}
	select {
	case r, ok := <-ch:
		if !ok {
			t.Error("the probe has ended")
		}
		return r
	case <-time.After(90 * time.Second):
		t.Error("the probe does not answer")
	}
	return Result{}
}

// events are the sandbox's since it was asked last: decisions on connections
// and requests, and completions that say that an allowed one was blocked after all.
func (s *sandbox) events(t *testing.T) (list []*audit.Event) {
	t.Helper()
	for e, err := range auditlog.Read(context.Background(), s.rig.log, auditlog.Query{From: s.read + 1}) {
		must.OK(t, err)
		s.read = max(s.read, e.Metadata.Sequence)
		x := e.Unmapped.Sallyport
		if x.Sandbox != s.name || e.ClassUID != audit.ClassNetwork && e.ClassUID != audit.ClassHTTP {
			continue
		}
		if x.Kind == audit.KindDecision || x.Kind == audit.KindCompletion && e.Disposition == audit.DispositionBlocked {
			list = append(list, e)
		}
	}
	return list
}

// said is what events come to: "deny RULE", "allow RULE", or "block" for what
// was allowed and then found to lead where nothing may.
func said(list []*audit.Event) string {
	var all []string
	for _, e := range list {
		rule := "-"
		if e.Rule != nil {
			rule = e.Rule.Name
		}
		switch {
		case e.Unmapped.Sallyport.Kind == audit.KindCompletion:
			all = append(all, "block")
		case e.Disposition == audit.DispositionBlocked && e.Action == audit.ActionDenied:
			all = append(all, "deny "+rule)
		case e.Disposition == audit.DispositionAllowed && e.Action == audit.ActionAllowed:
			all = append(all, e.Unmapped.Sallyport.Decision+" "+rule)
		default:
			all = append(all, fmt.Sprintf("disposition %d, action %d", e.Disposition, e.Action))
		}
	}
	return strings.Join(all, ", ")
}

func addrs(texts ...string) (list []netip.Addr) {
	for _, s := range texts {
		list = append(list, netip.MustParseAddr(s))
	}
	return list
}
