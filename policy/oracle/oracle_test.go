package oracle_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"sallyport/internal/config"
	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/body"
	"sallyport/policy/engine"
	"sallyport/policy/oracle"
)

func input(p *engine.Policy, a oracle.Ask) policy.Input {
	in := policy.Input{
		Phase:       policy.Phase(a.Phase),
		Sandbox:     policy.Sandbox{Name: a.Sandbox, ID: "id-" + a.Sandbox, Tags: a.Tags},
		Destination: policy.Destination{Host: a.Host, Port: uint16(a.Port)},
		Protocol:    policy.Protocol(a.Protocol),
	}
	if a.Phase == "request" {
		scheme := a.Protocol
		if scheme == "tls" {
			scheme = "https"
		}
		in.Request = &policy.Request{Method: a.Method, Scheme: scheme, Path: a.Path, Size: -1}
		if n := p.Need(in); n.Max > 0 && a.Body != "" {
			in.Request.Body = body.Read(n, []byte(a.Body))
		}
	}
	return in
}

// differs says in what a decision is not the verdict.
func differs(want oracle.Verdict, got policy.Decision) string {
	var credentials []string
	for _, i := range got.Inject {
		place := "Authorization"
		if q := i.Inject.Query; q != nil {
			place = "?" + q.Name
		} else if p := i.Inject.Protocol(); p != policy.ProtocolTLS {
			place = string(p)
		}
		credentials = append(credentials, i.Credential+" "+place)
	}
	slices.Sort(credentials)
	switch {
	case got.Err != nil:
		return got.Err.Error()
	case string(got.Action) != want.Action:
		return fmt.Sprintf("%s by %q (%s), want %s by %q", got.Action, got.Rule, got.Reason, want.Action, want.Rules)
	case len(want.Rules) == 0 && got.Rule != "", len(want.Rules) > 0 && !slices.Contains(want.Rules, got.Rule):
		return fmt.Sprintf("%s by %q, want one of %q", got.Action, got.Rule, want.Rules)
	case want.Blind != (got.Unjudged != nil):
		return fmt.Sprintf("unjudged for %v, want %t", got.Unjudged, want.Blind)
	case !slices.Equal(credentials, want.Credentials):
		return fmt.Sprintf("credentials %q, want %q", credentials, want.Credentials)
	}
	return ""
}

// compiled is a random file, compiled, and read by the oracle.
func compiled(t *testing.T, random *rand.Rand, team string) (text string, p *engine.Policy, d oracle.Document) {
	t.Helper()
	for {
		text := oracle.Text(random)
		c, err := config.Parse("sallyport.yaml", []byte(text))
		if err != nil {
			continue // a rule contradicts itself or another
		}
		if team != "" {
			c.Document.Policy.Dir = t.TempDir()
			must.OK(t, os.WriteFile(filepath.Join(c.Document.Policy.Dir, "team.rego"), []byte(team), 0o600))
		}
		p, err := engine.Compile(t.Context(), c.Document, engine.Options{})
		if err != nil {
			t.Fatalf("%v\n%s%s", err, text, team)
		}
		d, err := oracle.Read([]byte(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		return text, p, d
	}
}

// These tests make rules by the thousand and keep none: half of their time was the garbage
// collector's.
func init() { debug.SetGCPercent(400) }

// TestProperty compares the compiled policy with the oracle: 130,000 asks of
// random files. It says how often each outcome was met, so that none is missing.
func TestProperty(t *testing.T) {
	random := rand.New(rand.NewPCG(2026, 11))
	met := tally{}
	for n := 0; n < 130_000; {
		text, p, d := compiled(t, random, "")
		for range 80 {
			a := oracle.Random(random)
			n++
			want := d.Judge(a)
			if why := differs(want, p.Decide(t.Context(), input(p, a))); why != "" {
				t.Fatalf("%s\nof %+v\nunder\n%s", why, a, text)
			}
			met.add(a, want)
		}
	}
	met.expect(t,
		"deny in dns", "deny in dns by no rule", "allow in dns", "deny in connect", "deny in connect by no rule", "allow in connect", "tunnel in connect",
		"approve in connect", "deny in request", "deny in request by no rule", "allow in request", "approve in request",
		"allow in request with credentials: 1", "allow in request with credentials: 2", "approve in request with credentials: 1",
		"deny in request for its body",
		"deny in connect over ssh", "deny in connect over ssh by no rule", "allow in connect over ssh", "tunnel in connect over ssh", "approve in connect over ssh", "tunnel in connect over redis",
		"deny in request over ssh", "allow in request over ssh with credentials: 1", "approve in request over ssh",
		"deny in request of several readings", "deny in request by no rule of several readings", "deny in request for its body of several readings",
		"allow in request of several readings", "approve in request of several readings", "allow in request of several readings with credentials: 1",
		"allow in request of several readings with credentials: 2",
	)
}

// TestTeamProperty is TestProperty where a team's Rego takes part.
func TestTeamProperty(t *testing.T) {
	random := rand.New(rand.NewPCG(2026, 12))
	met := tally{}
	for n := 0; n < 45_000; {
		team, contributed := oracle.Team(random)
		text, p, d := compiled(t, random, team)
		for range 80 {
			a := oracle.Random(random)
			n++
			want, got := d.JudgeWith(contributed, a), p.Decide(t.Context(), input(p, a))
			if malformed := errors.Is(got.Err, engine.ErrUndecided); want.Malformed && malformed {
				got.Err = nil // as it must be
			}
			if why := differs(want, got); why != "" {
				t.Fatalf("%s\nof %+v\nunder\n%s%s", why, a, text, team)
			}
			if want.Malformed {
				want.Rules = []string{"malformed"}
			}
			met.add(a, want)
		}
	}
	met.expect(t,
		"deny in dns", "allow in dns", "deny in connect", "allow in connect", "tunnel in connect", "approve in connect",
		"deny in request", "deny in request by no rule", "allow in request", "approve in request",
		"allow in request with credentials: 1", "allow in request with credentials: 2", "approve in request with credentials: 1",
		"deny in request of several readings", "allow in request of several readings", "approve in request of several readings",
	)
}

// tally counts the outcomes that were met, by what they are.
type tally map[string]int

func (met tally) add(a oracle.Ask, v oracle.Verdict) {
	outcome := v.Action + " in " + a.Phase
	if a.Protocol == "ssh" || a.Protocol == "postgres" || a.Protocol == "redis" {
		outcome += " over " + a.Protocol
	}
	if v.Rules == nil {
		outcome += " by no rule"
	}
	if v.Blind {
		outcome += " for its body"
	}
	if strings.Contains(a.Path, "%2F") {
		outcome += " of several readings"
	}
	if len(v.Credentials) > 0 {
		outcome += fmt.Sprint(" with credentials: ", len(v.Credentials))
	}
	met[outcome]++
}

// expect fails where one of the outcomes was hardly met.
func (met tally) expect(t *testing.T, outcomes ...string) {
	t.Helper()
	for _, outcome := range slices.Sorted(maps.Keys(met)) {
		t.Logf("%6d  %s", met[outcome], outcome)
	}
	for _, outcome := range outcomes {
		if met[outcome] < 10 {
			t.Errorf("%s was met %d times", outcome, met[outcome])
		}
	}
}
