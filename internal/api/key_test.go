package api_test

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/internal/api"
	"sallyport/internal/config"
	"sallyport/policy/approval"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// keyed makes a key and returns a client that has it, and its text.
func keyed(t *testing.T, h *host, name, tenant string, scopes ...string) (*client.Client, string) {
	t.Helper()
	made, text, err := h.keys.Create(api.Key{Name: name, Tenant: tenant, Scopes: must[[]api.Scope](t)(api.ParseScopes(scopes))})
	if err != nil {
		t.Fatal(made, err)
	}
	return dialed(t, h, text), text
}

func dialed(t *testing.T, h *host, text string) *client.Client {
	t.Helper()
	r := h.remote
	r.KeyFile = filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(r.KeyFile, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := must[*client.Client](t)(client.Dial(r))
	t.Cleanup(c.Close)
	return c
}

// raw sends a request over TLS and returns the status and the end of the problem's
// type.
func raw(t *testing.T, h *host, text, method, path, body string, header ...string) (status int, kind string, answer []byte, head http.Header) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // TestFingerprint has the check
	defer transport.CloseIdleConnections()
	req := must[*http.Request](t)(http.NewRequestWithContext(t.Context(), method, h.remote.URL+path, strings.NewReader(body)))
	if text != "" {
		req.Header.Set("Authorization", "Bearer "+text)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp := must[*http.Response](t)(transport.RoundTrip(req))
	defer resp.Body.Close()
	if resp.Header.Get("Content-Type") == "text/event-stream" || resp.StatusCode == http.StatusSwitchingProtocols {
		return resp.StatusCode, "", nil, resp.Header
	}
	answer = must[[]byte](t)(io.ReadAll(resp.Body))
	var p api.Problem
	_ = json.Unmarshal(answer, &p)
	return resp.StatusCode, strings.TrimPrefix(p.Type, client.ProblemType), answer, resp.Header
}

// rows say what each route needs, written down once more: who changes the table
// of routes has to change this too.
const rows = `
GET /v1/openapi.json                     any     tenant
GET /v1/openapi.yaml                     any     tenant
GET /v1/status                           read    host
POST /v1/reload                          policy  host
POST /v1/shutdown                        admin   host
GET /v1/events                           read    tenant
POST /v1/policy/explain                  read    host
GET /v1/policy/explain/{decision}        read    host
GET /v1/limits                           read    host
POST /v1/limits/{name}/reset             policy  host
GET /v1/approvals                        read    tenant
POST /v1/approvals/{id}                  approve tenant
GET /v1/secrets                          secrets host
PUT /v1/secrets/{name}                   secrets host
DELETE /v1/secrets/{name}                secrets host
GET /v1/keys                             admin   host
PUT /v1/keys/{name}                      admin   host
DELETE /v1/keys/{name}                   admin   host
GET /v1/clients                          read    host
PUT /v1/clients/{name}                   admin   host
DELETE /v1/clients/{name}                admin   host
GET /v1/clients/{name}/ca                read    host
GET /v1/images                           read    host
DELETE /v1/images                        admin   host
POST /v1/images/pull                     admin   host
PUT /v1/images/archive                   admin   host
GET /v1/sandboxes                        read    tenant
PUT /v1/sandboxes/{name}                 run     tenant
GET /v1/sandboxes/{name}                 read    tenant
PATCH /v1/sandboxes/{name}               run     tenant
DELETE /v1/sandboxes/{name}              run     tenant
POST /v1/sandboxes/{name}/start          run     tenant
POST /v1/sandboxes/{name}/stop           run     tenant
POST /v1/sandboxes/{name}/pause run tenant
POST /v1/sandboxes/{name}/resume run tenant
POST /v1/sandboxes/{name}/hibernate run tenant
POST /v1/sandboxes/{name}/wake run tenant
POST /v1/sandboxes/{name}/recover run tenant
GET /v1/sandboxes/{name}/snapshots                read tenant
POST /v1/sandboxes/{name}/snapshots               run  tenant
DELETE /v1/sandboxes/{name}/snapshots/{snapshot}  run  tenant
POST /v1/sandboxes/{name}/restore                 run  tenant
POST /v1/sandboxes/{name}/fork                    run  tenant
POST /v1/sandboxes/{name}/exec           run     tenant
GET /v1/sandboxes/{name}/ca              read    tenant
POST /v1/sandboxes/{name}/commands run tenant
GET /v1/sandboxes/{name}/commands run tenant
GET /v1/sandboxes/{name}/commands/{id} run tenant
DELETE /v1/sandboxes/{name}/commands/{id} run tenant
POST /v1/sandboxes/{name}/commands/{id}/signal run tenant
POST /v1/sandboxes/{name}/commands/{id}/resize run tenant
POST /v1/sandboxes/{name}/commands/{id}/stdin run tenant
GET /v1/sandboxes/{name}/commands/{id}/output run tenant
GET /v1/sandboxes/{name}/files run tenant
PUT /v1/sandboxes/{name}/files run tenant
DELETE /v1/sandboxes/{name}/files run tenant
GET /v1/sandboxes/{name}/files/stat run tenant
GET /v1/sandboxes/{name}/files/list run tenant
POST /v1/sandboxes/{name}/files/mkdir run tenant
POST /v1/sandboxes/{name}/files/move run tenant
GET /v1/sandboxes/{name}/files/tar run tenant
PUT /v1/sandboxes/{name}/files/tar run tenant
GET /v1/sandboxes/{name}/files/watch run tenant
GET /v1/sandboxes/{name}/changes run tenant
GET /v1/sandboxes/{name}/exposures read tenant
PUT /v1/sandboxes/{name}/exposures/{port} run tenant
DELETE /v1/sandboxes/{name}/exposures/{port} run tenant
`

// Each route with a key of each scope, of the host and of a tenant, and with none.
func TestScopes(t *testing.T) {
	_, _, h := serve(t, true)
	h.audit = t.TempDir()
	texts := map[string]string{}
	for _, s := range api.Scopes {
		_, texts[string(s)] = keyed(t, h, string(s), "", string(s))
		_, texts[string(s)+" tenant"] = keyed(t, h, string(s)+"-t", "acme", string(s))
	}
	seen := 0
	for line := range strings.Lines(strings.TrimSpace(rows)) {
		f := strings.Fields(line)
		method, pattern, scope, shared := f[0], f[1], f[2], f[3] == "tenant"
		if facts, ok := api.Routes()[method+" "+pattern]; !ok || cmp.Or(string(facts.Scope), "any") != scope || facts.Shared != shared {
			t.Errorf("%s %s is not of the routes, or they say something else: %+v", method, pattern, facts)
		}
		seen++
		path := strings.NewReplacer("{name}", "nothing", "{id}", "nothing", "{port}", "8000", "{snapshot}", "nothing", "{decision}", "nothing").Replace(pattern)
		body := "!" // that no route takes
		if method == "GET" || method == "DELETE" || slices.Contains([]string{"start", "stop", "pause", "resume", "hibernate", "wake", "reload", "shutdown"}, pattern[strings.LastIndexByte(pattern, '/')+1:]) {
			body = ""
		}
		for who, text := range texts {
			has, tenant, _ := strings.Cut(who, " ")
			want := ""
			switch {
			case has != scope && has != "admin" && scope != "any":
				want = "scope"
			case tenant != "" && !shared:
				want = "tenant"
			}
			status, kind, _, _ := raw(t, h, text, method, path, body)
			if got := status == 403; got != (want != "") || got && kind != want || status == 401 {
				t.Errorf("%s %s with %s: %d %s, want %q", method, path, who, status, kind, want)
			}
		}
	}
	if want := len(api.Routes()); seen != want {
		t.Errorf("%d rows, %d routes", seen, want)
	}
	for _, path := range []string{"/v1/sandboxes", "/v1/openapi.json", "/", "/metrics"} {
		if status, kind, _, head := raw(t, h, "", "GET", path, ""); status != 401 || kind != "unauthorized" || head.Get("WWW-Authenticate") == "" {
			t.Errorf("%s without a key: %d %s", path, status, kind)
		}
	}
}

// Who runs sandboxes does not tag them, and does not choose a weaker wall.
func TestRunDoesNotTag(t *testing.T) {
	_, _, h := serve(t, true)
	for scopes, want := range map[string][3]int{ // plain, tagged, on runc
		"run": {201, 403, 403}, "run,policy": {201, 201, 403}, "run,policy,admin": {201, 201, 201}, "run,approve,secrets,read": {201, 403, 403},
	} {
		name := strings.ReplaceAll(scopes, ",", "-")
		_, text := keyed(t, h, name, "", strings.Split(scopes, ",")...)
		for i, body := range []string{`{}`, `{"tags": {"team": "support"}}`, `{"runtime": "runc"}`} {
			if status, kind, answer, _ := raw(t, h, text, "PUT", fmt.Sprintf("/v1/sandboxes/%s-%d", name, i), body); status != want[i] || status == 403 && kind != "scope" {
				t.Errorf("%s: %s: %d %s, want %d", scopes, body, status, answer, want[i])
			}
		}
	}
	if _, _, answer, _ := raw(t, h, must2(keyed(t, h, "o", "acme", "admin")), "PUT", "/v1/sandboxes/owned", `{"owner": "other"}`); !bytes.Contains(answer, []byte("owner")) {
		t.Errorf("an owner that is sent: %s", answer)
	}
}

// Who runs sandboxes changes what they are, and nothing that widens what they may
// reach.
func TestSetScopes(t *testing.T) {
	c, _, h := serve(t, true)
	must[sandbox.Info](t)(c.Create(t.Context(), "box", sandbox.Spec{Offline: true}))
	_, run := keyed(t, h, "driver", "", "run")
	_, policy := keyed(t, h, "team", "", "run", "policy")
	for _, tt := range []struct {
		key, body string
		status    int
		kind      string
	}{
		{run, `{"labels": {"a": "b"}, "lifetime": "24h", "cpus": 2, "env": {}}`, 200, ""},
		{run, `{"tags": {"team": "support"}}`, 403, "scope"},
		{run, `{"offline": false}`, 403, "scope"},
		{run, `{"offline": true}`, 200, ""},
		{run, `{"image": "other"}`, 409, "other-spec"},
		{run, `{"idel": "1h"}`, 400, "bad-request"},
		{run, `{"lifetime": "soon"}`, 400, "bad-request"},
		{policy, `{"tags": {"team": "support"}, "offline": false, "restart": true}`, 200, ""},
	} {
		if status, kind, answer, _ := raw(t, h, tt.key, "PATCH", "/v1/sandboxes/box", tt.body); status != tt.status || kind != tt.kind {
			t.Errorf("%s: %d %s %s, want %d %s", tt.body, status, kind, answer, tt.status, tt.kind)
		}
	}
	i := must[sandbox.Info](t)(c.Set(t.Context(), "box", sandbox.SpecChange{Tags: map[string]string{}}))
	if len(i.Spec.Tags) != 0 || i.Spec.Labels["a"] != "b" || i.Next == nil || i.Next.CPUs != 2 || i.Next.Offline {
		t.Errorf("got %+v, next %+v", i.Spec, i.Next)
	}
}

func must2(_ *client.Client, text string) string { return text }

// A tenant sees and touches its own alone, and learns of others that a name is
// taken.
func TestTenants(t *testing.T) {
	root, _, h := serve(t, true)
	ctx := t.Context()
	acme, acmeText := keyed(t, h, "acme", "acme", "admin")
	other, _ := keyed(t, h, "other", "other", "admin")
	must[sandbox.Info](t)(acme.Create(ctx, "box", sandbox.Spec{Env: map[string]string{"A": "1"}}))
	must[sandbox.Info](t)(root.Create(ctx, "hosts", sandbox.Spec{}))
	if i, err := root.Sandbox(ctx, "acme/box"); err != nil || i.Spec.Owner != "acme" || i.Name != "box" {
		t.Errorf("the host's own: %+v %v", i, err)
	}
	names := func(c *client.Client) string {
		var all []string
		for _, i := range must[[]sandbox.Info](t)(c.Sandboxes(ctx)) {
			all = append(all, i.Name)
		}
		return strings.Join(all, " ")
	}
	if a, o, r := names(acme), names(other), names(root); a != "box" || o != "" || r != "box hosts" {
		t.Errorf("lists: %q %q %q", a, o, r)
	}
	run := func(_ any, err error) error { return err }
	quiet := sandbox.CommandSpec{Args: []string{"true"}}
	for _, name := range []string{"box", "hosts"} {
		for verb, err := range map[string]error{
			"get": run(other.Sandbox(ctx, name)), "start": run(other.Start(ctx, name)), "stop": run(other.Stop(ctx, name)),
			"rm": other.Remove(ctx, name), "ca": run(other.SandboxRoot(ctx, name)), "exec": run(other.Exec(ctx, name, quiet, sandbox.Streams{})),
			"commands": run(other.Commands(ctx, name)), "command": run(other.Command(ctx, name, "x")), "kill": run(other.KillCommand(ctx, name, "x")),
			"begin": run(other.StartCommand(ctx, name, quiet)), "feed": other.Feed(ctx, name, "x", strings.NewReader(""), false),
			"pause": run(other.Pause(ctx, name)), "hibernate": run(other.Hibernate(ctx, name)), "wake": run(other.Wake(ctx, name)),
			"stat": run(other.Files(name).Stat(ctx, "/", false)), "changes": other.Changes(ctx, name, "", nil),
			"snapshots": run(other.Snapshots(ctx, name)), "fork": run(other.Fork(ctx, name, sandbox.ForkSpec{Names: []string{"child"}})),
		} {
			none := strings.ReplaceAll(run(other.Sandbox(ctx, "nobody")).Error(), "nobody", name)
			if p := (*api.Problem)(nil); !errors.As(err, &p) || p.Status != 404 || p.Type != client.ProblemType+"no-sandbox" || verb == "get" && p.Detail != none {
				t.Errorf("%s %s: %v, want what is said of none: %s", verb, name, err, none)
			}
		}
		var p *api.Problem
		err := run(other.Create(ctx, name, sandbox.Spec{Image: "guess"}))
		if !errors.As(err, &p) || p.Status != 409 || p.Type != client.ProblemType+"name-taken" || strings.Contains(p.Detail, "acme") || strings.Contains(p.Detail, "image") {
			t.Errorf("a name of somebody else's: %v", err)
		}
	}
	if code, err := acme.Exec(ctx, "box", quiet, sandbox.Streams{}); code != 0 || err != nil {
		t.Errorf("its own: %d %v", code, err)
	}
	for i, who := range []string{"box", "hosts"} {
		id := must[sandbox.Info](t)(root.Sandbox(ctx, []string{"acme/box", "hosts"}[i])).ID
		v := must[approval.Verdict](t)(h.approvals.Ask(approval.Question{Timeout: time.Minute, Subject: approval.Subject{
			Sandbox: who, SandboxID: id, Protocol: "tls", Host: "api.example.test", Port: 443, Method: "GET", Path: "/", Body: "b",
		}}))
		if l := must[api.ApprovalList](t)(api.ListApprovals.Do(ctx, acme, client.None{})); len(l.Requests) != 1 || l.Requests[0].Subject.Sandbox != "box" {
			t.Errorf("what waits: %+v", l)
		}
		if status, _, answer, _ := raw(t, h, acmeText, "POST", "/v1/approvals/"+v.ID, `{"approve": true}`); status != []int{200, 404}[i] {
			t.Errorf("answering for %s: %d %s", who, status, answer)
		}
		if i == 0 {
			must[approval.Verdict](t)(h.approvals.Ask(approval.Question{Timeout: time.Minute, Subject: approval.Subject{
				Sandbox: who, SandboxID: id, Protocol: "tls", Host: "api.example.test", Port: 443, Method: "GET", Path: "/again", Body: "b",
			}}))
		}
	}
	if s := h.said(); !slices.Contains(s, "sandbox box created by key acme") || !slices.Contains(s, "sandbox hosts created by root") && os.Getuid() == 0 {
		t.Errorf("the events name nobody: %q", s)
	}
}

// A key is shown once, kept as a hash, void when it has expired or is removed, and
// each change is an event.
func TestKeys(t *testing.T) {
	c, _, h := serve(t, false)
	ctx := t.Context()
	made := must[api.KeyText](t)(api.CreateKey.Do(ctx, c, api.KeyRequest{Scopes: []string{"read"}, Expires: time.Now().Add(time.Hour)}, "ci"))
	file := filepath.Join(h.dir, "keys.json")
	if text := must[[]byte](t)(os.ReadFile(file)); bytes.Contains(text, []byte(made.Text)) || bytes.Contains(text, []byte(made.Text[20:])) || !bytes.Contains(text, []byte("ci")) {
		t.Errorf("the file holds the key: %s", text)
	}
	if i := must[os.FileInfo](t)(os.Stat(file)); i.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", i.Mode())
	}
	remote := dialed(t, h, made.Text)
	if s, err := api.GetStatus.Do(ctx, remote, client.None{}); err != nil || s.Version != "test" {
		t.Fatal(s, err)
	}
	list := must[[]api.Key](t)(api.ListKeys.Do(ctx, c))
	if len(list) != 1 || list[0].Used.IsZero() || list[0].ID != made.ID || list[0].Tenant != "" {
		t.Errorf("%+v", list)
	}
	for name, text := range map[string]string{
		"one letter": made.Text[:len(made.Text)-1] + "!", "no secret": made.Text[:20], "another's ID": "sp_0000000000000000" + made.Text[19:], "empty": "", "cut": made.Text[:len(made.Text)-2],
	} {
		if status, _, _, _ := raw(t, h, text, "GET", "/v1/status", ""); status != 401 {
			t.Errorf("%s: %d", name, status)
		}
	}
	again := must[*api.Keys](t)(api.OpenKeys(file, slog.New(slog.DiscardHandler)))
	if k, ok := again.Verify(made.Text); !ok || k.Name != "ci" {
		t.Errorf("after a restart: %v %v", k, ok)
	}
	soon := must[api.KeyText](t)(api.CreateKey.Do(ctx, c, api.KeyRequest{Scopes: []string{"read"}, Expires: time.Now().Add(1500 * time.Millisecond)}, "soon"))
	wait(t, "a key to expire", func() bool {
		status, _, _, _ := raw(t, h, soon.Text, "GET", "/v1/status", "")
		return status == 401
	})
	if err := api.RemoveKey.Do(ctx, c, client.None{}, "ci"); err != nil {
		t.Fatal(err)
	}
	var p *api.Problem
	if _, err := api.GetStatus.Do(ctx, remote, client.None{}); !errors.As(err, &p) || p.Status != 401 {
		t.Errorf("a key that is removed: %v", err)
	}
	for _, bad := range []api.KeyRequest{{}, {Scopes: []string{"root"}}, {Scopes: []string{"read"}, Tenant: "A B"}, {Scopes: []string{"read"}, Expires: time.Now().Add(-time.Hour)}} {
		if _, err := api.CreateKey.Do(ctx, c, bad, "bad"); !errors.As(err, &p) || p.Status != 400 {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	said := strings.Join(h.said(), "\n")
	for _, want := range []string{"API key ci (" + made.ID + ") created by ", "API key ci (" + made.ID + ") removed by ", "API call refused"} {
		if !strings.Contains(said, want) {
			t.Errorf("no event says %q:\n%s", want, said)
		}
	}
	if strings.Contains(said, made.Text) {
		t.Error("an event holds the key")
	}
}

// Guessing is bounded by source; a key that is known gets through all the same,
// and the events are fewer than the calls.
func TestFailuresAreBounded(t *testing.T) {
	_, _, h := serve(t, false)
	_, text := keyed(t, h, "good", "", "read")
	counts := map[int]int{}
	for range 60 {
		status, _, _, head := raw(t, h, "sp_guess", "GET", "/v1/status", "")
		counts[status]++
		if status == 429 && head.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	if counts[401] < 5 || counts[401] > 15 || counts[401]+counts[429] != 60 {
		t.Errorf("%v", counts)
	}
	if status, _, _, _ := raw(t, h, text, "GET", "/v1/status", ""); status != 200 {
		t.Errorf("with a key: %d", status)
	}
	if n := len(h.said()); n < 10 || n > 40 {
		t.Errorf("%d events of 60 calls", n)
	}
}

// Only the server whose certificate was named gets a key to see.
func TestFingerprint(t *testing.T) {
	_, _, h := serve(t, false)
	good, text := keyed(t, h, "good", "", "read")
	must[api.Status](t)(api.GetStatus.Do(t.Context(), good, client.None{}))
	other := h.remote
	h.remote.Fingerprint = "sha256:" + strings.Repeat("0", 64)
	if _, err := api.GetStatus.Do(t.Context(), dialed(t, h, text), client.None{}); !errors.Is(err, client.ErrServer) {
		t.Errorf("another certificate: %v", err)
	}
	h.remote.Fingerprint = "" // the system's authorities know nothing of it
	var unknown *tls.CertificateVerificationError
	if _, err := api.GetStatus.Do(t.Context(), dialed(t, h, text), client.None{}); !errors.As(err, &unknown) {
		t.Errorf("nobody vouches: %v", err)
	}
	other.KeyFile = filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(other.KeyFile, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Dial(other); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key that all can read: %v", err)
	}
	for _, url := range []string{"http://127.0.0.1:1", "https://", "https://a/b", "127.0.0.1:1"} {
		if _, err := client.Dial(client.Remote{URL: url, KeyFile: other.KeyFile}); err == nil {
			t.Errorf("%q is taken", url)
		}
	}
}

// What is asked for once is done once: also after a restart, and never for another
// body, another caller, or with what is shown once shown again.
func TestIdempotencyKey(t *testing.T) {
	c, _, h := serve(t, true)
	_, text := keyed(t, h, "a", "", "admin")
	_, second := keyed(t, h, "b", "", "admin")
	put := func(text, path, body, key string) (int, string, []byte, http.Header) {
		t.Helper()
		return raw(t, h, text, "PUT", path, body, "Idempotency-Key", key)
	}
	status, _, first, head := put(text, "/v1/sandboxes/box", `{}`, "k1")
	if status != 201 || head.Get("Idempotency-Replayed") != "" {
		t.Fatalf("%d %s", status, first)
	}
	status, _, again, head := put(text, "/v1/sandboxes/box", `{}`, "k1")
	if status != 201 || !bytes.Equal(first, again) || head.Get("Idempotency-Replayed") != "true" {
		t.Errorf("again: %d %s", status, again)
	}
	for path, body := range map[string]string{"/v1/sandboxes/box": `{"pids": 100}`, "/v1/sandboxes/other": `{}`} {
		if status, kind, _, _ := put(text, path, body, "k1"); status != 422 || kind != "idempotency-key-reused" {
			t.Errorf("%s %s: %d %s", path, body, status, kind)
		}
	}
	if status, _, _, _ := put(second, "/v1/sandboxes/theirs", `{}`, "k1"); status != 201 {
		t.Errorf("another caller's: %d", status)
	}
	if status, _, _, _ := put(text, "/v1/sandboxes/No", `{}`, "k2"); status != 400 {
		t.Errorf("a bad one: %d", status)
	}
	if status, _, _, _ := put(text, "/v1/sandboxes/yes", `{}`, "k2"); status != 201 {
		t.Errorf("nothing came of it, so the key is free: %d", status)
	}
	if status, _, _, _ := put(text, "/v1/clients/user", `{}`, "k3"); status != 201 {
		t.Errorf("a client: %d", status)
	}
	if status, kind, answer, _ := put(text, "/v1/clients/user", `{}`, "k3"); status != 409 || kind != "shown-once" || bytes.Contains(answer, []byte("token")) {
		t.Errorf("its token again: %d %s", status, answer)
	}
	for _, bad := range []string{strings.Repeat("x", 256), "a b", `""`} {
		if status, _, _, _ := put(text, "/v1/sandboxes/box", `{}`, bad); status != 400 {
			t.Errorf("the key %q: %d", bad, status)
		}
	}
	once := client.WithIdempotencyKey(t.Context(), "the-client's")
	for _, tt := range []struct {
		spec sandbox.Spec
		want string
	}{{sandbox.Spec{}, ""}, {sandbox.Spec{}, ""}, {sandbox.Spec{Pids: 100}, "idempotency-key-reused"}} {
		_, err := c.Create(once, "twice", tt.spec)
		var p *api.Problem
		if tt.want == "" && err != nil || tt.want != "" && (!errors.As(err, &p) || !strings.HasSuffix(p.Type, tt.want)) {
			t.Errorf("by the client, %+v: got %v, want %q", tt.spec, err, tt.want)
		}
	}
	files := must[[]os.DirEntry](t)(os.ReadDir(filepath.Join(h.dir, "once")))
	for _, f := range files {
		if b := must[[]byte](t)(os.ReadFile(filepath.Join(h.dir, "once", f.Name()))); bytes.Contains(b, []byte("token")) {
			t.Errorf("a token is kept: %s", b)
		}
	}

	fingerprint := h.remote.Fingerprint
	h.restart()
	if status, _, again, head := put(text, "/v1/sandboxes/box", `{}`, "k1"); status != 201 || !bytes.Equal(first, again) || head.Get("Idempotency-Replayed") != "true" || h.remote.Fingerprint != fingerprint {
		t.Errorf("after a restart: %d %s", status, again)
	}
	// As a crash leaves them: begun, and nothing more.
	for _, f := range files {
		name := filepath.Join(h.dir, "once", f.Name())
		var k map[string]any
		if err := json.Unmarshal(must[[]byte](t)(os.ReadFile(name)), &k); err != nil {
			t.Fatal(err)
		}
		delete(k, "status")
		if err := os.WriteFile(name, must[[]byte](t)(json.Marshal(k)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h.restart()
	if status, kind, _, _ := put(text, "/v1/sandboxes/box", `{}`, "k1"); status != 409 || kind != "outcome-unknown" {
		t.Errorf("after a crash: %d %s", status, kind)
	}
}

// Pages follow each other by their Link, and no entry is missing or twice.
func TestPages(t *testing.T) {
	c, _, h := serve(t, true)
	for i := range 7 {
		must[sandbox.Info](t)(c.Create(t.Context(), fmt.Sprintf("box-%d", i), sandbox.Spec{}))
	}
	_, text := keyed(t, h, "a", "", "read")
	var names []string
	for path := "/v1/sandboxes?limit=3"; path != ""; {
		status, _, answer, head := raw(t, h, text, "GET", path, "")
		var page []sandbox.Info
		if err := json.Unmarshal(answer, &page); err != nil || status != 200 || len(page) > 3 {
			t.Fatalf("%d %s", status, answer)
		}
		for _, i := range page {
			names = append(names, i.Name)
		}
		if len(names) == 3 { // what goes meanwhile hides nothing
			if err := c.Remove(t.Context(), "box-1"); err != nil {
				t.Fatal(err)
			}
		}
		link, _, _ := strings.Cut(strings.TrimPrefix(head.Get("Link"), "<"), ">")
		path = link
	}
	if got := strings.Join(names, " "); got != "box-0 box-1 box-2 box-3 box-4 box-5 box-6" {
		t.Errorf("got %s", got)
	}
	for _, q := range []string{"limit=0", "limit=1001", "limit=x", "cursor=!"} {
		if status, _, _, _ := raw(t, h, text, "GET", "/v1/sandboxes?"+q, ""); status != 400 {
			t.Errorf("%s: %d", q, status)
		}
	}
	all := must[[]sandbox.Info](t)(client.All[sandbox.Info](t.Context(), c, "/v1/sandboxes?limit=2"))
	if len(all) != 6 {
		t.Errorf("the client has %d", len(all))
	}
}

func TestNoSuchRoute(t *testing.T) {
	_, _, h := serve(t, true)
	_, text := keyed(t, h, "a", "", "read")
	if status, kind, _, _ := raw(t, h, text, "GET", "/v1/nothing", ""); status != 404 || kind != "no-route" {
		t.Errorf("%d %s", status, kind)
	}
	if status, kind, _, head := raw(t, h, text, "POST", "/v1/sandboxes/a", ""); status != 405 || kind != "method" || !strings.Contains(head.Get("Allow"), "PUT") {
		t.Errorf("%d %s %s", status, kind, head.Get("Allow"))
	}
	if status, kind, _, _ := raw(t, h, text, "POST", "/v1/policy/explain", `{} {}`); status != 400 || kind != "bad-request" {
		t.Errorf("two values: %d %s", status, kind)
	}
}

// Every type of problem is documented, and configuration knows the scopes.
func TestWords(t *testing.T) {
	text := string(must[[]byte](t)(os.ReadFile("../../docs/reference/api.md")))
	for _, k := range api.Kinds() {
		if !strings.Contains(text, "`"+k+"`") {
			t.Errorf("docs/reference/api.md does not say what %s is", k)
		}
	}
	for _, s := range config.Scopes {
		if !slices.Contains(api.Scopes, api.Scope(s)) || len(config.Scopes) != len(api.Scopes) {
			t.Errorf("%s is no scope", s)
		}
		if !strings.Contains(text, "| `"+s+"` |") {
			t.Errorf("docs/reference/api.md does not say what %s is", s)
		}
	}
}

// Each caller has room for so many idempotency keys, and takes none of others'.
func TestIdempotencyKeysAreBounded(t *testing.T) {
	_, _, h := serve(t, true)
	_, greedy := keyed(t, h, "greedy", "", "run")
	_, other := keyed(t, h, "other", "", "run")
	if status, _, _, _ := raw(t, h, other, "PUT", "/v1/sandboxes/box", "{}", "Idempotency-Key", "mine"); status != 201 {
		t.Fatal(status)
	}
	for i := range 300 {
		if status, _, answer, _ := raw(t, h, greedy, "PUT", "/v1/sandboxes/box", "{}", "Idempotency-Key", fmt.Sprint(i)); status != 200 {
			t.Fatalf("%d %s", status, answer)
		}
	}
	if n := len(must[[]os.DirEntry](t)(os.ReadDir(filepath.Join(h.dir, "once")))); n != 257 {
		t.Errorf("%d are kept", n)
	}
	if _, _, _, head := raw(t, h, other, "PUT", "/v1/sandboxes/box", "{}", "Idempotency-Key", "mine"); head.Get("Idempotency-Replayed") != "true" {
		t.Error("another's is gone")
	}
}
