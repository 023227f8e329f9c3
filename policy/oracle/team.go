package oracle

import "slices"

// Contributed is what a team's Rego says about an ask: what is in the sets of its
// one package.
type Contributed struct {
	Package   string
	Malformed bool // an allow that is not what it must be
	Deny      bool
	Approve   bool
	Allow     []Offer
	Inject    []Put
}

// Offer is an element of allow. No protocols: TLS.
type Offer struct {
	Rule      string
	Protocols []string
}

// Put is an element of inject: a credential and its query parameter, or none for
// the header Authorization. Login is the protocol of what logs in, else empty.
type Put struct{ Credential, Query, Login string }

// JudgeWith is Judge where a team has a say: what denies wins over everything, and
// asking for approval over what allows. No team allows what a rule of the document denies
// or governs.
func (d Document) JudgeWith(says func(Ask) Contributed, a Ask) Verdict {
	var list []Verdict
	for _, a := range Readings(a) {
		list = append(list, d.judge(says(a), a))
	}
	return strictest(list)
}

// judge is JudgeWith of one reading.
func (d Document) judge(c Contributed, a Ask) Verdict {
	if blind := d.blind(a); blind != nil {
		return Verdict{Action: "deny", Rules: exactest(blind), Blind: true}
	}
	o := d.opinion(a)
	v := Verdict{Action: o.action, Rules: exactest(o.rules)}
	protocol := a.Protocol
	if a.Phase == "connect" && a.other() {
		protocol = "other" // Rego does not tell its kinds apart before there is a request
	}
	offers := those(c.Allow, func(offer Offer) bool {
		protocols := offer.Protocols
		if protocols == nil {
			protocols = []string{"tls"}
		}
		return a.Phase == "dns" || slices.Contains(protocols, protocol)
	})
	unread := protocol == "other"
	switch {
	case c.Malformed:
		return Verdict{Action: "deny", Rules: []string{"sallyport.team"}, Malformed: true}
	case c.Deny:
		return Verdict{Action: "deny", Rules: []string{c.Package}}
	case v.Action == "deny" && v.Rules != nil:
		return v
	case c.Approve && a.Phase == "dns":
		// A name may be looked up before anybody is asked.
		return Verdict{Action: "allow", Rules: []string{c.Package}}
	case c.Approve:
		v = Verdict{Action: "approve", Rules: []string{c.Package}}
	case v.Action == "deny" && offers != nil:
		v.Action = "allow"
		if unread {
			v.Action = "tunnel"
		}
		for _, offer := range offers {
			v.Rules = append(v.Rules, offer.Rule)
		}
	case v.Action == "deny":
		return v
	case v.Action == "tunnel" && offers != nil && !unread:
		v.Action = "allow" // what may pass unread is read where the team's allow can read it
	}
	return d.inject(v, o.authorising, c.Inject, a)
}

// inject adds what goes into a request. Two credentials in one place cannot both
// arrive, and none goes where no egressAuth rule binds it, or without TLS.
func (d Document) inject(v Verdict, authorising []Rule, puts []Put, a Ask) Verdict {
	if a.Phase != "request" {
		return v
	}
	all := slices.Clone(puts)
	for _, r := range authorising {
		p := Put{r.AuthRef, r.Inject.Query.Name, r.login()}
		if p.Login == "tls" {
			p.Login = ""
		}
		all = append(all, p)
	}
	places := map[string]bool{}
	for _, p := range all {
		over := p.Login
		if over == "" {
			over = "tls"
		}
		if places[p.Query] || a.Protocol != over || !d.binds(p.Credential, a) {
			return Verdict{Action: "deny"}
		}
		places[p.Query] = true
		v.Credentials = append(v.Credentials, p.String())
	}
	slices.Sort(v.Credentials)
	return v
}

// String is the credential and its place.
func (p Put) String() string {
	if p.Login != "" {
		return p.Credential + " " + p.Login
	}
	if p.Query == "" {
		return p.Credential + " Authorization"
	}
	return p.Credential + " ?" + p.Query
}

// binds tells whether an egressAuth rule, for whatever sandbox, names the
// credential for the ask's destination.
func (d Document) binds(credential string, a Ask) bool {
	return nil != those(d.EgressAuth, func(r Rule) bool {
		r.Sandboxes.Names, r.Sandboxes.Tags = nil, nil
		return r.AuthRef == credential && r.isFor(a)
	})
}
