package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
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
	"sallyport/sandbox"
)

const imageRegistry = upstreamAddress + ":5000"

// tarOf is an archive of files, in the order of their names and contents.
func tarOf(t *testing.T, files ...any) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		content := files[i+1].([]byte)
		must.OK(t, w.WriteHeader(&tar.Header{Name: files[i].(string), Mode: 0o755, Size: int64(len(content))}))
		_, _ = w.Write(content)
	}
	_ = w.Close()
	return b.Bytes()
}

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

// imageConfig is that of an image of one layer.
func imageConfig(layer []byte) []byte {
	return fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/bin"]},"rootfs":{"type":"layers","diff_ids":[%q]}}`, digest(layer))
}

// saved is an archive as docker save writes it.
func saved(t *testing.T, layer []byte, names ...string) []byte {
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": names, "Layers": []string{"layer.tar"}}})
	must.OK(t, err)
	return tarOf(t, "config.json", imageConfig(layer), "layer.tar", layer, "manifest.json", manifest)
}

// imageSite is a registry that wants a login (OCI distribution specification). Of
// team/slow it gives half a layer and then waits; team/echo fails with what it was
// shown.
type imageSite struct {
	password string
	layer    []byte
	begun    chan struct{} // half of the slow layer is out
	rest     chan struct{} // the other half may go
	gone     chan struct{} // and has, or nobody waits for it
}

const manifestType = "application/vnd.docker.distribution.manifest.v2+json"

func (s *imageSite) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	user, password, _ := r.BasicAuth()
	if user != "robot" || password != s.password {
		w.Header().Set("WWW-Authenticate", `Basic realm="images"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	layer := s.layer
	slow := strings.HasPrefix(r.URL.Path, "/v2/team/slow/")
	if slow {
		layer = append(bytes.Clone(layer), make([]byte, 1<<20)...) // a layer of its own
	}
	config := imageConfig(layer)
	switch name := filepath.Base(r.URL.Path); {
	case strings.HasPrefix(r.URL.Path, "/v2/team/echo/"):
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(map[string]any{"errors": []any{map[string]string{"code": "DENIED", "message": r.Header.Get("Authorization") + " " + password}}})
	case name == digest(config):
		_, _ = w.Write(config)
	case name == digest(layer) && slow:
		w.Header().Set("Content-Length", fmt.Sprint(len(layer)))
		_, _ = w.Write(layer[:len(layer)/2])
		_ = http.NewResponseController(w).Flush()
		close(s.begun)
		select {
		case <-r.Context().Done():
		case <-s.rest:
			_, _ = w.Write(layer[len(layer)/2:])
		}
		close(s.gone)
	case name == digest(layer):
		_, _ = w.Write(layer)
	default:
		w.Header().Set("Content-Type", manifestType)
		_, _ = fmt.Fprintf(w, `{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.docker.container.image.v1+json","size":%d,"digest":%q},"layers":[{"mediaType":"application/vnd.docker.image.rootfs.diff.tar","size":%d,"digest":%q}]}`,
			manifestType, len(config), digest(config), len(layer), digest(layer))
	}
}

// trustRegistry has engines of this test trust an authority for the registry, in the
// mount namespace that the tests run in.
func trustRegistry(t *testing.T, ca *testnet.CA) {
	const of = "/etc/docker"
	must.OK(t, os.MkdirAll(of, 0o755))
	must.OK(t, syscall.Mount("none", of, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = syscall.Unmount(of, syscall.MNT_DETACH) })
	dir := filepath.Join(of, "certs.d", imageRegistry)
	must.OK(t, os.MkdirAll(dir, 0o755))
	must.OK(t, os.WriteFile(filepath.Join(dir, "ca.crt"), ca.PEM(), 0o644))
}

// imageEvents are what the log has of images.
func (r *rig) imageEvents() (said string) {
	r.t.Helper()
	for e, err := range auditlog.Read(r.t.Context(), filepath.Join(r.dir, "data/audit"), auditlog.Query{Kind: audit.KindLifecycle}) {
		must.OK(r.t, err)
		if strings.HasPrefix(e.Subject(), "image/") {
			said += e.Message + "\n" + e.Detail + "\n"
		}
	}
	return said
}

func (r *rig) images() (list []sandbox.Image) {
	r.t.Helper()
	must.OK(r.t, json.Unmarshal([]byte(r.ok("image", "ls", "-o", "json")), &list))
	return list
}

// fails runs the command line, which has to fail and to say something.
func (r *rig) fails(want string, args ...string) string {
	r.t.Helper()
	res := r.sallyport(args...)
	if res.code == 0 || !strings.Contains(res.stderr, want) {
		r.t.Errorf("sallyport %q: %s, want a failure with %q", args, res, want)
	}
	return res.stderr
}

// TestImages: an operator fetches an image with the broker's login, a sandbox of it works
// behind the gateway, and it stays as long as that is there. A failure leaves nothing, and no
// secret in any text.
func TestImages(t *testing.T) {
	r := newRig(t, "- name: registry\nregistries:\n- {host: \""+imageRegistry+"\", authRef: registry}\n")
	r.serve()
	program, err := os.ReadFile(filepath.Join(tools.Dir, "client"))
	must.OK(t, err)
	layer := tarOf(t, "bin/client", program)
	site := &imageSite{password: "pw-e2e-" + rand.Text(), layer: layer, begun: make(chan struct{}), rest: make(chan struct{}), gone: make(chan struct{})}
	if _, err := r.host.HTTPS(r.ca, 5000, site, upstreamAddress); err != nil {
		t.Fatal(err)
	}
	trustRegistry(t, r.ca)
	r.up()
	r.setKey()
	const agent = imageRegistry + "/team/agent:1"
	id := digest(imageConfig(layer))

	r.fails("has no secret yet", "image", "pull", agent) // the login is not there yet
	if res := r.feed("robot\n"+site.password+"\n", "secret", "set", "registry", "--field", "username", "--field", "password"); res.code != 0 {
		t.Fatal(res)
	}
	r.fails("sallyport image pull "+agent, "run", "box", "--image", agent, "--", "true")
	var pulled sandbox.Image
	if err := json.Unmarshal([]byte(r.ok("image", "pull", agent, "-o", "json")), &pulled); err != nil || pulled.ID != id || len(pulled.Digests) != 1 {
		t.Fatalf("pulled %+v, %v, want %s", pulled, err, id)
	}
	if out := r.ok("image", "pull", agent); !strings.Contains(out, agent+" is there: "+id) {
		t.Errorf("pulled again: %q", out)
	}
	if out := r.ok("run", "box", "--image", agent, "--", "/bin/client", "https://api.example.test/v1"); !strings.Contains(out, r.keyID()) {
		t.Errorf("in a sandbox of it: %q", out)
	}
	if i := r.sandbox("box"); i.ImageID != id || i.ImageDigest != pulled.Digests[0] {
		t.Errorf("the sandbox is of %q, %q, want %q, %q", i.ImageID, i.ImageDigest, id, pulled.Digests[0])
	}
	if out := r.ok("image", "ls"); !strings.Contains(out, agent) || !strings.Contains(out, "(default)") || !strings.Contains(out, "box") {
		t.Errorf("listed:\n%s", out)
	}
	r.fails("box", "image", "rm", agent)
	r.fails("default image", "image", "rm", "sallyport/base:bookworm-1")
	r.ok("sandbox", "rm", "box")
	r.ok("image", "rm", agent)
	r.fails("", "image", "rm", agent)

	echoed := r.fails("registry", "image", "pull", imageRegistry+"/team/echo:1")
	if !strings.Contains(echoed, "left out") {
		t.Errorf("an error with the login in it: %q", echoed)
	}
	r.giveUp(site)

	archive := filepath.Join(r.dir, "a.tar")
	write := func(b []byte) {
		must.OK(t, os.WriteFile(archive, b, 0o600))
	}
	good := saved(t, layer, "team/loaded:1")
	write(good)
	if out := r.ok("image", "load", archive); !strings.Contains(out, "team/loaded:1 is there: "+id) {
		t.Errorf("loaded: %q", out)
	}
	r.ok("run", "loaded", "--image", "team/loaded:1", "--", "/bin/client", "https://api.example.test/v1")
	r.ok("sandbox", "rm", "loaded")
	r.ok("image", "rm", "team/loaded:1")
	if res := r.feed(string(good), "image", "load", "-", "-o", "json"); res.code != 0 || !strings.Contains(res.stdout, id) {
		t.Errorf("loaded from standard input: %s", res)
	}
	r.ok("image", "rm", id)
	before := r.images()
	for what, b := range map[string][]byte{
		"no archive": []byte("no archive"), "nothing": nil, "half of one": good[:len(good)/2],
		"one without images":         tarOf(t, "x", []byte("x")),
		"one with the default image": saved(t, layer, "team/loaded:2", "sallyport/base:bookworm-1"),
	} {
		write(b)
		if res := r.sallyport("image", "load", archive); res.code == 0 {
			t.Errorf("%s is loaded: %s", what, res)
		}
		if now := r.images(); fmt.Sprint(now) != fmt.Sprint(before) {
			t.Errorf("after %s there are %+v, before %+v", what, now, before)
		}
	}
	if strings.Contains(r.logged(), "no rule uses") {
		t.Error("the log warns of a credential that a registry uses")
	}
	said := r.imageEvents()
	for _, want := range []string{agent + " pulling", agent + " pulled\n" + id, agent + " removed", agent + " failed", "docker.io/team/loaded:1 loaded", "an archive failed"} {
		if !strings.Contains(said, "image "+want) {
			t.Errorf("no event %q in\n%s", want, said)
		}
	}
	for where, text := range map[string]string{"an error": echoed, "the events": said, "the daemon's log": r.logged()} {
		if strings.Contains(text, site.password) {
			t.Errorf("the password is in %s:\n%s", where, text)
		}
	}
}

// giveUp interrupts a pull in the middle of a layer.
func (r *rig) giveUp(site *imageSite) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	c := r.daemon.Command(ctx, "image", "pull", imageRegistry+"/team/slow:1")
	c.Stderr = io.Discard
	must.OK(r.t, c.Start())
	select {
	case <-site.begun:
	case <-ctx.Done():
		r.t.Fatal("the slow pull does not begin")
	}
	_ = c.Process.Signal(os.Interrupt)
	if err := c.Wait(); err == nil {
		r.t.Error("a pull that was interrupted ended well")
	}
	// The engine may hold the connection until the registry says something.
	close(site.rest)
	select {
	case <-site.gone:
	case <-ctx.Done():
		r.t.Error("the registry's answer does not end")
	}
	r.await("the event of the interrupted pull", func() bool { return strings.Contains(r.imageEvents(), "/team/slow:1 failed") })
	for _, i := range r.images() {
		if strings.Contains(strings.Join(i.Names, " "), "slow") {
			r.t.Errorf("after an interrupted pull there is %+v", i)
		}
	}
}
