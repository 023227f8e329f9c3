package body

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Bounds of a JSON document that a rule may judge.
const (
	maxDepth  = 64
	maxValues = 32 << 10 // what one takes in Rego's form is tens of times its text
	maxNumber = 100      // bytes
	maxExact  = 1<<53 - 1
)

// What JSON is refused for.
var (
	errSyntax    = errors.New("it is not JSON (RFC 8259)")
	errTrailing  = errors.New("something follows the JSON document")
	errDeep      = fmt.Errorf("it is nested more than %d deep", maxDepth)
	errMany      = fmt.Errorf("it has more than %d values", maxValues)
	errEncoding  = errors.New("it is not UTF-8 without a byte order mark")
	errTwice     = errors.New("an object has a name twice, or two names that differ in letter case alone")
	errSurrogate = errors.New("a string has half of a surrogate pair")
	errNull      = errors.New("an object's name has the character U+0000 in it")
	errNumber    = errors.New("a number is beyond what readers agree on: whole ones lie between -(2^53-1) and 2^53-1, others within a double's range")
)

// readJSON reads a document that every reader of JSON takes alike, which is about
// I-JSON (RFC 7493): a policy that read another document than the upstream does
// would decide about something that is not sent. It refuses what RFC 8259 leaves
// to readers, and what some are known to do besides: names are compared without
// regard to case, as Go's encoding/json finds the fields of a struct.
//
// Numbers have the value that they have as a double. An error quotes nothing.
func readJSON(text []byte) (any, error) {
	if !utf8.Valid(text) || bytes.HasPrefix(text, []byte("\ufeff")) {
		return nil, errEncoding
	}
	r := jsonReader{text: text}
	v, err := r.value(0)
	if err != nil {
		return nil, err
	}
	if r.next() != 0 || r.at < len(text) {
		return nil, errTrailing
	}
	return v, nil
}

type jsonReader struct {
	text   []byte
	at     int
	values int
}

// next passes over white space and returns the byte behind it, 0 at the end. A
// byte that is 0 is no part of JSON.
func (r *jsonReader) next() byte {
	for ; r.at < len(r.text); r.at++ {
		switch c := r.text[r.at]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

func (r *jsonReader) value(depth int) (any, error) {
	if r.values++; r.values > maxValues {
		return nil, errMany
	}
	switch c := r.next(); {
	case c == '{' || c == '[':
		if depth == maxDepth {
			return nil, errDeep
		}
		r.at++
		if c == '{' {
			return r.object(depth + 1)
		}
		return r.array(depth + 1)
	case c == '"':
		s, err := r.str()
		return s, err
	case c == '-' || c >= '0' && c <= '9':
		return r.number()
	}
	for _, w := range words {
		if bytes.HasPrefix(r.text[r.at:], []byte(w.text)) {
			r.at += len(w.text)
			return w.value, nil
		}
	}
	return nil, errSyntax
}

var words = []struct {
	text  string
	value any
}{{"true", true}, {"false", false}, {"null", nil}}

func (r *jsonReader) array(depth int) (any, error) {
	items := []any{}
	if r.next() == ']' {
		r.at++
		return items, nil
	}
	for {
		v, err := r.value(depth)
		if err != nil {
			return nil, err
		}
		items = append(items, v)
		switch r.next() {
		case ',':
			r.at++
		case ']':
			r.at++
			return items, nil
		default:
			return nil, errSyntax
		}
	}
}

func (r *jsonReader) object(depth int) (any, error) {
	object := map[string]any{}
	if r.next() == '}' {
		r.at++
		return object, nil
	}
	names := map[string]bool{}
	for {
		if r.next() != '"' {
			return nil, errSyntax
		}
		name, err := r.str()
		if err != nil {
			return nil, err
		}
		switch same := folded(name); {
		case names[same]:
			return nil, errTwice
		case strings.Contains(name, "\x00"): // the end of it, to some
			return nil, errNull
		default:
			names[same] = true
		}
		if r.next() != ':' {
			return nil, errSyntax
		}
		r.at++
		v, err := r.value(depth)
		if err != nil {
			return nil, err
		}
		object[name] = v
		switch r.next() {
		case ',':
			r.at++
		case '}':
			r.at++
			return object, nil
		default:
			return nil, errSyntax
		}
	}
}

// folded is the same for names that strings.EqualFold takes for equal.
func folded(name string) string {
	return strings.Map(func(c rune) rune {
		if c < utf8.RuneSelf {
			if 'a' <= c && c <= 'z' {
				c -= 'a' - 'A'
			}
			return c
		}
		least := c
		for other := unicode.SimpleFold(c); other != c; other = unicode.SimpleFold(other) {
			least = min(least, other)
		}
		return least
	}, name)
}

// str reads a string, whose quote is next.
func (r *jsonReader) str() (string, error) {
	r.at++
	begin := r.at
	for r.at < len(r.text) {
		switch c := r.text[r.at]; {
		case c == '"':
			s := string(r.text[begin:r.at])
			r.at++
			return s, nil
		case c == '\\':
			return r.escaped(slices.Clone(r.text[begin:r.at]))
		case c < ' ':
			return "", errSyntax
		}
		r.at++
	}
	return "", errSyntax
}

// escaped reads the rest of a string that has an escape in it.
func (r *jsonReader) escaped(s []byte) (string, error) {
	for r.at < len(r.text) {
		c := r.text[r.at]
		r.at++
		switch {
		case c == '"':
			return string(s), nil
		case c < ' ':
			return "", errSyntax
		case c != '\\':
			s = append(s, c)
			continue
		case r.at == len(r.text):
			return "", errSyntax
		}
		c = r.text[r.at]
		r.at++
		if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
			s = append(s, "\"\\/\b\f\n\r\t"[i])
			continue
		}
		if c != 'u' {
			return "", errSyntax
		}
		char, err := r.unit()
		if err != nil {
			return "", err
		}
		if utf16.IsSurrogate(char) {
			if !bytes.HasPrefix(r.text[r.at:], []byte(`\u`)) {
				return "", errSurrogate
			}
			r.at += 2
			low, err := r.unit()
			if err != nil {
				return "", err
			}
			if char = utf16.DecodeRune(char, low); char == utf8.RuneError {
				return "", errSurrogate
			}
		}
		s = utf8.AppendRune(s, char)
	}
	return "", errSyntax
}

// unit reads the four digits of \u.
func (r *jsonReader) unit() (rune, error) {
	if r.at+4 > len(r.text) {
		return 0, errSyntax
	}
	var u rune
	for _, c := range r.text[r.at : r.at+4] {
		digit := strings.IndexByte("0123456789abcdefABCDEF", c)
		if digit < 0 {
			return 0, errSyntax
		}
		if digit > 15 {
			digit -= 6
		}
		u = u<<4 | rune(digit)
	}
	r.at += 4
	return u, nil
}

func (r *jsonReader) digits() bool {
	begin := r.at
	for r.at < len(r.text) && '0' <= r.text[r.at] && r.text[r.at] <= '9' {
		r.at++
	}
	return r.at > begin
}

// eat passes over one of some bytes, where it is next.
func (r *jsonReader) eat(one string) bool {
	if r.at < len(r.text) && strings.IndexByte(one, r.text[r.at]) >= 0 {
		r.at++
		return true
	}
	return false
}

func (r *jsonReader) number() (any, error) {
	begin, whole := r.at, true
	r.eat("-")
	if !r.eat("0") && !r.digits() {
		return nil, errSyntax
	}
	if r.eat(".") {
		whole = false
		if !r.digits() {
			return nil, errSyntax
		}
	}
	if r.eat("eE") {
		whole = false
		r.eat("+-")
		if !r.digits() {
			return nil, errSyntax
		}
	}
	text := string(r.text[begin:r.at])
	if len(text) > maxNumber {
		return nil, errNumber
	}
	f, err := strconv.ParseFloat(text, 64)
	mantissa, _, _ := strings.Cut(strings.ToLower(text), "e")
	switch {
	case err != nil, // too large
		whole && math.Abs(f) > maxExact,
		f == 0 && strings.ContainsAny(mantissa, "123456789"): // too small
		return nil, errNumber
	case f == 0:
		return json.Number("0"), nil // which has no sign in Rego
	case f == math.Trunc(f) && math.Abs(f) <= maxExact:
		return json.Number(strconv.FormatInt(int64(f), 10)), nil
	}
	return json.Number(strconv.FormatFloat(f, 'g', -1, 64)), nil
}
