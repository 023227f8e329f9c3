package policy

import (
	"fmt"
	"math"
	"regexp/syntax"
	"strings"
)

// Placeholder is what a sandbox holds in a credential's place, for clients that insist on
// a key. It is random for each sandbox, and worthless everywhere but in a request that a
// rule puts the credential into.
type Placeholder struct {
	// Env is the variable in which the sandbox's commands find it, unless the sandbox or
	// the command sets it otherwise.
	// Example: OPENAI_API_KEY
	Env string `yaml:"env"`
	// Like is the shape of it, for clients that check that of their key: how it begins, in
	// letters, digits, and . _ ~ -, and then one class of such characters and how many
	// there are, as in regular expressions. Without a class 40 letters and digits follow.
	// Default: sallyport:NAME: and 32 letters and digits.
	// Example: "sk-ant-api03-[A-Za-z0-9_-]{95}"
	Like string `yaml:"like" json:",omitempty"`
}

// Places of EgressAuthRule.Inject.Placeholder.
const (
	PlaceHeader = "header"
	PlaceQuery  = "query"
	PlacePath   = "path"
	PlaceBody   = "body"
)

// PlaceholderPlaces are the places that an Inject.Placeholder may list, besides single
// names: header:NAME and query:NAME.
var PlaceholderPlaces = []string{PlaceHeader, PlaceQuery, PlacePath, PlaceBody}

// Shape is the form of a placeholder: Prefix, and then Length characters of Alphabet.
type Shape struct {
	Prefix   string
	Alphabet string
	Length   int
}

const (
	lettersAndDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	// MinPlaceholderBits is how much of a placeholder is random at least.
	MinPlaceholderBits = 128
	maxPlaceholder     = 512 // bytes
)

// Shape is that of a placeholder for a credential. The error says what to write instead.
func (p Placeholder) Shape(credential string) (Shape, error) {
	if p.Like == "" {
		return Shape{"sallyport:" + credential + ":", lettersAndDigits, 32}, nil
	}
	s := Shape{Alphabet: lettersAndDigits, Length: 40}
	s.Prefix = p.Like
	if i := strings.IndexByte(p.Like, '['); i >= 0 {
		s.Prefix = p.Like[:i]
		re, err := syntax.Parse(p.Like[i:], syntax.Perl)
		if err != nil || re.Op != syntax.OpRepeat || re.Min != re.Max || re.Sub[0].Op != syntax.OpCharClass {
			return s, fmt.Errorf("%q is not how a key begins and one class with a count", p.Like)
		}
		var all strings.Builder
		for class := re.Sub[0].Rune; len(class) > 0; class = class[2:] {
			for c := class[0]; c <= class[1] && c < 0x80; c++ {
				all.WriteRune(c)
			}
			if class[1] >= 0x80 {
				return s, fmt.Errorf("%q has a class of other characters than letters, digits and . _ ~ -", p.Like)
			}
		}
		s.Alphabet, s.Length = all.String(), re.Min
	}
	for _, c := range s.Prefix + s.Alphabet {
		if !strings.ContainsRune(lettersAndDigits+"._~-", c) {
			return s, fmt.Errorf("%q has other characters than letters, digits and . _ ~ -", p.Like)
		}
	}
	switch {
	case float64(s.Length)*math.Log2(float64(len(s.Alphabet))) < MinPlaceholderBits:
		return s, fmt.Errorf("%q leaves room for less than %d random bits", p.Like, MinPlaceholderBits)
	case len(s.Prefix)+s.Length > maxPlaceholder:
		return s, fmt.Errorf("%q is longer than %d bytes", p.Like, maxPlaceholder)
	}
	return s, nil
}
