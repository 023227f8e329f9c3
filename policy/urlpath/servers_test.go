package urlpath_test

import (
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"sallyport/internal/test/must"
	"sallyport/policy/pathvariants"
	"sallyport/policy/urlpath"
)

// serverSteps are what testdata/servers.yaml says that servers do.
var serverSteps = map[string]func(string) string{
	"host": func(s string) string {
		if rest, found := strings.CutPrefix(s, "//"); found {
			_, after, _ := strings.Cut(rest, "/")
			return "/" + after
		}
		return s
	},
	"decode": lenient,
	"decode but slashes": func(s string) string {
		return strings.ReplaceAll(lenient(slash.ReplaceAllString(s, "\x00")), "\x00", pathvariants.Slash)
	},
	"merge": func(s string) string { return slashes.ReplaceAllString(s, "/") },
	"dots": func(s string) string {
		s = strings.ReplaceAll(strings.ReplaceAll(s, "%2e", "."), "%2E", ".")
		clean := path.Clean(strings.ReplaceAll(s, "//", "/\x00/")) // which keeps doubled slashes
		clean = strings.ReplaceAll(clean, "\x00", "")
		if strings.HasSuffix(s, "/") && !strings.HasSuffix(clean, "/") {
			clean += "/"
		}
		return clean
	},
	"parameters": func(s string) string { return parameter.ReplaceAllString(s, "") },
	"again": func(s string) string {
		if i := strings.IndexAny(s, "?#"); i >= 0 {
			return s[:i]
		}
		return s
	},
	"backslashes": func(s string) string { return strings.ReplaceAll(s, `\`, "/") },

	"case": strings.ToLower,
	"final slash": func(s string) string {
		if len(s) > 1 {
			return strings.TrimSuffix(s, "/")
		}
		return s
	},
	"trim": func(s string) string {
		segments := strings.Split(s, "/")
		for i, s := range segments {
			if segments[i] = strings.TrimSpace(s); strings.Trim(segments[i], ".") != "" {
				segments[i] = strings.TrimRight(segments[i], ". ")
			}
		}
		return strings.Join(segments, "/")
	},
	"plus": func(s string) string { return strings.ReplaceAll(s, "+", " ") },
	"width": func(s string) string {
		return strings.Map(func(r rune) rune {
			switch {
			case r == '\u00ad' || r == '\u200b':
				return -1
			case r == '\u00a5':
				return '\\'
			case 0xff01 <= r && r <= 0xff5e:
				return r - 0xff01 + '!'
			}
			return r
		}, s)
	},
}

// alike are the steps that a deny takes part in.
var alike = []string{"case", "final slash", "trim", "plus", "width"}

// TestServers: whatever a server makes of a path that is sent is a reading of it that the
// policy decides about, but for what denies take two paths for one in anyway.
func TestServers(t *testing.T) {
	text, err := os.ReadFile("testdata/servers.yaml")
	must.OK(t, err)
	var servers []struct {
		Server string   `yaml:"server"`
		Steps  []string `yaml:"steps"`
		Source string   `yaml:"source"`
	}
	must.OK(t, yaml.UnmarshalWithOptions(text, &servers, yaml.Strict()))
	// Every pair of what is special, within a path and at its ends.
	special := []string{
		"", "/", "//", "..", ".", "%2e%2e", "%2e", "%2f", "%2F", "%5c", `\`, ";", "%3b", "%3f", "%23", "%20", "+", "%25", "%252e", "%252f",
		"%c2%ad", "%e2%80%8b", "%ef%bc%8e", "%ef%bc%8f", "%ef%bc%bc", "%c2%a5", "%ef%bd%81", "%41", "X", "%c3%a9", ":", "@", "%00",
	}
	var targets []string
	for _, a := range special {
		for _, b := range special {
			for _, c := range []string{"", "..", "%2e%2e", "/admin", "%2fadmin"} {
				targets = append(targets, "/v1/"+a+b+c, "/v1/x"+a+b+c, "/"+a+b+"v1"+c)
			}
		}
	}
	passed := 0
	for _, s := range servers {
		if !strings.HasPrefix(s.Source, "https://") {
			t.Errorf("%s has no source", s.Server)
		}
		for _, step := range s.Steps {
			if serverSteps[step] == nil {
				t.Fatalf("%s: no step %q", s.Server, step)
			}
		}
	}
	for _, target := range targets {
		decided, sent, err := urlpath.Canonical(target)
		if err != nil {
			continue
		}
		passed++
		if u, err := url.ParseRequestURI(sent); err != nil || u.EscapedPath() != sent {
			t.Errorf("%s is sent as %s, which net/url writes as %v, %v", target, sent, u, err)
		}
		for _, s := range servers {
			read, may := sent, pathvariants.Of(decided)
			if s.Steps == nil || !slices.ContainsFunc(s.Steps, func(s string) bool { return strings.HasPrefix(s, "decode") }) {
				read = serverSteps["decode but slashes"](read) // to be compared; what it routes by is as it stands
			}
			for _, step := range s.Steps {
				read = serverSteps[step](read)
				if slices.Contains(alike, step) {
					may = slices.Clone(may)
					for i := range may {
						may[i] = serverSteps[step](may[i])
					}
				}
			}
			for _, step := range s.Steps {
				if slices.Contains(alike, step) {
					read = serverSteps[step](read) // by then, whatever comes first
				}
			}
			if !slices.Contains(may, read) {
				t.Errorf("%s: %s is sent as %s and read as %s; decided were %q", s.Server, target, sent, read, pathvariants.Of(decided))
			}
		}
	}
	if passed < 500 || passed > len(targets)*2/3 {
		t.Errorf("%d of %d targets pass", passed, len(targets))
	}
}
