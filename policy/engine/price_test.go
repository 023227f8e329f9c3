package engine_test

import (
	"strings"
	"testing"
	"time"

	"sallyport/internal/test/must"
	"sallyport/policy"
	"sallyport/policy/limit"
)

func money(t *testing.T, text string) *limit.Money {
	t.Helper()
	m := new(limit.Money)
	must.OK(t, m.UnmarshalText([]byte(text)))
	return m
}

func TestPrices(t *testing.T) {
	price := func(model, destination string, in string) policy.Price {
		return policy.Price{Model: model, Destination: destination, Input: money(t, in), Output: money(t, "10")}
	}
	p := compiled(t, policy.Document{
		Egress: []policy.EgressRule{{Destination: "api.example.com"}, {Destination: "*.example.net", Ports: []uint16{443, 8443}}},
		Limits: []policy.Limit{
			{Name: "cost", Every: policy.Duration(24 * time.Hour), Cost: *money(t, "5")},
			{Name: "tokens", Every: policy.Duration(24 * time.Hour), Tokens: 5},
		},
		Prices: []policy.Price{
			price("gpt-5-mini*", "", "1"), price("gpt-5*", "", "2"), price("*sonnet*4*", "", "3"),
			price("local", "*.example.net:8443", "4"), price("only", "api.example.com", "5"),
		},
	})
	for _, tt := range []struct {
		host  string
		port  uint16
		model string
		want  string // input's price
	}{
		{"api.example.com", 443, "gpt-5-mini-2025", "1.00"},
		{"api.example.com", 443, "gpt-5", "2.00"},
		{"api.example.com", 443, "xgpt-5", ""},
		{"api.example.com", 443, "claude-sonnet-4-5", "3.00"},
		{"api.example.com", 443, "claude-4-sonnet", ""},
		{"api.example.com", 443, "", ""},
		{"api.example.com", 443, "local", ""},
		{"api.example.com", 443, "only", "5.00"},
		{"a.example.net", 8443, "local", "4.00"},
		{"a.example.net", 443, "local", ""},
		{"a.example.net", 443, "only", ""},
	} {
		d := p.Decide(t.Context(), policy.Input{
			Phase: policy.PhaseRequest, Sandbox: policy.Sandbox{Name: "a", ID: "1"}, Protocol: policy.ProtocolTLS,
			Destination: policy.Destination{Host: tt.host, Port: tt.port},
			Request:     &policy.Request{Method: "POST", Scheme: "https", Path: "/"},
		})
		if len(d.Limits) != 2 {
			t.Fatalf("%+v", d)
		}
		for _, l := range d.Limits {
			rates, ok := l.Prices.Of(tt.model)
			switch got := rates.Input.String(); {
			case l.Name == "tokens" && l.Prices != nil:
				t.Error("prices where nothing has a cost")
			case l.Name == "cost" && (ok != (tt.want != "") || ok && got != tt.want):
				t.Errorf("%s %s: got %s, %v", tt.host, tt.model, got, ok)
			}
		}
	}
}

func TestRates(t *testing.T) {
	p := policy.Price{Model: "x", Input: money(t, "1.5"), Output: money(t, "6")}
	if got := p.Rates(); got != (policy.Rates{Input: 1.5e9, Output: 6e9, CachedInput: 1.5e9, CacheWrite: 3e9}) {
		t.Errorf("got %v", got)
	}
	p.CachedInput, p.CacheWrite = money(t, "0.15"), money(t, "1.875")
	if got := p.Rates(); got != (policy.Rates{Input: 1.5e9, Output: 6e9, CachedInput: 0.15e9, CacheWrite: 1.875e9}) {
		t.Errorf("got %v", got)
	}
	high := policy.Prices{p, {Model: "y", Input: money(t, "1"), Output: money(t, "7")}}.Highest()
	if high != (policy.Rates{Input: 1.5e9, Output: 7e9, CachedInput: 1e9, CacheWrite: 2e9}) {
		t.Errorf("got %v", high)
	}
}

// A team's Rego limits tokens and cost as the document does.
func TestTeamLimitsTokens(t *testing.T) {
	p := compiled(t, policy.Document{
		Egress: []policy.EgressRule{{Destination: "api.example.com"}},
		Policy: policy.Source{Dir: folder(t, `package sallyport.team.budgets

limit contains {"name": "spend", "every": "24h", "tokens": 1000, "cost": "2.50"} if input.request.method == "POST"

limit contains {"name": "less", "every": "24h", "cost": 0.25} if input.request.method == "POST"

limit contains {"name": "bad", "every": "24h", "cost": -1} if input.request.method == "PUT"
`)},
		Prices: []policy.Price{{Model: "*", Input: money(t, "1"), Output: money(t, "2")}},
	})
	decide := func(method string) policy.Decision {
		return p.Decide(t.Context(), policy.Input{
			Phase: policy.PhaseRequest, Sandbox: policy.Sandbox{Name: "a", ID: "1"}, Protocol: policy.ProtocolTLS,
			Destination: policy.Destination{Host: "api.example.com", Port: 443},
			Request:     &policy.Request{Method: method, Scheme: "https", Path: "/"},
		})
	}
	d := decide("POST")
	if len(d.Limits) != 2 || d.Limits[0].Name != "less" || d.Limits[0].Cost != 0.25e9 || d.Limits[1].Tokens != 1000 || d.Limits[1].Cost != 2.5e9 || len(d.Limits[1].Prices) != 1 {
		t.Errorf("got %+v", d)
	}
	if d := decide("PUT"); d.Action != policy.Deny || !strings.Contains(d.Err.Error(), "not an amount") {
		t.Errorf("got %+v", d)
	}
}
