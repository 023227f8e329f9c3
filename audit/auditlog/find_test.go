package auditlog_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// A decision is found by its id in whichever segment it is; its completion, which
// names it, is not taken for it.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	l, err := auditlog.Open(dir, auditlog.Options{SegmentSize: 4 << 10})
	must.OK(t, err)
	var ids, completions []string
	for range 50 {
		x := new(audit.Exchange)
		d := decide(x)
		ids = append(ids, d.ID())
		must.OK(t, l.Append(t.Context(), d))
		c := complete(x)
		must.OK(t, l.Append(t.Context(), c))
		completions = append(completions, c.ID())
	}
	for _, id := range []string{ids[0], ids[20], ids[49]} { // the last while the log is open
		e, err := auditlog.Find(t.Context(), dir, id)
		if err != nil || e.ID() != id || e.Unmapped.Sallyport.Kind != audit.KindDecision {
			t.Errorf("%s: got %v, %v", id, e, err)
		}
	}
	for _, id := range []string{ids[0], ids[49]} {
		if has, err := auditlog.Has(t.Context(), dir, id); !has || err != nil {
			t.Errorf("Has %s: got %v, %v", id, has, err)
		}
	}
	if e, err := auditlog.Lookup(t.Context(), dir, completions[20]); err != nil || e == nil || e.ID() != completions[20] {
		t.Errorf("a completion: got %v, %v", e, err)
	}
	for _, id := range []string{"0192f0c1-0000-7000-8000-000000000001", uuid.Must(uuid.NewV7()).String()} {
		if has, err := auditlog.Has(t.Context(), dir, id); has || err != nil {
			t.Errorf("Has %s: got %v, %v", id, has, err)
		}
	}
	must.OK(t, l.Close())
	for _, id := range []string{"", "nothing", `"`, "0192f0c1-0000-7000-8000-000000000001"} {
		if e, err := auditlog.Find(t.Context(), dir, id); !errors.Is(err, auditlog.ErrNoDecision) {
			t.Errorf("%q: got %v, %v", id, e, err)
		}
	}
}
