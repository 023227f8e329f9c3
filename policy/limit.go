package policy

import (
	"time"

	"sallyport/policy/limit"
)

// Limit bounds what is allowed: how much of it, how much at once, how large, and
// when. It allows nothing by itself. Every limit that a request or tunnel falls
// under has to have room for it.
//
//	limits:
//	- name: openai-a-day
//	  destination: api.openai.com
//	  per: sandbox
//	  every: 24h
//	  requests: 1000
//	  bytes: 1GiB
type Limit struct {
	// Name is what its counters hang by, over restarts and reloads too, and what
	// a denial names. It is given once, and needed.
	// Example: openai-a-day
	Name string `yaml:"name" json:"name"`
	// Sandboxes selects who it is for. Default: every sandbox.
	// Example: {tags: {team: support}}
	Sandboxes Selector `yaml:"sandboxes" json:"sandboxes,omitzero"`
	// Destination is as EgressRule's, on every port where it names none.
	// Default: all.
	// Example: api.openai.com
	Destination string `yaml:"destination" json:"destination,omitempty"`
	// Credential makes it one of requests that get this credential. Default: of
	// all, with a credential or without.
	// Example: openai-api-key
	Credential string `yaml:"credential" json:"credential,omitempty"`
	// Per says what has a counter of its own: sandbox (default), tag:KEY (each
	// value of that tag; sandboxes without it have one together), destination
	// (each host and port), credential (each; requests without are not limited),
	// or all, for one counter.
	// Example: "tag:team"
	Per string `yaml:"per" json:"per,omitempty"`
	// Every is the period of Requests, Bytes, Uses, Tokens and Cost, and needed with
	// them: from 1s to 8784h. Periods are aligned to UTC: those of 24h begin at midnight,
	// those of 168h on Mondays.
	// Example: 24h
	Every Duration `yaml:"every" json:"every,omitzero"`
	// Requests is how many requests and tunnels a period has. Default: no bound.
	// Example: 1000
	Requests int64 `yaml:"requests" json:"requests,omitempty"`
	// Bytes bounds what bodies, WebSockets and tunnels carry in a period, both ways
	// together, as 1GiB. Heads are not counted. A transfer that goes beyond it is broken off.
	// Default: no bound.
	// Example: 1GiB
	Bytes Size `yaml:"bytes" json:"bytes,omitzero"`
	// Uses is how often credentials are put into requests in a period. Default: no
	// bound.
	// Example: 100
	Uses int64 `yaml:"uses" json:"uses,omitempty"`
	// Tokens is how many tokens of LLM APIs a period has, as their answers report
	// them; where they do not, an upper estimate counts. Default: no bound.
	// Example: 1000000
	Tokens int64 `yaml:"tokens" json:"tokens,omitempty"`
	// Cost is what these tokens may cost in a period, by the document's prices, as
	// "5.00". A model that has no price there is denied. Default: no bound.
	// Example: "5.00"
	Cost limit.Money `yaml:"cost" json:"cost,omitzero"`
	// Concurrent is how many requests, WebSockets and tunnels are under way at a
	// time. Default: no bound.
	// Example: 10
	Concurrent int64 `yaml:"concurrent" json:"concurrent,omitempty"`
	// Size bounds the body of each request, as 10MiB. Default: no bound.
	// Example: 10MiB
	Size Size `yaml:"size" json:"size,omitzero"`
	// Hours is when requests and tunnels may begin. Default: at all times.
	// Example: {days: [mon, tue, wed, thu, fri], from: "08:00", to: "18:00", zone: Europe/Berlin}
	Hours *Hours `yaml:"hours" json:"hours,omitempty"`
}

// Hours are times of the week.
type Hours struct {
	// Days lists mon, tue, wed, thu, fri, sat and sun. Default: all. A time that
	// goes past midnight belongs to the day that it began on.
	// Example: [mon, tue, wed, thu, fri]
	Days []string `yaml:"days" json:"days,omitempty"`
	// From is the time of the day at which they begin. Default: 00:00.
	// Example: "08:00"
	From string `yaml:"from" json:"from,omitempty"`
	// To is the time of the day at which they are over: 24:00 is the end of the
	// day, and what is before From is on the day after. Default: 24:00.
	// Example: "18:00"
	To string `yaml:"to" json:"to,omitempty"`
	// Zone is of the IANA database, as Europe/Berlin. Default: UTC.
	// Example: Europe/Berlin
	Zone string `yaml:"zone" json:"zone,omitempty"`
}

// Values of Limit.Per, beside tag:KEY.
const (
	PerSandbox     = "sandbox"
	PerDestination = "destination"
	PerCredential  = "credential"
	PerAll         = "all"

	PerTag = "tag:"
)

// Applied is a limit that an allowed request or tunnel falls under.
type Applied struct {
	*Limit
	// Subject is whose counter it is: the sandbox's ID (of a fork, that of the one
	// that its lineage began with), the tag's value, host:port, the credential's name,
	// or all.
	Subject string
	// Credentials is how many of the request's the limit is about.
	Credentials int64
	// Prices are those of the destination, for a Cost.
	Prices  Prices `json:"-"`
	Opening *Opening
}

// Opens tells how long it is from t until the limit's hours; 0 where they are now.
func (a Applied) Opens(t time.Time) time.Duration {
	if a.Opening == nil {
		return 0
	}
	return a.Opening.opens(t)
}

// Periodic tells whether the limit counts over a period.
func (l *Limit) Periodic() bool {
	return l.Requests > 0 || l.Bytes > 0 || l.Uses > 0 || l.Charges()
}

// Charges tells whether the limit counts tokens or what they cost.
func (l *Limit) Charges() bool { return l.Tokens > 0 || l.Cost > 0 }
