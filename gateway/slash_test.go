package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/audit"
	"sallyport/gateway"
	"sallyport/internal/recorded"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/engine"
)

// services is a policy of the library's, by which real clients send encoded slashes.
const services = `package sallyport.team.services

import data.sallyport.library.git
import data.sallyport.library.registries
import data.sallyport.library.storage

contact if git.contact

contact if registries.contact

contact if storage.contact

allow contains {"rule": "way"} if contact

allow contains {"rule": "npm"} if {
	registries.download
	registries.package_name in {"@acme/app", "react"}
}

allow contains {"rule": "gitlab"} if {
	git.api_read
	git.repo == "acme/app"
}

allow contains {"rule": "gcs"} if {
	storage.read
	storage.bucket == "gcs/acme-data"
	startswith(storage.object, "public/")
}
`

// TestEncodedSlashes: what npm, GitLab's and Google Cloud Storage's clients send
// arrives with its slashes encoded, over HTTP/1.1 and HTTP/2, and what some reading may
// not do does not leave. The event has the path, from which it can be decided again.
func TestEncodedSlashes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(dir, "team.rego"), []byte(services), 0o600))
	p, err := engine.Compile(t.Context(), policy.Document{Policy: policy.Source{Dir: dir}}, engine.Options{Timeout: patience})
	must.OK(t, err)
	const npm, gitlab, gcs = "registry.npmjs.org", "gitlab.com", "storage.googleapis.com"
	for _, tt := range []struct {
		host, target string
		status       int
		path, rule   string // of the event
	}{
		{npm, "/@acme%2fapp", 200, "/@acme%2Fapp", "npm"},
		{npm, "/@acme%2Fapp", 200, "/@acme%2Fapp", "npm"},
		{npm, "/%40acme%2fapp", 200, "/@acme%2Fapp", "npm"},
		{npm, "/@evil%2fapp", 403, "/@evil%2Fapp", ""},
		{npm, "/react%2f18.2.0", 403, "/react%2F18.2.0", ""},
		{gitlab, "/api/v4/projects/acme%2Fapp/issues?state=opened", 200, "/api/v4/projects/acme%2Fapp/issues", "gitlab"},
		{gitlab, "/api/v4/projects/acme%2Fapp/repository/files/src%2Fa%20b.go/raw", 200, "/api/v4/projects/acme%2Fapp/repository/files/src%2Fa b.go/raw", "gitlab"},
		{gitlab, "/api/v4/projects/acme%2Fother/issues", 403, "/api/v4/projects/acme%2Fother/issues", ""},
		{gitlab, "/api/v4/projects/1%2Faccess_tokens", 403, "/api/v4/projects/1%2Faccess_tokens", ""},
		{gcs, "/storage/v1/b/acme-data/o/public%2Fa%2Fb.csv?alt=media", 200, "/storage/v1/b/acme-data/o/public%2Fa%2Fb.csv", "gcs"},
		{gcs, "/storage/v1/b/acme-data/o/private%2Fb.csv?alt=media", 403, "/storage/v1/b/acme-data/o/private%2Fb.csv", ""},
		{gcs, "/storage/v1/b/acme-data/o/public%2Fa%2Facl", 403, "/storage/v1/b/acme-data/o/public%2Fa%2Facl", ""},
		{gcs, "/storage/v1/b/acme-data/o/public%2F..%2Fprivate", 400, "", "path"},
		{gcs, "/storage/v1/b/acme-data/o/public%252Fa", 400, "", "path"},
		{gcs, "/storage/v1/b/acme-data/o/public%2F%2Fa", 400, "", "path"},
	} {
		for _, protocol := range []string{"http/1.1", "h2"} {
			t.Run(tt.host+strings.ReplaceAll(tt.target, "/", "|")+" "+protocol, func(t *testing.T) {
				l := newEnv(t, func(o *gateway.Options) { o.Decider = engine.NewEngine(p) })
				l.name(tt.host)
				l.upstream(tt.host, true, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RequestURI) })
				client := l.client()
				if protocol == "h2" {
					client.Transport.(*http.Transport).ForceAttemptHTTP2 = true
				}
				resp, err := client.Get("https://" + tt.host + tt.target)
				must.OK(t, err)
				got, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if want := map[string]int{"http/1.1": 1, "h2": 2}[protocol]; resp.ProtoMajor != want {
					t.Fatalf("over %s", resp.Proto)
				}
				if resp.StatusCode != tt.status || tt.status == 200 && string(got) != strings.ReplaceAll(tt.target, "%2f", "%2F") {
					t.Errorf("%d, and the upstream saw %s, want %d", resp.StatusCode, got, tt.status)
				}
				if tt.status != 200 && l.dials() != 0 {
					t.Error("dialled")
				}
				events := 1
				if tt.status == 200 {
					events = 2 // one when it ends
				}
				e := l.await(events)[0]
				name := ""
				if e.Rule != nil {
					name = e.Rule.Name
				}
				if name != tt.rule || tt.path != "" && e.HTTPRequest.URL.Path != tt.path {
					t.Errorf("the event is by %q about %q", name, e.HTTPRequest.URL.Path)
				}
				// Made again from its event, the decision is the same.
				if r := recorded.Of(e); tt.path != "" && (r.Unfit != "" || len(r.Differs(p.Decide(t.Context(), r.Input))) > 0) {
					t.Errorf("made again, %+v is %+v", r, p.Decide(t.Context(), r.Input))
				}
				if allowed := e.Action == audit.ActionAllowed; allowed != (tt.status == 200) {
					t.Errorf("event %+v", e)
				}
			})
		}
	}
}
