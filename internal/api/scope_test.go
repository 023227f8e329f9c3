package api_test

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sallyport/internal/api"
	"sallyport/sandbox"
)

// rows say what each route needs, written down once more: who changes the table
// of routes has to change this too.
const rows = `
GET /v1/openapi.json                     any     tenant
GET /v1/openapi.yaml                     any     tenant
GET /v1/status                           read    host
POST /v1/reload                          policy  host
POST /v1/shutdown                        admin   host
GET /v1/events                           read    tenant
GET /v1/audit                            read    tenant
POST /v1/audit/sinks/{name}/test         admin   host
GET /v1/audit/holds                      read    host
PUT /v1/audit/holds/{name}               admin   host
POST /v1/audit/holds/{name}/release      admin   host
POST /v1/audit/deletions                 admin   host
POST /v1/policy/explain                  read    host
GET /v1/policy/explain/{decision}        read    host
GET /v1/limits                           read    host
POST /v1/limits/{name}/reset             policy  host
GET /v1/approvals                        read    tenant
POST /v1/approvals/{id}                  approve tenant
GET /v1/secrets                          secrets host
POST /v1/secrets-key/rotation            admin   host
GET /v1/secrets/{name}/history           secrets host
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
POST /v1/sandboxes/{name}/memory run tenant
POST /v1/sandboxes/{name}/memory/prompt run tenant
POST /v1/sandboxes/{name}/memory/index run tenant
POST /v1/sandboxes/{name}/memory/search run tenant
POST /v1/sandboxes/{name}/memory/store run tenant
POST /v1/sandboxes/{name}/memory/retrieve run tenant
POST /v1/sandboxes/{name}/memory/format_for_context run tenant
POST /v1/sandboxes/{name}/memory/append_turn run tenant
POST /v1/sandboxes/{name}/memory/get_state run tenant
POST /v1/sandboxes/{name}/memory/set_state run tenant
POST /v1/sandboxes/{name}/memory/list_state run tenant
POST /v1/sandboxes/{name}/memory/remove_state run tenant
POST /v1/sandboxes/{name}/memory/register_script run tenant
POST /v1/sandboxes/{name}/memory/find_scripts run tenant
POST /v1/sandboxes/{name}/memory/run_script run tenant
POST /v1/sandboxes/{name}/memory/record_outcome run tenant
POST /v1/sandboxes/{name}/memory/put_artifact run tenant
POST /v1/sandboxes/{name}/memory/get_artifact run tenant
POST /v1/sandboxes/{name}/memory/checkpoint_state run tenant
POST /v1/sandboxes/{name}/memory/compact run tenant
POST /v1/sandboxes/{name}/memory/history run tenant
POST /v1/sandboxes/{name}/memory/diff run tenant
POST /v1/sandboxes/{name}/memory/rollback run tenant
POST /v1/sandboxes/{name}/memory/quarantine run tenant
POST /v1/sandboxes/{name}/memory/list_quarantine run tenant
POST /v1/sandboxes/{name}/memory/release run tenant
POST /v1/sandboxes/{name}/memory/discard run tenant
POST /v1/sandboxes/{name}/memory/verify run tenant
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
		if method == "GET" || method == "DELETE" || slices.Contains([]string{"start", "stop", "pause", "resume", "hibernate", "wake", "reload", "shutdown", "rotation"}, pattern[strings.LastIndexByte(pattern, '/')+1:]) {
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

// A caller who runs sandboxes does not tag them, and does not choose a weaker wall.
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

// A caller who runs sandboxes changes what they are, and nothing that widens what they may
// reach.
func TestSetScopes(t *testing.T) {
	c, _, h := serve(t, true)
	need[sandbox.Info](t)(c.Create(t.Context(), "box", sandbox.Spec{Offline: true}))
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
	i := need[sandbox.Info](t)(c.Set(t.Context(), "box", sandbox.SpecChange{Tags: map[string]string{}}))
	if len(i.Spec.Tags) != 0 || i.Spec.Labels["a"] != "b" || i.Next == nil || i.Next.CPUs != 2 || i.Next.Offline {
		t.Errorf("got %+v, next %+v", i.Spec, i.Next)
	}
}
