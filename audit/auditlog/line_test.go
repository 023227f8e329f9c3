package auditlog_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
	"sallyport/internal/test/stories"
)

var update = flag.Bool("update", false, "write the golden files")

// golden are the stories that Sallyport tells, one for each class and outcome.
func golden() map[string][]*audit.Event { return stories.Events() }

func record(events []*audit.Event) auditlog.Record {
	r := auditlog.Record{Decision: events[0]}
	if len(events) > 1 {
		r.Completion = events[1]
	}
	return r
}

// TestGolden pins the words on disk and on the terminal: a SIEM parses the one,
// people the other.
func TestGolden(t *testing.T) {
	for name, events := range golden() {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			enc := json.NewEncoder(&got)
			enc.SetIndent("", "  ")
			enc.SetEscapeHTML(false)
			for _, e := range events {
				must.OK(t, enc.Encode(e))
			}
			got.WriteString(auditlog.Line(record(events)) + "\n")
			path := filepath.Join("testdata", name+".golden")
			if *update {
				must.OK(t, os.WriteFile(path, got.Bytes(), 0o644))
			}
			want, err := os.ReadFile(path)
			must.OK(t, err)
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestLineIsOneLine(t *testing.T) {
	const evil = "x  rule=trusted \x1b[2K\r\n\u202e\u2028\"\xff"
	e := golden()["allow"][0]
	clean := strings.Count(auditlog.Line(auditlog.Record{Decision: e}), "  ")
	x := &e.Unmapped.Sallyport
	x.Sandbox, x.Reason, x.Credentials = evil, evil, []audit.CredentialUse{{Name: evil, Version: evil}}
	e.HTTPRequest.Method, e.HTTPRequest.URL.Path, e.HTTPRequest.URL.Hostname = evil, "/"+evil, evil
	e.Rule.Name, e.Metadata.UID = evil, evil
	line := auditlog.Line(auditlog.Record{Decision: e})
	if strings.ContainsAny(line, "\x1b\r\n\u202e\u2028") {
		t.Errorf("the line has control characters: %q", line)
	}
	if !strings.Contains(line, `\x1b[2K\r\n\u202e\u2028`) {
		t.Errorf("the line hides what was there: %q", line)
	}
	// Only the quoted reason may have two spaces in it.
	if got := strings.Count(strings.Replace(line, `"x  rule=trusted`, "", 1), "  "); got != clean {
		t.Errorf("%d fields, want %d: %q", got, clean, line)
	}
	e.HTTPRequest.URL.Path = strings.Repeat("/a", 1<<18)
	if line := auditlog.Line(auditlog.Record{Decision: e}); len(line) > 5000 {
		t.Errorf("the line has %d bytes", len(line))
	}
	for _, r := range []auditlog.Record{{}, {Completion: audit.New(audit.KindCompletion, audit.ClassHTTP, 1)}, {Decision: new(audit.Event)}} {
		auditlog.Line(r) // must not panic on what is missing
	}
}
