package api_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sallyport/internal/api"
	"sallyport/internal/test/must"
	"sallyport/policy/approval"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// A tenant takes no more of the host for one sandbox than the configuration gives to
// each, unless its key may.
func TestSizeOfATenantsSandbox(t *testing.T) {
	_, _, h := serve(t, true)
	_, tenant := keyed(t, h, "tenant", "acme", "run", "read")
	_, trusted := keyed(t, h, "trusted", "acme", "admin")
	_, hosts := keyed(t, h, "hosts", "", "run")
	for i, tt := range []struct {
		key, body string
		status    int
	}{
		{tenant, `{}`, 201},
		{tenant, `{"pids": 100, "cpus": 2, "memory": 1073741824}`, 201},
		{tenant, `{"pids": 64}`, 201},
		{tenant, `{"pids": 101}`, 403},
		{tenant, `{"cpus": 2.1}`, 403},
		{tenant, `{"memory": 1073741825}`, 403},
		{trusted, `{"pids": 101, "memory": 1073741825}`, 201},
		{hosts, `{"pids": 101, "memory": 1073741825}`, 201},
	} {
		if status, kind, answer, _ := raw(t, h, tt.key, "PUT", fmt.Sprintf("/v1/sandboxes/box-%d", i), tt.body); status != tt.status || status == 403 && kind != "scope" {
			t.Errorf("%s: %d %s, want %d", tt.body, status, answer, tt.status)
		}
	}
	for body, want := range map[string]int{`{"pids": 101}`: 403, `{"memory": 0}`: 403, `{"cpus": 0}`: 403, `{"memory": 2000000000}`: 403, `{"pids": 65, "memory": 1073741824, "labels": {"a": "b"}}`: 200} {
		if status, _, answer, _ := raw(t, h, tenant, "PATCH", "/v1/sandboxes/box-0", body); status != want {
			t.Errorf("set %s: %d %s, want %d", body, status, answer, want)
		}
	}
}

// Rules select by name as they do by tags: a tenant has no way to a name that one
// is for, or that a user of the proxy has, by making a sandbox or by forking one; nor
// has a key of the host's own that may not tag.
func TestNamesOfRules(t *testing.T) {
	root, _, h := serve(t, true)
	ctx := t.Context()
	acme, _ := keyed(t, h, "acme", "acme", "run", "read")
	trusted, _ := keyed(t, h, "trusted", "acme", "run", "read", "policy")
	hosts, _ := keyed(t, h, "hosts", "", "run", "read")
	run := func(_ any, err error) error { return err }
	need[sandbox.Info](t)(acme.Create(ctx, "box", sandbox.Spec{}))
	need[api.ClientToken](t)(api.AddClient.Do(ctx, root, api.ClientRequest{}, "proxied"))
	need[api.ClientToken](t)(api.AddClient.Do(ctx, root, api.ClientRequest{}, "box-2"))
	for name, tt := range map[string]struct {
		err  error
		kind string
	}{
		"made":                          {run(acme.Create(ctx, "deployer", sandbox.Spec{})), "scope"},
		"forked":                        {run(acme.Fork(ctx, "box", sandbox.ForkSpec{Names: []string{"deployer"}})), "scope"},
		"forked among others":           {run(acme.Fork(ctx, "box", sandbox.ForkSpec{Names: []string{"fine", "deployer"}})), "scope"},
		"forked as a proxy's user":      {run(acme.Fork(ctx, "box", sandbox.ForkSpec{Names: []string{"proxied"}})), "name-taken"},
		"forked by root, likewise":      {run(root.Fork(ctx, "acme/box", sandbox.ForkSpec{Names: []string{"proxied"}})), "name-taken"},
		"forked, with names of our own": {run(acme.Fork(ctx, "box", sandbox.ForkSpec{Count: 2})), "name-taken"},
	} {
		if p := (*api.Problem)(nil); !errors.As(tt.err, &p) || p.Type != client.ProblemType+tt.kind {
			t.Errorf("%s: got %v, want %s", name, tt.err, tt.kind)
		}
	}
	if i := need[sandbox.Info](t)(trusted.Create(ctx, "deployer", sandbox.Spec{})); i.Spec.Owner != "acme" {
		t.Errorf("with the scope: %+v", i)
	}
	if err := run(acme.Create(ctx, "deployer", sandbox.Spec{})); err != nil {
		t.Errorf("one that is there: %v", err)
	}
	must.OK(t, trusted.Remove(ctx, "deployer"))
	team, _ := keyed(t, h, "team", "", "run", "policy")
	need[sandbox.Info](t)(hosts.Create(ctx, "host", sandbox.Spec{}))
	for what, err := range map[string]error{
		"made by a host's key":       run(hosts.Create(ctx, "deployer", sandbox.Spec{})),
		"forked by a host's key":     run(hosts.Fork(ctx, "host", sandbox.ForkSpec{Names: []string{"deployer"}})),
		"after it has been removed":  run(acme.Create(ctx, "deployer", sandbox.Spec{})),
		"found for a fork of a host": run(hosts.Fork(ctx, "host", sandbox.ForkSpec{})),
	} {
		if p := (*api.Problem)(nil); !errors.As(err, &p) || p.Type != client.ProblemType+"scope" {
			t.Errorf("%s: got %v, want scope", what, err)
		}
	}
	need[sandbox.Info](t)(team.Create(ctx, "deployer", sandbox.Spec{}))
	if err := run(hosts.Create(ctx, "deployer", sandbox.Spec{})); err != nil {
		t.Errorf("one that is there, by a host's key: %v", err)
	}
	if err := run(acme.Fork(ctx, "box", sandbox.ForkSpec{Names: []string{"fine"}})); err != nil {
		t.Errorf("another name: %v", err)
	}
}

// A secret in an environment is refused, and which credential's it is told to callers
// who may list them alone.
func TestGuessNamesNoCredential(t *testing.T) {
	root, _, h := serve(t, true)
	need[sandbox.Info](t)(root.Create(t.Context(), "box", sandbox.Spec{}))
	for scopes, tt := range map[string]struct {
		tenant string
		told   bool
	}{
		"run": {}, "run,read": {}, "run,read,policy,approve": {}, "run,secrets": {told: true}, "admin": {told: true}, "run,admin": {tenant: "acme"},
	} {
		c, _ := keyed(t, h, strings.ReplaceAll(scopes, ",", "-"), tt.tenant, strings.Split(scopes, ",")...)
		box := "box"
		if tt.tenant != "" {
			box = "theirs"
			need[sandbox.Info](t)(c.Create(t.Context(), box, sandbox.Spec{}))
		}
		env := map[string]string{"TOKEN": "known secret"}
		run := func(_ any, err error) error { return err }
		command := sandbox.CommandSpec{Args: []string{"true"}, Env: env}
		for what, err := range map[string]error{
			"create": run(c.Create(t.Context(), "new", sandbox.Spec{Env: env})), "set": run(c.Set(t.Context(), box, sandbox.SpecChange{Env: env})),
			"exec": run(c.Exec(t.Context(), box, command, sandbox.Streams{})), "command": run(c.StartCommand(t.Context(), box, command)),
		} {
			var p *api.Problem
			if !errors.As(err, &p) || p.Type != client.ProblemType+"bad-spec" || strings.Contains(p.Detail, "openai-api-key") != tt.told {
				t.Errorf("%s by %s: got %v, want the name: %v", what, scopes, err, tt.told)
			}
		}
	}
	hits := 0
	for _, e := range h.events {
		if x := e.Unmapped.Sallyport; x.State == "refused" && len(x.Found) == 1 && x.Found[0].Name == "openai-api-key" && e.Actor != nil && strings.Contains(e.Detail, "TOKEN") && !strings.Contains(e.Detail, "openai") {
			hits++
		}
	}
	if hits != 24 { // four by each key, none of which is lost among the others'
		t.Errorf("%d hits are on record, want 24", hits)
	}
}

// An explanation says that a credential is injected, and names it to callers who may
// list credentials.
func TestExplainNamesNoCredential(t *testing.T) {
	_, _, h := serve(t, false)
	body := `{"Phase":"request","Destination":{"Host":"api.example.test","Port":443},"Protocol":"tls","Request":{"Method":"GET","Scheme":"https","Path":"/","Size":-1}}`
	for scopes, told := range map[string]bool{"read": false, "read,secrets": true} {
		_, text := keyed(t, h, strings.ReplaceAll(scopes, ",", "-"), "", strings.Split(scopes, ",")...)
		status, _, answer, _ := raw(t, h, text, "POST", "/v1/policy/explain", body)
		if status != 200 || !strings.Contains(string(answer), `"models with a key"`) || !strings.Contains(string(answer), `"Credentials":["`) || strings.Contains(string(answer), "openai-api-key") != told {
			t.Errorf("%s: %d %s, want the name: %v", scopes, status, answer, told)
		}
	}
}

// By a name alone, callers of the host's own mean the host's sandboxes: a tenant that
// has taken a name gets none of what they do by it.
func TestTenantsSandboxByName(t *testing.T) {
	root, _, h := serve(t, true)
	ctx := t.Context()
	beta, _ := keyed(t, h, "beta", "beta", "run", "read")
	hosts, _ := keyed(t, h, "hosts", "", "run", "read")
	acme, _ := keyed(t, h, "acme", "acme", "run", "read")
	need[sandbox.Info](t)(beta.Create(ctx, "build", sandbox.Spec{}))
	run := func(_ any, err error) error { return err }
	quiet := sandbox.CommandSpec{Args: []string{"true"}}
	verbs := func(c *client.Client, name string) map[string]error {
		return map[string]error{
			"get": run(c.Sandbox(ctx, name)), "start": run(c.Start(ctx, name)), "exec": run(c.Exec(ctx, name, quiet, sandbox.Streams{})), "begin": run(c.StartCommand(ctx, name, quiet)),
			"commands": run(c.Commands(ctx, name)), "pause": run(c.Pause(ctx, name)), "wake": run(c.Wake(ctx, name)), "set": run(c.Set(ctx, name, sandbox.SpecChange{Labels: map[string]string{"a": "b"}})),
			"ca": run(c.SandboxRoot(ctx, name)), "stat": run(c.Files(name).Stat(ctx, "/", false)), "snapshots": run(c.Snapshots(ctx, name)), "stop": run(c.Stop(ctx, name)),
			"fork": run(c.Fork(ctx, name, sandbox.ForkSpec{})),
		}
	}
	for who, c := range map[string]*client.Client{"root": root, "a key": hosts} {
		for verb, err := range verbs(c, "build") {
			if p := (*api.Problem)(nil); !errors.As(err, &p) || p.Type != client.ProblemType+"no-sandbox" || verb != "fork" && !strings.Contains(p.Detail, "beta/build") {
				t.Errorf("%s, by %s: got %v, want that there is none, and how to write beta's", verb, who, err)
			}
		}
		if p, err := (*api.Problem)(nil), run(c.Create(ctx, "build", sandbox.Spec{})); !errors.As(err, &p) || p.Type != client.ProblemType+"name-taken" || !strings.Contains(p.Detail, "beta/build") {
			t.Errorf("run, by %s: got %v, want that the name is taken", who, err)
		}
		if p, err := (*api.Problem)(nil), run(c.Create(ctx, "beta/new", sandbox.Spec{})); !errors.As(err, &p) || p.Type != client.ProblemType+"no-sandbox" {
			t.Errorf("a sandbox for a tenant, by %s: got %v", who, err)
		}
		if i, err := c.Create(ctx, "beta/build", sandbox.Spec{}); err != nil || i.Spec.Owner != "beta" {
			t.Errorf("beta's that is there, by %s: %+v, %v", who, i, err)
		}
		for verb, err := range verbs(c, "beta/build") {
			if err != nil {
				t.Errorf("%s of beta/build, by %s: %v", verb, who, err)
			}
		}
	}
	for name, want := range map[string]bool{"build": true, "beta/build": true, "acme/build": false, "/build": false, "beta/": false, "beta/../build": false} {
		if _, err := beta.Sandbox(ctx, name); (err == nil) != want {
			t.Errorf("%q, by beta: %v", name, err)
		}
		if _, err := acme.Sandbox(ctx, name); err == nil {
			t.Errorf("%q, by acme: it is there", name)
		}
	}
	list := need[[]sandbox.Info](t)(root.Sandboxes(ctx))
	if len(list) == 0 || list[0].FullName() != "beta/build" {
		t.Errorf("the list: %+v", list)
	}
	if err := root.Remove(ctx, "build"); err == nil {
		t.Error("removed by its name alone")
	}
	if err := root.Remove(ctx, "beta/build"); err != nil {
		t.Error(err)
	}
}

// A tenant sees and touches its own alone, and learns of others that a name is
// taken.
func TestTenants(t *testing.T) {
	root, _, h := serve(t, true)
	ctx := t.Context()
	acme, acmeText := keyed(t, h, "acme", "acme", "admin")
	other, _ := keyed(t, h, "other", "other", "admin")
	need[sandbox.Info](t)(acme.Create(ctx, "box", sandbox.Spec{Env: map[string]string{"A": "1"}}))
	need[sandbox.Info](t)(root.Create(ctx, "hosts", sandbox.Spec{}))
	if i, err := root.Sandbox(ctx, "acme/box"); err != nil || i.Spec.Owner != "acme" || i.Name != "box" {
		t.Errorf("the host's own: %+v %v", i, err)
	}
	names := func(c *client.Client) string {
		var all []string
		for _, i := range need[[]sandbox.Info](t)(c.Sandboxes(ctx)) {
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
		id := need[sandbox.Info](t)(root.Sandbox(ctx, []string{"acme/box", "hosts"}[i])).ID
		v := need[approval.Verdict](t)(h.approvals.Ask(approval.Question{Timeout: time.Minute, Subject: approval.Subject{
			Sandbox: who, SandboxID: id, Protocol: "tls", Host: "api.example.test", Port: 443, Method: "GET", Path: "/", Body: "b",
		}}))
		if l := need[api.ApprovalList](t)(api.ListApprovals.Do(ctx, acme, client.None{})); len(l.Requests) != 1 || l.Requests[0].Subject.Sandbox != "box" {
			t.Errorf("what waits: %+v", l)
		}
		if status, _, answer, _ := raw(t, h, acmeText, "POST", "/v1/approvals/"+v.ID, `{"approve": true}`); status != []int{200, 404}[i] {
			t.Errorf("answering for %s: %d %s", who, status, answer)
		}
		if i == 0 {
			need[approval.Verdict](t)(h.approvals.Ask(approval.Question{Timeout: time.Minute, Subject: approval.Subject{
				Sandbox: who, SandboxID: id, Protocol: "tls", Host: "api.example.test", Port: 443, Method: "GET", Path: "/again", Body: "b",
			}}))
		}
	}
	if s := h.said(); !slices.Contains(s, "sandbox box created by key acme") || !slices.Contains(s, "sandbox hosts created by root") && os.Getuid() == 0 {
		t.Errorf("the events name nobody: %q", s)
	}
}
