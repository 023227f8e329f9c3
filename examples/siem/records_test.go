// Package siem_test tests what is beside it against the product's own records.
package siem_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sallyport/audit"
	"sallyport/internal/test/must"
	"sallyport/sandbox/datapath"
)

// recordsOf are events as a SIEM has them, with what the configurations here derive.
func recordsOf(t *testing.T, events []*audit.Event) (all []record) {
	t.Helper()
	for _, e := range events {
		b, err := json.Marshal(e)
		must.OK(t, err)
		all = append(all, parse(t, b))
	}
	return all
}

func parse(t *testing.T, line []byte) record {
	t.Helper()
	var v map[string]any
	must.OK(t, json.Unmarshal(line, &v))
	r := record{}
	r.add("", v)
	r["event_hour"] = []any{float64(time.UnixMilli(r.time()).UTC().Hour())}
	return r
}

// golden are the records of the files that package audit is tested with, by their names.
func golden(t *testing.T) map[string][]json.RawMessage {
	t.Helper()
	files, err := filepath.Glob("../../audit/auditlog/testdata/*.golden")
	if err != nil || len(files) < 10 {
		t.Fatal(files, err)
	}
	all := map[string][]json.RawMessage{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		must.OK(t, err)
		name := strings.TrimSuffix(filepath.Base(file), ".golden")
		for d := json.NewDecoder(strings.NewReader(string(b))); ; { // after them is a line for a person
			var r json.RawMessage
			if d.Decode(&r) != nil || r[0] != '{' {
				break
			}
			all[name] = append(all[name], r)
		}
	}
	return all
}

// morning is the beginning of the day that is tested.
var morning = time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)

// of sets whose event it is, and when.
func of(e *audit.Event, sandbox string, at time.Time) *audit.Event {
	e.Time = at.UnixMilli()
	x := &e.Unmapped.Sallyport
	x.Sandbox, x.SandboxID = sandbox, sandbox+"-id"
	return e
}

// request is a decision and, of what was allowed, the completion.
func request(sandbox, host, credential string, allowed bool, at time.Time) []*audit.Event {
	x := new(audit.Exchange)
	d := of(x.Decide(audit.ClassHTTP, audit.HTTPActivity("GET")), sandbox, at)
	d.Destination = &audit.Endpoint{Hostname: host, Port: 443}
	d.HTTPRequest = &audit.HTTPRequest{Method: "GET", URL: &audit.URL{Scheme: "https", Hostname: host, Path: "/", Port: 443}}
	d.Action, d.Disposition, d.Rule = audit.ActionDenied, audit.DispositionBlocked, &audit.Rule{Name: "default", Type: "floor"}
	s := &d.Unmapped.Sallyport
	s.Phase, s.Decision = "request", "deny"
	if !allowed {
		return []*audit.Event{d}
	}
	d.Action, d.Disposition, d.Rule = audit.ActionAllowed, audit.DispositionAllowed, &audit.Rule{Name: host, Type: "egress"}
	s.Decision = "allow"
	if credential != "" {
		s.Credentials = []audit.CredentialUse{{Name: credential}}
	}
	c := of(x.Complete(d.ActivityID), sandbox, at.Add(40*time.Millisecond))
	c.Unmapped.Sallyport.Credentials = s.Credentials
	return []*audit.Event{d, c}
}

// lifecycle is an event of a state.
func lifecycle(subject, state string, at time.Time) *audit.Event {
	return of(audit.Change(subject, state), "demo", at)
}

// drop is a record of dropped packets, as the datapath has them.
func drop(reason string, at time.Time) *audit.Event {
	e := audit.New(audit.KindDrop, audit.ClassNetwork, audit.NetworkRefuse)
	e.Action, e.Disposition, e.Count = audit.ActionDenied, audit.DispositionDropped, 12
	e.Rule = &audit.Rule{Name: "datapath", Type: "floor"}
	e.Unmapped.Sallyport.Reason, e.Unmapped.Sallyport.Decision = reason, "deny"
	return of(e, "demo", at)
}

// reasons are those for which the datapath drops packets.
func reasons() iter.Seq[datapath.Reason] {
	return func(yield func(datapath.Reason) bool) {
		for r := datapath.Reason(0); !strings.HasPrefix(r.String(), "Reason("); r++ {
			if !yield(r) {
				return
			}
		}
	}
}

// ordinaryDay is what no rule is to find.
func ordinaryDay() (day []*audit.Event) {
	for minute := range 10 * 60 {
		at := morning.Add(time.Duration(minute) * time.Minute)
		for i := range 3 {
			sandbox := fmt.Sprint("agent-", i)
			day = append(day, request(sandbox, "api.github.com", "github-token", true, at)...)
			day = append(day, request(sandbox, "registry.npmjs.org", "npm-token", true, at)...)
			day = append(day, request(sandbox, "pypi.org", "", true, at)...)
			day = append(day, request(sandbox, "telemetry.example.com", "", false, at)...)
		}
		day = append(day, lifecycle("sallyport", "checkpoint", at))
	}
	for i, change := range []string{
		"sallyport started", "sandbox/demo created", "sandbox/demo started", "approval/1 asked", "approval/1 approved", "sandbox/demo snapshot", "sallyport reloaded",
		"sandbox/demo command", "sandbox/demo stopped", "sandbox/demo removed", "sallyport audit-sealed", "sallyport observe-ended", "secret/github-token read",
	} {
		subject, state, _ := strings.Cut(change, " ")
		day = append(day, lifecycle(subject, state, morning.Add(time.Duration(i)*30*time.Minute)))
	}
	for reason := range reasons() {
		if !reason.Attempt() {
			day = append(day, drop(reason.String(), morning.Add(time.Duration(reason)*10*time.Minute)))
		}
	}
	return day
}

// attacks are what each rule is for, by its file.
func attacks() map[string][]*audit.Event {
	at := morning.Add(3 * time.Hour)
	found := request("demo", "api.github.com", "github-token", true, at)
	found[1].Unmapped.Sallyport.Found = []audit.CredentialUse{{Name: "github-token"}}
	stopped := request("demo", "api.github.com", "", false, at)
	stopped[0].Rule.Name = "found-credentials"
	all := map[string][]*audit.Event{
		"secret-echoed": found, "sandbox-stopped": stopped,
		"approval-out-of-hours": {lifecycle("approval/1", "approved", morning.Add(-5*time.Hour)), lifecycle("approval/2", "approved", morning.Add(11*time.Hour))},
		"audit-unanchored":      {lifecycle("sallyport", "audit-unsealed", at)},
		"observe-mode":          {lifecycle("sallyport", "observe-begun", at)},
	}
	for _, state := range []string{"audit-altered", "audit-damaged", "audit-dropped", "audit-gap", "audit-truncated"} {
		all["audit-gap"] = append(all["audit-gap"], lifecycle("sallyport", state, at))
	}
	for reason := range reasons() {
		if reason.Attempt() {
			all["bypass"] = append(all["bypass"], drop(reason.String(), at))
		}
	}
	for i := range 30 {
		all["denied-burst"] = append(all["denied-burst"], request("demo", fmt.Sprintf("h%d.example.com", i), "", false, at.Add(time.Duration(i)*time.Second))...)
	}
	for i := range 5 {
		host := fmt.Sprintf("h%d.example.com", i)
		all["new-destination"] = append(all["new-destination"], request("demo", host, "", true, at.Add(time.Duration(i)*time.Minute))...)
		if i < 3 {
			all["credential-new-host"] = append(all["credential-new-host"], request("demo", host, "github-token", true, at.Add(time.Duration(i)*time.Hour))...)
		}
	}
	return all
}

// Each rule finds what it is for, and nothing in an ordinary day. Correlations find no
// less than they count, and not one record less than that.
func TestSigma(t *testing.T) {
	attacks, day := attacks(), recordsOf(t, ordinaryDay())
	for name, documents := range rules(t) {
		t.Run(name, func(t *testing.T) {
			base := documents[0]
			condition, err := base.condition()
			must.OK(t, err)
			matched := func(records []record) (found []record) {
				for _, x := range records {
					ok, err := base.matches(condition, x)
					must.OK(t, err)
					if ok {
						found = append(found, x)
					}
				}
				return found
			}
			bad, quiet := matched(recordsOf(t, attacks[name])), matched(day)
			if len(documents) == 1 {
				want := len(attacks[name])
				if name == "secret-echoed" { // the completion alone
					want = 1
				}
				if len(bad) != want || len(quiet) != 0 {
					t.Errorf("%d records of %d found, and %d of an ordinary day", len(bad), want, len(quiet))
				}
				return
			}
			c := documents[1].Correlation
			if len(documents) != 2 || c == nil || len(c.Rules) != 1 || c.Rules[0] != base.Name {
				t.Fatalf("a correlation of %s is wanted: %+v", base.Name, documents[1:])
			}
			for what, of := range map[string]struct {
				records []record
				fires   bool
			}{"attack": {bad, true}, "less": {bad[1:], false}, "ordinary": {quiet, false}} {
				n, err := c.most(of.records)
				if err != nil || (n >= c.Condition.GTE) != of.fires {
					t.Errorf("%s: counted %d, fires from %d: %v", what, n, c.Condition.GTE, err)
				}
			}
			if c.Generate && len(quiet) > 0 {
				t.Errorf("%d records of an ordinary day", len(quiet))
			}
		})
	}
	if len(attacks) != len(rules(t)) {
		t.Error("a rule without an attack: ", maps.Keys(attacks))
	}
}

// The identifiers of rules are their own, and all say where they belong.
func TestSigmaHeads(t *testing.T) {
	seen := map[string]string{}
	for name, documents := range rules(t) {
		for _, r := range documents {
			if was, twice := seen[r.ID]; twice || r.ID == "" {
				t.Errorf("%s and %s have the id %q", name, was, r.ID)
			}
			seen[r.ID] = name
			if r.Level == "" || r.Title == "" || r.Description == "" || r.Correlation == nil && (r.LogSource.Product != "sallyport" || len(r.FalsePositives) == 0) {
				t.Errorf("%s lacks a part: %+v", name, r)
			}
		}
	}
}

// Each field that a rule reads is one that records have.
func TestSigmaFields(t *testing.T) {
	known := record{}
	for _, events := range attacks() {
		for _, x := range recordsOf(t, events) {
			maps.Copy(known, x)
		}
	}
	for _, all := range golden(t) {
		for _, r := range all {
			maps.Copy(known, parse(t, r))
		}
	}
	var check func(t *testing.T, v any)
	check = func(t *testing.T, v any) {
		switch v := v.(type) {
		case []any:
			for _, v := range v {
				check(t, v)
			}
		case map[string]any:
			for key := range v {
				if field, _, _ := strings.Cut(key, "|"); known[field] == nil {
					t.Errorf("no record has %s", field)
				}
			}
		}
	}
	for name, documents := range rules(t) {
		t.Run(name, func(t *testing.T) {
			for search, v := range documents[0].Detection {
				if search != "condition" {
					check(t, v)
				}
			}
		})
	}
}

// compact is a record as a line of the log.
func compact(t *testing.T, r json.RawMessage) []byte {
	t.Helper()
	var b bytes.Buffer
	must.OK(t, json.Compact(&b, r))
	return b.Bytes()
}

// splitPath is a field's keys.
func splitPath(field string) []string { return strings.Split(field, ".") }
