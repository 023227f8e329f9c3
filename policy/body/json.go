package body

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Bounds of a JSON document that a rule may judge.
const (
	maxDepth  = 64
	maxValues = 32 << 10 // what one takes in Rego's form is tens of times its text
	maxNumber = 100      // bytes
	maxExact  = 1<<53 - 1
)

// Reasons to refuse JSON.
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
	r := jsonReader{decoder: jsontext.NewDecoder(bytes.NewReader(text), jsontext.AllowDuplicateNames(true))} // which names are alike is ours to say
	v, err := r.value(0)
	if err != nil {
		return nil, err
	}
	if _, err := r.decoder.ReadToken(); err != io.EOF {
		return nil, errTrailing
	}
	return v, nil
}

type jsonReader struct {
	decoder *jsontext.Decoder
	values  int
}

func (r *jsonReader) token() (jsontext.Token, error) {
	t, err := r.decoder.ReadToken()
	var syntax *jsontext.SyntacticError
	switch {
	case err == nil:
		return t, nil
	case errors.As(err, &syntax) && strings.Contains(syntax.Err.Error(), "surrogate"):
		return t, errSurrogate
	}
	return t, errSyntax
}

func (r *jsonReader) value(depth int) (any, error) {
	if r.values++; r.values > maxValues {
		return nil, errMany
	}
	t, err := r.token()
	if err != nil {
		return nil, err
	}
	kind := t.Kind()
	if (kind == jsontext.KindBeginObject || kind == jsontext.KindBeginArray) && depth == maxDepth {
		return nil, errDeep
	}
	switch kind {
	case jsontext.KindBeginObject:
		return r.object(depth + 1)
	case jsontext.KindBeginArray:
		return r.array(depth + 1)
	case jsontext.KindString:
		return t.String(), nil
	case jsontext.KindNumber:
		return number(t.String())
	case jsontext.KindNull:
		return nil, nil
	}
	return t.Bool(), nil
}

func (r *jsonReader) array(depth int) (any, error) {
	items := []any{}
	for r.decoder.PeekKind() != jsontext.KindEndArray {
		v, err := r.value(depth)
		if err != nil {
			return nil, err
		}
		items = append(items, v)
	}
	_, err := r.token()
	return items, err
}

func (r *jsonReader) object(depth int) (any, error) {
	object, names := map[string]any{}, map[string]bool{}
	for r.decoder.PeekKind() != jsontext.KindEndObject {
		t, err := r.token()
		if err != nil {
			return nil, err
		}
		name := t.String()
		switch same := folded(name); {
		case names[same]:
			return nil, errTwice
		case strings.Contains(name, "\x00"): // the end of it, to some
			return nil, errNull
		default:
			names[same] = true
		}
		if object[name], err = r.value(depth); err != nil {
			return nil, err
		}
	}
	_, err := r.token()
	return object, err
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

// number is a number's value as a double, in one way of writing it.
func number(text string) (any, error) {
	if len(text) > maxNumber {
		return nil, errNumber
	}
	f, err := strconv.ParseFloat(text, 64)
	mantissa, _, _ := strings.Cut(strings.ToLower(text), "e")
	switch whole := !strings.ContainsAny(text, ".eE"); {
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
