package deptest

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"sallyport/internal/test/must"
)

// Where the tests are that docs/reference/ways-around.md names.
var waysIn = map[string]string{
	"bypass":      "internal/e2e/bypass",
	"e2e":         "internal/e2e",
	"datapath":    "sandbox/datapath",
	"gateway":     "gateway",
	"access":      "gateway/access",
	"sniff":       "gateway/sniff",
	"denials":     "gateway/denials",
	"urlpath":     "policy/urlpath",
	"supervisor":  "gateway/supervisor",
	"worker":      "gateway/worker",
	"jail":        "internal/jail",
	"upstream":    "gateway/upstream",
	"resolver":    "gateway/resolver",
	"ca":          "gateway/ca",
	"api":         "internal/api",
	"channel":     "sandbox/agent/channel",
	"agent":       "sandbox/agent",
	"docker":      "sandbox/docker",
	"disk":        "sandbox/disk",
	"manager":     "sandbox/manager",
	"fsjail":      "sandbox/fsjail",
	"ssh":         "internal/ssh",
	"engine":      "policy/engine",
	"limit":       "policy/limit",
	"approval":    "policy/approval",
	"auditlog":    "audit/auditlog",
	"ratelimit":   "internal/ratelimit",
	"placeholder": "gateway/placeholder",
	"postgres":    "gateway/postgres",
	"redis":       "gateway/redis",
	"gatewayssh":  "gateway/ssh",
}

// Each test that docs/reference/ways-around.md names is there: a function, or a part of one by
// both names, or a case of the bypass suite by its group and its name. Each row names one.
func TestWaysAround(t *testing.T) {
	const root = "../../.."
	text, err := os.ReadFile(filepath.Join(root, "docs/reference/ways-around.md"))
	must.OK(t, err)
	sources := map[string]string{}
	for word, dir := range waysIn {
		files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", dir, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			must.OK(t, err)
			sources[word] += string(b)
		}
	}
	named := regexp.MustCompile("`([a-z0-9]+): ([^`]+)`")
	rows := 0
	for line := range strings.Lines(string(text)) {
		columns := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| ") || len(columns) < 3 || columns[1] == "test" || strings.HasPrefix(line, "|---") || strings.HasPrefix(columns[1], "[") {
			continue
		}
		rows++
		tests := named.FindAllStringSubmatch(columns[1], -1)
		if len(tests) != strings.Count(columns[1], "`")/2 || len(tests) == 0 {
			t.Errorf("a row whose tests cannot be read: %s", line)
		}
		for _, m := range tests {
			where, name := m[1], m[2]
			source, ok := sources[where]
			group, of, isCase := strings.Cut(name, "/")
			switch {
			case !ok:
				t.Errorf("%s: no such place", m[0])
			case !isCase && !strings.Contains(source, "\nfunc "+name+"(t *testing.T)"):
				t.Errorf("%s: no such test", m[0])
			case isCase && !(strings.Contains(source, strconv.Quote(of)) &&
				(group == "suite" || strings.Contains(source, strconv.Quote(group)) || strings.Contains(source, "\nfunc "+group+"(t *testing.T)"))):
				t.Errorf("%s: no such case", m[0])
			}
		}
	}
	if rows < 60 {
		t.Errorf("%d rows", rows)
	}
}
