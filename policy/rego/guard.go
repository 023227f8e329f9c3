package rego

import (
	"errors"
	"strconv"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// Bounds of one call of a built-in function. An evaluation is stopped between two
// calls and not in the middle of one, so that none may take long, or all memory.
const (
	maxCall   = 4 << 20 // bytes of text, and values, that one works on or makes
	maxDigits = 1024    // of a number that is calculated with, before and behind its point
)

var errCall = errors.New("a built-in function is asked for more than it may work on: 4 MiB, and numbers of 1,024 digits")

// guarded are functions that make much out of little, by how much: what they are
// given, however often it stands in there, is added up first.
var guarded = map[string]func([]*ast.Term) int{
	"concat": func(operands []*ast.Term) int {
		pieces := 0
		switch of := operands[1].Value.(type) {
		case *ast.Array:
			pieces = of.Len()
		case ast.Set:
			pieces = of.Len()
		}
		return times(pieces, weight(operands[0], maxCall)) + weight(operands[1], maxCall)
	},
	"sprintf": func(operands []*ast.Term) int {
		format, ok := operands[0].Value.(ast.String)
		if !ok {
			return 0 // it says so itself
		}
		verbs := strings.Count(string(format), "%")
		return len(format) + padding(string(format)) + times(verbs, weight(operands[1], maxCall))
	},
	"internal.template_string":  all,
	"json.marshal":              all,
	"json.marshal_with_options": all,
	"yaml.marshal":              all,
	"urlquery.encode_object":    all,
	"format_int":                all,
	"plus":                      all, "minus": all, "mul": all, "div": all, "rem": all,
	"abs": all, "ceil": all, "floor": all, "round": all,
	"bits.and": all, "bits.or": all, "bits.xor": all, "bits.negate": all, "bits.rsh": all,
	"numbers.range": all, "numbers.range_step": all,
	"sum": all,
	"product": func(operands []*ast.Term) int { // one long number out of many
		n := all(operands)
		return times(n, n/64)
	},
	"replace": func(operands []*ast.Term) int {
		old := max(weight(operands[1], maxCall)-1, 1)
		return times(weight(operands[0], maxCall)/old, weight(operands[2], maxCall)-1)
	},
	"regex.replace": func(operands []*ast.Term) int {
		return times(weight(operands[0], maxCall), weight(operands[2], maxCall)-1)
	},
}

// init puts the guards before the functions. OPA has one table of them for a
// process, and nothing here evaluates Rego by other means than this package.
func init() {
	for name, cost := range guarded {
		f := topdown.GetBuiltin(name)
		if f == nil {
			panic("policy: OPA has no built-in function " + name)
		}
		topdown.RegisterBuiltinFunc(name, func(ctx topdown.BuiltinContext, operands []*ast.Term, iter func(*ast.Term) error) error {
			if cost(operands) > maxCall {
				return topdown.Halt{Err: errCall}
			}
			return f(ctx, operands, iter)
		})
	}
}

func all(operands []*ast.Term) int {
	sum := 0
	for _, t := range operands {
		if sum += weight(t, maxCall-sum); sum > maxCall {
			break
		}
	}
	return sum
}

// times does not overflow.
func times(a, b int) int {
	if a > 0 && b > maxCall/a {
		return maxCall + 1
	}
	return a * b
}

// weight is how large a value is when it is written out, roughly: what stands in it
// several times counts as often. It is not looked at any further beyond most.
func weight(t *ast.Term, most int) int {
	sum := 1
	add := func(t *ast.Term) bool { // tells whether that is too much
		sum += weight(t, most-sum)
		return sum > most
	}
	switch v := t.Value.(type) {
	case ast.String:
		sum += len(v)
	case ast.Number:
		if sum += digits(string(v)); sum > maxDigits {
			return maxCall + 1
		}
	case *ast.Array:
		v.Until(add)
	case ast.Set:
		v.Until(add)
	case ast.Object:
		v.Until(func(key, value *ast.Term) bool { return add(key) || add(value) })
	}
	return sum
}

// digits is how many a number has without an exponent.
func digits(number string) int {
	mantissa, exponent, scientific := strings.Cut(strings.ToLower(number), "e")
	if !scientific {
		return len(number)
	}
	n, err := strconv.Atoi(exponent)
	if err != nil {
		return maxDigits + 1
	}
	return len(mantissa) + max(n, -n)
}

// padding is how much a format adds by widths and precisions: %[n]d counts as such.
func padding(format string) int {
	sum, number := 0, 0
	for _, c := range format + " " {
		switch {
		case c >= '0' && c <= '9':
			number = min(10*number+int(c-'0'), maxCall)
			continue
		case c == '*': // an argument says
			sum = min(sum+maxCall/2, maxCall)
		}
		sum = min(sum+number, maxCall)
		number = 0
	}
	return sum
}
