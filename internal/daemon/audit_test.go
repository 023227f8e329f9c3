package daemon

import (
	"errors"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sallyport/audit/auditlog"
	"sallyport/audit/sink"
	"sallyport/audit/tree"
	"sallyport/gateway/supervisor"
	"sallyport/internal/config"
	"sallyport/internal/daemon/metrics"
	"sallyport/internal/test/must"
)

// Records that a sink lacks are not shipped, and without sinks all are.
func TestShipped(t *testing.T) {
	dir := t.TempDir()
	d := &daemon{cfg: &config.Config{DataDir: filepath.Join(dir, "data"), KeyFile: filepath.Join(dir, "key")}, log: slog.New(slog.DiscardHandler)}
	must.OK(t, d.openAuditLog(t.Context()))
	defer d.close()
	d.sinks.Set = sink.NewSet(sink.Options{Log: d.cfg.AuditDir(), Dir: filepath.Join(dir, "sinks"), Dead: filepath.Join(dir, "dead"), Logger: d.log, Durable: d.auditLog.Durable})
	if last, of := (shipped{d}).Shipped(); last != math.MaxUint64 || of != "" {
		t.Error(last, of)
	}
	plan, err := d.sinks.Prepare(t.Context(), []sink.Config{{Name: "siem", Type: sink.File, Encoding: "ocsf", Path: filepath.Join(dir, "out")}})
	must.OK(t, err)
	d.sinks.Use(plan)
	if last, of := (shipped{d}).Shipped(); last != 0 || of != "siem" {
		t.Error(last, of)
	}
}

// The keeper of the log follows the configuration, and its metrics are there.
func TestRetentionFollows(t *testing.T) {
	no, yes := false, true
	for _, tt := range []struct {
		r    config.Retention
		want []any
	}{
		{config.Retention{}, []any{time.Duration(0), int64(0), false}},
		{config.Retention{Keep: config.Age(time.Hour), Bytes: 7, Compress: &no}, []any{time.Hour, int64(7), true}},
		{config.Retention{Compress: &yes}, []any{time.Duration(0), int64(0), false}},
	} {
		p := retentionPolicy(&config.Config{Audit: config.Audit{Retention: tt.r}})
		if got := []any{p.Keep, p.Bytes, p.Plain}; !slices.Equal(got, tt.want) {
			t.Errorf("%+v: %v", tt.r, got)
		}
	}
	dir := t.TempDir()
	d := &daemon{cfg: &config.Config{DataDir: filepath.Join(dir, "data"), KeyFile: filepath.Join(dir, "key")}, log: slog.New(slog.DiscardHandler)}
	must.OK(t, d.openAuditLog(t.Context()))
	must.OK(t, d.auditLog.Append(t.Context(), d.changed("sallyport", "sallyport", "started")))
	r := prometheus.NewRegistry()
	r.MustRegister(metrics.Retention(d.retention.Status)...)
	families, err := r.Gather()
	if err != nil || len(families) != 8 {
		t.Error(families, err)
	}
	must.OK(t, d.close())
}

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
	if err := d.auditLog.Append(t.Context(), changed("sallyport", "", "", "")); !errors.Is(err, auditlog.ErrClosed) {
		t.Errorf("the log is open: %v", err)
	}
	var _ tree.Log = (*supervisor.AuditLog)(nil)
}
