package api_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"sallyport/internal/api"
	"sallyport/internal/config"
	"sallyport/internal/test/must"
	"sallyport/sandbox"
	"sallyport/sandbox/client"
)

// Pages follow each other by their Link, and no entry is missing or twice.
func TestPages(t *testing.T) {
	c, _, h := serve(t, true)
	for i := range 7 {
		need[sandbox.Info](t)(c.Create(t.Context(), fmt.Sprintf("box-%d", i), sandbox.Spec{}))
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
			must.OK(t, c.Remove(t.Context(), "box-1"))
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
	all := need[[]sandbox.Info](t)(client.All[sandbox.Info](t.Context(), c, "/v1/sandboxes?limit=2"))
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
	text := string(need[[]byte](t)(os.ReadFile("../../docs/reference/api.md")))
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
