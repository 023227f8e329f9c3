package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha1"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/bundle"

	"sallyport/internal/api"
	"sallyport/internal/test/must"
)

// state is what the status says of the policy.
func (r *rig) state() api.Status {
	r.t.Helper()
	var s api.Status
	must.OK(r.t, json.Unmarshal([]byte(r.ok("status", "-o", "json")), &s))
	return s
}

// put writes a file as careful writers do: beside it first.
func (r *rig) put(name, text string) {
	r.t.Helper()
	r.write(name+".new", text)
	must.OK(r.t, os.Rename(filepath.Join(r.dir, name+".new"), filepath.Join(r.dir, name)))
}

func (r *rig) text(name string) string {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.dir, name))
	must.OK(r.t, err)
	return string(text)
}

const denyAPI = "package sallyport.team.closed\n\ndeny contains \"closed for now\" if input.destination.host == \"api.example.test\"\n"

// loads has the policy loaded, after a load that is under way, and returns how many there
// have been by the metrics, by what came of them.
func (r *rig) loads(t *testing.T) map[string]int {
	t.Helper()
	r.ok("reload")
	all := map[string]int{}
	metrics := curl(t, "-sS", "http://127.0.0.1:9464/metrics").stdout
	for _, result := range []string{"loaded", "refused"} {
		_, after, found := strings.Cut(metrics, fmt.Sprintf("\nsallyport_policy_loads_total{result=%q} ", result))
		n, err := strconv.Atoi(strings.SplitN(after, "\n", 2)[0])
		if !found || err != nil {
			t.Fatalf("no number of loads that were %s: %v", result, err)
		}
		all[result] = n
	}
	return all
}

// lookEvery is the least time between two looks of a daemon at its files.
const lookEvery = 250 * time.Millisecond

// writePieces writes a text to a file by pieces. It returns the longest time for which the
// file may have been the same before the last piece was written.
func writePieces(t *testing.T, path string, pieces iter.Seq[string]) (longest time.Duration) {
	t.Helper()
	pace := time.NewTicker(lookEvery / 5)
	defer pace.Stop()
	last := time.Now()
	f, err := os.Create(path)
	must.OK(t, err)
	defer f.Close()
	for piece := range pieces {
		<-pace.C
		began := time.Now()
		_, err := io.WriteString(f, piece)
		must.OK(t, err)
		longest, last = max(longest, time.Since(last)), began
	}
	return longest
}

// TestReload changes the files of a running daemon in the ways that editors and
// deployments do.
func TestReload(t *testing.T) {
	r, client := newProxyRig(t)
	allowed := func(t *testing.T, want bool) {
		t.Helper()
		r.await(fmt.Sprintf("a request to be allowed: %v", want), func() bool { return (fetch(client) == nil) == want })
	}
	refused := func(t *testing.T, want string) {
		t.Helper()
		r.await("refusal of "+want, func() bool {
			s := r.state().Policy.Refused
			return s != nil && strings.Contains(s.Reason, want) && !s.Since.IsZero()
		})
		if out := r.ok("status"); !strings.Contains(out, "refused since") || !strings.Contains(out, want) {
			t.Errorf("status: %s", out)
		}
		allowed(t, true)
	}
	allowed(t, true)
	first := r.text("sallyport.yaml")
	revision := r.state().Revision

	t.Run("a file in the place of another", func(t *testing.T) {
		defer r.within(t)()
		r.put("sallyport.yaml", first+"egress:\n- {destination: api.example.test, action: deny, name: closed}\n")
		// egress is there twice: YAML that is none.
		refused(t, "egress")
		r.put("sallyport.yaml", strings.Replace(first, "- destination: \"denied.example.test\"", "- destination: \"api.example.test\"", 1))
		allowed(t, false)
		if s := r.state(); s.Policy.Refused != nil || s.Policy.By != "files" || s.Revision == revision {
			t.Errorf("status %+v", s.Policy)
		}
		r.put("sallyport.yaml", first)
		allowed(t, true)
	})
	t.Run("a file that is written in pieces", func(t *testing.T) {
		defer r.within(t)()
		changed := strings.Replace(first, "- destination: \"denied.example.test\"", "- destination: \"api.example.test\"", 1)
		r.await("a file that is never the same at two looks", func() bool {
			want := r.loads(t)
			longest := writePieces(t, filepath.Join(r.dir, "sallyport.yaml"), strings.SplitAfterSeq(changed, "\n"))
			allowed(t, false)
			got := r.loads(t)
			r.put("sallyport.yaml", first)
			allowed(t, true)
			if longest >= lookEvery { // a part of it may have been found twice
				t.Logf("a part of the file lay there for %v", longest)
				return false
			}
			want["loaded"] += 2 // the whole file, and by r.loads
			if !maps.Equal(got, want) {
				t.Errorf("a part of the file was loaded or refused: %v, want %v", got, want)
			}
			return true
		})
	})
	t.Run("a folder whose link is turned", func(t *testing.T) {
		defer r.within(t)()
		for _, dir := range []string{"policy.d/..v1", "policy.d/..v2"} {
			must.OK(t, os.MkdirAll(filepath.Join(r.dir, dir), 0o700))
		}
		r.write("policy.d/..v1/team.rego", "package sallyport.team.closed\n")
		r.write("policy.d/..v2/team.rego", denyAPI)
		turn := func(to string) {
			data := filepath.Join(r.dir, "policy.d/..data")
			must.OK(t, os.Symlink(to, data+"_tmp"))
			must.OK(t, os.Rename(data+"_tmp", data))
		}
		turn("..v1")
		must.OK(t, os.Symlink("..data/team.rego", filepath.Join(r.dir, "policy.d/team.rego")))
		r.put("sallyport.yaml", first+"policy: {dir: policy.d}\n")
		r.await("the folder", func() bool { return r.state().Revision != revision })
		allowed(t, true)
		turn("..v2")
		allowed(t, false)
		turn("..v1")
		allowed(t, true)
		// A fault in the folder is refused, and its repair is noticed there.
		r.write("policy.d/..v2/team.rego", "package sallyport.team.closed\ndeny contains \"x\" if http.send({})\n")
		turn("..v2")
		refused(t, "http.send")
		if r.sallyport("reload").code == 0 {
			t.Error("what is refused by itself is taken by `sallyport reload`")
		}
		r.write("policy.d/..v2/team.rego", denyAPI)
		allowed(t, false)
		r.put("sallyport.yaml", first)
		allowed(t, true)
	})
	t.Run("by hand only", func(t *testing.T) {
		defer r.within(t)()
		before := r.state().Policy.Loaded
		r.put("sallyport.yaml", first+"policy: {watch: false}\n")
		r.await("the change", func() bool { return r.state().Policy.Loaded != before })
		at := r.state().Policy.Loaded
		r.put("sallyport.yaml", first)
		time.Sleep(2 * time.Second)
		if s := r.state().Policy; s.Loaded != at {
			t.Errorf("it was loaded all the same: %+v", s)
		}
		must.OK(t, r.daemon.Signal(syscall.SIGHUP))
		r.await("the signal", func() bool { return r.state().Policy.By == "signal" })
		r.ok("reload")
		if by := r.state().Policy.By; by != "api" {
			t.Errorf("loaded by %s", by)
		}
	})
	t.Run("events", func(t *testing.T) {
		defer r.within(t)()
		tail := r.ok("audit", "tail", "-n", "500", "-o", "json")
		for _, want := range []string{`"state":"reloaded"`, `by files`, `by signal`, `by api`, `"state":"refused"`} {
			if !strings.Contains(strings.ReplaceAll(tail, `": "`, `":"`), want) {
				t.Errorf("no %s in the audit", want)
			}
		}
	})
	t.Run("a signal during the start", func(t *testing.T) {
		defer r.within(t)()
		r.kill(syscall.SIGTERM)
		c := exec.Command(filepath.Join(tools.Dir, "sallyport"), "up")
		c.Env = append(os.Environ(), "SALLYPORT_CONFIG="+r.config)
		var out bytes.Buffer
		c.Stdout, c.Stderr = &out, &out
		must.OK(t, os.Remove(filepath.Join(r.dir, "data/lock")))
		must.OK(t, c.Start())
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		for { // from the first thing that it does
			if _, err := os.Stat(filepath.Join(r.dir, "data/lock")); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		for range 100 {
			_ = c.Process.Signal(syscall.SIGHUP)
			time.Sleep(5 * time.Millisecond)
		}
		r.await("the daemon", func() bool { return r.sallyport("status").code == 0 })
		allowed(t, true)
		_ = c.Process.Signal(syscall.SIGTERM)
		if err := <-ended; err != nil {
			t.Errorf("%v\n%s", err, out.String())
		}
		r.up()
	})
}

// shelf is a server of bundles.
type shelf struct {
	*httptest.Server
	t       *testing.T
	private string

	mu      sync.Mutex
	archive []byte
	down    bool
	bearers map[string]bool
}

func newShelf(t *testing.T, r *rig) *shelf {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.OK(t, err)
	encode := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	private, _ := x509.MarshalPKCS8PrivateKey(key)
	public, _ := x509.MarshalPKIXPublicKey(key.Public())
	s := &shelf{t: t, private: encode("PRIVATE KEY", private), bearers: map[string]bool{}}
	s.Server = httptest.NewTLSServer(s)
	t.Cleanup(s.Close)
	r.write("bundle.pem", encode("PUBLIC KEY", public))
	r.write("shelf.pem", encode("CERTIFICATE", s.Certificate().Raw))
	return s
}

func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bearers[r.Header.Get("Authorization")] = true
	sum := sha1.Sum(s.archive)
	tag := fmt.Sprintf("%q", fmt.Sprintf("%x", sum))
	w.Header().Set("Etag", tag)
	switch {
	case s.down:
		w.WriteHeader(http.StatusBadGateway)
	case r.Header.Get("If-None-Match") == tag:
		w.WriteHeader(http.StatusNotModified)
	default:
		_, _ = w.Write(s.archive)
	}
}

func (s *shelf) goes(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// publish puts a bundle there that denies such hosts.
func (s *shelf) publish(revision string, signed bool, hosts ...any) {
	s.t.Helper()
	b := bundle.Bundle{Manifest: bundle.Manifest{Revision: revision}, Data: map[string]any{"closed": append([]any{}, hosts...)}}
	b.Manifest.Init()
	b.Manifest.SetRegoVersion(ast.RegoV1)
	const text = "package sallyport.team.central\n\ndeny contains \"closed by the bundle\" if input.destination.host in data.closed\n"
	b.Modules = []bundle.ModuleFile{{URL: "/central.rego", Path: "/central.rego", RelativePath: "/central.rego", Raw: []byte(text)}}
	if signed {
		must.OK(s.t, b.GenerateSignature(bundle.NewSigningConfig(s.private, "ES256", ""), "", false))
	}
	var out bytes.Buffer
	must.OK(s.t, bundle.NewWriter(&out).DisableFormat(true).Write(b))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.archive = out.Bytes()
}

// TestBundles follows a server's signed bundles through good and bad times.
func TestBundles(t *testing.T) {
	r, client := newProxyRig(t)
	s := newShelf(t, r)
	s.publish("v1", true)
	first := r.text("sallyport.yaml")
	with := first + "- name: shelf\npolicy: {bundle: {url: \"" + s.URL + "/egress.tar.gz\", key: bundle.pem, algorithm: ES256, roots: shelf.pem, authRef: shelf, poll: 1s, staleAfter: 3s}}\n"
	r.put("sallyport.yaml", with)
	r.await("the refusal of a credential without a secret", func() bool { return r.state().Policy.Refused != nil })
	if res := r.feed("b34r3r\n", "secret", "set", "shelf"); res.code != 0 {
		t.Fatal(res)
	}
	must.OK(t, r.daemon.Signal(syscall.SIGHUP))
	inForce := func(revision string) {
		t.Helper()
		r.await("bundle "+revision, func() bool {
			b := r.state().Policy.Bundle
			return b != nil && b.Revision == revision && b.Signed
		})
	}
	inForce("v1")
	must.OK(t, fetch(client))
	s.publish("v2", true, "api.example.test")
	inForce("v2")
	if err := fetch(client); err == nil || !strings.Contains(err.Error(), "closed by the bundle") {
		t.Errorf("under v2: %v", err)
	}
	s.publish("v3", false)
	r.await("the refusal of an unsigned one", func() bool {
		p := r.state().Policy
		return p.Refused != nil && p.Refused.By == "bundle" && strings.Contains(p.Refused.Reason, "signatures") && p.Bundle.Revision == "v2"
	})
	if err := fetch(client); err == nil {
		t.Error("an unsigned bundle is in force")
	}
	r.await("the alarm", func() bool { return r.state().Policy.Bundle.Stale })
	if out := r.ok("status"); !strings.Contains(out, "stale") || !strings.Contains(out, "refused since") {
		t.Errorf("status: %s", out)
	}
	if out := curl(t, "-sS", "http://127.0.0.1:9464/metrics"); !strings.Contains(out.stdout, "sallyport_policy_bundle_stale 1") || !strings.Contains(out.stdout, "sallyport_policy_refused 1") {
		t.Error("the metrics say nothing of it")
	}

	// A restart while the server is away has the last good one.
	s.goes(true)
	r.kill(syscall.SIGTERM)
	r.up()
	if b := r.state().Policy.Bundle; b == nil || b.Revision != "v2" {
		t.Errorf("after a restart: %+v", b)
	}
	if err := fetch(client); err == nil || !strings.Contains(err.Error(), "closed by the bundle") {
		t.Errorf("after a restart: %v", err)
	}
	// So has one that was taken over on disk none.
	r.kill(syscall.SIGTERM)
	kept := filepath.Join(r.dir, "data/policy/bundle.tar.gz")
	must.OK(t, os.Rename(kept, kept+".away"))
	if err := r.tryUp(); err == nil {
		t.Error("the daemon came up without its bundle")
	}
	must.OK(t, os.Rename(kept+".away", kept))
	r.up()
	s.goes(false)
	s.publish("v4", true)
	inForce("v4")
	r.await("no alarm", func() bool { p := r.state().Policy; return !p.Bundle.Stale && p.Refused == nil })
	if err := fetch(client); err != nil {
		t.Errorf("under v4: %v", err)
	}
	tail := strings.ReplaceAll(r.ok("audit", "tail", "-n", "500", "-o", "json"), `": "`, `":"`)
	for _, want := range []string{`"state":"stale"`, `"state":"fresh"`, "by bundle", `"state":"refused"`} {
		if !strings.Contains(tail, want) {
			t.Errorf("no %s in the audit", want)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.bearers) != 1 || !s.bearers["Bearer b34r3r"] {
		t.Errorf("the server was shown %v", s.bearers)
	}
	if strings.Contains(r.logged()+tail, "b34r3r") {
		t.Error("the token is in the log")
	}
}

// TestRevoke takes a rule away under open WebSockets of a gVisor sandbox.
func TestRevoke(t *testing.T) {
	r := newRig(t, "")
	r.api = http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		sum := sha1.Sum([]byte(q.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n",
			base64.StdEncoding.EncodeToString(sum[:]))
		for { // a tick, ten times a second
			_, _ = rw.Write([]byte{0x81, 4, 't', 'i', 'c', 'k'})
			if rw.Flush() != nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	const rule = "- {name: %[1]s, destination: api.example.test, paths: [/%[1]s], authRef: key, upstream: {addresses: [198.51.100.10], roots: ca.pem, resolver: \"198.51.100.10:53\"}}\n"
	rules := func(names ...string) string {
		text := "egressAuth:\n"
		for _, n := range names {
			text += fmt.Sprintf(rule, n)
		}
		return text + "credentials: [{name: key}]\n"
	}
	r.configure(baseConfig, rules("gone", "kept"))
	base := strings.TrimSuffix(r.text("sallyport.yaml"), rules("gone", "kept"))
	r.serve()
	r.up()
	r.setKey()
	program, err := os.ReadFile(filepath.Join(tools.Dir, "client"))
	must.OK(t, err)
	if res := r.feed(string(program), "run", "agent", "--", "sh", "-c", "cat > /usr/local/bin/client && chmod +x /usr/local/bin/client"); res.code != 0 {
		t.Fatal(res)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	listen := func(path string) (lines <-chan string) {
		c := r.daemon.Command(ctx, "run", "agent", "--", "client", "-websocket", "https://api.example.test/"+path)
		out, err := c.StdoutPipe()
		must.OK(t, err)
		c.Stderr = c.Stdout
		must.OK(t, c.Start())
		all := make(chan string, 10_000)
		go func() {
			defer close(all)
			for s := bufio.NewScanner(out); s.Scan(); {
				all <- s.Text()
			}
			_ = c.Wait()
		}()
		return all
	}
	gone, kept := listen("gone"), listen("kept")
	tick := func(lines <-chan string) {
		t.Helper()
		select {
		case l := <-lines:
			if l != "tick" {
				t.Fatalf("%q", l)
			}
		case <-time.After(2 * time.Minute):
			t.Fatalf("no tick\n%s", r.logged())
		}
	}
	tick(gone)
	tick(kept)
	r.put("sallyport.yaml", base+rules("kept"))
	last, at := "", time.Time{}
	for l := range gone {
		last, at = l, time.Now() // by this clock: that of a sandbox is its own
	}
	if last != "close 1008" {
		t.Fatalf("it ended with %q", last)
	}
	began := r.state().Policy.Loaded
	if took := at.Sub(began); took > busy { // a second, where nothing else runs
		t.Errorf("it took %v", took)
	} else {
		t.Logf("it took %v from the swap", took)
	}
	for len(kept) > 0 {
		tick(kept)
	}
	for range 20 {
		tick(kept)
	}
	cancel()
	r.await("the completion", func() bool {
		return strings.Contains(r.ok("audit", "tail", "-n", "50", "-o", "json"), "the policy no longer allows it")
	})
}
