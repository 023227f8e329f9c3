package main

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/audit/tree"
	"sallyport/internal/seal"
	"sallyport/internal/test/clitest"
	"sallyport/internal/test/must"
)

type plainLog struct{ *auditlog.Log }

func (l plainLog) Durable() uint64 { return l.Begins() - 1 + l.Stats().Events }

// sealedLog makes a log of three events that a daemon has ended. It returns the folder
// and the ids.
func sealedLog(t *testing.T, dir string) (string, []string) {
	t.Helper()
	key, err := seal.Open(filepath.Join(dir, "key"), filepath.Join(dir, "data"))
	must.OK(t, err)
	logDir := filepath.Join(dir, "data", "audit")
	log, err := auditlog.Open(logDir, auditlog.Options{})
	must.OK(t, err)
	var ids []string
	for range 3 {
		e := audit.New(audit.KindDrop, audit.ClassNetwork, audit.NetworkRefuse)
		must.OK(t, log.Append(t.Context(), e))
		ids = append(ids, e.ID())
	}
	s := tree.NewSealer(tree.Options{Dir: logDir, Log: plainLog{log}, Key: key, Logger: slog.New(slog.DiscardHandler)})
	must.OK(t, s.Close())
	must.OK(t, log.Close())
	return logDir, ids
}

func TestAuditVerify(t *testing.T) {
	dir, file := clitest.Configured(t, "")
	if out, status, err := run(t, "", "--config", file, "audit", "verify"); status != 2 || !strings.Contains(err.Error(), "no key") {
		t.Errorf("before the first start: %d %v %s", status, err, out)
	}
	logDir, ids := sealedLog(t, dir)
	out, status, _ := run(t, "", "--config", file, "audit", "verify")
	if status != 0 || !strings.Contains(out, "records 1 to 4: anchored by a checkpoint") {
		t.Errorf("%d %s", status, out)
	}
	out, status, _ = run(t, "", "--config", file, "audit", "verify", "-o", "json")
	var r tree.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != 0 || r.Records != 4 {
		t.Errorf("as JSON: %d %v %s", status, err, out)
	}
	key, status, _ := run(t, "", "--config", file, "audit", "key")
	if status != 0 || !strings.HasPrefix(key, "sallyport/") {
		t.Errorf("the key: %d %s", status, key)
	}
	segments, _ := filepath.Glob(filepath.Join(logDir, "*.jsonl"))
	b, err := os.ReadFile(segments[0])
	must.OK(t, err)
	export := filepath.Join(dir, "export.ndjson")
	must.OK(t, os.WriteFile(export, b, 0o600))
	// No configuration is needed elsewhere.
	for _, tt := range []struct {
		name, stdin string
		args        string
		status      int
		says        string
	}{
		{"an export", "", "--export " + export + " --first 1", 0, "nothing wrong"},
		{"an export at the standard input", string(b), "--export -", 0, "nothing wrong"},
		{"its checkpoints", "", "--export " + export + " --anchors " + export, 0, "records 1 to 3: anchored by an outside checkpoint"},
		{"without its first record", strings.SplitAfterN(string(b), "\n", 2)[1], "--export - --first 1", 1, "FOUND missing, record 1"},
		{"no record", "{}\n", "--export -", 2, ""},
		{"no file", "", "--export " + export + ".none", 2, ""},
		{"no anchors", "", "--export " + export + " --anchors " + export + ".none", 2, ""},
	} {
		args := append([]string{"--config", filepath.Join(dir, "none.yaml"), "audit", "verify", "--key", key}, strings.Fields(tt.args)...)
		out, status, err := run(t, tt.stdin, args...)
		if status != tt.status || !strings.Contains(out, tt.says) {
			t.Errorf("%s: %d %v %s", tt.name, status, err, out)
		}
	}
	for _, id := range []string{ids[1], "2"} {
		out, status, err := run(t, "", "--config", file, "audit", "prove", id)
		var p tree.Proof
		if err := json.Unmarshal([]byte(out), &p); err != nil {
			t.Error(err)
		}
		if status != 0 || p.Index != 1 || !strings.Contains(p.Record, ids[1]) || p.Key != strings.TrimSpace(key) {
			t.Errorf("%s: %d %v %s", id, status, err, out)
		}
	}
	for id, says := range map[string]string{"4": "no checkpoint covers", "019a1f2e-7c1b-7d64-9a51-6f0d6f4c2a11": "no record", "x": "no event's id"} {
		if _, status, err := run(t, "", "--config", file, "audit", "prove", id); status != 1 || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %d %v", id, status, err)
		}
	}
	// Somebody changes the log.
	must.OK(t, os.WriteFile(segments[0], []byte(strings.Replace(string(b), ids[1], ids[0], 1)), 0o600))
	if out, status, _ := run(t, "", "--config", file, "audit", "verify"); status != 1 || !strings.Contains(out, "FOUND changed, record 2") {
		t.Errorf("changed: %d %s", status, out)
	}
	if _, status, err := run(t, "", "--config", file, "audit", "prove", "2"); status != 1 || !strings.Contains(err.Error(), "not as it was signed") {
		t.Errorf("proving what was changed: %d %v", status, err)
	}
}
