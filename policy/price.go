package policy

import (
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
