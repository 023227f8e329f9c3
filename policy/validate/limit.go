package validate

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sallyport/policy"
	"sallyport/policy/finding"
	"sallyport/policy/rule"
)

// Bounds of Limit.Every.
const (
	minEvery = time.Second
	maxEvery = 366 * 24 * time.Hour
)

// limits checks those of a document, once its rules are known.
func (v *validator) limits() {
	taken := map[string]string{}
	t := rule.NewTable(v.rules)
	for i, l := range v.doc.Limits {
		path := fmt.Sprintf("limits[%d]", i)
		if at, twice := taken[l.Name]; twice && l.Name != "" {
			v.say(finding.BadLimit, path+".name", fmt.Sprintf("%q is already the name of %s: counters hang by it", l.Name, at), "give each of the two a name of its own")
		}
		taken[l.Name] = path
		v.limit(path, l)
		v.matches(path, nil, nil, nil, l.Sandboxes)
		if l.Credential != "" && v.find(l.Credential) < 0 {
			v.reference(path+".credential", l.Credential)
			continue
		}
		if l.Destination != "" {
			if _, ok := v.destination(path, l.Destination, nil, true); !ok {
				continue
			}
		}
		v.met(path, l, t)
	}
}

// limit checks what does not depend on the document.
func (v *validator) limit(path string, l policy.Limit) {
	if l.Name == "" {
		v.say(finding.BadLimit, path, "has no name", "write name: and what its counters and denials are to be called")
	} else {
		v.label(finding.BadLimit, path, l.Name)
	}
	v.per(path, l)
	for _, n := range []struct {
		key   string
		value int64
	}{
		{"requests", l.Requests}, {"bytes", int64(l.Bytes)}, {"uses", l.Uses}, {"concurrent", l.Concurrent}, {"size", int64(l.Size)}, {"tokens", l.Tokens},
	} {
		if n.value < 0 {
			v.say(finding.BadLimit, path+"."+n.key, fmt.Sprintf("%d is less than none", n.value), "write a number from 1; to allow nothing write a rule with action: deny")
		}
	}
	every := time.Duration(l.Every)
	switch {
	case l.Periodic() && l.Every == 0:
		v.say(finding.BadLimit, path, "says how much and not for how long", `write every: 24h, or another period`)
	case l.Every != 0 && (every < minEvery || every > maxEvery):
		v.say(finding.BadLimit, path+".every", fmt.Sprintf("%v is no period that can be counted over", l.Every), "write one from 1s to 8784h")
	case l.Every != 0 && !l.Periodic():
		v.say(finding.BadLimit, path+".every", "has nothing to count: concurrent, size and hours have no period", "write requests, bytes, uses, tokens or cost beside it, or remove it")
	case !l.Periodic() && l.Concurrent == 0 && l.Size == 0 && l.Hours == nil:
		v.say(finding.BadLimit, path, "limits nothing", "write requests, bytes, uses, tokens or cost with every, or concurrent, size or hours")
	}
	if l.Hours != nil {
		if _, err := policy.ReadHours(*l.Hours); err != nil {
			key, rest, _ := strings.Cut(err.Error(), ": ")
			message, fix, _ := strings.Cut(rest, "; ")
			v.say(finding.BadLimit, path+".hours."+key, message, fix)
		}
	}
}

// per checks what has a counter of its own.
func (v *validator) per(path string, l policy.Limit) {
	key, tag := strings.CutPrefix(l.Per, policy.PerTag)
	known := []string{policy.PerSandbox, policy.PerDestination, policy.PerCredential, policy.PerAll}
	switch {
	case tag && key == "":
		v.say(finding.BadLimit, path+".per", "names no tag", "write it as tag:team")
	case tag:
		tags := map[string]bool{}
		for _, r := range v.rules {
			for t := range r.Sandboxes.Tags {
				tags[t] = true
			}
		}
		for t := range l.Sandboxes.Tags {
			tags[t] = true
		}
		if near := finding.Nearest(key, slices.Sorted(maps.Keys(tags))); near != "" && near != key && !tags[key] {
			v.say(finding.NeverMet, path+".per", fmt.Sprintf("no rule selects by a tag %q: sandboxes without it have one counter together", key), fmt.Sprintf("did you mean %q?", policy.PerTag+near))
		}
	case l.Per != "" && !slices.Contains(known, l.Per):
		fix := "write sandbox, tag:KEY, destination, credential or all"
		if near := finding.Nearest(l.Per, known); near != "" {
			fix = fmt.Sprintf("did you mean %s? Otherwise %s", near, fix)
		}
		v.say(finding.BadLimit, path+".per", fmt.Sprintf("%q has no counters", l.Per), fix)
	}
}

// met warns of a limit that nothing can fall under. A team's Rego may allow what
// no rule does.
func (v *validator) met(path string, l policy.Limit, t *rule.Table) {
	reached := v.rules
	if l.Destination != "" {
		d, _ := rule.ParseDestination(l.Destination)
		reached = nil
		for r := range t.Around(d) {
			reached = append(reached, *r)
		}
		for _, r := range v.rules {
			if d.Holds(r.Destination) {
				reached = append(reached, r)
			}
		}
		reached = slices.DeleteFunc(reached, func(r rule.Rule) bool { return d.Port != 0 && !r.OnPort(d.Port) })
	}
	reached = slices.DeleteFunc(slices.Clone(reached), func(r rule.Rule) bool { return r.Action == policy.Deny })
	if len(reached) == 0 && l.Destination != "" && v.doc.Policy.Dir == "" && v.doc.Policy.Bundle == nil {
		v.say(finding.NeverMet, path+".destination", fmt.Sprintf("no rule allows %q, so that the limit is never met", l.Destination), "write it as the rules have it, or remove the limit")
		return
	}
	if l.Credential == "" && l.Uses == 0 && l.Per != policy.PerCredential {
		return
	}
	gives := func(r rule.Rule) bool {
		return r.Credential != "" && (l.Credential == "" || r.Credential == l.Credential)
	}
	if !slices.ContainsFunc(reached, gives) {
		what := "a credential"
		if l.Credential != "" {
			what = fmt.Sprintf("the credential %q", l.Credential)
		}
		v.say(finding.NeverMet, path, "no egressAuth rule gives "+what+" to what it is about, so that the limit is never met", "correct its credential or destination, or remove it")
	}
}

// CheckLimit says what is wrong with a limit that a team's Rego gives: its condition
// selects sandboxes and destinations.
func CheckLimit(l policy.Limit) error {
	v := validator{names: map[string]string{}}
	if l.Destination != "" || l.Sandboxes.Names != nil || l.Sandboxes.Tags != nil {
		v.say(finding.BadLimit, "limit", "selects by sandboxes or destination", "write that as the condition of the rule")
	}
	v.limit("limit", l)
	return finding.JoinErrors(v.findings)
}

// maxPrices bounds those of a document: they are looked through for each model.
const maxPrices = 1000

// prices checks those of a document.
func (v *validator) prices() {
	taken := map[string]string{}
	for i, p := range v.doc.Prices {
		path := fmt.Sprintf("prices[%d]", i)
		at, twice := taken[p.Model+" "+p.Destination]
		taken[p.Model+" "+p.Destination] = path
		switch {
		case i == maxPrices:
			v.say(finding.BadPrice, path, fmt.Sprintf("there are more than %d prices", maxPrices), `write prices of families of models, as in model: "gpt-5*"`)
			return
		case p.Model == "":
			v.say(finding.BadPrice, path, "is of no model", `write model: "gpt-5*", or "*" for all`)
		case !policy.IsLabel(p.Model):
			v.say(finding.BadPrice, path+".model", fmt.Sprintf("%q is no model's name", p.Model), "write 1 to 200 visible ASCII characters, where * stands for any")
		case twice:
			v.say(finding.BadPrice, path, fmt.Sprintf("%s is of the same models, and comes first", at), "remove one of the two")
		case p.Input == nil || p.Output == nil:
			v.say(finding.BadPrice, path, "has no input or no output", `write both, what a million tokens cost, as in input: "1.25", output: "10.00"; "0" is free`)
		}
		if p.Destination != "" {
			_, _ = v.destination(path, p.Destination, nil, true)
		}
	}
	for i, l := range v.doc.Limits {
		if l.Cost == 0 {
			continue
		}
		met := slices.ContainsFunc(v.doc.Prices, func(p policy.Price) bool {
			a, aerr := rule.ParseDestination(p.Destination)
			b, berr := rule.ParseDestination(l.Destination)
			if p.Destination == "" || l.Destination == "" || aerr != nil || berr != nil {
				return true
			}
			return a.Holds(b) || b.Holds(a)
		})
		if !met {
			v.say(finding.NoPrice, fmt.Sprintf("limits[%d].cost", i), "no price is for what it is about, so that all of that is denied", `write prices: [{model: "gpt-5*", input: "1.25", output: "10.00"}]`)
		}
	}
}
