package auditcmd

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/index"
	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/test/clitest"
	"sallyport/internal/test/must"
)

// seeded is a configuration whose log has what a sandbox did around two snapshots.
func seeded(t *testing.T) (dir, file string) {
	t.Helper()
	dir, file = clitest.Configured(t, "")
	l, err := auditlog.Open(filepath.Join(dir, "data/audit"), auditlog.Options{})
	must.OK(t, err)
	defer l.Close()
	at := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	add := func(events ...*audit.Event) {
		t.Helper()
		for _, e := range events {
			at += 1000
			e.Time = at
		}
		must.OK(t, l.Append(t.Context(), events...))
	}
	change := func(name, id, state, detail string) {
		e := audit.New(audit.KindLifecycle, audit.ClassLifecycle, audit.ActivityOther)
		e.Message, e.Detail, e.App = "sandbox "+name+" "+state, detail, &audit.Product{Name: "sandbox/" + name}
		x := &e.Unmapped.Sallyport
		x.Sandbox, x.SandboxID, x.State = name, id, state
		add(e)
	}
	request := func(name, path, rule string) *audit.Exchange {
		x := new(audit.Exchange)
		d := x.Decide(audit.ClassHTTP, audit.HTTPActivity("POST"))
		x.Destination = audit.Endpoint{Hostname: "api.example.test", Port: 443}
		x.URL = audit.URL{Scheme: "https", Hostname: "api.example.test", Port: 443, Path: path}
		x.Request, x.Rule = audit.HTTPRequest{Method: "POST", URL: &x.URL}, audit.Rule{Name: rule}
		d.Destination, d.HTTPRequest, d.Rule, d.Action = &x.Destination, &x.Request, &x.Rule, audit.ActionAllowed
		s := &d.Unmapped.Sallyport
		s.Sandbox, s.Decision, s.Reason, s.Credentials = name, "allow", "because", []audit.CredentialUse{{Name: "key"}}
		return x
	}
	done := func(x *audit.Exchange) *audit.Event {
		c := x.Complete(x.Decision.ActivityID)
		x.Response, x.Traffic = audit.HTTPResponse{Code: 200}, audit.Traffic{BytesIn: 7, BytesOut: 9}
		c.HTTPResponse, c.Traffic = &x.Response, &x.Traffic
		return c
	}
	change("demo", "d1", "created", "")
	early := request("demo", "/early", "uploads")
	add(&early.Decision, done(early))
	change("demo", "d1", "snapshot", "a, 10 bytes, sealed")
	one, other := request("demo", "/one", "uploads"), request("other", "/other", "=cmd|' /C calc'!A0")
	add(&one.Decision, &other.Decision)
	add(done(one))
	change("child", "c1", "created", "a fork of demo (d1), snapshot a")
	change("child", "c2", "created", "a fork of other (d2)")
	change("demo", "d1", "command", "exited with 0")
	change("demo", "d1", "snapshot", "b, 11 bytes, sealed")
	late := request("demo", "/late\x1b[2J", "uploads")
	add(&late.Decision)
	add(done(other))
	changed := audit.Change("memory/demo", "changed")
	changed.Message = "memory of sandbox demo changed: version 1"
	changed.Unmapped.Sallyport.Sandbox, changed.Unmapped.Sallyport.SandboxID = "demo", "d1"
	add(changed)
	return dir, file
}

func run(t *testing.T, file string, args ...string) string {
	t.Helper()
	out, status, err := clitest.Run(t, cli.Root("test", Command), "", append([]string{"--config", file, "audit"}, args...)...)
	if err != nil || status != 0 {
		t.Fatalf("%v: %d, %v, %s", args, status, err, out)
	}
	return out
}

// paths are what of the test's requests a text shows, in its order.
func paths(out string) (all []string) {
	for line := range strings.Lines(out) {
		for _, word := range []string{"created", "/early", "/one", "/other", "/late", "snapshot", "command", "version"} {
			if strings.Contains(line, word) {
				all = append(all, word)
				break
			}
		}
	}
	return all
}

func TestQuery(t *testing.T) {
	dir, file := seeded(t)
	check := func(when string) {
		for args, want := range map[string]string{
			"--sandbox demo --kind decision":              "[/early /one /late]",
			"--destination API.EXAMPLE.test":              "[/early /one /other /late]",
			"--rule uploads":                              "[/early /one /late]",
			"--credential key --sandbox other":            "[/other]",
			"--decision deny":                             "[]",
			"--text snapshot":                             "[snapshot created snapshot]",
			"--text because":                              "[/early /one /other /late]",
			"--until 2026-12-01T00:00:03Z":                "[created /early]",
			"--since 2026-12-01T00:00:12Z":                "[/late /other version]",
			"--denied":                                    "[]",
			"--sandbox d1 --text fork":                    "[]",
			"--from 12 --text because -o json":            "[/late]",
			"--rule uploads --until 2020-01-01T00:00:00Z": "[]",
		} {
			if got := fmt.Sprint(paths(run(t, file, append([]string{"query"}, strings.Fields(args)...)...))); got != want {
				t.Errorf("%s: %s: %s, want %s", when, args, got, want)
			}
		}
	}
	check("from the log")
	if out := run(t, file, "query", "--sandbox", "demo", "--text", "because"); strings.Count(out, "\n") != 3 || !strings.Contains(out, "200") || !strings.Contains(out, "open") || strings.Contains(out, "\x1b") {
		t.Errorf("a decision is not shown with its outcome:\n%s", out)
	}
	must.OK(t, os.MkdirAll(filepath.Join(dir, "data/index"), 0o700))
	x, err := index.Open(t.Context(), filepath.Join(dir, "data/audit"), filepath.Join(dir, "data/index/audit.db"))
	must.OK(t, err)
	defer x.Close()
	must.OK(t, x.Update(t.Context(), nil))
	check("by the index")
}

func TestFormats(t *testing.T) {
	_, file := seeded(t)
	rows, err := csv.NewReader(strings.NewReader(run(t, file, "query", "-o", "csv"))).ReadAll()
	if err != nil || len(rows) != 12 || !cmp.Equal(rows[0], columns) {
		t.Fatalf("%v, %d rows, %v", err, len(rows), rows)
	}
	for _, row := range rows {
		for i, c := range row {
			if c != "" && strings.ContainsAny(c[:1], "=+-@\t\r") || strings.Contains(c, "\x1b") {
				t.Errorf("a spreadsheet or a terminal acts on %s %q", columns[i], c)
			}
		}
	}
	if got := strings.Join(rows[2], "|"); !strings.HasPrefix(got, "2026-12-01T00:00:02.000Z|demo|ALLOW|POST|api.example.test|443|/early|200|9|uploads|7|0|key|because||||") {
		t.Errorf("a request: %s", got)
	}
	out := run(t, file, "query", "-o", "table")
	if lines := strings.Split(out, "\n"); len(lines) != 13 || strings.Index(lines[0], "VERDICT") != strings.Index(lines[2], "ALLOW") || strings.Contains(out, "\x1b") {
		t.Errorf("a table:\n%s", out)
	}
	n := 0
	for line := range strings.Lines(run(t, file, "query", "-o", "ndjson")) {
		var e audit.Event
		if n++; json.Unmarshal([]byte(line), &e) != nil || e.Metadata.Sequence != uint64(n) {
			t.Errorf("line %d: %s", n, line)
		}
	}
	if n != 14 {
		t.Errorf("%d events", n)
	}
}

// What did it send between two snapshots?
func TestTimeline(t *testing.T) {
	_, file := seeded(t)
	for args, want := range map[string]string{
		"demo":                             "[created /early snapshot /one created command snapshot /late version]",
		"d1":                               "[created snapshot created command snapshot version]",
		"demo --from a --to b":             "[snapshot /one created command snapshot]",
		"demo --from a --to b -o table":    "[snapshot /one created command snapshot]",
		"demo --from b":                    "[snapshot /late version]",
		"demo --to a":                      "[created /early snapshot]",
		"demo --from 2026-12-01T00:00:11Z": "[snapshot /late version]",
	} {
		if got := fmt.Sprint(paths(run(t, file, append([]string{"timeline"}, strings.Fields(args)...)...))); got != want {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
	for _, args := range []string{"demo --from c", "demo --to -1h", "demo --from b --to a", "demo -o xml"} {
		if out, status, err := clitest.Run(t, cli.Root("test", Command), "", append([]string{"--config", file, "audit", "timeline"}, strings.Fields(args)...)...); status != 2 {
			t.Errorf("%s: %d, %v, %s", args, status, err, out)
		}
	}
}
