package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
	"sallyport/internal/test/testnet"
	"sallyport/policy/learn"
	"sallyport/policy/replay"
)

// insideRules allows nothing that the test does: it says how hosts inside are
// reached.
const insideRules = `
egress:
- {name: inside, destination: "*.example.test", methods: [GET], paths: [/healthz], upstream: {addresses: [198.51.100.10], roots: ca.pem, resolver: "198.51.100.10:53"}}
`

// clone and install are what a developer does first, with programs that know
// nothing of any policy.
const (
	clone   = "rm -rf /tmp/repo && git clone -q https://git.example.test/repo.git /tmp/repo && git -C /tmp/repo log --format=%s"
	install = "rm -rf /tmp/lib && pip install -q --no-cache-dir --no-input --root-user-action ignore --index-url https://pypi.example.test/simple/ --target /tmp/lib app && PYTHONPATH=/tmp/lib python3 -c 'import app, lib9'"
)

// From a gVisor sandbox that may do nothing to one that may do what it was seen
// to: git and pip in observe mode, a proposal that has no more than that, a replay
// that denies none of it, the proposal in force by a file, observe mode over.
func TestLearn(t *testing.T) {
	r := newRig(t, "")
	observe := "observe:\n- {sandboxes: {names: [agent]}, until: " + time.Now().Add(time.Hour).UTC().Format(time.RFC3339) + "}\n"
	r.configure(baseConfig, insideRules+observe)
	git := filepath.Join(r.dir, "git")
	seedRepository(t, git)
	must.OK(t, os.Rename(filepath.Join(git, "repo.git"), filepath.Join(git, "other.git")))
	seedRepository(t, git)
	repositories, err := testnet.Git(git)
	must.OK(t, err)
	var needs []string
	for i := range 9 {
		needs = append(needs, fmt.Sprintf("lib%d", i+1))
	}
	r.serveSites(hostMux{
		"git.example.test": repositories, "pypi.example.test": newMirror(t, "app", needs...),
		"else.example.test": http.NotFoundHandler(),
	})
	r.up()
	if res := r.inside("agent", "true"); res.code != 0 {
		t.Fatal(res)
	}
	work := func() {
		t.Helper()
		for _, c := range []struct{ shell, want string }{{clone, "first\n"}, {install, "app is here\nlib9 is here\n"}} {
			if res := r.inside("agent", c.shell); res.code != 0 || res.stdout != c.want {
				t.Fatalf("%s: %s\n%s", c.shell, res, r.ok("audit", "tail", "-n", "30"))
			}
		}
	}
	work()
	observed := r.state().Revision
	if res := r.sallyport("sandbox", "ls"); !strings.Contains(res.stderr, "OBSERVE MODE: what the policy denies is carried: sandbox agent until ") {
		t.Errorf("the listing has no banner: %s", res)
	}

	// Learned is what was done, and nothing more.
	var l struct {
		learn.Report
		Document    string `json:"document"`
		NewlyDenied int    `json:"newly_denied"`
	}
	must.OK(t, json.Unmarshal([]byte(r.ok("policy", "learn", "--sandbox", "agent", "-o", "json")), &l))
	var got []string
	for _, p := range l.Proposals {
		e := p.Rule
		got = append(got, fmt.Sprintf("%s%v %v %v %v action=%s plain=%v by %v", e.Destination, e.Ports, e.Methods, e.Paths, e.Sandboxes.Names, e.Action, e.Plain, e.Upstream.Addresses))
	}
	want := []string{
		"git.example.test[] [GET] [/repo.git/info/refs] [agent] action= plain=false by [198.51.100.10]",
		"git.example.test[] [POST] [/repo.git/git-upload-pack] [agent] action= plain=false by [198.51.100.10]",
		"pypi.example.test[] [GET] [/packages/*/*/*/* /simple/*/] [agent] action= plain=false by [198.51.100.10]",
	}
	if diff := cmp.Diff(got, want); diff != "" {
		t.Errorf("the proposal: %s", diff)
	}
	if l.Covered != l.Decisions || l.Allowed != 0 || len(l.Flags) != 0 || l.NewlyDenied != 0 {
		t.Errorf("of %d: %d allowed, %d covered, newly denied %d, flagged %v", l.Decisions, l.Allowed, l.Covered, l.NewlyDenied, l.Flags)
	}

	// A replay by it denies nothing that was carried; one by what is there denies all.
	r.write("candidate.yaml", l.Document)
	candidate := filepath.Join(r.dir, "candidate.yaml")
	r.ok("policy", "check", "--config", candidate)
	var replayed replay.Report
	must.OK(t, json.Unmarshal([]byte(r.ok("policy", "replay", "--config", candidate, "--fail-on", "denied,allowed,injected,approval", "-o", "json")), &replayed))
	if replayed.Decisions == 0 || replayed.ByChange[replay.OtherRule]+replayed.Same != replayed.Decisions {
		t.Errorf("replayed: %+v", replayed)
	}
	if res := r.sallyport("policy", "replay", "--fail-on", "denied"); res.code != 1 || !strings.Contains(res.stdout, "POST git.example.test:443/repo.git/git-upload-pack") {
		t.Errorf("replayed without it: %s", res)
	}

	// Live, by the file alone; observe mode is over with it.
	r.put("sallyport.yaml", strings.Replace(l.Document, observe, "", 1))
	r.await("the proposal to be in force", func() bool { return r.state().Revision != observed })
	learned := r.state()
	if learned.Policy.By != "files" || len(learned.Observing) != 0 {
		t.Errorf("status: %+v", learned)
	}
	work()
	for _, c := range []struct{ name, shell string }{
		{"another repository", "git clone -q https://git.example.test/other.git /tmp/other"},
		{"a push", "git -C /tmp/repo -c user.name=t -c user.email=t@example.test commit -q --allow-empty -m second && git -C /tmp/repo push -q origin HEAD"},
		{"a package that is published", "curl -sSf --data x https://pypi.example.test/simple/app/"},
		{"another host", "curl -sSf https://else.example.test/"},
		{"another port", "curl -sSf https://git.example.test:8443/repo.git/info/refs"},
	} {
		if res := r.inside("agent", c.shell); res.code == 0 || !strings.Contains(res.stderr, "403") {
			t.Errorf("%s: %s, want 403", c.name, res)
		}
	}
	if res := r.inside("stranger", clone); res.code == 0 || !strings.Contains(res.stderr, "403") {
		t.Errorf("another sandbox: %s, want 403", res)
	}

	// The record has what was in force when.
	var revisions, states []string
	for line := range strings.Lines(r.ok("audit", "query", "-o", "json")) {
		var e auditlog.Record
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		d := e.Decision
		if d.Policy != nil && d.HTTPRequest != nil && d.Unmapped.Sallyport.Sandbox == "agent" {
			lifted := d.Unmapped.Sallyport.Observed != nil
			if lifted != (d.Policy.Version == observed) {
				t.Errorf("lifted %v by %s: %s", lifted, d.Policy.Version, line)
			}
			revisions = append(revisions, d.Policy.Version)
		}
		if s := d.Unmapped.Sallyport.State; s == "reloaded" || strings.HasPrefix(s, "observe-") {
			states = append(states, s)
		}
	}
	slices.Sort(states)
	if diff := cmp.Diff(slices.Compact(revisions), []string{observed, learned.Revision}); diff != "" {
		t.Errorf("revisions in the audit: %s", diff)
	}
	if diff := cmp.Diff(states, []string{"observe-begun", "observe-ended", "reloaded"}); diff != "" {
		t.Errorf("states in the audit: %s", diff)
	}
}
