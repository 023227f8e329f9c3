package auditlog_test

import (
	"fmt"
	"sync"
	"testing"

	"sallyport/audit"
	"sallyport/audit/auditlog"
	"sallyport/internal/test/must"
)

// TestLogLetsGo writes one exchange's events over and over: the log has each as
// it was when it was handed over.
func TestLogLetsGo(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, auditlog.Options{})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			x := new(audit.Exchange)
			for i := range 50 {
				d := x.Decide(audit.ClassHTTP, 3)
				d.Message, d.Action = fmt.Sprintf("%d/%d", w, i), audit.ActionAllowed
				x.Rule.Name = d.Message
				d.Rule = &x.Rule
				if err := l.Append(t.Context(), d); err != nil {
					t.Error(err)
				}
				c := x.Complete(3)
				c.Message = d.Message
				if err := l.Enqueue(c); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	must.OK(t, l.Close())
	seen := map[string]int{}
	for r, err := range auditlog.Pair(t.Context(), dir, auditlog.Query{}, 0) {
		must.OK(t, err)
		if r.Decision == nil || r.Completion == nil || r.Decision.Message != r.Completion.Message ||
			r.Decision.Rule.Name != r.Decision.Message || r.Completion.Rule.Name != r.Decision.Message {
			t.Fatalf("a record of parts that do not belong together: %s", auditlog.Line(r))
		}
		seen[r.Decision.Message]++
	}
	if len(seen) != 400 {
		t.Errorf("%d records, want 400", len(seen))
	}
}
