package index

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	"sallyport/audit"
)

// Query selects events. The zero Query selects all of them. An event has to fit every
// field that is set. The completion of a decision that fits comes with it, so that nobody
// takes the request for an open one, unless Kind or Alone is set.
type Query struct {
	From, To    uint64    // the first and the last number; 0 is no bound
	Since       time.Time // not older
	Until       time.Time // older
	Sandbox     string    // name or ID
	Destination string    // host name or address, in any case
	Rule        string    // name
	Credential  string    // name, of what was injected or found
	Decision    string    // allow, deny, tunnel, approve
	Kind        audit.Kind
	Class       audit.Class
	Alone       bool // without completions that do not fit by themselves
	Denied      bool // refusals only: denied decisions and dropped packets
	// Text is any text. An event fits if it has each of its words: runs of letters and
	// digits, in any case and order. A text without a word fits nothing.
	Text string
	// Tenant, unless nil, is whose sandboxes' events are selected.
	Tenant *Tenant
}

// Tenant is an owner of sandboxes. Events of traffic name no owner, but a sandbox's ID.
type Tenant struct {
	Name      string
	Sandboxes []string // IDs of those that there are
}

// Wants reports whether an event fits.
func (q *Query) Wants(e *audit.Event) bool {
	s := q.selection()
	return s.wants(e)
}

// selection is a query that is compared with many events.
type selection struct {
	query  *Query
	wanted [][]string // terms: of each list an event has to have one
}

func (q *Query) selection() selection { return selection{q, q.terms()} }

func (s *selection) wants(e *audit.Event) bool {
	q, n := s.query, e.Metadata.Sequence
	switch {
	case n < q.From, q.To != 0 && n > q.To,
		!q.Since.IsZero() && e.Time < q.Since.UnixMilli(),
		!q.Until.IsZero() && e.Time >= q.Until.UnixMilli():
		return false
	case len(s.wanted) == 0:
		return true
	}
	has := terms(e)
	for _, any := range s.wanted {
		if !slices.ContainsFunc(any, func(t string) bool { return slices.Contains(has, t) }) {
			return false
		}
	}
	return true
}

// follows reports whether the completion of a decision comes with it.
func (q *Query) follows() bool { return q.Kind == "" && !q.Alone }

// A term is what an event has or has not: a word of its text, or the value of a field.
// The second begins with a mark that is no letter, so that no text has it.
const mark = "§"

// The fields of terms.
const (
	name       = 's'
	id         = 'i'
	owner      = 'o'
	host       = 'h'
	rule       = 'r'
	credential = 'a'
	decision   = 'v'
	kind       = 'k'
	class      = 'c'
	denied     = 'd'
)

// maxValue is the length in bytes from which on a digest stands for a value.
const maxValue = 64

// term is that of a field's value. It has letters and digits only, so that SQLite takes it
// for one token, whatever the value is.
func term(field rune, value string) string {
	if len(value) > maxValue {
		sum := sha256.Sum256([]byte(value))
		return mark + string(field) + "z" + hex.EncodeToString(sum[:16])
	}
	return mark + string(field) + hex.EncodeToString([]byte(value))
}

// terms are those that an event has to have: of each list one.
func (q *Query) terms() (all [][]string) {
	one := func(field rune, value string) {
		if value != "" {
			all = append(all, []string{term(field, value)})
		}
	}
	if q.Sandbox != "" {
		all = append(all, []string{term(name, q.Sandbox), term(id, q.Sandbox)})
	}
	if t := q.Tenant; t != nil {
		any := []string{term(owner, t.Name)}
		for _, s := range t.Sandboxes {
			any = append(any, term(id, s))
		}
		all = append(all, any)
	}
	one(credential, q.Credential)
	one(rule, q.Rule)
	one(host, hostname(q.Destination))
	one(decision, q.Decision)
	one(kind, string(q.Kind))
	if q.Class != 0 {
		one(class, strconv.Itoa(int(q.Class)))
	}
	if q.Denied {
		one(denied, "1")
	}
	if q.Text != "" {
		list := words(nil, q.Text, len(q.Text))
		if len(list) == 0 {
			list = []string{term(denied, "0")} // no event has it
		}
		for _, w := range list {
			all = append(all, []string{w})
		}
	}
	return all
}

// terms are those of an event, each once.
func terms(e *audit.Event) (all []string) {
	x := &e.Unmapped.Sallyport
	add := func(field rune, value string) {
		if value != "" {
			all = append(all, term(field, value))
		}
	}
	add(name, x.Sandbox)
	add(id, x.SandboxID)
	if x.Sandbox != "" {
		add(owner, x.Owner)
	}
	add(decision, x.Decision)
	add(kind, string(x.Kind))
	add(class, strconv.Itoa(int(e.ClassUID)))
	if e.Action == audit.ActionDenied || x.Kind == audit.KindDrop {
		add(denied, "1")
	}
	if e.Rule != nil {
		add(rule, e.Rule.Name)
	}
	for _, uses := range [][]audit.CredentialUse{x.Credentials, x.Found} {
		for _, c := range uses {
			add(credential, c.Name)
		}
	}
	hosts := destinations(e)
	for _, h := range hosts {
		add(host, h)
	}
	texts := append(hosts, e.Message, e.Detail, x.Reason, x.State)
	if r := e.HTTPRequest; r != nil && r.URL != nil {
		texts = append(texts, r.URL.Path)
	}
	for _, t := range texts {
		all = words(all, t, maxText)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// destinations are the names and addresses of where an event's traffic goes.
func destinations(e *audit.Event) (all []string) {
	add := func(h string) {
		if h = hostname(h); h != "" && !slices.Contains(all, h) {
			all = append(all, h)
		}
	}
	if d := e.Destination; d != nil {
		add(d.Hostname)
		add(d.IP)
	}
	if r := e.HTTPRequest; r != nil && r.URL != nil {
		add(r.URL.Hostname)
	}
	if e.Query != nil {
		add(e.Query.Hostname)
	}
	if e.TLS != nil {
		add(e.TLS.SNI)
	}
	return all
}

func hostname(h string) string { return strings.ToLower(strings.TrimSuffix(h, ".")) }
