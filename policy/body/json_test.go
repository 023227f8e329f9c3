package body

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"github.com/open-policy-agent/opa/v1/ast"

	"sallyport/internal/test/must"
)

func TestReadJSON(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	utf16LE := string(bytes.Join([][]byte{{0xff, 0xfe}, func() (b []byte) {
		for _, u := range utf16.Encode([]rune(`{"a":1}`)) {
			b = append(b, byte(u), byte(u>>8))
		}
		return b
	}()}, nil))
	for _, test := range []struct {
		name, text string
		want       string // as OPA writes it
		err        error
	}{
		{name: "an object", text: ` {"a" : [1, 2.5, true, false, null, "x"], "b": {}, "c": []} `, want: `{"a": [1, 2.5, true, false, null, "x"], "b": {}, "c": []}`},
		{name: "a scalar", text: `0`, want: `0`},
		{name: "escapes", text: `"\"\\\/\b\f\n\r\tAé😀\uD83D\uDE00"`, want: `"\"\\/\b\f\n\r\tAé😀😀"`},
		{name: "an escaped name", text: `{"meth\u006fd": 1}`, want: `{"method": 1}`},
		{name: "ways to write a number", text: `[1.0, 1e0, 100e-2, -0, -0.0, 0e9, 1E+2, 0.1, 1e300]`, want: `[1, 1, 1, 0, 0, 0, 100, 0.1, 1e+300]`},
		{name: "the largest whole number", text: `[9007199254740991, -9007199254740991]`, want: `[9007199254740991, -9007199254740991]`},
		{name: "as deep as may be", text: deep(maxDepth), want: deep(maxDepth)},
		{name: "names that differ", text: `{"a": 1, "b": {"a": 1}}`, want: `{"a": 1, "b": {"a": 1}}`},

		{name: "nothing", text: ``, err: errSyntax},
		{name: "white space", text: " \n", err: errSyntax},
		{name: "a name twice", text: `{"a": 1, "a": 1}`, err: errTwice},
		{name: "a name twice, below", text: `[{"x": {"a": 1, "b": 2, "a": 3}}]`, err: errTwice},
		{name: "a name twice, once escaped", text: `{"method": 1, "\u006dethod": 2}`, err: errTwice},
		{name: "a name in two cases", text: `{"method": 1, "Method": 2}`, err: errTwice},
		{name: "a name in two cases beyond ASCII", text: `{"keys": 1, "\u212Aey\u017F": 2}`, err: errTwice},
		{name: "a name with an end in it", text: `{"method\u0000x": 1}`, err: errNull},
		{name: "deeper", text: deep(maxDepth + 1), err: errDeep},
		{name: "never ending", text: strings.Repeat("[", 1<<20), err: errDeep},
		{name: "many values", text: "[" + strings.Repeat("0,", maxValues) + "0]", err: errMany},
		{name: "a large whole number", text: `9007199254740992`, err: errNumber},
		{name: "a larger one", text: `123456789012345678901234567890`, err: errNumber},
		{name: "beyond a double", text: `1e400`, err: errNumber},
		{name: "below a double", text: `1e-400`, err: errNumber},
		{name: "a long number", text: "0." + strings.Repeat("3", 200), err: errNumber},
		{name: "an exponent of many digits", text: "1e" + strings.Repeat("0", 200), err: errNumber},
		{name: "a leading zero", text: `01`, err: errTrailing},
		{name: "a plus", text: `+1`, err: errSyntax},
		{name: "a bare point", text: `1.`, err: errSyntax},
		{name: "a point first", text: `.5`, err: errSyntax},
		{name: "hexadecimal", text: `0x10`, err: errTrailing},
		{name: "no number", text: `NaN`, err: errSyntax},
		{name: "infinity", text: `-Infinity`, err: errSyntax},
		{name: "a comment", text: `{"a": 1 /* x */}`, err: errSyntax},
		{name: "a comma too many", text: `{"a": 1,}`, err: errSyntax},
		{name: "another in a list", text: `[1,]`, err: errSyntax},
		{name: "single quotes", text: `{'a': 1}`, err: errSyntax},
		{name: "no quotes", text: `{a: 1}`, err: errSyntax},
		{name: "a second document", text: `{"a": 1}{"a": 2}`, err: errTrailing},
		{name: "a line behind it", text: "{}\n{}", err: errTrailing},
		{name: "a NUL behind it", text: "{}\x00", err: errTrailing},
		{name: "a NUL before it", text: "\x00{}", err: errSyntax},
		{name: "a form feed", text: "\f{}", err: errSyntax},
		{name: "a space beyond ASCII", text: "\u00a0{}", err: errSyntax},
		{name: "a control character in a string", text: "\"a\nb\"", err: errSyntax},
		{name: "another behind an escape", text: "\"\\\"a\nb\"", err: errSyntax},
		{name: "an unknown escape", text: `"\x41"`, err: errSyntax},
		{name: "an escaped quote", text: `"\'"`, err: errSyntax},
		{name: "short digits", text: `"\u41"`, err: errSyntax},
		{name: "a sign among digits", text: `"\u+041"`, err: errSyntax},
		{name: "no end of a string", text: `"abc`, err: errSyntax},
		{name: "no end of an escape", text: `"abc\`, err: errSyntax},
		{name: "half a pair", text: `"\ud800"`, err: errSurrogate},
		{name: "the other half", text: `"\udc00"`, err: errSurrogate},
		{name: "half a pair twice", text: `"\ud800\ud800"`, err: errSurrogate},
		{name: "invalid UTF-8", text: "\"\xff\"", err: errEncoding},
		{name: "an overlong slash", text: "\"\xc0\xaf\"", err: errEncoding},
		{name: "a byte order mark", text: "\ufeff{}", err: errEncoding},
		{name: "UTF-16", text: utf16LE, err: errEncoding},
		{name: "UTF-16 without a mark", text: "{\x00\"\x00a\x00\"\x00:\x001\x00}\x00", err: errSyntax},
		{name: "UTF-7", text: "+AHsAIgBhACIAOgAxAH0-", err: errSyntax},
	} {
		v, err := readJSON([]byte(test.text))
		if !errors.Is(err, test.err) || err == nil && ast.MustInterfaceToValue(v).String() != test.want {
			t.Errorf("%s: got %v, %v; want %s, %v", test.name, v, err, test.want, test.err)
		}
	}
}

// The part that readers disagree about is not in the error, nor is anything else of the body.
func TestReadJSONQuotesNothing(t *testing.T) {
	for _, text := range []string{`{"a": sesame}`, `{"sesame": 1, "sesame": 2}`, `"sesame`, `sesame`, `["sesame"] sesame`} {
		if _, err := readJSON([]byte(text)); err == nil || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// FuzzReadJSON holds that what is taken is what encoding/json takes for the same
// document, and stays the same when that writes it anew.
func FuzzReadJSON(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"search","arguments":{}}}`,
		`[1.5e3,-0,"\ud83d\ude00",{"a":{"b":[]}},true,null]`, `{"a":1,"A":2}`, `"\u0000"`, "\ufeff1", `1e-400`, `{"a":[{"b":1,"\u0062":2}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := readJSON(text)
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		var want any
		theirs := d.Decode(&want)
		if _, more := d.Token(); theirs == nil && more != io.EOF {
			theirs = errTrailing
		}
		if err != nil {
			return
		}
		if theirs != nil {
			t.Fatalf("took %q, which encoding/json does not: %v", text, theirs)
		}
		again, err := json.Marshal(got)
		must.OK(t, err)
		second, err := readJSON(again)
		if diff := cmp.Diff(got, second); err != nil || diff != "" {
			t.Fatalf("%q became %q: %s, %v", text, again, diff, err)
		}
		if _, err := readGraphQL(got); err != nil && strings.Contains(err.Error(), "query:") {
			t.Fatalf("an error of the parser's: %v", err)
		}
		if diff := cmp.Diff(doubles(want), doubles(got)); diff != "" {
			t.Fatalf("%q: %s", text, diff)
		}
	})
}

// doubles has the numbers of a document as doubles.
func doubles(v any) any {
	switch v := v.(type) {
	case json.Number:
		f, err := v.Float64()
		if err != nil {
			return fmt.Sprint(err)
		}
		return f + 0 // which takes the sign off a zero
	case []any:
		for i := range v {
			v[i] = doubles(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = doubles(v[k])
		}
	}
	return v
}
