package api_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/api"
	"sallyport/internal/test/must"
	"sallyport/policy"
	reqbody "sallyport/policy/body"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// Each error of the packages behind the API has the status that its caller can
// act on, and what it says arrives.
func TestProblems(t *testing.T) {
	c, _, _ := serve(t, true)
	none, _, _ := serve(t, false)
	ctx := t.Context()
	run := func(_ any, err error) error { return err }
	must.OK(t, run(c.Create(ctx, "taken", sandbox.Spec{Image: "base"})))
	must.OK(t, run(api.AddClient.Do(ctx, c, api.ClientRequest{}, "user")))
	for _, tt := range []struct {
		name   string
		err    error
		status int
		says   string
	}{
		{"no such sandbox", run(c.Sandbox(ctx, "nobody")), 404, "sallyport sandbox ls"},
		{"start of none", run(c.Start(ctx, "nobody")), 404, "nobody"},
		{"stop of none", run(c.Stop(ctx, "nobody")), 404, "nobody"},
		{"removal of none", c.Remove(ctx, "nobody"), 404, "nobody"},
		{"authority of none", run(c.SandboxRoot(ctx, "nobody")), 404, "nobody"},
		{"bad name", run(c.Create(ctx, "No Name", sandbox.Spec{})), 400, "lower-case"},
		{"path in a name", run(c.Sandbox(ctx, "../../etc")), 400, "lower-case"},
		{"dots for a name", run(c.Create(ctx, "..", sandbox.Spec{})), 400, "letters, digits and hyphens"},
		{"a dot for a name", c.Remove(ctx, "."), 400, "letters, digits and hyphens"},
		{"dots for a snapshot's name", c.RemoveSnapshot(ctx, "taken", ".."), 400, "letters, digits and hyphens"},
		{"bad spec", run(c.Create(ctx, "a", sandbox.Spec{Runtime: "kata"})), 400, "kata"},
		{"another spec", run(c.Create(ctx, "taken", sandbox.Spec{Image: "other"})), 409, "image"},
		{"reset of no limit", run(api.ResetLimit.Do(ctx, c, api.ResetRequest{}, "nothing")), 404, "no such limit"},
		{"no command", run(c.Exec(ctx, "taken", sandbox.CommandSpec{}, sandbox.Streams{})), 400, "no command"},
		{"command in none", run(c.Exec(ctx, "nobody", sandbox.CommandSpec{Args: []string{"true"}}, sandbox.Streams{})), 404, "nobody"},
		{"explaining for nobody", run(api.Explain.Do(ctx, c, api.Question{Input: policy.Input{Sandbox: policy.Sandbox{Name: "nobody"}}})), 404, "nobody"},
		{"client twice", run(api.AddClient.Do(ctx, c, api.ClientRequest{}, "user")), 409, "remove it first"},
		{"a client with a sandbox's name", run(api.AddClient.Do(ctx, c, api.ClientRequest{}, "taken")), 409, "sandbox"},
		{"a sandbox with a client's name", run(c.Create(ctx, "user", sandbox.Spec{})), 409, "proxy user"},
		{"bad client name", run(api.AddClient.Do(ctx, c, api.ClientRequest{}, "No")), 400, "not a client name"},
		{"no such client", api.RemoveClient.Do(ctx, c, client.None{}, "nobody"), 404, "nobody"},
		{"authority of no client", run(api.ClientRoot.Do(ctx, c, client.None{}, "nobody")), 404, "sallyport client ls"},
		{"bad secret name", api.SetSecret.Do(ctx, c, map[string]string{"token": "x"}, "no/name"), 400, "not a credential name"},
		{"bad field", api.SetSecret.Do(ctx, c, map[string]string{"no field": "x"}, "a"), 400, "not a field name"},
		{"empty secret", api.SetSecret.Do(ctx, c, nil, "a"), 400, "1 to 32 fields"},
		{"secret of Vault's", api.SetSecret.Do(ctx, c, map[string]string{"token": "x"}, "in-vault"), 409, "elsewhere"},
		{"no such secret", api.RemoveSecret.Do(ctx, c, client.None{}, "nobody"), 404, "nobody"},
		{"too much", api.SetSecret.Do(ctx, c, map[string]string{"token": strings.Repeat("x", 2<<20)}, "a"), 413, "too large"},
		{"bad configuration", run(api.Reload.Do(ctx, c, client.None{})), 400, "line 3"},
		{"no sandboxes here", run(none.Sandboxes(ctx)), 400, "engine.kind"},
		{"no command here", run(none.Exec(ctx, "a", sandbox.CommandSpec{Args: []string{"true"}}, sandbox.Streams{})), 400, "engine.kind"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var p *api.Problem
			if !errors.As(tt.err, &p) {
				t.Fatalf("got %v, want a problem", tt.err)
			}
			if p.Status != tt.status || !strings.Contains(p.Detail, tt.says) {
				t.Errorf("got %d %q, want %d with %q", p.Status, p.Detail, tt.status, tt.says)
			}
		})
	}
}

// An existing sandbox can be used to its end.
func TestVerbs(t *testing.T) {
	c, _, h := serve(t, true)
	ctx := t.Context()
	need[sandbox.Info](t)(c.Create(ctx, "box", sandbox.Spec{}))
	if i := need[sandbox.Info](t)(c.Start(ctx, "box")); i.State != sandbox.Running || i.Session == "" {
		t.Errorf("started: %+v", i)
	}
	if i := need[sandbox.Info](t)(c.Stop(ctx, "box")); i.State != sandbox.Stopped {
		t.Errorf("stopped: %+v", i)
	}
	if pem := need[[]byte](t)(c.SandboxRoot(ctx, "box")); !bytes.HasPrefix(pem, []byte("-----BEGIN")) {
		t.Errorf("its authority: %s", pem)
	}
	need[api.ClientToken](t)(api.AddClient.Do(ctx, c, api.ClientRequest{}, "user"))
	if err := errors.Join(api.RemoveClient.Do(ctx, c, client.None{}, "user"), c.Remove(ctx, "box")); err != nil {
		t.Error(err)
	}
	h.mended.Store(true)
	if s := need[api.Status](t)(api.Reload.Do(ctx, c, client.None{})); s.Version != "test" {
		t.Errorf("%+v", s)
	}
	if err := api.Shutdown.Do(ctx, c, client.None{}); err != nil {
		t.Error(err)
	}
}

func TestUnknownFieldIsRefused(t *testing.T) {
	_, socket, _ := serve(t, true)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	req := need[*http.Request](t)(http.NewRequest("PUT", "http://sallyport/v1/sandboxes/a", strings.NewReader(`{"imgae": "base"}`)))
	resp := need[*http.Response](t)(transport.RoundTrip(req))
	defer resp.Body.Close()
	body := need[[]byte](t)(io.ReadAll(resp.Body))
	if resp.StatusCode != 400 || resp.Header.Get("Content-Type") != "application/problem+json" || !bytes.Contains(body, []byte("imgae")) {
		t.Errorf("got %d %s %s, want a problem that names the field", resp.StatusCode, resp.Header.Get("Content-Type"), body)
	}
}

func TestNoDaemon(t *testing.T) {
	_, err := api.GetStatus.Do(t.Context(), client.Unix(filepath.Join(t.TempDir(), "nothing")), client.None{})
	if !errors.Is(err, client.ErrNoDaemon) || !strings.Contains(err.Error(), "sallyport up") {
		t.Errorf("got %v, want %v and what to do", err, client.ErrNoDaemon)
	}
}

// A listing shows that a secret is there, and nothing answers with its value.
func TestSecretsGoInOnly(t *testing.T) {
	c, _, _ := serve(t, false)
	must.OK(t, api.SetSecret.Do(t.Context(), c, map[string]string{"token": "sk-very-secret"}, "key"))
	list, err := api.ListSecrets.Do(t.Context(), c)
	if err != nil || len(list) != 1 || list[0].Name != "key" {
		t.Errorf("got %v, %v, want the one", list, err)
	}
	must.OK(t, api.SetSecret.Do(t.Context(), c, map[string]string{"token": "sk-very-secret too"}, "key"))
	if err := api.RemoveSecret.Do(t.Context(), c, client.None{}, "key"); err != nil {
		t.Error(err)
	}
	past, err := api.SecretHistory.Do(t.Context(), c, client.None{}, "key")
	if err != nil || len(past) != 3 || past[0].Version == past[1].Version || past[0].Removed == past[2].Removed {
		t.Errorf("got %+v, %v, want what was set twice and removed", past, err)
	}
}

// A client whose certificate authority cannot be made is not there: its token
// was never shown.
func TestClientWithoutAuthorityIsNotKept(t *testing.T) {
	c, _, h := serve(t, false)
	fault := errors.New("the disk is full")
	h.root.Store(&fault)
	if _, err := api.AddClient.Do(t.Context(), c, api.ClientRequest{}, "a"); err == nil || !strings.Contains(err.Error(), fault.Error()) {
		t.Fatalf("got %v, want %v", err, fault)
	}
	h.root.Store(nil)
	added, err := api.AddClient.Do(t.Context(), c, api.ClientRequest{}, "a")
	if err != nil || added.Token == "" {
		t.Fatalf("the next attempt: got %+v, %v", added, err)
	}
	pem, err := api.ClientRoot.Do(t.Context(), c, client.None{}, "a")
	if err != nil || !bytes.HasPrefix(pem, []byte("-----BEGIN CERTIFICATE-----")) {
		t.Errorf("got %q, %v, want a certificate", pem, err)
	}
}

// Rules select by tags, so that an explanation has to know them.
func TestExplainKnowsTags(t *testing.T) {
	c, _, _ := serve(t, true)
	ctx := t.Context()
	support := map[string]string{"team": "support"}
	if _, err := c.Create(ctx, "box", sandbox.Spec{Tags: support}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(ctx, "other", sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.AddClient.Do(ctx, c, api.ClientRequest{Tags: support}, "away"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]policy.Action{
		"box": policy.Allow, "away": policy.Allow, "other": policy.Deny,
		"": policy.Allow, // nobody is named: one that could be, with the tags that were sent
	} {
		e, err := api.Explain.Do(ctx, c, api.Question{Input: policy.Input{
			Phase:       policy.PhaseRequest,
			Sandbox:     policy.Sandbox{Name: name, Tags: support}, // of a name that exists its own count
			Destination: policy.Destination{Host: "docs.example.test", Port: 443},
			Protocol:    policy.ProtocolTLS,
			Request:     &policy.Request{Method: "GET", Scheme: "https", Path: "/", Size: -1},
		}})
		if err != nil || e.Decision.Action != want {
			t.Errorf("%q: got %q (%s), %v, want %q", name, e.Decision.Action, e.Decision.Reason, err, want)
		}
	}
}

// A rule that has to see a body sees the one that was sent along, of any size that
// it could judge.
func TestExplainReadsABody(t *testing.T) {
	c, _, _ := serve(t, false)
	for text, want := range map[string]policy.Action{
		`{"model": "a"}`: policy.Allow,
		`{"model": "` + strings.Repeat("a", policy.MaxBody-13) + `"}`: policy.Allow,
		`{"model": "` + strings.Repeat("a", policy.MaxBody) + `"}`:    policy.Deny,
		`not JSON`: policy.Deny,
		"":         policy.Deny,
	} {
		q := api.Question{Input: policy.Input{
			Phase: policy.PhaseRequest, Destination: policy.Destination{Host: "models.example.test", Port: 443}, Protocol: policy.ProtocolTLS,
			Request: &policy.Request{Method: "POST", Scheme: "https", Path: "/", Size: int64(len(text))},
		}}
		if text != "" {
			q.Sent = &reqbody.Raw{Header: http.Header{"Content-Type": {"application/json"}}, Text: []byte(text)[:min(len(text), policy.MaxBody+1)], Size: int64(len(text))}
		}
		e, err := api.Explain.Do(t.Context(), c, q)
		if err != nil || e.Decision.Action != want {
			t.Errorf("%.20q, %d bytes: %s (%s), %v, want %s", text, len(text), e.Decision.Action, e.Decision.Reason, err, want)
		}
	}
}

// A recorded decision is explained by its id, by today's policy.
func TestExplainsARecordedDecision(t *testing.T) {
	c, _, h := serve(t, false)
	h.audit = t.TempDir()
	log := need[*auditlog.Log](t)(auditlog.Open(h.audit, auditlog.Options{}))
	defer log.Close()
	e := audit.New(audit.KindDecision, audit.ClassHTTP, audit.HTTPActivity("GET"))
	e.Destination = &audit.Endpoint{Hostname: "docs.example.test", Port: 443}
	e.HTTPRequest = &audit.HTTPRequest{Method: "GET", URL: &audit.URL{Scheme: "https", Hostname: "docs.example.test", Port: 443, Path: "/"}}
	x := &e.Unmapped.Sallyport
	x.Phase, x.Decision, x.Reason, x.Sandbox, x.Tags = "request", "deny", "no rule allows it", "gone", map[string]string{"team": "support"}
	e.Policy = &audit.Policy{Version: "older"}
	must.OK(t, log.Append(t.Context(), e))
	got, err := api.ExplainDecision.Do(t.Context(), c, client.None{}, e.ID())
	if err != nil || got.Recorded.Action != policy.Deny || got.Recorded.Revision != "older" || got.Decision.Action != policy.Allow ||
		!slices.Equal(got.Differs, []string{"action", "rule"}) || len(got.Near) == 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	var p *api.Problem
	if _, err := api.ExplainDecision.Do(t.Context(), c, client.None{}, "../nothing"); !errors.As(err, &p) || p.Status != 404 {
		t.Errorf("got %v", err)
	}
}

func TestExec(t *testing.T) {
	c, _, _ := serve(t, true)
	if _, err := c.Create(t.Context(), "box", sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("0123456789abcdef", 1<<14) // 256 KiB, several frames
	for _, tt := range []struct {
		name, stdin, script string
		stdout, stderr      string
		code                int
	}{
		{"streams are apart", "", "echo out; echo err >&2", "out\n", "err\n", 0},
		{"exit code", "", "exit 42", "", "", 42},
		{"input to its end", "a\nb\n", "cat", "a\nb\n", "", 0},
		{"no input", "", "cat", "", "", 0},
		{"more than a frame", large, "cat", large, "", 0},
		{"input that nobody reads", large, "exit 3", "", "", 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var stdout, stderr bytes.Buffer
			code, err := c.Exec(ctx, "box", sandbox.CommandSpec{Args: []string{"sh", "-c", tt.script}},
				sandbox.Streams{Stdin: strings.NewReader(tt.stdin), Stdout: &stdout, Stderr: &stderr})
			if err != nil || code != tt.code || stdout.String() != tt.stdout || stderr.String() != tt.stderr {
				t.Errorf("got %d, %v, %d bytes of output, %q, want %d, %d, %q",
					code, err, stdout.Len(), stderr.String(), tt.code, len(tt.stdout), tt.stderr)
			}
		})
	}
}

// A command ends with its client, also one that leaves its input unread.
func TestCommandDiesWithItsClient(t *testing.T) {
	c, _, _ := serve(t, true)
	if _, err := c.Create(t.Context(), "box", sandbox.Spec{}); err != nil {
		t.Fatal(err)
	}
	for name, input := range map[string]io.Reader{"idle": nil, "flooded": endless{}} {
		t.Run(name, func(t *testing.T) {
			mark := filepath.Join(t.TempDir(), "pid")
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				_, err := c.Exec(ctx, "box", sandbox.CommandSpec{Args: []string{"sh", "-c", `echo $$ > "$0"; exec sleep 600`, mark}},
					sandbox.Streams{Stdin: input})
				ended <- err
			}()
			var pid string
			must.Soon(t, "the command to start", func() bool {
				data, _ := os.ReadFile(mark)
				pid = strings.TrimSpace(string(data))
				return pid != ""
			})
			time.Sleep(100 * time.Millisecond) // fills what is between client and command
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want %v", err, context.Canceled)
			}
			must.Soon(t, "the command to end", func() bool {
				data, err := os.ReadFile("/proc/" + pid + "/stat")
				return err != nil || slices.Contains(strings.Fields(string(data)), "Z")
			})
		})
	}
}

// endless is input without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
