package daemon

import (
	"errors"
	"log/slog"
	"path/filepath"
	"testing"

	"sallyport/audit"
	"sallyport/audit/tree"
	"sallyport/gateway/supervisor"
	"sallyport/internal/config"
	"sallyport/internal/test/must"
)

// The last checkpoint covers what was recorded until the end, also what was only queued.
func TestLastCheckpoint(t *testing.T) {
	dir := t.TempDir()
	d := &daemon{cfg: &config.Config{DataDir: filepath.Join(dir, "data"), KeyFile: filepath.Join(dir, "key")}, log: slog.New(slog.DiscardHandler)}
	must.OK(t, d.openAuditLog(t.Context()))
	const queued = 2000
	for range queued {
		must.OK(t, d.auditLog.Enqueue(changed("sallyport", "sallyport", "stopped", "")))
	}
	must.OK(t, d.close())
	key, err := tree.ReadKey(d.cfg.AuditDir())
	must.OK(t, err)
	r, err := tree.VerifyLog(t.Context(), d.cfg.AuditDir(), key, nil)
	if err != nil || len(r.Findings) > 0 || len(r.Ranges) != 1 || r.Ranges[0] != (tree.Range{First: 1, Last: queued + 1, Anchor: tree.ByCheckpoint}) {
		t.Errorf("%v, %v", r, err)
	}
	if err := d.auditLog.Append(t.Context(), changed("sallyport", "", "", "")); !errors.Is(err, audit.ErrClosed) {
		t.Errorf("the log is open: %v", err)
	}
	var _ tree.Log = (*supervisor.AuditLog)(nil)
}
