package memorycmd

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/cmd/sallyport/cli"
	"sallyport/internal/test/must"
	"sallyport/memory"
)

// daemonOf is a stand-in for a daemon, which answers operations by their names, and the
// configuration of its clients.
func daemonOf(t *testing.T, answers func(operation string) string) (config string) {
	t.Helper()
	dir := t.TempDir()
	config = filepath.Join(dir, "sallyport.yaml")
	must.OK(t, os.WriteFile(config, []byte(fmt.Sprintf("dataDir: %s\nrunDir: %s\n", dir, dir)), 0o600))
	l, err := net.Listen("unix", filepath.Join(dir, "sallyport.sock"))
	must.OK(t, err)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, answers(path.Base(r.URL.Path))+"\n")
	})}
	t.Cleanup(func() { s.Close() })
	go s.Serve(l) //nolint:errcheck // it is closed
	return config
}

// run runs a command of `sallyport memory`.
func run(t *testing.T, config string, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, complaint bytes.Buffer
	c := cli.Root("", New)
	c.SetOut(&out)
	c.SetErr(&complaint)
	c.SetArgs(append([]string{"--config", config, "memory"}, args...))
	must.OK(t, c.Execute())
	return out.String(), complaint.String()
}

// Each command that shows or writes a file says in its text why that is not trusted, or in
// quarantine. The marks of what is written to a file or a pipe are on standard error.
func TestTextHasTheMarks(t *testing.T) {
	const marks = `"untrusted": "learned from evil.example", "quarantined": "secret: found"`
	file := filepath.Join(t.TempDir(), "a.sh")
	must.OK(t, os.WriteFile(file, []byte("#!/bin/sh\n"), 0o600))
	for name, tt := range map[string]struct {
		answer string
		args   []string
		stderr bool
	}{
		"search":          {`{"found": [{"path": "a.md", ` + marks + `}]}`, []string{"word"}, false},
		"retrieve":        {`{"found": [{"path": "a.md", ` + marks + `}]}`, []string{"word"}, false},
		"store":           {`{"path": "a.md", ` + marks + `}`, []string{"text"}, false},
		"find_scripts":    {`[{"name": "a.sh", ` + marks + `}]`, nil, false},
		"register_script": {`{"name": "a.sh", ` + marks + `}`, []string{file, "--description", "x"}, false},
		"run_script":      {`{` + marks + `}` + "\n" + `{"status": 0}`, []string{"a.sh"}, true},
		"put_artifact":    {`{"digest": "x", ` + marks + `}`, []string{file}, true},
		"get_artifact":    {`{"digest": "x", ` + marks + `}`, []string{"x"}, true},
		"get_state":       {`{"key": "k", "value": 1, ` + marks + `}`, []string{"k"}, true},
		"diff":            {`[{"path": "a.md", "op": "added", "to": {}, ` + marks + `}]`, []string{"1"}, false},
		"history":         {`{"commits": [], ` + marks + `}`, []string{"a.md"}, false},
		"compact":         {`{"plan": {"summaries": [{"path": "a.md", ` + marks + `}]}}`, nil, false},
		"view":            {`{"commits": [], ` + marks + `}`, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			config := daemonOf(t, func(operation string) string {
				if operation == "index" {
					return `{"index": {}}`
				}
				return tt.answer
			})
			_, err := memory.Ensure(filepath.Join(filepath.Dir(config), "sandboxes", "demo"))
			must.OK(t, err)
			out, complaint := run(t, config, append([]string{name, "demo"}, tt.args...)...)
			if tt.stderr {
				out = complaint
			}
			for _, want := range []string{"untrusted: learned from evil.example", "quarantined: secret: found"} {
				if !strings.Contains(out, want) {
					t.Errorf("not %q in: %s", want, out)
				}
			}
			if strings.Contains(out, "is remembered") || strings.Contains(out, "is registered") {
				t.Errorf("of what is in quarantine: %s", out)
			}
		})
	}
}

// Without a daemon a file is shown, and nothing is known of where it is from.
func TestViewWithoutADaemon(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "sallyport.yaml")
	must.OK(t, os.WriteFile(config, []byte(fmt.Sprintf("dataDir: %s\nrunDir: %s\n", dir, dir)), 0o600))
	_, err := memory.Ensure(filepath.Join(dir, "sandboxes", "demo"))
	must.OK(t, err)
	if out, complaint := run(t, config, "view", "demo"); out != "# Memories\n" || !strings.Contains(complaint, "untrusted: the daemon does not answer") {
		t.Errorf("%q, %q", out, complaint)
	}
}

// The text of the history has the session of a version, and what it says of those before.
func TestHistoryText(t *testing.T) {
	config := daemonOf(t, func(string) string {
		return `{"commits": [{"number": 7, "time": "2026-11-26T18:28:05Z", "trimmed": true, "dropped": ["aa", "bb"], "cause": {"operation": "command", "command": "sh", "session": "s-1\u001b"}}]}`
	})
	out, _ := run(t, config, "history", "demo")
	for _, want := range []string{"session s-1\\x1b\n", "trimmed: the versions before it", "dropped: 2 contents"} {
		if !strings.Contains(out, want) {
			t.Errorf("not %q in: %s", want, out)
		}
	}
}
