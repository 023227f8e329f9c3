package validate

import (
	"fmt"
	"slices"

	"sallyport/policy"
	"sallyport/policy/rule"
)

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
			v.say(policy.BadPrice, path, fmt.Sprintf("there are more than %d prices", maxPrices), `write prices of families of models, as in model: "gpt-5*"`)
			return
		case p.Model == "":
			v.say(policy.BadPrice, path, "is of no model", `write model: "gpt-5*", or "*" for all`)
		case !policy.IsLabel(p.Model):
			v.say(policy.BadPrice, path+".model", fmt.Sprintf("%q is no model's name", p.Model), "write 1 to 200 visible ASCII characters, where * stands for any")
		case twice:
			v.say(policy.BadPrice, path, fmt.Sprintf("%s is of the same models, and comes first", at), "remove one of the two")
		case p.Input == nil || p.Output == nil:
			v.say(policy.BadPrice, path, "has no input or no output", `write both, what a million tokens cost, as in input: "1.25", output: "10.00"; "0" is free`)
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
			v.say(policy.NoPrice, fmt.Sprintf("limits[%d].cost", i), "no price is for what it is about, so that all of that is denied", `write prices: [{model: "gpt-5*", input: "1.25", output: "10.00"}]`)
		}
	}
}
