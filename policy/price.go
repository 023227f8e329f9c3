package policy

import (
	"fmt"
	"slices"
	"strings"

	"sallyport/policy/limit"
)

// Price is what a model of an LLM API costs, in the currency of the limits' cost.
// The first that fits a model is its price.
//
//	prices:
//	- {model: "gpt-5*", destination: api.openai.com, input: "1.25", output: "10.00", cachedInput: "0.125"}
type Price struct {
	// Model is the model's name as requests and answers have it; * stands for any
	// text.
	// Example: gpt-5*
	Model string `yaml:"model" json:"model"`
	// Destination is as EgressRule's, on every port where it names none.
	// Default: all.
	// Example: api.openai.com
	Destination string `yaml:"destination" json:"destination,omitempty"`
	// Input is the price of a million tokens of what is asked, as "1.25". It is
	// needed; "0" is free.
	// Example: "1.25"
	Input *limit.Money `yaml:"input" json:"input"`
	// Output is the price of a million tokens of the answer, those that reasoning
	// takes among them. It is needed: embeddings have "0".
	// Example: "10.00"
	Output *limit.Money `yaml:"output" json:"output"`
	// CachedInput is the price of a million tokens of Input that the provider has
	// in its cache. Default: Input's.
	// Example: "0.125"
	CachedInput *limit.Money `yaml:"cachedInput" json:"cachedInput,omitempty"`
	// CacheWrite is the price of a million tokens of Input that the provider puts
	// into its cache. Default: twice Input's, the most that is known to be asked.
	// Example: "1.56"
	CacheWrite *limit.Money `yaml:"cacheWrite" json:"cacheWrite,omitempty"`
}

// Rates are what a million tokens of each kind cost.
type Rates struct{ Input, Output, CachedInput, CacheWrite limit.Money }

// Rates are the price, which has been checked, with its defaults.
func (p Price) Rates() Rates {
	in := *p.Input
	r := Rates{in, *p.Output, in, in.Plus(in)}
	if p.CachedInput != nil {
		r.CachedInput = *p.CachedInput
	}
	if p.CacheWrite != nil {
		r.CacheWrite = *p.CacheWrite
	}
	return r
}

// Max is the higher of each rate.
func (r Rates) Max(o Rates) Rates {
	return Rates{max(r.Input, o.Input), max(r.Output, o.Output), max(r.CachedInput, o.CachedInput), max(r.CacheWrite, o.CacheWrite)}
}

// Prices are those that are about one destination, in their order.
type Prices []Price

// Of is what a model costs.
func (p Prices) Of(model string) (Rates, bool) {
	i := slices.IndexFunc(p, func(one Price) bool { return fits(one.Model, model) })
	if i < 0 || model == "" {
		return Rates{}, false
	}
	return p[i].Rates(), true
}

// Highest is more than any model that has a price can cost.
func (p Prices) Highest() (r Rates) {
	for _, one := range p {
		r = r.Max(one.Rates())
	}
	return r
}

// fits tells whether a text is one that a pattern with stars stands for.
func fits(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	first, last := parts[0], parts[len(parts)-1]
	if len(parts) == 1 {
		return pattern == text
	}
	if !strings.HasPrefix(text, first) || len(text) < len(first)+len(last) || !strings.HasSuffix(text, last) {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		_, rest, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = rest
	}
	return true
}

// priced are prices ready to be looked up: by destination, which most have none of.
type priced struct {
	list Prices
	to   []*destination // nil for all
}

// newPriced is for prices that have been checked; nil where there are none.
func newPriced(list []Price) *priced {
	if len(list) == 0 {
		return nil
	}
	p := &priced{list: list, to: make([]*destination, len(list))}
	for i, one := range list {
		if one.Destination != "" {
			d, _ := parseDestination(one.Destination)
			p.to[i] = &d
		}
	}
	return p
}

// at are the prices about an input's destination.
func (p *priced) at(s subject) Prices {
	if p == nil {
		return nil
	}
	if !slices.ContainsFunc(p.to, func(d *destination) bool { return d != nil }) {
		return p.list
	}
	var here Prices
	for i, d := range p.to {
		if d == nil || d.port == 0 && d.has(s) || d.port == s.Destination.Port && d.has(s) {
			here = append(here, p.list[i])
		}
	}
	return here
}

// has tells whether an input's host or address is the destination's, whatever the
// port.
func (d destination) has(s subject) bool {
	switch d.kind {
	case wildcardHost:
		return strings.HasSuffix(s.host, "."+d.host)
	case addressRange:
		return s.addr.IsValid() && d.prefix.Contains(s.addr)
	}
	return s.host == d.host
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
			v.say(BadPrice, path, fmt.Sprintf("there are more than %d prices", maxPrices), `write prices of families of models, as in model: "gpt-5*"`)
			return
		case p.Model == "":
			v.say(BadPrice, path, "is of no model", `write model: "gpt-5*", or "*" for all`)
		case !label(p.Model):
			v.say(BadPrice, path+".model", fmt.Sprintf("%q is no model's name", p.Model), "write 1 to 200 visible ASCII characters, where * stands for any")
		case twice:
			v.say(BadPrice, path, fmt.Sprintf("%s is of the same models, and comes first", at), "remove one of the two")
		case p.Input == nil || p.Output == nil:
			v.say(BadPrice, path, "has no input or no output", `write both, what a million tokens cost, as in input: "1.25", output: "10.00"; "0" is free`)
		}
		if p.Destination != "" {
			_, _ = v.destination(path, p.Destination, nil, true)
		}
	}
	for i, l := range v.doc.Limits {
		if l.Cost == 0 {
			continue
		}
		met := slices.ContainsFunc(v.doc.Prices, func(p Price) bool {
			a, aerr := parseDestination(p.Destination)
			b, berr := parseDestination(l.Destination)
			if p.Destination == "" || l.Destination == "" || aerr != nil || berr != nil {
				return true
			}
			return a.holds(b) || b.holds(a)
		})
		if !met {
			v.say(NoPrice, fmt.Sprintf("limits[%d].cost", i), "no price is for what it is about, so that all of that is denied", `write prices: [{model: "gpt-5*", input: "1.25", output: "10.00"}]`)
		}
	}
}
