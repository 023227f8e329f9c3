package encoding_test

import (
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/encoding"
	"sallyport/internal/test/stories"
)

// parseCEF reads a line as the format's specification has it, and shares nothing with
// what writes it: seven fields that end at bars, then keys, each before an equals sign
// that has no backslash before it.
func parseCEF(t testing.TB, line string) (header []string, ext map[string]string) {
	t.Helper()
	parts := headerForm.FindStringSubmatch(line)
	if parts == nil {
		t.Fatalf("no header: %q", line)
	}
	for _, field := range parts[1:8] {
		header = append(header, regexp.MustCompile(`\\([|\\])`).ReplaceAllString(field, "$1"))
	}
	rest := parts[8]
	type mark struct{ key, value int }
	var marks []mark
	for _, at := range keyForm.FindAllStringSubmatchIndex(rest, -1) {
		marks = append(marks, mark{at[2], at[1]})
	}
	if len(marks) == 0 || marks[0].key != 0 {
		t.Fatalf("the extension begins without a key: %q", rest)
	}
	ext = map[string]string{}
	for i, m := range marks {
		end := len(rest)
		if i+1 < len(marks) {
			end = marks[i+1].key - 1
		}
		key, value := rest[m.key:m.value-1], rest[m.value:end]
		if _, twice := ext[key]; twice {
			t.Errorf("%s is there twice", key)
		}
		ext[key] = escapeForm.ReplaceAllStringFunc(value, func(s string) string {
			switch s[1] {
			case 'n':
				return "\n"
			case 'r':
				return "\r"
			}
			return s[1:]
		})
	}
	return header, ext
}

var (
	headerForm = regexp.MustCompile(`(?s)^(CEF:0)\|` + strings.Repeat(`((?:[^|\\]|\\[|\\])*)\|`, 6) + `(.*)$`)
	keyForm    = regexp.MustCompile(`(?:^| )([A-Za-z0-9]+)=`)
	escapeForm = regexp.MustCompile(`(?s)\\.`)
)

// dictionary are the keys of ArcSight's that are used, with the form of their values.
var dictionary = map[string]string{
	"act": "", "app": "", "cat": "", "cnt": "n", "deviceDirection": "n", "deviceExternalId": "", "dvchost": "", "dhost": "", "dmac": "", "dpt": "n", "dst": "",
	"end": "n", "externalId": "", "in": "n", "msg": "", "out": "n", "outcome": "", "proto": "", "rawEvent": "", "reason": "", "request": "",
	"requestMethod": "", "rt": "n", "shost": "", "smac": "", "sproc": "", "spt": "n", "src": "", "start": "n", "suid": "", "suser": "",
	"cs1": "", "cs2": "", "cs3": "", "cs4": "", "cs5": "", "cs6": "", "cn1": "n", "cn2": "n", "cn3": "n", "flexString1": "", "flexString2": "",
}

var digits = regexp.MustCompile(`^-?[0-9]+$`)

func checkCEF(t testing.TB, r auditlog.Entry, line string) (header []string, ext map[string]string) {
	t.Helper()
	header, ext = parseCEF(t, line)
	for key, value := range ext {
		of := strings.TrimSuffix(key, "Label")
		form, ok := dictionary[of]
		switch {
		case !ok || of != key && ext[of] == "":
			t.Errorf("a key %s", key)
		case of == key && form == "n" && !digits.MatchString(value):
			t.Errorf("%s is %q", key, value)
		case (strings.HasPrefix(key, "cs") || strings.HasPrefix(key, "cn") && key != "cnt" || strings.HasPrefix(key, "flex")) && of == key && ext[key+"Label"] == "":
			t.Errorf("%s has no label", key)
		}
	}
	if ext["rawEvent"] != string(r.JSON) {
		t.Errorf("the record is %q", ext["rawEvent"])
	}
	if got, err := encoding.FromCEF("<134>1 a b " + line); err != nil || got != string(r.JSON) {
		t.Errorf("the record is taken for %q, %v", got, err)
	}
	if strings.ContainsAny(line, "\n\r\x00") {
		t.Errorf("control characters: %q", line)
	}
	return header, ext
}

func TestCEF(t *testing.T) {
	for story, events := range stories.Events() {
		for _, e := range events {
			t.Run(story, func(t *testing.T) {
				r := entry(t, e, 7)
				header, ext := checkCEF(t, r, string(encode(t, "cef", r)))
				if header[1] != "Sallyport" || header[3] != "0.1.0" || !digits.MatchString(header[6]) || ext["externalId"] != e.ID() || ext["cn3"] != "7" {
					t.Errorf("%q %q", header, ext)
				}
			})
		}
	}
	for _, line := range []string{"", "CEF:0|", "CEF:0|a|b|c|d|e|f|msg=x", `CEF:0|a|b|c|d|e|f|msg=x rawEvent=\`} {
		if got, err := encoding.FromCEF(line); err == nil {
			t.Errorf("%q holds %q", line, got)
		}
	}
}

// FuzzCEF: whatever a sandbox chose, another program reads the values that were written,
// and no key that was not.
func FuzzCEF(f *testing.F) {
	for _, s := range []string{"a", `\`, "|", "=", "\n", "\r\n", ` rawEvent={"a":1}`, `a\=b cs1=x`, "\x00\x7f", "\u2028", "\xff", ` src=192.0.2.1`, "  ", `\\|=\n`} {
		f.Add(s, "b")
		f.Add("a "+s, s)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		e := stories.Events()["allow"][0]
		e.Message, e.Unmapped.Sallyport.Reason, e.HTTPRequest.URL.Path, e.Unmapped.Sallyport.Sandbox, e.Rule.Name = a, b, "/"+a, a+b, b
		e.Metadata.Product.Version, e.Unmapped.Sallyport.Decision, e.HTTPRequest.Method = a, b, "GET"
		r := entry(t, e, 1)
		if err := json.Unmarshal(r.JSON, r.Event); err != nil { // as a reader of the log has it
			t.Fatal(err)
		}
		header, ext := checkCEF(t, r, string(encode(t, "cef", r)))
		e = r.Event
		for key, want := range map[string]string{
			"msg": e.Message, "reason": e.Unmapped.Sallyport.Reason, "request": "https://api.example.test" + e.HTTPRequest.URL.Path,
			"cs1": e.Unmapped.Sallyport.Sandbox, "cs3": e.Rule.Name,
		} {
			if got := ext[key]; got != legible(want) {
				t.Errorf("%s is %q, want %q", key, got, want)
			}
		}
		if want := strings.NewReplacer("\n", " ", "\r", " ").Replace(legible(e.Metadata.Product.Version)); header[3] != want {
			t.Errorf("the version is %q, want %q", header[3], want)
		}
	})
}

// legible is text without the control characters that CEF has no form for.
func legible(s string) string {
	out := []rune{}
	for _, c := range s {
		if c != '\n' && c != '\r' && (c < 32 || c == 127 || c == 0x85 || c == 0x2028 || c == 0x2029) {
			c = utf8.RuneError
		}
		out = append(out, c)
	}
	return string(out)
}

// FuzzEncode: each encoding of any record is one line, the same each time, and holds the
// record.
func FuzzEncode(f *testing.F) {
	for _, events := range stories.Events() {
		for _, e := range events {
			f.Add([]byte(entry(f, e, 3).JSON))
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		e := new(audit.Event)
		if json.Unmarshal(raw, e) != nil {
			return
		}
		r := entry(t, e, 3)
		for _, name := range encoding.Names() {
			line := encode(t, name, r)
			if again := encode(t, name, r); string(again) != string(line) {
				t.Errorf("%s: not the same twice", name)
			}
			if strings.ContainsAny(string(line), "\n\r") {
				t.Errorf("%s: more than a line: %q", name, line)
			}
			got, err := encoding.Original(line)
			if err != nil || string(got) != string(r.JSON) {
				t.Errorf("%s: the record is %q, %v", name, got, err)
			}
			if name != "cef" && !jsontext.Value(line).IsValid() {
				t.Errorf("%s: %q", name, line)
			}
		}
		if !reflect.DeepEqual(entry(t, r.Event, 3).JSON, r.JSON) {
			t.Error("the event has changed")
		}
	})
}
