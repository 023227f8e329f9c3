package engine

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/finding"
	"sallyport/policy/rego"
)

// folder writes files below a new one.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(file), 0o700))
		must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	}
	return dir
}

// TestLibraryDecides holds that a team's import is all it takes.
func TestLibraryDecides(t *testing.T) {
	dir := folder(t, map[string]string{"git.rego": `package sallyport.team.git

import data.sallyport.library.git

allow contains {"rule": "git"} if git.contact

allow contains {"rule": "git"} if {
	git.fetch
	git.repo in {"acme/app"}
}
`})
	p, err := Compile(t.Context(), policy.Document{Policy: policy.Source{Dir: dir}}, Options{})
	must.OK(t, err)
	for _, tt := range []struct {
		method, path string
		want         policy.Action
	}{
		{"POST", "/acme/app.git/git-upload-pack", policy.Allow},
		{"POST", "/Acme/App/git-upload-pack", policy.Allow},
		{"POST", "/acme/app.git/git-receive-pack", policy.Deny},
		{"POST", "/evil/app.git/git-upload-pack", policy.Deny},
		{"GET", "/acme/app", policy.Deny},
	} {
		in := policy.Input{Phase: policy.PhaseRequest, Protocol: policy.ProtocolTLS, Destination: policy.Destination{Host: "github.com", Port: 443},
			Request: &policy.Request{Method: tt.method, Scheme: "https", Path: tt.path, Size: -1}}
		if d := p.Decide(t.Context(), in); d.Action != tt.want {
			t.Errorf("%s %s: got %s, want %s: %s %v", tt.method, tt.path, d.Action, tt.want, d.Reason, d.Err)
		}
	}
	if d := p.Decide(t.Context(), policy.Input{Phase: policy.PhaseDNS, Destination: policy.Destination{Host: "github.com"}}); d.Action != policy.Allow {
		t.Errorf("lookup: got %s: %s", d.Action, d.Reason)
	}
	// No answer of a package depends on a field that it does not look at.
	if p.cache == nil || p.query.fields&(FieldBody|fieldSandboxID|fieldSize) != 0 {
		t.Errorf("answers depend on %b", p.query.fields)
	}
}

// TestLibraryCostsNothing where nobody imports it, and is part of the revision
// where somebody does.
func TestLibraryCostsNothing(t *testing.T) {
	if own, err := modules(&rego.Team{}); err != nil || len(own) != 1 {
		t.Errorf("got %d modules, %v, want 1", len(own), err)
	}
	team, err := rego.Load(folder(t, map[string]string{"x.rego": "package sallyport.team.x\n\nimport data.sallyport.library.llm\n\ndeny contains \"x\" if llm.retained\n"}))
	must.OK(t, err)
	with := revision(policy.Document{}, team)
	team.Modules = nil
	if without := revision(policy.Document{}, team); with == without {
		t.Error("the revision does not cover the library")
	}
}

func TestLibraryUnknown(t *testing.T) {
	for _, ref := range []string{"data.sallyport.library.gti", "data.sallyport.library"} {
		text := "package sallyport.team.x\n\nimport " + ref + " as l\n\ndeny contains \"x\" if l.fetch\n"
		_, err := Compile(t.Context(), policy.Document{Policy: policy.Source{Dir: folder(t, map[string]string{"x.rego": text})}}, Options{})
		var f finding.Finding
		if !errors.As(err, &f) || f.Position.Line != 3 || !strings.Contains(f.Fix, ".registries") {
			t.Errorf("%s: got %v", ref, err)
		}
	}
}

// BenchmarkLibrary is a decision that four packages are asked about, none of which
// is about the request but one. Nothing is kept from decision to decision.
func BenchmarkLibrary(b *testing.B) {
	dir := b.TempDir()
	text := `package sallyport.team.x

import data.sallyport.library.git
import data.sallyport.library.llm
import data.sallyport.library.registries
import data.sallyport.library.storage

allow contains {"rule": "git"} if {
	git.fetch
	git.repo in {"acme/app"}
}

allow contains {"rule": "packages"} if registries.download

deny contains "inference only" if {
	input.request
	llm.provider
	not llm.inference
}

deny contains "other buckets" if {
	input.request
	storage.provider
	not storage.bucket in {"s3/acme-data"}
}
`
	must.OK(b, os.WriteFile(filepath.Join(dir, "x.rego"), []byte(text), 0o600))
	none := 0
	p, err := Compile(b.Context(), policy.Document{Policy: policy.Source{Dir: dir, Cache: &none}}, Options{})
	must.OK(b, err)
	in := policy.Input{Phase: policy.PhaseRequest, Protocol: policy.ProtocolTLS, Destination: policy.Destination{Host: "github.com", Port: 443},
		Request: &policy.Request{Method: "POST", Scheme: "https", Path: "/acme/app.git/git-upload-pack", Size: -1}}
	b.ReportAllocs()
	for b.Loop() {
		if d := p.Decide(b.Context(), in); d.Action != policy.Allow {
			b.Fatal(d)
		}
	}
}
